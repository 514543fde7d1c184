//! RL1, RL2: no window has more permits than configured, and `retry_after` is never too short.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use coordination::blocking::wait;
use coordination::{Attempt, Coordinator, Effect, ErrorKind, RateLimiter, RatePermit, Result};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::interruption::{Pair, at_every_poll};
use super::tools::{ANSWERED, MOMENT, PATIENCE, assert_out_of_time, poll_times, without_a_runtime};
use crate::harness::Mode;

const NAME: &str = "api";
const PERMITS: u32 = 5;
const WINDOW: Duration = Duration::from_millis(400);

fn limiter(coordinator: &Coordinator) -> RateLimiter {
    coordinator.rate_limiter(NAME, PERMITS, WINDOW).expect("allowed")
}

/// Acquires all permits of a window at once.
async fn take_all(limiter: &RateLimiter) -> Result<RatePermit> {
    limiter.acquire(PERMITS, Some(PATIENCE)).await
}

async fn denied(limiter: &RateLimiter) -> Result<Duration> {
    match limiter.try_acquire(1).await? {
        Attempt::Granted(permit) => panic!("one too many: {permit:?}"),
        Attempt::Denied { retry_after } => Ok(retry_after),
    }
}

/// The worker's command that takes a permit of a limiter with `permits` permits in each period.
pub fn command(permits: u32, per: Duration) -> Value {
    let per_ms = u64::try_from(per.as_millis()).expect("short");
    json!({ "command": "rate", "limiter": NAME, "permits": permits, "per_ms": per_ms })
}

/// Asserts that each slot is at least a window later than the slot `permits` places before it. Returns the number of
/// slots.
///
/// # Panics
///
/// If a window has more permits than allowed.
pub fn assert_kept(slots: &mut [Duration], permits: u32, per: Duration) -> usize {
    let permits = usize::try_from(permits).expect("few");
    slots.sort_unstable();
    for window in slots.windows(permits + 1) {
        let length = window[permits] - window[0];
        assert!(length >= per, "{} permits within {length:?}: {window:?}", permits + 1);
    }
    slots.len()
}

/// RL1: many clients take as many permits as they get, and no window has more permits than allowed.
pub async fn rl1_never_more_in_a_window(store: &TestStore) -> Result<()> {
    let mut tasks: JoinSet<Result<Vec<Duration>>> = JoinSet::new();
    for _ in 0..3 {
        // This check uses the default lease instead of the tests' short one: on a busy machine many answers would come
        // too late, so that their outcome would be unknown.
        let coordinator = Coordinator::connect(store.url()).await?;
        // Two tasks have a limiter of their own, and two share one.
        let shared = limiter(&coordinator);
        for limiter in [limiter(&coordinator), limiter(&coordinator), shared.clone(), shared] {
            tasks.spawn(async move {
                let start = Instant::now();
                let mut slots = Vec::new();
                while start.elapsed() < 4 * WINDOW {
                    match limiter.try_acquire(1 + u32::from(slots.len() % 4 == 3)).await? {
                        Attempt::Granted(permit) => slots.push(permit.slot()),
                        Attempt::Denied { .. } => {}
                    }
                    let permit = limiter.acquire(1, Some(WINDOW)).await;
                    match permit {
                        Ok(permit) => slots.push(permit.slot()),
                        Err(error) => assert_out_of_time(&error, WINDOW),
                    }
                }
                Ok(slots)
            });
        }
    }
    let mut slots = Vec::new();
    while let Some(taken) = tasks.join_next().await {
        slots.extend(taken.expect("no panic")?);
    }
    assert!(assert_kept(&mut slots, PERMITS, WINDOW) >= 10, "{slots:?}");
    Ok(())
}

