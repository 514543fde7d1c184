//! ON1: there is at most one claim in each period. ON2: a claim under a guard is used up only when its job succeeds.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use coordination::{Claim, Coordinator, Effect, ErrorKind, OncePer, Result};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use super::TestStore;
use super::interruption::{Pair, at_every_poll};
use super::tools::PATIENCE;
use crate::bounds;
use crate::harness::{Mode, WallClock, eventually_async};
use crate::must_hold;

const NAME: &str = "backup";
const LONG: Duration = Duration::from_secs(3_600);
/// Long enough that two actions of the check, each of which takes a second, fit into one period.
const PERIOD: Duration = Duration::from_secs(4);
const SHORT: Duration = Duration::from_millis(200);

fn job(coordinator: &Coordinator, period: Duration) -> OncePer {
    coordinator.once_per(NAME, period).expect("allowed")
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("a short time")
}

async fn claim(job: &OncePer) -> Result<Claim> {
    Ok(job.try_claim().await?.expect("nobody has claimed it"))
}

/// ON1: of many clients that ask at the same time, one gets the claim, in each period.
pub async fn on1_one_of_many(store: &TestStore) -> Result<()> {
    let mut clients = Vec::new();
    for _ in 0..3 {
        // This check uses the default lease instead of the tests' short one: on a busy machine many answers would come
        // too late, so that their outcome would be unknown.
        clients.push(Coordinator::connect(store.url()).await?);
    }
    let mut last = None;
    for _ in 0..3 {
        let mut asking = JoinSet::new();
        for job in clients.iter().cycle().take(15).map(|client| job(client, LONG)) {
            asking.spawn(async move { job.try_claim().await });
        }
        let mut claims = Vec::new();
        while let Some(outcome) = asking.join_next().await {
            claims.extend(outcome.expect("no panic")?);
        }
        assert_eq!(claims.len(), 1, "{claims:?}");
        let claim = claims.remove(0);
        must_hold!(last.is_none_or(|last| last < claim.token()), "tokens rise");
        last = Some(claim.token());
        assert!(claim.give_back().await?, "for the next round");
    }
    Ok(())
}

/// ON1: claims, of whichever client, are at least a period apart, and not much further.
pub async fn on1_once_in_each_period(store: &TestStore) -> Result<()> {
    let clients = [store.connect("one").await?, store.connect("other").await?];
    let jobs = clients.each_ref().map(|client| job(client, SHORT));
    assert_eq!(jobs[0].due().await?, Duration::ZERO);
    let mut last = claim(&jobs[0]).await?;
    for round in 1..5 {
        let job = &jobs[round % 2];
        sleep(job.due().await?).await;
        let next = claim(job).await?;
        assert!(next.at() >= last.next());
        assert_eq!(last.next().duration_since(last.at()).expect("later"), SHORT);
        assert_eq!(next.token().value(), last.token().value() + 1);
        last = next;
    }
    Ok(())
}

/// ON1: aligned periods begin at multiples of their length.
pub async fn on1_aligned(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let job = job(&coordinator, SHORT).aligned();
    let mut slots = BTreeSet::new();
    for _ in 0..4 {
        sleep(job.due().await?).await;
        let claim = claim(&job).await?;
        let next = claim.next().duration_since(UNIX_EPOCH).expect("after 1970");
        assert_eq!(next.as_micros() % SHORT.as_micros(), 0);
        assert!(claim.next() > claim.at());
        assert!(slots.insert(next), "a slot of its own");
    }
    let refused = [Duration::ZERO, Duration::from_micros(999), 367 * 24 * LONG];
    for period in refused {
        let error = coordinator.once_per(NAME, period).expect_err("not allowed");
        assert_eq!(error.kind(), ErrorKind::Input);
    }
    Ok(())
}

