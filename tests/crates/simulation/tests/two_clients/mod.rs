//! A world with two clients, in which calls are cut short.

use std::sync::Arc;
use std::time::Duration;

use coordination::Coordinator;
use coordination::simulation::{Client, Clocks, Link, Run, Traits, Weather, World};
use tokio::runtime::Builder;

pub(crate) const TTL: Duration = Duration::from_secs(3);
/// How long each message is on its way, in milliseconds.
pub(crate) const WAY: u64 = 10;
/// No request of a client arrives.
pub(crate) const CUT: Link = Link { requests_cut: true, replies_cut: false, heartbeats_cut: false };

/// Runs `work` with two clients of one store, and the link of the first.
pub(crate) fn in_a_world(work: impl AsyncFnOnce(&World, &Arc<Client>, Coordinator, Coordinator)) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime can be made").block_on(async {
        let _run = Run::begin(1);
        let world = World::new(1, Traits::SERVER);
        let (client, second) = (world.client(Clocks::default()), world.client(Clocks::default()));
        let config = || Coordinator::builder().ttl(TTL).into();
        let one = client.connect(config()).await.expect("the store is there");
        let other = second.connect(config()).await.expect("the store is there");
        world.set_weather(Weather { delay: WAY..=WAY, ..Weather::calm() });
        work(&world, &client, one, other).await;
    });
}
