//! A check of the lock in each setting; `soak::settings` has all other checks in the settings.

use coordination::Result;
use coordination_tests::checks::{Programs, TestStore, run, settings};

macro_rules! lock {
    (@store [] $module:ident $setting:ident $share:ident $kind:ident) => {
        mod $module {
            coordination_tests::conformance! {
                @test [shared $setting safety s1_exclusion_of_processes]
            }
        }
    };
}

coordination_tests::settings! { gate [lock] [] }

/// In the setting `plain` the library has to do without what only Linux has. Otherwise all checks of that setting would
/// check the same as those of the store. The file of a name with a capital letter tells which it is.
#[test]
fn file_plain_is_plain() -> Result<()> {
    let programs =
        Programs { worker: env!("CARGO_BIN_EXE_worker"), forker: env!("CARGO_BIN_EXE_forker") };
    let store = || TestStore::shared(settings::FILE_PLAIN, programs);
    run(("settings", "file_plain_is_plain"), store, async |store| {
        let coordinator = store.connect("one").await?;
        coordinator.lock("Vol-7")?.acquire(None).await?.release().await?;
        let queues = store.directory().join("coordination/queues");
        assert!(queues.join("lock.%56ol-7").exists(), "it does what is done on Linux");
        Ok(())
    })
}
