//! The limiter as its users see it, on paused time.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tokio::runtime::Runtime;
use tokio::time::{advance, sleep};

use super::*;

const WINDOW: Duration = Duration::from_millis(800);

async fn limiter(store: &str) -> RateLimiter {
    let url = format!("memory://rate-{store}");
    // The session runs on the caller's runtime, whose clock these tests pause.
    let coordinator = Coordinator::builder().heartbeat_on_current_runtime(true).connect(&url).await;
    coordinator.expect("memory").rate_limiter("api", 5, WINDOW).expect("allowed")
}

async fn is_granted(limiter: &RateLimiter) -> bool {
    limiter.try_acquire(1).await.expect("memory").granted().is_some()
}

/// A limit of 5 permits in 0.8 s, with a call every 0.1 s: 64 calls of a hundred are granted.
#[tokio::test(start_paused = true)]
async fn t1_sixty_four_of_a_hundred() {
    let limiter = limiter("t1").await;
    let mut granted = Vec::new();
    for call in 0..100 {
        if is_granted(&limiter).await {
            granted.push(call);
        }
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(granted, (0..100).filter(|call| call % 8 < 5).collect::<Vec<_>>());
    assert_eq!(granted.len(), 64);
}

/// After five permits at the end of what other limiters count as one window, there are none at the beginning of the next.
#[tokio::test(start_paused = true)]
async fn t2_no_edge() {
    let limiter = limiter("t2").await;
    advance(Duration::from_millis(750)).await;
    for _ in 0..5 {
        assert!(is_granted(&limiter).await);
        advance(Duration::from_millis(10)).await;
    }
    for _ in 0..74 {
        assert!(!is_granted(&limiter).await);
        advance(Duration::from_millis(10)).await;
    }
    advance(Duration::from_millis(10)).await;
    assert!(is_granted(&limiter).await);
    assert!(!is_granted(&limiter).await);
}

/// A denied caller may come back after exactly `retry_after`, and not a microsecond earlier.
#[tokio::test(start_paused = true)]
async fn t3_retry_after_is_exact() {
    let limiter = limiter("t3").await;
    assert!(limiter.try_acquire(5).await.expect("memory").granted().is_some());
    advance(Duration::from_micros(1_234)).await;
    let Ok(Attempt::Denied { retry_after }) = limiter.try_acquire(1).await else {
        panic!("the sixth");
    };
    assert_eq!(retry_after, WINDOW - Duration::from_micros(1_234));
    advance(retry_after - Duration::from_micros(1)).await;
    assert!(!is_granted(&limiter).await);
    advance(Duration::from_micros(1)).await;
    assert!(is_granted(&limiter).await);
}

/// The limiter does not read the wall clock, so nobody who sets it has an effect.
#[test]
fn t6_no_wall_clock() {
    let sources = [
        include_str!("../rate_limiter.rs"),
        include_str!("clock.rs"),
        include_str!("permit.rs"),
        include_str!("schedule.rs"),
    ];
    for source in sources {
        for wall in
            [concat!("System", "Time"), concat!("unix", "_micros"), concat!("UNIX", "_EPOCH")]
        {
            assert!(!source.contains(wall), "{wall}");
        }
    }
}

/// A wait that is too long takes nothing, and zero is a try.
#[tokio::test(start_paused = true)]
async fn t8_fails_at_once_and_takes_nothing() {
    let limiter = limiter("t8").await;
    let start = Instant::now();
    assert_eq!(limiter.acquire(6, None).await.expect_err("5").kind(), ErrorKind::Input);
    assert_eq!(limiter.acquire(0, None).await.expect_err("5").kind(), ErrorKind::Input);
    limiter.acquire(5, Some(Duration::ZERO)).await.expect("free");
    for timeout in [Duration::ZERO, WINDOW - Duration::from_micros(1)] {
        let refused = limiter.acquire(1, Some(timeout)).await.expect_err("taken");
        assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Timeout, Effect::None));
        assert_eq!(refused.retry_after(), Some(WINDOW));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
    let permit = limiter.acquire(5, Some(WINDOW)).await.expect("just in time");
    assert_eq!((start.elapsed(), permit.slot()), (WINDOW, WINDOW));
    assert!(permit.usable());
}

