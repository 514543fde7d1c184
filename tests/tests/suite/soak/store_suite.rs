//! The suite for stores, on stores whose server is optional, and in settings in which the store's statements go another way;
//! `gate::store_suite` runs it on the other stores.

macro_rules! on_store {
    (@store [] $module:ident $setting:ident $share:ident $kind:ident) => {
        on_store! { $module $setting }
    };
    ($module:ident $setting:ident) => {
        mod $module {
            use coordination_tests::{checks::settings, harness::rerun_if_starved, store_suite};

            fn check(name: &str) {
                rerun_if_starved(|| store_suite::run(settings::$setting, name, None)).expect(name);
            }

            coordination::store_suite!(proxy check);
        }
    };
}

coordination_tests::optional_stores! { [on_store] [] }

#[cfg(feature = "postgres")]
on_store! { postgres_pooled POSTGRES_POOLED }

#[cfg(feature = "postgres")]
on_store! { postgres_rights POSTGRES_RIGHTS }

#[cfg(feature = "mysql")]
on_store! { mysql_rights MYSQL_RIGHTS }
