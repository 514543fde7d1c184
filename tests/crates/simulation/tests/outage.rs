//! Checks that calls without a timeout survive an outage of each kind, whichever of a call's requests the outage
//! interrupts.
#![cfg(coordination_internals)]

use std::sync::Arc;
use std::time::Duration;

use coordination::simulation::{Client, Clocks, Run, Traits, Weather, World};
use coordination::{Coordinator, ErrorKind, Patience, Result};
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::time::sleep;

/// How long each message is on its way, in milliseconds.
const WAY: u64 = 10;
/// An outage begins at the latest this many milliseconds after the call. A call that does not wait for something that
/// happens after the outage would have returned by this time if there were no outage.
const LONGEST: u64 = 160;
/// How long the store is down, and how long the lease of its clients is.
#[derive(Clone, Copy)]
struct Outage {
    lasts: Duration,
    /// The lease time of the clients.
    lease: Duration,
}

/// This outage is longer than any single attempt of a call, and longer than the lease.
const LONG: Outage = Outage { lasts: Duration::from_secs(3), lease: Duration::from_secs(1) };
/// This outage is longer than any single attempt of a call, but shorter than the lease.
const SHORT: Outage = Outage { lasts: Duration::from_secs(8), lease: Duration::from_secs(30) };

/// The kinds of outage. `None`: no message arrives. Otherwise each call fails with an error of this kind.
const KINDS: [Option<ErrorKind>; 4] =
    [None, Some(ErrorKind::Refused), Some(ErrorKind::Dns), Some(ErrorKind::Tls)];

/// What is acquired. Each name is used for the first time, so the call also has to store the recipe's settings in the
/// queue's value. Several locks at once are not included: such a call fails if it loses one of its locks while it waits
/// for another (ML1).
const RECIPES: [&str; 7] =
    ["lock", "share", "semaphore", "limiter", "latest", "leadership", "barrier"];

/// What a call waits for. What it waits for happens only after the outage.
const WAITS: [&str; 5] = ["lock", "semaphore", "leadership", "barrier", "latch"];

/// A wait that begins when the caller gives up its own place in the barrier. The place is lost if the lease ends, so this
/// wait is tested only with the outage that is shorter than the lease.
const LEAVING: &str = "leaving a double barrier";

/// Signals between the task that makes the calls and the one that causes the outage.
#[derive(Default)]
struct Moments {
    /// Notified when everything that the call needs has been prepared.
    ready: Notify,
    /// Notified when the outage is over.
    over: Notify,
}

async fn acquire(recipe: &str, coordinator: &Coordinator) -> Result<()> {
    match recipe {
        "lock" => drop(coordinator.lock("a")?.acquire(None).await?),
        "share" => drop(coordinator.lock("a")?.acquire_shared(None).await?),
        "semaphore" => drop(coordinator.semaphore("a", 2)?.acquire(None).await?),
        "limiter" => {
            drop(coordinator.limiter("a")?.patience(Patience::Forever).enter().await?);
        }
        "latest" => {
            let limiter = coordinator.limiter("a")?.latest_wins();
            drop(limiter.patience(Patience::Forever).enter().await?);
        }
        "leadership" => drop(coordinator.election("a")?.campaign("us", None).await?),
        "barrier" => drop(coordinator.double_barrier("a", 1)?.enter(None).await?),
        _ => panic!("there is no {recipe}"),
    }
    Ok(())
}

/// Makes a call of `one` that waits until `other` does its part. `other` does so once the outage is over.
async fn wait(recipe: &str, one: Coordinator, other: Coordinator, now: Arc<Moments>) -> Result<()> {
    match recipe {
        "lock" => {
            let held = other.lock("a")?.acquire(None).await?;
            let lock = one.lock("a")?;
            now.ready.notify_one();
            let freeing = async {
                now.over.notified().await;
                // The lock may have been lost in the outage, so an error of the release is ignored.
                drop(held.release().await);
                Ok(())
            };
            tokio::try_join!(async { lock.acquire(None).await.map(drop) }, freeing)?;
        }
        "semaphore" => {
            let held = other.semaphore("a", 1)?.acquire(None).await?;
            let semaphore = one.semaphore("a", 1)?;
            now.ready.notify_one();
            let freeing = async {
                now.over.notified().await;
                drop(held.release().await);
                Ok(())
            };
            tokio::try_join!(async { semaphore.acquire(None).await.map(drop) }, freeing)?;
        }
        "leadership" => {
            let leads = other.election("a")?.campaign("they", None).await?;
            let election = one.election("a")?;
            now.ready.notify_one();
            let resigning = async {
                now.over.notified().await;
                drop(leads.resign().await);
                Ok(())
            };
            tokio::try_join!(async { election.campaign("us", None).await.map(drop) }, resigning)?;
        }
        "barrier" => {
            let (barrier, opens) = (one.barrier("a")?, other.barrier("a")?);
            barrier.close().await?;
            now.ready.notify_one();
            let opening = async {
                now.over.notified().await;
                opens.open().await
            };
            tokio::try_join!(barrier.wait(None), opening)?;
        }
        "latch" => {
            let (latch, counts) = (one.latch("a", 1)?, other.latch("a", 1)?);
            now.ready.notify_one();
            let counting = async {
                now.over.notified().await;
                counts.count_down().await
            };
            tokio::try_join!(latch.wait(None), counting)?;
        }
        LEAVING => {
            let (ours, theirs) = (one.double_barrier("a", 2)?, other.double_barrier("a", 2)?);
            let (ours, theirs) = tokio::try_join!(ours.enter(None), theirs.enter(None))?;
            now.ready.notify_one();
            let leaving = async {
                now.over.notified().await;
                drop(theirs.leave(None).await);
                Ok(())
            };
            tokio::try_join!(ours.leave(None), leaving)?;
        }
        _ => panic!("there is no {recipe}"),
    }
    Ok(())
}

