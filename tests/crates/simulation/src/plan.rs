//! The plan of a run, computed from its seed: how many clients, which kind of store, which faults.

use std::time::Duration;

use coordination::simulation::{Clocks, Traits, Weather};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// By how much the wall clocks of two clients differ at most, in runs with a recipe that uses wall clocks.
pub(crate) const WALL_CLOCKS_DIFFER: Duration = Duration::from_millis(40);

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A client is paused.
    Pause,
    /// A client's machine is suspended: the client is paused, and its monotonic clock too.
    Suspend,
    /// A client is killed, and another one starts.
    Kill,
    /// All requests of a client are lost.
    RequestsCut,
    /// All answers and notifications to a client are lost.
    RepliesCut,
    /// Everything from and to a client is lost.
    BothCut,
    /// Only the heartbeats of a client are lost.
    HeartbeatsCut,
    /// The store is down for a while, and restarts.
    Restart,
    /// An operator removes the entry of a waiter.
    WaiterRemoved,
    /// The network behaves in a different way for a while.
    Weather,
    /// The store ends a session too early, so it may grant a lock while the former holder still claims it.
    EarlyEnd,
    /// The store loses all data. Timed exclusion may break as with `EarlyEnd`, but tokens still have to rise.
    Wipe,
}

impl Fault {
    pub(crate) const ALL: [Self; 12] = [
        Self::Pause,
        Self::Suspend,
        Self::Kill,
        Self::RequestsCut,
        Self::RepliesCut,
        Self::BothCut,
        Self::HeartbeatsCut,
        Self::Restart,
        Self::WaiterRemoved,
        Self::Weather,
        Self::EarlyEnd,
        Self::Wipe,
    ];

    /// The faults by which the store breaks a promise, so that the run does not check timed exclusion.
    pub(crate) const UNTIMED: [Self; 2] = [Self::EarlyEnd, Self::Wipe];

    /// The index in [`Fault::ALL`], by which histories name it.
    pub(crate) fn number(self) -> u32 {
        self as u32
    }
}

/// Recipes that are used beside the locks. Each run has two or three of them, so that each is used often in its runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recipe {
    Group,
    Partition,
    Observe,
    Watch,
    Barrier,
    DoubleBarrier,
    Latch,
    Once,
    Rate,
    Queue,
}

impl Recipe {
    const ALL: [Self; 10] = [
        Self::Group,
        Self::Partition,
        Self::Observe,
        Self::Watch,
        Self::Barrier,
        Self::DoubleBarrier,
        Self::Latch,
        Self::Once,
        Self::Rate,
        Self::Queue,
    ];
}

/// The plan of a run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) traits: Traits,
    pub(crate) ttl: Duration,
    pub(crate) clients: u32,
    /// The number of tasks of each client.
    pub(crate) tasks: u32,
    /// After this many grants all faults end, and then the run ends.
    pub(crate) grants: u64,
    pub(crate) faults: Vec<Fault>,
    /// The longest time between the beginnings of two faults.
    pub(crate) calm: Duration,
    /// The longest time for which something is held.
    pub(crate) hold: Duration,
    /// The longest pause between two attempts of a task.
    pub(crate) think: Duration,
    /// The probability, in percent, that an acquire is dropped before it returns.
    pub(crate) cancelled: u32,
    pub(crate) weather: Weather,
    pub(crate) recipes: Vec<Recipe>,
}

impl Plan {
    /// L5: how long after the last fault it may take until observers have caught up.
    pub(crate) fn recovery(&self) -> Duration {
        3 * self.ttl + Duration::from_secs(7)
    }

