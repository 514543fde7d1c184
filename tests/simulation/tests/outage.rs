//! Calls without a limit of time outlive an outage, whichever of their requests it meets.
#![cfg(coordination_internals)]

use std::time::Duration;

use coordination::simulation::{Clocks, Run, Traits, Weather, World};
use coordination::{Config, Coordinator, Patience, Result};
use tokio::runtime::Builder;

const TTL: Duration = Duration::from_secs(1);
/// How long each message is on its way, in milliseconds.
const WAY: u64 = 10;
/// By then every one of the calls has ended, if nothing comes between.
const LONGEST: u64 = 160;
/// How the store is out of reach: for longer than any try.
const OUTAGE: Duration = Duration::from_secs(3);

/// What is acquired: each for the first time, so that what a queue's value says is stored with it. Several locks at once
/// are not among them: a call that loses one of them while it waits for another fails (ML1).
const RECIPES: [&str; 7] =
    ["lock", "share", "semaphore", "limiter", "latest", "leadership", "barrier"];

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

/// Acquires it in a world of its own, in which the store is down for a while, from so many milliseconds after the call on.
/// Answers what is wrong.
async fn outlives(recipe: &'static str, down_after: u64) -> Option<String> {
    let _run = Run::begin(down_after);
    let traits =
        Traits { is_remote: true, has_clock: true, watches: true, renews_on_restart: false };
    let world = World::new(down_after, traits);
    let client = world.client(Clocks::default());
    let config = Config { ttl: Some(TTL), ..Config::default() };
    let coordinator = client.connect(config).await.expect("the store is there");
    world.set_weather(Weather { delay: WAY..=WAY, ..Weather::calm() });
    let acquiring = client.spawn(async move { acquire(recipe, &coordinator).await });
    let outage = async {
        tokio::time::sleep(Duration::from_millis(down_after)).await;
        world.set_down(true);
        tokio::time::sleep(OUTAGE).await;
        world.set_down(false);
    };
    let limit = OUTAGE + 2 * TTL + Duration::from_secs(5);
    let (acquired, ()) = tokio::join!(tokio::time::timeout(limit, acquiring), outage);
    match acquired.map(|acquired| acquired.expect("no panic")) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("it waits {limit:?} after the call")),
    }
}

#[test]
fn acquires_without_a_limit_outlive_an_outage() {
    let mut failed = Vec::new();
    for recipe in RECIPES {
        for down_after in (0..LONGEST).step_by(5) {
            let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
            let runtime = runtime.expect("a runtime can be made");
            if let Some(wrong) = runtime.block_on(outlives(recipe, down_after)) {
                failed.push(format!("{recipe}, down after {down_after} ms: {wrong}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
