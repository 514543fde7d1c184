//! What is lost is told, whatever becomes of notifications.
#![cfg(coordination_internals)]

use std::time::Duration;

use coordination::simulation::{Clocks, Run, Traits, Weather, World};
use coordination::{Config, Coordinator, LossReason};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_secs(1);

fn in_a_world(ttl: Duration, work: impl AsyncFnOnce(&World, Coordinator)) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime can be made").block_on(async {
        let _run = Run::begin(1);
        let traits =
            Traits { is_remote: true, has_clock: true, watches: true, renews_on_restart: false };
        let world = World::new(1, traits);
        let client = world.client(Clocks::default());
        let config = Config { ttl: Some(ttl), ..Config::default() };
        let coordinator = client.connect(config).await.expect("the store is there");
        work(&world, coordinator).await;
    });
}

/// Each watch breaks, and tells nothing; the entries can be read.
#[test]
fn an_entry_that_is_removed_while_watches_fail_is_noticed() {
    in_a_world(TTL, async |world, coordinator| {
        world.set_weather(Weather {
            broken_watch: 1_000_000,
            lost_notification: 1_000_000,
            ..Weather::calm()
        });
        let lock = coordinator.lock("a").expect("a good name");
        let held = lock.acquire(None).await.expect("it is free");
        sleep(TTL / 2).await;
        assert!(held.is_held(), "nobody has touched it");
        lock.break_lock().await.expect("the store is there");
        let told = timeout(2 * TTL, held.lost()).await;
        assert_eq!(told, Ok(LossReason::EntryDeleted));
    });
}