/// ON1: a claim that was given back can be made again; a claim whose period is over cannot be given back.
pub async fn on1_given_back_by_its_owner_only(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let first = claim(&job(&one, LONG)).await?;
    assert!(job(&other, LONG).try_claim().await?.is_none());
    assert!(first.give_back().await? && !first.done().await?, "anybody may claim it");
    assert!(first.give_back().await?, "twice has the effect of once");
    // This claim is for a short period, so that its period is soon over.
    let old = claim(&job(&other, SHORT)).await?;
    sleep(job(&one, LONG).due().await?).await;
    let current = claim(&job(&one, LONG)).await?;
    assert!(!old.give_back().await?, "it is somebody else's by now");
    assert!(job(&other, LONG).try_claim().await?.is_none());
    assert!(current.give_back().await?);
    Ok(())
}

/// ON1: with `at_least`, claims are at least the given time apart, even if the period is shorter, and even if a claim
/// was given back.
pub async fn on1_no_closer_than_asked_for(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let job = job(&coordinator, SHORT).at_least(LONG);
    let first = claim(&job).await?;
    assert_eq!(first.next().duration_since(first.at()).expect("later"), LONG);
    assert!(first.give_back().await?);
    assert!(job.try_claim().await?.is_none() && job.due().await? > LONG / 2);
    Ok(())
}

/// ON1: an operator can reset the job; the owner's `done` and `give_back` then return false, and claims' tokens go on
/// rising.
pub async fn on1_reset(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (mine, theirs) = (job(&one, LONG).aligned(), job(&other, LONG));
    assert!(!theirs.reset().await?, "there is none");
    let first = claim(&mine).await?;
    assert!(theirs.reset().await?);
    assert_eq!(mine.due().await?, Duration::ZERO);
    let second = claim(&mine).await?;
    must_hold!(second.token() > first.token());
    assert!(!first.done().await? && !first.give_back().await?, "it is somebody else's by now");
    assert!(theirs.try_claim().await?.is_none());
    Ok(())
}

/// ON2: a claim under a guard is used up only when its holder reports the work as done. If the guard is gone earlier, another
/// process can claim the work.
pub async fn on2_spent_by_success_only(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (mine, theirs) = (job(&one, LONG), job(&other, LONG));
    let (work, place) = (one.semaphore("work", 2)?, other.semaphore("work", 2)?);
    let (permit, waiting) = (work.acquire(None).await?, place.acquire(None).await?);
    let first = mine.try_claim_under(&permit).await?.expect("nobody has claimed it");
    assert!(theirs.try_claim_under(&waiting).await?.is_none(), "somebody is at it");
    assert!(mine.try_claim_under(&permit).await?.is_none(), "it is not claimed twice either");
    permit.release().await?;
    assert!(theirs.try_claim().await?.is_none(), "who holds nothing cannot know");
    let guard = work.acquire(None).await?;
    let refused = theirs.try_claim_under(&guard).await;
    let refused = refused.expect_err("it is of another coordinator");
    assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Input, Effect::None));
    let elsewhere = other.semaphore("elsewhere", 2)?.acquire(None).await?;
    assert!(theirs.try_claim_under(&elsewhere).await?.is_none(), "nor who holds something else");
    let second = theirs.try_claim_under(&waiting).await?.expect("it was left undone");
    must_hold!(second.token() > first.token());
    assert!(!first.done().await?, "it is somebody else's by now");
    assert!(second.done().await?);
    waiting.release().await?;
    let permit = work.acquire(None).await?;
    assert!(mine.try_claim_under(&permit).await?.is_none(), "it is done");
    // A claim whose work was reported as done can still be given back.
    assert!(second.give_back().await?);
    let third = mine.try_claim_under(&permit).await?.expect("given back");
    assert!(third.give_back().await?);
    let timed = permit.release_after(Duration::ZERO);
    eventually_async(PATIENCE, async || !timed.is_held()).await;
    let refused = mine.try_claim_under(&timed).await.expect_err("it is released");
    assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Input, Effect::None));
    assert!(theirs.try_claim().await?.is_some());
    Ok(())
}