/// RL2: each caller is a new client, which lives for less than a window. Nevertheless a caller gets a permit if it
/// comes a window after the caller before it. Where no process knows which boot of its host it is in, it gets the permit
/// if it waits.
pub async fn rl2_callers_that_come_and_go_are_served(store: &TestStore) -> Result<()> {
    let seldom = |coordinator: &Coordinator| coordinator.rate_limiter("seldom", 1, WINDOW);
    // A store in memory ends with its last client, so one stays.
    let _open = store.connect("open").await?;
    let mut asked = Instant::now();
    for (round, is_denied) in [false, true, false, false, true, false].into_iter().enumerate() {
        let coordinator = store.connect(&format!("caller-{round}")).await?;
        if !is_denied {
            // A little longer than the window: the clocks may differ by half a percent.
            sleep(WINDOW + MOMENT).await;
        }
        let before = std::mem::replace(&mut asked, Instant::now());
        match seldom(&coordinator)?.try_acquire(1).await? {
            // Although a denial was expected, a permit is right if connecting took so long that the window is over.
            Attempt::Granted(_) => assert!(!is_denied || before.elapsed() >= WINDOW, "{round}"),
            Attempt::Denied { .. } if !is_denied && !store.knows_the_boot() && round > 0 => {
                let waits = seldom(&coordinator)?;
                waits.acquire(1, Some(PATIENCE)).await?;
                asked = Instant::now();
            }
            Attempt::Denied { retry_after } => assert!(is_denied, "{round}: {retry_after:?}"),
        }
        coordinator.stop().await?;
    }
    Ok(())
}

/// RL2: when a limit is raised, the additional permits can be taken at once; a reset makes all permits available.
pub async fn rl2_a_raised_limit_is_there_at_once(store: &TestStore) -> Result<()> {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let coordinator = store.connect("one").await?;
    let limiter = |permits| coordinator.rate_limiter("daily", permits, DAY);
    assert!(limiter(5)?.try_acquire(5).await?.granted().is_some());
    assert!(matches!(limiter(5)?.try_acquire(1).await?, Attempt::Denied { .. }));
    limiter(8)?.reconfigure().await?;
    assert!(limiter(8)?.try_acquire(3).await?.granted().is_some());
    assert!(matches!(limiter(8)?.try_acquire(1).await?, Attempt::Denied { .. }));
    limiter(8)?.reset().await?;
    assert!(limiter(8)?.try_acquire(8).await?.granted().is_some());
    Ok(())
}

/// RL1: permits of killed processes still count, also after all clients have gone and new ones have started.
pub async fn rl1_crashes_and_restarts(store: &TestStore) -> Result<()> {
    let mut slots = Vec::new();
    for round in 0..2 {
        let worker = store.worker(&format!("killed-{round}"));
        let mut take = command(PERMITS, WINDOW);
        take["n"] = json!(PERMITS);
        slots.extend(slots_in(&worker.call(take)));
        worker.kill();
        let coordinator = store.connect(&format!("next-{round}")).await?;
        slots.push(limiter(&coordinator).acquire(1, Some(PATIENCE)).await?.slot());
        coordinator.stop().await?;
    }
    assert_eq!(assert_kept(&mut slots, PERMITS, WINDOW), 12);
    Ok(())
}

/// The slots of the permits in a worker's answer.
///
/// # Panics
///
/// If the answer has another form.
pub fn slots_in(answer: &Value) -> Vec<Duration> {
    let permits = answer["permits"].as_array().expect("permits").iter();
    permits.map(|permit| Duration::from_micros(permit[0].as_u64().expect("a slot"))).collect()
}

/// RL1: permits do not belong to a session: its end gives nothing back.
pub async fn rl1_a_lost_session_changes_nothing(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let first = take_all(&limiter(&one)).await?;
    let waiting = {
        let limiter = limiter(&other);
        tokio::spawn(async move { take_all(&limiter).await })
    };
    store.lose(&one, "one").await?;
    let second = timeout(PATIENCE, waiting).await.expect("in time").expect("no panic")?;
    assert!(second.slot() - first.slot() >= WINDOW);
    Ok(())
}

