//! The suite for stores on those whose server is optional; `gate::store_suite` has the others.

macro_rules! on_store {
    (@store [] $module:ident $backend:ident $share:ident $kind:ident) => {
        mod $module {
            use coordination_tests::{checks::Backend, store_suite, harness::judged};

            fn check(name: &str) {
                judged(|| store_suite::run(Backend::$backend, name, None)).expect(name);
            }

            coordination::store_suite!(proxy check);
        }
    };
}

coordination_tests::optional_stores! { [on_store] [] }