/// ON2: if the owner finishes its claim and then releases the guard, no other client takes the claim over as
/// unfinished, although others ask at the same time.
pub async fn on2_done_while_others_ask(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let waiting = other.semaphore("work", 2)?.acquire(None).await?;
    for round in 0..store.rounds(40, 10) {
        let permit = one.semaphore("work", 2)?.acquire(None).await?;
        let name = format!("job-{round}");
        let mine = one.once_per(&name, LONG)?.try_claim_under(&permit).await?.expect("new");
        let theirs = other.once_per(&name, LONG)?;
        let asking = async {
            for _ in 0..5 {
                assert!(theirs.try_claim_under(&waiting).await?.is_none(), "round {round}");
            }
            Ok(())
        };
        let doing = async {
            assert!(mine.done().await?, "round {round}");
            permit.release().await
        };
        tokio::try_join!(asking, doing)?;
    }
    Ok(())
}

/// ON2: if the owner's session is lost, the next client takes the claim over. If the next client finishes the claim,
/// no other client gets it.
pub async fn on2_a_lost_session_leaves_it_to_the_next(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (lock, next) = (one.lock("work")?, other.lock("work")?);
    let guard = lock.acquire(None).await?;
    let _first = job(&one, LONG).try_claim_under(&guard).await?.expect("nobody has claimed it");
    store.lose(&one, "one").await?;
    guard.lost().await;
    let refused = job(&one, LONG).try_claim_under(&guard).await.expect_err("it is lost");
    assert!(matches!(refused.kind(), ErrorKind::Lost | ErrorKind::Closed), "{refused}");
    assert_eq!(refused.effect(), Effect::None, "nothing was claimed: X1");
    let following = next.acquire(None).await?;
    let second = job(&other, LONG).try_claim_under(&following).await?.expect("it was left undone");
    assert!(second.done().await?);
    drop(following);
    let again = next.acquire(None).await?;
    assert!(job(&other, LONG).try_claim_under(&again).await?.is_none(), "it is done");
    Ok(())
}

/// ON1: a `try_claim` that is dropped may use up the period, but never allows a second claim in it.
pub async fn on1_dropped_calls(store: &TestStore) -> Result<()> {
    at_every_poll(store, "try_claim", store.rounds(1, 2), interrupted_claim).await
}

/// Case: a client claims a period that nobody has claimed.
pub async fn interrupted_claim(pair: &Pair<'_>) -> Result<()> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let name = format!("job-{}", LAST.fetch_add(1, Ordering::Relaxed));
    let mine = pair.one.once_per(&name, LONG)?;
    let theirs = pair.other.once_per(&name, LONG)?;
    let had = pair.interrupt(mine.try_claim()).await?;
    let is_certain = matches!(had, Some(Some(_)));
    let mut claims = usize::from(is_certain);
    for job in [&theirs, &mine, &theirs] {
        claims += usize::from(job.try_claim().await?.is_some());
    }
    assert!(claims <= 1, "{pair:?}: {claims} claims");
    Ok(())
}

/// ON1: the period stays used up when the claimant's session is lost.
pub async fn on1_a_lost_session_changes_nothing(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = claim(&job(&one, LONG)).await?;
    store.lose(&one, "one").await?;
    assert!(job(&other, LONG).try_claim().await?.is_none());
    drop(held);
    assert!(job(&other, LONG).try_claim().await?.is_none());
    Ok(())
}

/// ON1: the period stays used up when the claimant's process is killed, also if all processes restart.
pub async fn on1_a_killed_process_spends_the_period(store: &TestStore) -> Result<()> {
    let worker = store.worker("killed");
    let command = json!({ "command": "claim", "job": NAME, "period_ms": 3_600_000 });
    assert_eq!(worker.call(command.clone())["token"], 1);
    worker.kill();
    assert_eq!(store.worker("next").call(command), Value::Null);
    let coordinator = store.connect("one").await?;
    assert!(job(&coordinator, LONG).try_claim().await?.is_none());
    Ok(())
}

