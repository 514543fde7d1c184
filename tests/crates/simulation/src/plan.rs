//! The plan of a run, computed from its seed: how many clients, which kind of store, which faults.

use std::time::Duration;

use coordination::simulation::{Clocks, Traits, Weather};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The wall clocks of two clients differ by at most this, in runs with a recipe that relies on wall clocks.
pub(crate) const WALL_CLOCKS_DIFFER: Duration = Duration::from_millis(40);

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A client is paused.
    Pause,
    /// A client's machine is suspended: the client is paused, and its monotonic clock stops too.
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
    /// The network begins to behave differently, for instance to lose or delay messages, for a while.
    Weather,
    /// The store ends a session too early. So it may grant a lock to another client while the former holder still
    /// believes that it holds it.
    EarlyEnd,
    /// The store loses all data. As with `EarlyEnd`, two clients may then believe that they hold a lock. Tokens still
    /// have to rise.
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

    /// Faults by which the store breaks a promise, so that two clients may hold a lock at once. During such a fault the
    /// run does not check that a lock has only one holder.
    pub(crate) const UNTIMED: [Self; 2] = [Self::EarlyEnd, Self::Wipe];

    /// The index in [`Fault::ALL`]. Histories have this number instead of the name.
    pub(crate) fn number(self) -> u32 {
        self as u32
    }
}

/// The recipes other than locks. Each run uses only two or three of them, so that it uses each of the chosen ones
/// often.
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
    /// The number of tasks of each client that work at the same time.
    pub(crate) tasks: u32,
    /// After this many grants the faults end, and then the run ends.
    pub(crate) grants: u64,
    pub(crate) faults: Vec<Fault>,
    /// The longest time from the beginning of a fault to the beginning of the next one.
    pub(crate) calm: Duration,
    /// The longest time for which a client holds what it has acquired.
    pub(crate) hold: Duration,
    /// The longest time that a task waits between two actions.
    pub(crate) think: Duration,
    /// How many percent of all acquires are dropped by their caller before they return.
    pub(crate) cancelled: u32,
    pub(crate) weather: Weather,
    pub(crate) recipes: Vec<Recipe>,
}

impl Plan {
    /// L5: observers have to see the last state at most this long after the last fault has ended.
    pub(crate) fn recovery(&self) -> Duration {
        3 * self.ttl + Duration::from_secs(7)
    }

    pub(crate) fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0x706c_616e);
        let random = &mut random;
        // In one run of five the store is in the same process as its clients, as memory and file are.
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

    /// Chooses the clocks of a client. They may differ from the world's time as far as assumption A1 allows.
    pub(crate) fn clocks(&self, random: &mut StdRng) -> Clocks {
        // Recipes that rely on wall clocks promise something only if the wall clocks of all clients differ little.
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

/// Chooses the recipes of a run. It uses a random generator of its own, so that the rest of each seed's plan stays the
/// same when a recipe is added to the list.
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

/// Chooses some kinds of faults for a run and leaves the others out. So for each kind there are runs in which it
/// happens without other kinds.
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

/// Chooses at random how the network behaves for a while.
pub(crate) fn weather(random: &mut StdRng, ttl: Duration) -> Weather {
    let calm = Weather::calm();
    let ttl = ttl.as_millis() as u64;
    match random.random_range(0..6) {
        0 => calm,
        1 => Weather { delay: 1..=10, ..calm },
        // Some replies arrive just before the call's timeout, so that what they say is already old.
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
