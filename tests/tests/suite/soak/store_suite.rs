//! The suite for stores, on stores whose server is optional; `gate::store_suite` runs it on the others.

macro_rules! on_store {
    (@store [] $module:ident $backend:ident $share:ident $kind:ident) => {
        mod $module {
            use coordination_tests::{checks::Backend, store_suite, harness::rerun_if_starved};

            fn check(name: &str) {
                rerun_if_starved(|| store_suite::run(Backend::$backend, name, None)).expect(name);
            }

            coordination::store_suite!(proxy check);
        }
    };
}

coordination_tests::optional_stores! { [on_store] [] }