async fn connect(client: &Arc<Client>, lease: Duration) -> Coordinator {
    client.connect(Coordinator::builder().ttl(lease).into()).await.expect("the store is there")
}

/// Runs `work` in a simulated world of its own. An outage begins `down_after` milliseconds after `work` has notified
/// `ready`, which it does right before the call that is tested. Returns a description of what is wrong, if anything is.
async fn outlives<W>(
    outage: Outage,
    kind: Option<ErrorKind>,
    down_after: u64,
    work: impl FnOnce(Coordinator, Coordinator, Arc<Moments>) -> W,
) -> Option<String>
where
    W: Future<Output = Result<()>> + Send + 'static,
{
    let _run = Run::begin(down_after);
    let world = World::new(down_after, Traits::SERVER);
    let client = world.client(Clocks::default());
    let (one, other) = (connect(&client, outage.lease).await, connect(&client, outage.lease).await);
    world.set_weather(Weather { delay: WAY..=WAY, ..Weather::calm() });
    let moments = Arc::<Moments>::default();
    let working = client.spawn(work(one, other, Arc::clone(&moments)));
    let meanwhile = async {
        moments.ready.notified().await;
        sleep(Duration::from_millis(down_after)).await;
        match kind {
            None => world.set_down(true),
            kind => world.set_failing(kind),
        }
        sleep(outage.lasts).await;
        match kind {
            None => world.set_down(false),
            _ => world.set_failing(None),
        }
        // By this time the clients have opened sessions again.
        sleep(Duration::from_secs(2)).await;
        moments.over.notify_one();
    };
    let limit = outage.lasts + Duration::from_secs(9);
    let (worked, ()) = tokio::join!(tokio::time::timeout(limit, working), meanwhile);
    match worked.map(|worked| worked.expect("no panic")) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("it waits {limit:?} after the call")),
    }
}

/// Checks that each of these calls survives an outage of each kind. The outages begin at moments that are `step`
/// milliseconds apart.
fn all_outlive<W>(
    outage: Outage,
    recipes: &[&'static str],
    step: usize,
    work: impl Fn(&'static str, Coordinator, Coordinator, Arc<Moments>) -> W,
) where
    W: Future<Output = Result<()>> + Send + 'static,
{
    let mut failed = Vec::new();
    for recipe in recipes.iter().copied() {
        for (kind, down_after) in KINDS
            .iter()
            .flat_map(|kind| (0..LONGEST).step_by(step).map(move |after| (*kind, after)))
        {
            let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
            let runtime = runtime.expect("a runtime can be made");
            let work = |one, other, now| work(recipe, one, other, now);
            if let Some(wrong) = runtime.block_on(outlives(outage, kind, down_after, work)) {
                let kind = kind.map_or("silent".to_owned(), |kind| format!("{kind:?}"));
                failed.push(format!("{recipe}, {kind} after {down_after} ms: {wrong}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn acquires_without_a_limit_outlive_an_outage() {
    for (outage, step) in [(LONG, 5), (SHORT, 40)] {
        all_outlive(outage, &RECIPES, step, |recipe, one, _, now| async move {
            now.ready.notify_one();
            acquire(recipe, &one).await
        });
    }
}

#[test]
fn waits_without_a_limit_outlive_an_outage() {
    all_outlive(LONG, &WAITS, 20, wait);
    all_outlive(SHORT, &WAITS, 40, wait);
    all_outlive(SHORT, &[LEAVING], 20, wait);
}
