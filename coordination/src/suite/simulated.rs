//! Runs the checks on the store of the simulation, where waiting takes no real time. A request that is kept back there is just
//! slow.

use std::sync::Arc;
use std::time::Duration;

use super::{Mistake, Proxy, StoreAccess, run};
use crate::error::Result;
use crate::simulation::{Client, Clocks, Link, Run, Traits, Weather, World};

const URL: &str = "simulation://";
/// Any seed would do: only the delay of messages is random.
const SEED: u64 = 1;
/// How long a request that is kept back is on its way, in milliseconds.
const KEPT: u64 = 5_000;

/// A simulated store with two clients: the one that comes by the proxy, and the other.
struct Simulated {
    world: World,
    by_proxy: Arc<Client>,
    direct: Arc<Client>,
}

impl StoreAccess for Simulated {
    fn url(&self) -> String {
        URL.to_owned()
    }

    fn proxy(&self) -> Option<&dyn Proxy> {
        Some(self)
    }

    fn as_client(&self, by_proxy: bool, work: &mut dyn FnMut()) {
        let client = if by_proxy { &self.by_proxy } else { &self.direct };
        client.enter(work);
    }
}

impl Proxy for Simulated {
    fn url(&self) -> String {
        URL.to_owned()
    }

    fn hold(&self) {
        self.world.set_weather(Weather { slow: (1_000_000, KEPT..=KEPT), ..Weather::calm() });
    }

    fn part(&self) {
        self.world.set_weather(Weather::calm());
    }

    fn let_go(&self) {}

    fn arrival(&self) -> Duration {
        Duration::from_millis(KEPT)
    }

    fn silence(&self) {
        let link = Link { requests_cut: true, replies_cut: true, ..Link::default() };
        self.by_proxy.set_link(link);
    }

    fn cut(&self) {
        // All requests are lost. The client notices half of these losses, by a broken connection.
        self.world.set_weather(Weather { lost_request: 1_000_000, ..Weather::calm() });
    }

    fn heal(&self) {
        self.world.set_weather(Weather::calm());
        self.by_proxy.set_link(Link::default());
    }
}

/// Runs the check of this name on the simulated store, in a runtime of one thread whose time is paused.
///
/// # Errors
///
/// Those of [`run`].
///
/// # Panics
///
/// Like [`run`].
pub async fn simulated(name: &str, mistake: Option<Mistake>) -> Result<()> {
    let _run = Run::begin(SEED);
    let world = World::new(SEED, Traits::SERVER);
    let (by_proxy, direct) = (world.client(Clocks::default()), world.client(Clocks::default()));
    run(name, &Simulated { world, by_proxy, direct }, mistake).await
}