/// RL1: the settings are stored; a client with other settings gets an error that names them; `reconfigure` replaces
/// them.
pub async fn rl1_other_settings_are_an_error(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let five = limiter(&coordinator);
    let first = five.acquire(3, None).await?;
    let others = [
        coordinator.rate_limiter(NAME, 6, WINDOW)?,
        coordinator.rate_limiter(NAME, PERMITS, WINDOW / 2)?,
        limiter(&coordinator).margin(MOMENT)?,
        limiter(&coordinator).and(9, 2 * WINDOW)?,
        limiter(&coordinator).paced(),
    ];
    for other in &others {
        let refused = other.acquire(1, None).await.expect_err("other settings");
        assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Mismatch, Effect::None));
        let text = refused.to_string();
        assert!(text.contains("[5 per 400ms, strict]"), "{text}");
    }
    let text = others[3].try_acquire(1).await.expect_err("other settings").to_string();
    assert!(text.contains("[5 per 400ms and 9 per 800ms, strict]"), "{text}");
    others[0].reconfigure().await?;
    assert_eq!(five.try_acquire(1).await.expect_err("replaced").kind(), ErrorKind::Mismatch);
    // Three of the six permits of this window are taken.
    let mut slots = vec![first.slot(); 3];
    for _ in 0..9 {
        slots.push(others[0].acquire(1, Some(PATIENCE)).await?.slot());
    }
    assert_eq!(assert_kept(&mut slots, 6, WINDOW), 12);
    five.reconfigure().await?;
    slots.push(five.acquire(1, Some(PATIENCE)).await?.slot());
    assert!(slots[12] - slots[7] >= WINDOW, "{slots:?}");
    Ok(())
}

/// RL1: limiters with different names are independent.
pub async fn rl1_names_are_apart(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    for name in ["api", "api/", "API", "🔒"] {
        let limiter = coordinator.rate_limiter(name, 2, Duration::from_secs(60))?;
        assert!(limiter.try_acquire(2).await?.granted().is_some(), "{name}");
        denied(&limiter).await?;
    }
    Ok(())
}

/// RL1: with several limits, each is kept, and a request that one limit refuses is not counted by the others.
pub async fn rl1_several_limits(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let long = 3 * WINDOW;
    let limiter = limiter(&coordinator).and(8, long)?;
    let mut slots = Vec::new();
    let start = Instant::now();
    while start.elapsed() < 2 * WINDOW {
        slots.extend(limiter.try_acquire(1).await?.granted().map(|permit| permit.slot()));
        sleep(WINDOW / 40).await;
    }
    for _ in 0..4 {
        slots.push(limiter.acquire(1, Some(PATIENCE)).await?.slot());
    }
    assert_kept(&mut slots, PERMITS, WINDOW);
    assert_kept(&mut slots, 8, long);
    Ok(())
}

/// RL1: the smallest limiter, one permit in a millisecond.
pub async fn rl1_one_in_a_millisecond(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let per = Duration::from_millis(1);
    let limiter = coordinator.rate_limiter(NAME, 1, per)?;
    let mut slots = Vec::new();
    for _ in 0..50 {
        slots.push(limiter.acquire(1, Some(PATIENCE)).await?.slot());
    }
    assert_eq!(assert_kept(&mut slots, 1, per), 50);
    let paced = coordinator.rate_limiter("paced", 1_000_000, Duration::from_secs(60))?.paced();
    let mut slots = Vec::new();
    for _ in 0..50 {
        slots.push(paced.acquire(1, Some(PATIENCE)).await?.slot());
    }
    assert_kept(&mut slots, 1, Duration::from_micros(60));
    Ok(())
}

/// RL2: a caller that was denied and waits for `retry_after` gets a permit. Two clients do this in turn, several
/// times.
pub async fn rl2_never_told_to_come_too_early(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let limiters = [limiter(&one), limiter(&other)];
    let before = take_all(&limiters[0]).await?;
    for round in 0..4 {
        let limiter = &limiters[round % 2];
        let retry_after = denied(limiter).await?;
        assert!(retry_after <= WINDOW + WINDOW / 100, "{retry_after:?}");
        sleep(retry_after).await;
        let permit = limiter.try_acquire(PERMITS).await?.granted();
        let permit = permit.expect("it has waited long enough");
        assert!(permit.slot() - before.slot() >= WINDOW);
    }
    Ok(())
}

