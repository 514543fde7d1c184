//! H4: many clients acquire, renew and release locks through three instances on one store, while clients, instances, the store
//! and the network between them fail at random.
//!
//! * [`client`] has the clients. They record what they were told and until when each of them may rely on its hold, by its own
//!   clock. A client that is killed hangs up at any moment, and one that stands still lets its lease end.
//! * [`instance`] has the instances, which are killed, stopped in order, and made to stand still, and their ways to the store.
//! * [`faults`] has what fails, and when.
//! * The judge of histories (`coordination-history`) looks for two who may rely on one lock at once, and for fences that do not
//!   rise. Whatever else a client finds wrong, such as an answer that does not come in time, is told as it is.
//!
//! The seed decides what fails and what clients do, but not what happens: processes are real.

mod client;
mod faults;
mod instance;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use coordination_history::{Kind, NEVER, Object, Record, Rules, check, now};
use coordination_tests::checks::tools::{Chance, given_seed};
use coordination_tests::harness::{Etcd, Redis, SchedulerLag, Server, wait_until};
use coordination_tests::must_hold;

use crate::LONG;
use client::Client;
use instance::Instance;

/// How many clients there are at a time, and how many instances.
const CLIENTS: usize = 16;
const INSTANCES: usize = 3;
/// The locks. On servers, promises keep the leases of those that begin with `long/`.
pub(crate) const NAMES: [&str; 4] = ["a", "b", "long/c", "long/d"];
/// The store's lease and the time between heartbeats, as options of its URL.
const TIMES: &str = "ttl=3s&heartbeat=300ms";
/// The time of a heartbeat, and of the store's lease.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(300);
pub(crate) const TTL: Duration = Duration::from_secs(3);

/// Where the locks are.
pub(crate) enum Place {
    Directory,
    Server(Box<dyn Server>),
}

impl Place {
    pub(crate) fn etcd() -> Self {
        Self::Server(Box::new(Etcd::one()))
    }

    pub(crate) fn redis() -> Self {
        Self::Server(Box::new(Redis::one()))
    }
}

/// Makes a test for each store, which lasts for so long and is run by this function.
macro_rules! on_each_store {
    ($rerun:ident, $length:expr) => {
        #[test]
        fn h4_nobody_overlaps_while_instances_die_on_a_directory() {
            $rerun(|| $crate::chaos::run($crate::chaos::Place::Directory, $length));
        }

        #[test]
        fn h4_nobody_overlaps_while_instances_and_etcd_die() {
            $rerun(|| $crate::chaos::run($crate::chaos::Place::etcd(), $length));
        }

        #[test]
        fn h4_nobody_overlaps_while_instances_and_redis_die() {
            $rerun(|| $crate::chaos::run($crate::chaos::Place::redis(), $length));
        }
    };
}
pub(crate) use on_each_store;

/// What all clients and faults share.
pub(crate) struct World {
    place: Place,
    instances: Vec<Instance>,
    /// The number of the next client.
    clients: AtomicU32,
    lag: SchedulerLag,
    /// When clients begin nothing any more, if enough has happened by then.
    until: u64,
    /// How many grants say something, how many there were, and how many faults.
    enough: u64,
    grants: AtomicU64,
    faults: AtomicU64,
}

/// What came of the clients: their records, what was wrong, and what did not come in time.
#[derive(Default)]
struct Story {
    records: Vec<Record>,
    wrong: Vec<String>,
    late: Vec<String>,
}

