//! What a seed stands for: how many clients, which store, which faults.

use std::time::Duration;

use coordination::simulation::{Clocks, Traits, Weather};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How far two clients' wall clocks are apart at most, in runs where something is counted by them.
pub(crate) const WALL_CLOCKS_DIFFER: Duration = Duration::from_millis(40);

/// What can go wrong during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A client stands still.
    Pause,
    /// A client stands still, and so does the clock that does not count suspend.
    Suspend,
    /// A client is killed; another one starts.
    Kill,
    /// Nothing that a client sends arrives.
    RequestsCut,
    /// Nothing that is sent to a client arrives.
    RepliesCut,
    /// Neither.
    BothCut,
    /// Everything that a client sends arrives but its heartbeats.
    HeartbeatsCut,
    /// The store is down for a while.
    Restart,
    /// A waiter's entry is removed.
    WaiterRemoved,
    /// The network behaves in another way.
    Weather,
    /// The store ends a session before its time: it may grant while the holder still believes.
    EarlyEnd,
    /// The store loses everything: as above, and tokens must rise all the same.
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

    /// Exclusion in time is not promised when the store breaks its word.
    pub(crate) const UNTIMED: [Self; 2] = [Self::EarlyEnd, Self::Wipe];

    /// Its place in [`Fault::ALL`].
    pub(crate) fn number(self) -> u32 {
        self as u32
    }
}

/// What is done beside the locks; two or three in each run, so that each comes often.
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

/// A run, as its seed says.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) traits: Traits,
    pub(crate) ttl: Duration,
    pub(crate) clients: u32,
    /// Tasks of each client.
    pub(crate) tasks: u32,
    /// When so many were granted, the run is healed and ends.
    pub(crate) grants: u64,
    pub(crate) faults: Vec<Fault>,
    /// The longest time between two faults.
    pub(crate) calm: Duration,
    /// The longest time that something is held.
    pub(crate) hold: Duration,
    /// The longest time between two attempts of a task.
    pub(crate) think: Duration,
    /// Chance, in percent, that an acquire is dropped on its way.
    pub(crate) cancelled: u32,
    pub(crate) weather: Weather,
    pub(crate) recipes: Vec<Recipe>,
}

impl Plan {
    /// How long whatever follows the store may take to come round after the last fault (L5).
    pub(crate) fn recovery(&self) -> Duration {
        3 * self.ttl + Duration::from_secs(7)
    }

    pub(crate) fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0x706c_616e);
        let random = &mut random;
        // One run in five has a store within the process, as memory and file are.
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

    /// A client's clocks: within what A1 allows.
    pub(crate) fn clocks(&self, random: &mut StdRng) -> Clocks {
        // Who counts by the wall clock is promised nothing that clocks do not keep.
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

/// From randomness of its own: one more recipe does not change all the rest.
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

/// Some kinds, so that each also comes without the others.
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

/// How the network behaves for a while.
pub(crate) fn weather(random: &mut StdRng, ttl: Duration) -> Weather {
    let calm = Weather::calm();
    let ttl = ttl.as_millis() as u64;
    match random.random_range(0..6) {
        0 => calm,
        1 => Weather { delay: 1..=10, ..calm },
        // Answers that come just in time: what is proved by them is older than it seems.
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