/// RL2: permits are given in the order in which they were asked for, over all clients, and nobody overtakes waiters.
pub async fn rl2_first_come_first_served(store: &TestStore) -> Result<()> {
    let clients = [store.connect("one").await?, store.connect("other").await?];
    // On a busy machine the window may end before all have asked. Then the check tries again with a longer window.
    for doubled in 0..6 {
        let (name, window) = (format!("{NAME}-{doubled}"), WINDOW * (1 << doubled));
        let of = |client: &Coordinator| client.rate_limiter(&name, PERMITS, window);
        let limiters = [of(&clients[0])?, of(&clients[1])?];
        if let Some(mut order) = four_wait(&limiters, window).await? {
            let mut seen = Vec::new();
            while let Some(permit) = timeout(PATIENCE, order.recv()).await.expect("served") {
                seen.push(permit);
            }
            assert_eq!(seen.len(), 4);
            assert!(seen.is_sorted(), "{seen:?}");
            return Ok(());
        }
    }
    panic!("no window is long enough for four clients to ask within it");
}

/// Lets four callers wait. A slot is the time for which a permit is reserved. Each caller asks as soon as the caller
/// before it has its slot. Returns a channel from which their permits come, or `None` if the window ended before all
/// had asked.
async fn four_wait(
    limiters: &[RateLimiter; 2],
    window: Duration,
) -> Result<Option<UnboundedReceiver<(usize, Duration)>>> {
    take_all(&limiters[0]).await?;
    let (served, order) = tokio::sync::mpsc::unbounded_channel();
    let mut asked = Instant::now();
    let mut last = denied(&limiters[0]).await?;
    for place in 0..4 {
        let (limiter, served) = (limiters[place % 2].clone(), served.clone());
        tokio::spawn(async move {
            let permit = limiter.acquire(PERMITS, Some(PATIENCE)).await?;
            let _ = served.send((place, permit.slot()));
            Ok::<_, coordination::Error>(())
        });
        // The waiter has its slot as soon as a further caller would get a later slot than before.
        loop {
            let before = Instant::now();
            match limiters[0].try_acquire(1).await? {
                Attempt::Granted(permit) => {
                    let since = asked.elapsed();
                    assert!(since >= last, "{permit:?} overtakes {place}, {since:?} of {last:?}");
                    return Ok(None);
                }
                Attempt::Denied { retry_after } if retry_after > last + window / 2 => {
                    (asked, last) = (before, retry_after);
                    break;
                }
                Attempt::Denied { .. } => sleep(Duration::from_millis(5)).await,
            }
        }
    }
    Ok(Some(order))
}

/// RL2: a wait that is dropped keeps the slots that it has taken: nobody else gets them, so nobody is admitted too
/// early.
pub async fn rl2_dropped_waits_let_nobody_in(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let limiter = limiter(&coordinator);
    let mut slots = Vec::new();
    let mut waiting = JoinSet::new();
    for number in 0..20 {
        let limiter = limiter.clone();
        if number % 2 == 0 {
            waiting.spawn(async move { limiter.acquire(1, Some(PATIENCE)).await });
        } else {
            // These waits are polled at most four times, and then dropped.
            let acquire = std::pin::pin!(limiter.acquire(1, Some(PATIENCE)));
            slots.extend(poll_times(acquire, number % 5).await.transpose()?);
        }
    }
    while let Some(permit) = waiting.join_next().await {
        slots.push(permit.expect("no panic")?);
    }
    let mut slots: Vec<_> = slots.iter().map(RatePermit::slot).collect();
    assert!(assert_kept(&mut slots, PERMITS, WINDOW) >= 10);
    at_every_poll(store, "rate limiter", store.rounds(1, 2), interrupted_acquire).await
}

/// Case: a client takes one of three permits; then another client takes the rest.
pub async fn interrupted_acquire(pair: &Pair<'_>) -> Result<()> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let hour = Duration::from_secs(3_600);
    let name = format!("each-{}", LAST.fetch_add(1, Ordering::Relaxed));
    let mine = pair.one.rate_limiter(&name, 3, hour)?;
    let theirs = pair.other.rate_limiter(&name, 3, hour)?;
    let had = pair.interrupt(mine.acquire(1, Some(PATIENCE))).await?;
    let mut granted = u32::from(had.is_some());
    while theirs.try_acquire(1).await?.granted().is_some() {
        granted += 1;
    }
    // A call that was dropped has taken one permit or none.
    assert!((2..=3).contains(&granted), "{pair:?}: {granted} of 3 were granted");
    assert!(had.is_none() || granted == 3, "{pair:?}: counted twice");
    Ok(())
}