/// A wait that is given up spends its slot; nobody gets it, and nobody comes too early.
#[tokio::test(start_paused = true)]
async fn t9_dropped_waits() {
    let limiter = limiter("t9").await;
    let mut waits = Vec::new();
    for _ in 0..20 {
        let mut wait = Box::pin(limiter.acquire(1, None));
        // The call is polled until it has its slot and sleeps until then.
        let reserving = tokio::time::timeout(Duration::from_nanos(1), wait.as_mut());
        let done = reserving.await.ok();
        waits.push((done, wait));
    }
    let start = Instant::now();
    for (number, (done, wait)) in waits.into_iter().enumerate() {
        if number % 2 == 1 {
            continue;
        }
        let permit = match done {
            Some(permit) => permit,
            None => wait.await,
        };
        let slot = permit.expect("memory").slot();
        let expected = WINDOW * u32::try_from(number / 5).expect("small");
        // Each reservation took a millisecond of paused time.
        assert!(slot >= expected && slot <= expected + Duration::from_millis(21), "{slot:?}");
    }
    assert!(start.elapsed() >= 3 * WINDOW - Duration::from_millis(21));
    // The permits of waits that were dropped count as taken.
    assert!(!is_granted(&limiter).await);
}

/// A call that is never polled again keeps its turn, and the others do without.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_left_alone_keeps_nobody_from_asking() {
    let limiter = limiter("left-alone").await;
    let mut left_alone = pin!(limiter.try_acquire(1));
    let begun = poll_fn(|context| Poll::Ready(left_alone.as_mut().poll(context)));
    assert!(begun.await.is_pending());
    for _ in 0..3 {
        limiter.acquire(1, Some(Duration::from_millis(10))).await.expect("there are five");
    }
}

/// A try waits for the calls before it, for half of its time at the most, and not while the store does not answer them.
#[tokio::test(start_paused = true)]
async fn a_try_waits_in_line_for_half_of_its_time() {
    let limiter = limiter("in-line").await;
    let _turn = limiter.shared.turn.lock().await;
    let returned = Arc::clone(&limiter.shared.returned);
    let others = tokio::spawn(async move {
        for _ in 0..1_000 {
            sleep(Duration::from_millis(10)).await;
            returned.fetch_add(1, Ordering::SeqCst);
        }
    });
    let begun = Instant::now();
    assert!(is_granted(&limiter).await);
    let (waited, half) = (begun.elapsed(), Duration::from_millis(2_500));
    assert!(waited >= half && waited <= half + half / 10, "{waited:?}");
    others.abort();
    let begun = Instant::now();
    assert!(is_granted(&limiter).await);
    let (waited, stall) = (begun.elapsed(), limiter.queue.session.call_timeout());
    assert!(waited >= stall && waited <= stall + stall / 10, "{waited:?}");
}

/// Each of them changes what the others have read, if they do not take turns.
#[cfg(all(coordination_internals, feature = "memory"))]
#[tokio::test(start_paused = true)]
async fn many_calls_of_one_process_do_not_make_each_other_start_again() {
    use crate::Config;
    use crate::simulation::{Clocks, Run, Traits, Weather, World};

    const CALLS: u32 = 100;
    let _run = Run::begin(1);
    let world = World::new(1, Traits::SERVER);
    world.set_weather(Weather { delay: 1..=1, ..Weather::calm() });
    let client = world.client(Clocks::default());
    let coordinator = client.connect(Config::default()).await.expect("the store is there");
    let limiter = coordinator.rate_limiter("api", CALLS, WINDOW).expect("allowed");
    let calls = (0..CALLS).map(|_| {
        let limiter = limiter.clone();
        client.spawn(async move { is_granted(&limiter).await })
    });
    for call in calls.collect::<Vec<_>>() {
        assert!(call.await.expect("no panic"), "there is one for each");
    }
    let looks = limiter.shared.looks.load(Ordering::SeqCst);
    assert_eq!(looks, u64::from(CALLS), "some started again");
}

