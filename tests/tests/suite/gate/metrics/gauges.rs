//! Each gauge goes down as often as it went up, in whatever way the holds, waits or sessions end that it counts.

use std::panic::AssertUnwindSafe;

use coordination::{Coordinator, State};
use metrics_exporter_prometheus::PrometheusRecorder;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

use super::{Result, SECOND, Scrape, connect, listen, recorder};

/// The three gauges, each added up over all its series: locks that are held, waits, and sessions.
fn gauges(recorder: &PrometheusRecorder) -> [f64; 3] {
    let scrape = Scrape::of(recorder);
    ["coordination_held", "coordination_waiting", "coordination_sessions"]
        .map(|gauge| scrape.sum(gauge, &[]))
}

#[tokio::test(start_paused = true)]
async fn held_and_waiting_are_what_is_held_and_waits() -> Result {
    let recorder = recorder();
    let _listening = listen(&recorder);
    let (one, other) = (connect("gauges", "one").await?, connect("gauges", "other").await?);
    assert_eq!(gauges(&recorder), [0.0, 0.0, 2.0]);
    let held = one.lock("a")?.acquire(None).await?;
    let lock = other.lock("a")?;
    let waiting = tokio::spawn(async move { lock.acquire(None).await });
    sleep(SECOND).await;
    assert_eq!(gauges(&recorder), [1.0, 1.0, 2.0]);
    held.release().await?;
    let held = waiting.await.expect("no panic")?;
    assert_eq!(gauges(&recorder), [1.0, 0.0, 2.0]);
    // The stop of `other` loses the lock, which lowers the gauge. The release of the lost lock must not lower it a
    // second time.
    other.stop().await?;
    assert_eq!(gauges(&recorder), [0.0, 0.0, 1.0]);
    held.release().await.expect_err("it was lost");
    assert_eq!(gauges(&recorder), [0.0, 0.0, 1.0]);
    one.stop().await?;
    assert_eq!(gauges(&recorder), [0.0, 0.0, 0.0]);
    Ok(())
}

/// Waits and holds end in every possible way, many times. The gauges must be right after each round.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_whatever_ends_it() -> Result {
    let recorder = recorder();
    let _listening = listen(&recorder);
    for round in 0..20 {
        let one = connect("ends", "one").await?;
        let other = connect("ends", "other").await?;
        let (lock, same) = (one.lock("a")?, other.lock("a")?);
        let held = lock.acquire(None).await?;
        // An attempt that does not wait, a wait that times out, and two waits that are dropped. Each round drops them
        // at another moment.
        assert!(same.try_acquire().await?.is_none());
        same.acquire(Some(SECOND)).await.expect_err("it is held");
        assert!(timeout(SECOND / 10 * round, same.acquire(None)).await.is_err());
        let aborted = tokio::spawn({
            let same = same.clone();
            async move { same.acquire(None).await.map(drop) }
        });
        sleep(SECOND / 20 * round).await;
        aborted.abort();
        // This wait is polled once. Then the lock becomes free for it, but its future is dropped before it is polled
        // again.
        let mut late = Box::pin(same.acquire(None));
        assert!(timeout(SECOND / 1000, &mut late).await.is_err());
        drop(held);
        sleep(SECOND / 10).await;
        drop(late);
        // A task panics while it holds the lock.
        let panics = tokio::spawn({
            let lock = lock.clone();
            async move {
                let _held = lock.acquire(None).await.expect("it is free");
                panic!("on purpose");
            }
        });
        assert!(panics.await.is_err());
        // An operator breaks the first lock, the second one is leaked below, and the third one releases itself after
        // a second.
        let lost = lock.acquire(None).await?;
        same.break_lock().await?.expect("it is held");
        lost.lost().await;
        let leaked = lock.acquire(None).await?;
        let timed = one.lock("b")?.acquire(None).await?.release_after(SECOND);
        sleep(2 * SECOND).await;
        assert!(!timed.is_held());
        assert_eq!(gauges(&recorder), [1.0, 0.0, 2.0], "round {round}");
        std::mem::forget(leaked);
        one.stop().await?;
        drop((lock, same, other));
        sleep(SECOND).await;
        assert_eq!(gauges(&recorder), [0.0, 0.0, 0.0], "round {round}");
    }
    Ok(())
}