/// Lets all of it run for so long, and judges it.
pub(crate) fn run(place: Place, length: Duration) {
    let seed = given_seed().unwrap_or(1);
    println!("COORDINATION_TEST_SEED={seed}");
    let mut chance = Chance::of(seed);
    let instances = Instance::start(&place, INSTANCES);
    let until = now() + nanos(length);
    let lag = SchedulerLag::start();
    let (clients, enough) = (AtomicU32::new(1), enough(length));
    let (grants, faults) = (AtomicU64::new(0), AtomicU64::new(0));
    let world = World { place, instances, clients, lag, until, enough, grants, faults };
    let (mut story, struck) = std::thread::scope(|scope| {
        let struck = faults::begin(scope, &world, &mut chance);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| (Client::new(&world, chance.fork()), &world))
            .map(|(client, world)| scope.spawn(move || client.run(|| world.is_over())))
            .collect();
        let stories = clients.into_iter().map(|client| client.join().expect("it does not panic"));
        (stories.fold(Story::default(), Story::and), struck.iter().map(faults::Struck::count).sum())
    });
    world.heal();
    let last = Client::new(&world, chance.fork()).last_words();
    story = story.and(last);
    world.assert_empty();
    judge(&story, struck, length);
}

impl World {
    fn number(&self) -> u32 {
        self.clients.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether clients begin nothing any more. On a busy machine it takes longer until enough has happened.
    fn is_over(&self) -> bool {
        let has_enough = self.grants.load(Ordering::Relaxed) >= self.enough;
        self.is_past(0) && (has_enough && self.has_enough_faults() || self.is_past(nanos(LONG)))
    }

    /// Whether nothing fails any more: some time before that.
    fn is_calm(&self, before: Duration) -> bool {
        now() + nanos(before) > self.until
            && (self.has_enough_faults() || self.is_past(nanos(LONG)))
    }

    fn has_enough_faults(&self) -> bool {
        self.faults.load(Ordering::Relaxed) >= self.enough / 2
    }

    fn is_past(&self, more: u64) -> bool {
        now() >= self.until + more
    }

    /// Until everything works again.
    fn heal(&self) {
        if let Place::Server(server) = &self.place {
            faults::revive(&**server);
        }
        self.instances.iter().for_each(Instance::heal);
        for instance in &self.instances {
            assert!(wait_until(LONG, || instance.is_ready()), "an instance is not ready again");
        }
    }

    /// Nobody holds anything in the end, nor waits for it.
    fn assert_empty(&self) {
        let mut names = String::new();
        let is_empty = || {
            names = self.instances[0].ask("GET", "/v1/locks", "", LONG).map_or_else(
                |error| error.to_string(),
                |answer| answer.json()["names"].to_string(),
            );
            names == "[]"
        };
        assert!(wait_until(LONG, is_empty), "somebody has {names}");
    }
}

impl Story {
    fn and(mut self, mut other: Self) -> Self {
        self.records.append(&mut other.records);
        self.wrong.append(&mut other.wrong);
        self.late.append(&mut other.late);
        self
    }
}

/// Nothing that was promised was broken, and enough has happened for that to say something.
fn judge(story: &Story, struck: usize, length: Duration) {
    let objects = (1..).zip(NAMES).map(|(id, name)| {
        // Whoever has to sit out a promise is in nobody's order.
        Object { id, name: name.to_owned(), kind: Kind::Lock, fifo: false }
    });
    let mut rules = Rules::new(objects.collect());
    // An answer that is late is told by its client, who knows what its instance suffered meanwhile.
    (rules.timeout_slack, rules.lost_slack) = (NEVER, NEVER);
    let report = check(&story.records, &rules);
    println!(
        "{} grants of {} requests, {} faults, refused {:?}, released {}",
        report.grants, report.attempts, struck, report.refused, report.released
    );
    let broken: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
    must_hold!(report.is_clean(), "{report:?}\n{}", broken.join("\n"));
    let wrong = story.wrong.join("\n");
    must_hold!(story.wrong.is_empty(), "{wrong}");
    assert!(story.late.is_empty(), "{}", story.late.join("\n"));
    // Some five a second on a directory and two on a server, for a promise that has to be sat out costs a lease.
    let enough = enough(length);
    assert!(report.grants >= enough, "only {} grants", report.grants);
    assert!(struck as u64 >= enough / 2, "only {struck} faults");
}

/// How many grants have to be in a run of this length; half as many faults.
fn enough(length: Duration) -> u64 {
    length.as_secs()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps for up to so many milliseconds.
fn doze(chance: &mut Chance, most: u64) {
    sleep(Duration::from_millis(chance.below(most.max(1)) as u64));
}
