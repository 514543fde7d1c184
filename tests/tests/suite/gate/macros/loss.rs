//! What happens to a body and its result when the lock is lost.

use std::sync::atomic::AtomicBool;

use super::*;

/// Records that the body was dropped.
struct Dropped<'a>(&'a AtomicBool);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

async fn break_once_entered(breaker: &Coordinator, entered: &Notify) -> Result {
    entered.notified().await;
    breaker.lock("fragile")?.break_lock().await.map(|holder| assert!(holder.is_some()))
}

#[tokio::test]
async fn the_body_is_dropped_and_the_caller_told() -> Result {
    #[synchronized("fragile", coordinator = c)]
    async fn cancelled(c: &Coordinator, entered: &Notify, dropped: &AtomicBool) -> Result {
        let _dropped = Dropped(dropped);
        entered.notify_one();
        pending().await
    }

    let (c, breaker) = (connect("cancel").await?, connect("cancel").await?);
    let (entered, dropped) = (Notify::new(), AtomicBool::new(false));
    let (result, broken) = tokio::join!(
        timeout(PATIENCE, cancelled(&c, &entered, &dropped)),
        break_once_entered(&breaker, &entered),
    );
    broken?;
    let lost = result.expect("the loss is noticed").expect_err("the lock was broken");
    assert_eq!(lost.kind(), ErrorKind::Lost);
    assert!(lost.loss_reason().is_some());
    assert!(dropped.load(Ordering::SeqCst));
    becomes_free(&breaker.lock("fragile")?).await
}

#[tokio::test]
async fn a_body_with_finish_goes_on() -> Result {
    #[synchronized("fragile", on_lost = "finish", guard = guard, coordinator = c)]
    async fn finished(c: &Coordinator, entered: &Notify) -> Result<&'static str> {
        entered.notify_one();
        guard.lost().await;
        yield_now().await;
        Ok("done")
    }

    let (c, breaker) = (connect("finish").await?, connect("finish").await?);
    let entered = Notify::new();
    let (result, broken) = tokio::join!(
        timeout(PATIENCE, finished(&c, &entered)),
        break_once_entered(&breaker, &entered),
    );
    broken?;
    assert_eq!(result.expect("the loss is noticed")?, "done");
    becomes_free(&breaker.lock("fragile")?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_without_an_await_becomes_lost() -> Result {
    #[synchronized("fragile", guard = guard, coordinator = c)]
    async fn outlived(c: Coordinator, entered: Arc<Notify>, succeed: bool) -> Result<(), Failure> {
        entered.notify_one();
        while guard.is_held() {
            std::thread::sleep(Duration::from_millis(5));
        }
        if succeed { Ok(()) } else { Err(Failure::Own) }
    }

    let (c, breaker) = (connect("no-await").await?, connect("no-await").await?);
    for succeed in [true, false] {
        let entered = Arc::new(Notify::new());
        let running = tokio::spawn(outlived(c.clone(), entered.clone(), succeed));
        break_once_entered(&breaker, &entered).await?;
        let result = timeout(PATIENCE, running).await.expect("the loss is noticed");
        lost_or_own(result.expect("the body does not panic"), succeed);
        becomes_free(&breaker.lock("fragile")?).await?;
    }
    Ok(())
}

/// Asserts what a call returns after its lock was lost: the error `Lost` if the body succeeded, and otherwise the
/// body's own error.
fn lost_or_own(result: Result<(), Failure>, success: bool) {
    match result {
        Err(Failure::Lock(error)) if success => assert_eq!(error.kind(), ErrorKind::Lost),
        Err(Failure::Own) if !success => {}
        other => panic!("success: {success}, but {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_of_a_thread_becomes_lost() -> Result {
    #[synchronized("fragile", guard = guard, coordinator = c)]
    fn outlived(c: Coordinator, entered: Arc<Notify>, succeed: bool) -> Result<(), Failure> {
        entered.notify_one();
        while guard.is_held() {
            std::thread::sleep(Duration::from_millis(5));
        }
        if succeed { Ok(()) } else { Err(Failure::Own) }
    }

    let (c, breaker) = (connect("thread-loss").await?, connect("thread-loss").await?);
    for succeed in [true, false] {
        let entered = Arc::new(Notify::new());
        let (call, told) = (c.clone(), entered.clone());
        let running = spawn_blocking(move || outlived(call, told, succeed));
        break_once_entered(&breaker, &entered).await?;
        let result = timeout(PATIENCE, running).await.expect("the loss is noticed");
        lost_or_own(result.expect("the body does not panic"), succeed);
        becomes_free(&breaker.lock("fragile")?).await?;
    }
    Ok(())
}
