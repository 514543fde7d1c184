//! What fails: for each instance something of its own, and something of the store's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Scope, sleep};
use std::time::Duration;

use coordination_tests::checks::tools::Chance;
use coordination_tests::harness::{Direction, Mode, Proxy, Server};

use super::instance::Instance;
use super::{Place, World, doze};

/// A fault is over so long before the end, so that its consequences are seen.
const BEFORE_THE_END: Duration = Duration::from_millis(1_500);

/// How many faults there were, of one kind or another.
#[derive(Clone, Default)]
pub(super) struct Struck(Arc<AtomicUsize>);

impl Struck {
    fn one_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How many.
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Lets things fail until the clients end; for each task how often.
pub(super) fn begin<'scope>(
    scope: &'scope Scope<'scope, '_>,
    world: &'scope World,
    chance: &mut Chance,
) -> Vec<Struck> {
    let mut all = Vec::new();
    let mut task = |mut chance: Chance, strike: Box<dyn Fn(&mut Chance) + Send + 'scope>| {
        let struck = Struck::default();
        all.push(struck.clone());
        scope.spawn(move || {
            loop {
                doze(&mut chance, 1_500);
                if world.is_calm(BEFORE_THE_END) {
                    return;
                }
                struck.one_more();
                world.faults.fetch_add(1, Ordering::Relaxed);
                strike(&mut chance);
            }
        });
    };
    for instance in &world.instances {
        task(chance.fork(), Box::new(|chance| strike_instance(instance, chance)));
        if let Some(network) = &instance.network {
            task(chance.fork(), Box::new(|chance| strike_network(network, chance)));
        }
    }
    if let Place::Server(server) = &world.place {
        task(chance.fork(), Box::new(|chance| strike_server(&**server, chance)));
    }
    all
}

fn millis(chance: &mut Chance, from: u64, to: u64) -> Duration {
    Duration::from_millis(from + chance.below(to - from) as u64)
}

fn strike_instance(instance: &Instance, chance: &mut Chance) {
    match chance.below(4) {
        0 => instance.is_killed(millis(chance, 0, 1_000)),
        1 => instance.is_stopped(millis(chance, 0, 500)),
        2 => instance.stands_still(millis(chance, 50, 800)),
        // For longer than the store's lease, or nearly.
        _ => instance.stands_still(millis(chance, 2_000, 4_000)),
    }
}

fn strike_network(network: &Proxy, chance: &mut Chance) {
    match chance.below(5) {
        0 => network.set_both(Mode::Stall),
        1 => network.set(Direction::ToServer, Mode::Blackhole),
        2 => network.set(Direction::ToClient, Mode::Blackhole),
        3 => network.reset_all(),
        _ => {
            network.refuse();
            network.close_all();
        }
    }
    let length =
        if chance.below(3) > 0 { millis(chance, 50, 600) } else { millis(chance, 1_000, 3_500) };
    sleep(length);
    network.heal();
    network.accept();
}

fn strike_server(server: &dyn Server, chance: &mut Chance) {
    let node = server.node(0);
    match chance.below(4) {
        0 => {
            node.pause();
            sleep(millis(chance, 50, 800));
        }
        1 => {
            node.pause();
            sleep(millis(chance, 1_500, 4_000));
        }
        2 => {
            node.kill();
            sleep(millis(chance, 1_000, 3_000));
        }
        _ => {
            node.kill();
            sleep(millis(chance, 0, 200));
        }
    }
    revive(server);
}

/// Until it serves clients again.
pub(super) fn revive(server: &dyn Server) {
    let node = server.node(0);
    node.resume();
    if !node.is_running() {
        node.restart();
    }
    server.wait_ready();
}
