use std::future::{Future, pending};
use std::time::Duration;

use coordination::testing::Sandbox;
use coordination::{Effect, ErrorKind, LossReason, Recipe, State, synchronized};

/// The code under test. It knows nothing of the tests.
#[synchronized("vol-<id>", timeout = "5s")]
async fn resize(id: u32, work: impl Future<Output = ()>) -> coordination::Result<u32> {
    work.await;
    Ok(id)
}

#[tokio::test]
async fn a_free_volume_is_resized() -> coordination::Result<()> {
    let sandbox = Sandbox::new()?;
    let _entered = sandbox.enter();

    assert_eq!(resize(7, async {}).await?, 7);
    Ok(())
}

// What the code under test spawns sees the sandbox too, on all threads of the test's runtime.
#[tokio::test(flavor = "multi_thread")]
async fn two_tasks_resize_one_after_the_other() -> coordination::Result<()> {
    let sandbox = Sandbox::new()?;
    let _entered = sandbox.enter();

    let first = tokio::spawn(resize(7, tokio::task::yield_now()));
    let second = tokio::spawn(resize(7, tokio::task::yield_now()));
    assert_eq!(first.await.expect("no panic")? + second.await.expect("no panic")?, 14);
    Ok(())
}

// The clock is paused, so the five seconds of the timeout take no time.
#[tokio::test(start_paused = true)]
async fn what_another_process_holds_is_not_resized() -> coordination::Result<()> {
    let sandbox = Sandbox::on_this_runtime().await?;
    let _entered = sandbox.enter();

    let other = sandbox.another().await?;
    let held = other.lock("vol-7")?.acquire(None).await?;
    let error = resize(7, async { panic!("it is held") }).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Timeout, Effect::None));

    held.release().await?;
    assert_eq!(resize(7, async {}).await?, 7);
    Ok(())
}

#[tokio::test]
async fn work_stops_when_the_lock_is_lost() -> coordination::Result<()> {
    let sandbox = Sandbox::new()?;
    let _entered = sandbox.enter();

    let lost = resize(7, async {
        sandbox.lose_session();
        pending().await
    });
    let error = lost.await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Lost, Effect::Unknown));

    let deleted = resize(7, async {
        assert!(sandbox.delete_entry(Recipe::Lock, "vol-7").expect("a good name"));
        pending().await
    });
    assert_eq!(deleted.await.unwrap_err().loss_reason(), Some(LossReason::EntryDeleted));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_store_is_waited_for() -> coordination::Result<()> {
    let sandbox = Sandbox::on_this_runtime().await?;
    let _entered = sandbox.enter();

    sandbox.set_reachable(false);
    assert_eq!(resize(7, async {}).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(sandbox.coordinator().state().current(), State::Suspended);

    let waiting = tokio::spawn(resize(7, async {}));
    tokio::time::sleep(Duration::from_secs(2)).await;
    sandbox.set_reachable(true);
    assert_eq!(waiting.await.expect("no panic")?, 7);
    Ok(())
}