#[test]
fn a_runtime_that_ends_takes_all_of_it_along() {
    let recorder = recorder();
    let _listening = listen(&recorder);
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (coordinator, held, other) = runtime.block_on(async {
        let one = connect("runtime", "one").await.expect("memory");
        let held = one.lock("a").expect("a name").acquire(None).await.expect("free");
        let other = one.lock("b").expect("a name").acquire(None).await.expect("free");
        let lock = one.lock("a").expect("a name");
        tokio::spawn(async move { lock.acquire(None).await.map(drop) });
        sleep(SECOND / 20).await;
        (one, held, other)
    });
    assert_eq!(gauges(&recorder), [2.0, 1.0, 1.0]);
    drop(other);
    assert_eq!(gauges(&recorder)[0], 1.0, "dropped outside of the runtime");
    drop(runtime);
    assert_eq!(gauges(&recorder), [0.0, 0.0, 0.0]);
    drop((coordinator, held));
    assert_eq!(gauges(&recorder), [0.0, 0.0, 0.0]);
    let lost = [("reason", "runtime_ended")];
    assert_eq!(Scrape::of(&recorder).sum("coordination_lost_total", &lost), 1.0);
}

/// A guard in a thread-local variable is dropped when its thread ends, at a time when the thread may have no clock of
/// tokio any more.
#[test]
fn a_guard_that_ends_with_its_thread_is_counted() {
    thread_local! {
        static KEPT: std::cell::RefCell<Option<coordination::LockGuard>> = const { std::cell::RefCell::new(None) };
    }
    let recorder = Box::leak(Box::new(recorder()));
    let thread = std::thread::spawn(|| {
        let listening = AssertUnwindSafe(listen(recorder));
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let guard = runtime.block_on(async {
            let one = connect("thread", "one").await.expect("memory");
            one.lock("a").expect("a name").acquire(None).await.expect("free")
        });
        // By now the thread has tokio's clock in a thread-local variable, which was made before `KEPT`.
        KEPT.set(Some(guard));
        assert_eq!(gauges(recorder)[0], 1.0);
        std::mem::forget(runtime);
        std::mem::forget(listening);
    });
    thread.join().expect("no panic");
    assert_eq!(gauges(recorder)[0], 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_session_is_shown_in_its_state() -> Result {
    let recorder = recorder();
    let _listening = listen(&recorder);
    let one = connect("states", "one").await?;
    let of = |state| Scrape::of(&recorder).sum("coordination_sessions", &[("state", state)]);
    let mut states = one.state();
    assert_eq!((of("connected"), of("suspended")), (1.0, 0.0));
    coordination::panics::arm("renew");
    assert_eq!(states.changed().await, Some(State::Suspended));
    // The gauge is changed only after the subscribers of the state were notified.
    sleep(SECOND / 1000).await;
    assert_eq!((of("connected"), of("suspended")), (0.0, 1.0));
    assert_eq!(states.changed().await, Some(State::Connected));
    sleep(SECOND / 1000).await;
    assert_eq!((of("connected"), of("suspended")), (1.0, 0.0));
    drop(one);
    sleep(SECOND).await;
    assert_eq!(gauges(&recorder), [0.0, 0.0, 0.0]);
    Ok(())
}

/// One coordinator holds guards of several recipes. Each is counted under its own recipe's label.
#[tokio::test(start_paused = true)]
async fn guards_of_all_recipes_are_counted() -> Result {
    let recorder = recorder();
    let _listening = listen(&recorder);
    let one: Coordinator = connect("recipes", "one").await?;
    let lock = one.lock("a")?.acquire_shared(None).await?;
    let permit = one.semaphore("a", 2)?.acquire(None).await?;
    let leads = one.election("a")?.campaign("one", None).await?;
    one.group("a")?.create().await?;
    let member = one.group("a")?.join("one").await?;
    let scrape = Scrape::of(&recorder);
    for recipe in ["lock", "semaphore", "election", "group"] {
        let held = scrape.sum("coordination_held", &[("recipe", recipe)]);
        assert_eq!(held, 1.0, "{recipe}\n{}", scrape.text);
    }
    drop((lock, permit, leads, member));
    sleep(SECOND).await;
    assert_eq!(gauges(&recorder), [0.0, 0.0, 1.0]);
    one.stop().await
}