    pub(crate) fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0x706c_616e);
        let random = &mut random;
        // In one run of five the store is within the process, as memory and file are.
        let is_remote = !random.random_ratio(1, 5);
        let traits = Traits {
            is_remote,
            has_clock: random.random(),
            watches: random.random(),
            renews_on_restart: random.random(),
        };
        let ttl = Duration::from_millis([400, 1_000, 2_000][random.random_range(0..3)]);
        let faults = faults(random, is_remote);
        Self {
            seed,
            traits,
            ttl,
            clients: random.random_range(2..=4),
            tasks: random.random_range(1..=3),
            grants: random.random_range(150..=400),
            calm: ttl.mul_f64(random.random_range(0.3..4.0)),
            hold: Duration::from_millis([0, 5, 30, 200][random.random_range(0..4)]),
            think: Duration::from_millis([0, 2, 20][random.random_range(0..3)]),
            cancelled: [0, 10, 10, 40][random.random_range(0..4)],
            weather: weather(random, ttl),
            faults,
            recipes: recipes(seed),
        }
    }

    /// The clocks of a client; they differ from the world's within assumption A1.
    pub(crate) fn clocks(&self, random: &mut StdRng) -> Clocks {
        // Recipes that use wall clocks promise something only if these clocks differ little.
        let ahead = match self.recipes.contains(&Recipe::Once) {
            true => WALL_CLOCKS_DIFFER.as_micros() as i64 / 2,
            false => 3_600_000_000,
        };
        Clocks {
            boot: random.random_range(1_000_000_000..1_000_000_000_000_000),
            faster_ppm: random.random_range(-4_900..=4_900),
            wall_ahead: random.random_range(-ahead..=ahead),
        }
    }
}

/// Chosen with a random generator of its own, so that adding a recipe does not change the rest of each seed's plan.
fn recipes(seed: u64) -> Vec<Recipe> {
    let mut random = StdRng::seed_from_u64(seed ^ 0x7265_6369);
    let count = random.random_range(2..=3);
    let mut chosen = Vec::new();
    while chosen.len() < count {
        let recipe = Recipe::ALL[random.random_range(0..Recipe::ALL.len())];
        if !chosen.contains(&recipe) {
            chosen.push(recipe);
        }
    }
    chosen
}

/// Chooses some kinds of faults, so that each kind also happens without the others.
fn faults(random: &mut StdRng, is_remote: bool) -> Vec<Fault> {
    let breaks_its_word = random.random_ratio(1, 5);
    let possible = Fault::ALL.iter().filter(|fault| match fault {
        Fault::Pause | Fault::Kill => true,
        Fault::EarlyEnd | Fault::Wipe => is_remote && breaks_its_word,
        _ => is_remote,
    });
    let mut chosen: Vec<_> = possible.copied().collect();
    chosen.retain(|_| random.random_ratio(2, 5));
    chosen
}

/// Chooses how the network behaves for a while.
pub(crate) fn weather(random: &mut StdRng, ttl: Duration) -> Weather {
    let calm = Weather::calm();
    let ttl = ttl.as_millis() as u64;
    match random.random_range(0..6) {
        0 => calm,
        1 => Weather { delay: 1..=10, ..calm },
        // Replies that arrive just before their timeout, so what they prove is already old.
        2 => Weather { slow_reply: (300_000, 0..=ttl / 6), ..calm },
        3 => Weather {
            delay: 0..=3,
            lost_request: 20_000,
            lost_reply: 20_000,
            lost_notification: 50_000,
            early_notification: 20_000,
            broken_watch: 20_000,
            older_answer: 100_000,
            ..calm
        },
        4 => Weather {
            delay: 0..=5,
            slow: (50_000, 0..=ttl),
            repeated_request: (20_000, 0..=ttl),
            lost_notification: 20_000,
            ..calm
        },
        _ => Weather {
            delay: 0..=ttl / 20,
            slow: (20_000, 0..=2 * ttl),
            slow_reply: (20_000, 0..=ttl / 6),
            lost_request: 50_000,
            lost_reply: 100_000,
            repeated_request: (50_000, 0..=2 * ttl),
            lost_notification: 200_000,
            early_notification: 50_000,
            broken_watch: 50_000,
            older_answer: 300_000,
        },
    }
}