/// ON1, F-74: a host whose clock is years ahead makes a claim. By their own clocks, the other hosts are kept from the
/// job for one of its periods, and no longer. That also holds if each process that asks is a new one.
pub async fn on1_a_clock_that_is_years_ahead(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let clock = WallClock::new();
    clock.set_ahead(10 * 366 * 24 * LONG);
    let environment = clock.environment();
    let wrong =
        store.worker_with("wrong", &environment.each_ref().map(|(name, value)| (*name, &**value)));
    let claim = json!({ "command": "claim", "job": NAME, "period_ms": millis(PERIOD) });
    assert_eq!(wrong.call(claim.clone())["token"], 1);
    if !store.knows_the_boot() {
        return on1_is_kept_until_the_reset(&coordinator).await;
    }
    let asked = Instant::now();
    let claimed = loop {
        let job = job(&coordinator, PERIOD);
        match job.try_claim().await? {
            Some(claimed) => break claimed,
            None => {
                let due = job.due().await?;
                assert!(due <= bounds::disbelieved(PERIOD), "due in {due:?}");
                assert!(
                    asked.elapsed() < 3 * PERIOD,
                    "due in {due:?}, after {:?}",
                    asked.elapsed()
                );
                sleep(due.min(PERIOD / 4)).await;
            }
        }
    };
    let waited = asked.elapsed();
    assert!(waited <= bounds::disbelieved(PERIOD) + PERIOD / 4 + store.scheduling(), "{waited:?}");
    assert!(waited >= PERIOD / 2, "a period from the claim on: {waited:?}");
    assert_eq!(claimed.token().value(), 2);
    let next = claimed.next().duration_since(SystemTime::now()).unwrap_or_default();
    assert!(next <= PERIOD, "it is dated by a right clock: {next:?}");
    if store.has_clock() {
        assert_eq!(wrong.call(claim), Value::Null, "the store's clock counts");
    }
    Ok(())
}

/// Where no process knows which boot of its host it is in, a claim with a date in the future excludes all others, until somebody
/// forgets it.
async fn on1_is_kept_until_the_reset(coordinator: &Coordinator) -> Result<()> {
    for _ in 0..3 {
        assert!(job(coordinator, PERIOD).try_claim().await?.is_none());
        sleep(PERIOD / 2).await;
    }
    assert!(job(coordinator, PERIOD).reset().await?);
    assert!(job(coordinator, PERIOD).try_claim().await?.is_some());
    Ok(())
}

/// ON1: crontabs on two hosts start the job at a fixed rate, not at exactly the same time: each period has one claim.
pub async fn on1_at_a_fixed_rate(store: &TestStore) -> Result<()> {
    const RATE: Duration = Duration::from_millis(500);
    const PERIODS: u32 = 8;
    let clients = [store.connect("one").await?, store.connect("other").await?];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let first = now.as_micros().div_ceil(RATE.as_micros()) * RATE.as_micros();
    let until_first = Duration::from_micros(u64::try_from(first).expect("a time")) - now;
    let start = tokio::time::Instant::now() + until_first;
    let mut firing = JoinSet::new();
    for (host, client) in (0..).zip(&clients) {
        let job = job(client, RATE).aligned();
        firing.spawn(async move {
            let mut claims = 0;
            for period in 0..PERIODS {
                // A job's start by cron is a little late, by a varying time.
                let late = Duration::from_millis(u64::from((7 * period + 13 * host) % 20));
                sleep_until(start + RATE * period + late).await;
                claims += u32::from(job.try_claim().await?.is_some());
            }
            Ok::<_, coordination::Error>(claims)
        });
    }
    let mut claims = 0;
    while let Some(outcome) = firing.join_next().await {
        claims += outcome.expect("no panic")?;
    }
    assert_eq!(claims, PERIODS, "one in each");
    Ok(())
}

/// ON1: without an answer of the store there is no claim.
pub async fn on1_cut_off(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect_by_proxy("one").await?, store.connect("other").await?);
    let mine = job(&one, LONG);
    store.proxy().set_both(Mode::Blackhole);
    let refused = mine.try_claim().await.expect_err("cut off");
    assert!(matches!(refused.kind(), ErrorKind::Unavailable | ErrorKind::Lost), "{refused}");
    let theirs = claim(&job(&other, LONG)).await?;
    store.proxy().heal();
    let asked = async || match mine.try_claim().await {
        Ok(claimed) => {
            assert!(claimed.is_none(), "it is the other's");
            true
        }
        Err(error) => {
            assert!(error.is_transient() && error.effect() != Effect::Applied, "{error}");
            false
        }
    };
    eventually_async(PATIENCE, asked).await;
    assert!(theirs.give_back().await?);
    claim(&mine).await.map(drop)
}