#[tokio::test(start_paused = true)]
async fn t12_two_names_are_apart() {
    let coordinator = Coordinator::connect("memory://rate-t12").await.expect("memory");
    for name in ["one", "other"] {
        let limiter = coordinator.rate_limiter(name, 1, WINDOW).expect("allowed");
        assert!(is_granted(&limiter).await);
        assert!(!is_granted(&limiter).await);
    }
}

/// After a reboot, which the store's clock shows, all permits count as taken at the moment when the reboot was first seen.
#[test]
fn a_clock_that_starts_anew_starts_cold() {
    let mut rules = Rules::default();
    rules.add(5, WINDOW).expect("allowed");
    let mut listing = Listing::default();
    let clock = Clock::default();
    let mut call = |epoch, millis| {
        let now = Duration::from_millis(millis);
        listing.clock = Some(crate::backend::Clock { epoch, now });
        let at = (BootInstant::now(), Instant::now());
        let wanted = (5, Some(at.1));
        match look_at(&listing, &rules, &clock, wanted, true, at, (at.0, clock.newest()))
            .expect("sound")
        {
            Change::Write(Some(data), look) => {
                listing.value = Some(crate::backend::Value { version: 1, data, writer: None });
                look.slot
            }
            Change::Write(None, look) | Change::Keep(look) => look.slot,
        }
    };
    assert_eq!(call(1, 900_000), Ok(900_000_000));
    assert_eq!(call(2, 5), Err(800_000));
    assert_eq!(call(2, 400), Err(405_000));
    assert_eq!(call(2, 805), Ok(805_000));
}

/// Permits are taken when their slot is reserved: who waits for the slot when the session's runtime ends is told so.
#[test]
fn x1_a_wait_that_ends_with_its_runtime_has_taken_its_permits() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let of_session = Runtime::new().expect("a runtime");
    let connecting = async {
        let coordinator = Coordinator::connect("memory://rate-ended").await?;
        let limiter = coordinator.rate_limiter("api", 1, HOUR)?;
        limiter.acquire(1, None).await?;
        Ok::<_, Error>(limiter)
    };
    let limiter = of_session.block_on(connecting).expect("it is free");
    let waits = limiter.clone();
    let waiting = std::thread::spawn(move || {
        Runtime::new().expect("a runtime").block_on(waits.acquire(1, None))
    });
    of_session.block_on(async {
        loop {
            match limiter.try_acquire(1).await.expect("memory") {
                // The slot before is reserved.
                Attempt::Denied { retry_after } if retry_after > HOUR * 3 / 2 => break,
                Attempt::Denied { .. } => sleep(Duration::from_millis(1)).await,
                Attempt::Granted(_) => panic!("one was taken"),
            }
        }
    });
    of_session.shutdown_background();
    let error = waiting.join().expect("no panic").expect_err("its runtime has ended");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Closed, Effect::Applied), "{error}");
}

/// Whoever is cut short by the end of the session's runtime is not told that nothing was done.
#[test]
fn x1_a_call_that_ends_with_its_runtime_is_in_doubt() {
    let of_session = Runtime::new().expect("a runtime");
    let limiter = of_session.block_on(limiter("cut-short"));
    let session = Arc::clone(&limiter.queue.session);
    let (begin, begun) = std::sync::mpsc::channel();
    let never = async move {
        let _ = begin.send(());
        std::future::pending::<Result<()>>().await
    };
    let waiting = std::thread::spawn(move || {
        Runtime::new().expect("a runtime").block_on(session.run_for_caller("acquire", never))
    });
    begun.recv().expect("it begins");
    of_session.shutdown_background();
    let error = waiting.join().expect("no panic").expect_err("it never ends");
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
}

#[tokio::test]
async fn a_margin_passes() {
    let margin = Duration::from_millis(40);
    let limiter = limiter("margin").await.margin(margin).expect("allowed");
    let asked = Instant::now();
    let permit = limiter.acquire(1, None).await.expect("memory");
    let dawdling = pin!(sleep(margin));
    assert!(permit.usable() || asked.elapsed() >= margin);
    dawdling.await;
    assert!(!permit.usable());
}
