//! A check of the lock in each setting; `soak::settings` has all other checks in the settings.

macro_rules! lock {
    (@store [] $module:ident $setting:ident $share:ident $kind:ident) => {
        mod $module {
            coordination_tests::conformance! {
                @test [shared $setting safety s1_exclusion_of_processes]
            }
        }
    };
}

coordination_tests::settings! { [lock] [] }