/// RL2: a wait that would be too long fails at once and takes nothing; so does a request that can never be granted.
pub async fn rl2_too_long_fails_at_once(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let minute = Duration::from_secs(60);
    let limiter = coordinator.rate_limiter(NAME, PERMITS, minute)?;
    for permits in [0, PERMITS + 1] {
        let refused = limiter.acquire(permits, None).await.expect_err("never");
        assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Input, Effect::None));
        assert_eq!(limiter.try_acquire(permits).await.expect_err("never").kind(), ErrorKind::Input);
    }
    limiter.acquire(4, Some(Duration::ZERO)).await?;
    for timeout in [Duration::ZERO, ANSWERED, minute / 2] {
        let start = Instant::now();
        let refused = limiter.acquire(2, Some(timeout)).await.expect_err("one is left");
        assert!(start.elapsed() < PATIENCE, "it did not wait");
        assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Timeout, Effect::None));
        assert!(refused.is_transient());
        let wait = refused.retry_after().expect("it knows");
        assert!(wait > minute / 2 && wait <= minute + minute / 100, "{wait:?}");
    }
    // None of these calls has taken a permit.
    assert!(limiter.try_acquire(1).await?.granted().is_some());
    let many = coordinator.rate_limiter("many", 10_001, minute)?;
    assert_eq!(many.try_acquire(1).await.expect_err("too many").kind(), ErrorKind::Input);
    for refused in [
        coordinator.rate_limiter(NAME, 0, minute),
        coordinator.rate_limiter(NAME, 1, Duration::ZERO),
        coordinator.rate_limiter(NAME, 1, 1_441 * minute),
        limiter.clone().margin(1_441 * minute),
        limiter.clone().and(0, minute),
    ] {
        assert_eq!(refused.expect_err("not allowed").kind(), ErrorKind::Input);
    }
    Ok(())
}

/// RL2: a rate limiter works on threads without an async runtime.
pub async fn rl2_without_a_runtime(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let limiter = limiter(&coordinator);
    without_a_runtime(move || {
        let mut slots = Vec::new();
        for limit in [None, Some(PATIENCE)].into_iter().cycle().take(12) {
            slots.push(wait(limiter.acquire(1, limit))?.slot());
        }
        let refused = wait(limiter.acquire(5, Some(MOMENT))).expect_err("two are taken");
        assert_out_of_time(&refused, MOMENT);
        assert_eq!(assert_kept(&mut slots, PERMITS, WINDOW), 12);
        wait(limiter.try_acquire(1)).map(drop)
    })
    .await
}

/// RL2: if the store does not answer, a call fails in time without a permit; after the outage the limits are still
/// kept.
pub async fn rl2_cut_off(store: &TestStore) -> Result<()> {
    let coordinator = store.connect_by_proxy("one").await?;
    let limiter = limiter(&coordinator);
    let mut slots = vec![limiter.acquire(1, None).await?.slot()];
    store.proxy().set_both(Mode::Blackhole);
    for limit in [500, 200, 0].map(Duration::from_millis) {
        let start = Instant::now();
        let refused = limiter.acquire(1, Some(limit)).await.expect_err("cut off");
        let took = start.elapsed();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert_ne!(refused.effect(), Effect::Applied);
        let limit = if limit.is_zero() { store.ttl().unwrap_or(PATIENCE) } else { limit };
        assert!(took <= limit + 2 * MOMENT + store.scheduling(), "{took:?} instead of {limit:?}");
    }
    store.proxy().heal();
    let start = Instant::now();
    while slots.len() < 12 {
        assert!(start.elapsed() < PATIENCE, "it goes on: {slots:?}");
        match limiter.acquire(1, Some(PATIENCE)).await {
            Ok(permit) => slots.push(permit.slot()),
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    }
    assert_eq!(assert_kept(&mut slots, PERMITS, WINDOW), 12);
    Ok(())
}
