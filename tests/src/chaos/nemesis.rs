//! What is broken, when, and for how long: made of a seed.
//!
//! First one kind after the other, each once and with quiet between, so that what a kind does can be told from
//! what others do. Then several at a time, one of each lane.

use std::{ops::Range, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use super::Store;
use crate::checks::Backend;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGKILL to a client, and another takes its place.
    ClientKilled,
    /// To two at once.
    ClientsKilled,
    /// SIGSTOP to a client, shorter than its lease.
    ClientPausedBriefly,
    /// Longer than its lease.
    ClientPaused,
    /// Two at once.
    ClientsPaused,
    /// Bytes come later.
    Delay,
    /// Later than an attempt may take.
    LongDelay,
    /// Bytes come one by one.
    Dribble,
    /// Connections are reset.
    Reset,
    /// Connections are closed in the ordinary way.
    Closed,
    /// One side says that it sends no more.
    HalfClosed,
    /// Nothing is carried, and all of it later.
    Stall,
    /// What clients send is lost.
    LostToServer,
    /// What servers answer is lost.
    LostToClient,
    /// Both.
    LostBothWays,
    /// Connections are reset, and new ones refused.
    Refused,
    /// A connection ends after some message, or before it.
    Cut,
    /// SIGSTOP to the only server, briefly.
    ServerPausedBriefly,
    /// Longer.
    ServerPaused,
    /// SIGKILL to the only server, started again at once.
    ServerRestarted,
    /// Started again after a lease.
    ServerDown,
    /// SIGKILL to a member that does not lead.
    MemberKilled,
    /// To the one that leads.
    LeaderKilled,
    /// SIGSTOP to a member that does not lead.
    MemberPaused,
    /// To the one that leads.
    LeaderPaused,
    /// To all.
    AllPaused,
    /// A member that does not lead is cut off from the others, and not from clients.
    MemberIsolated,
    /// The one that leads is.
    LeaderIsolated,
    /// Two of three are killed.
    MajorityLost,
    /// All history is forgotten ten times a second, and the server's file rewritten.
    Compaction,
    /// The server's quota is used up.
    NoSpace,
    /// The server forgets all scripts, ten times a second.
    ScriptsFlushed,
    /// It closes all connections, as often.
    ConnectionsKilled,
    /// An operator ends a session.
    SessionEnded,
    /// An operator deletes an entry.
    EntryDeleted,
    /// The disk is full.
    DiskFull,
    /// Another program locks a queue's file.
    FileHeld,
    /// Every processor has other things to do.
    Starved,
    /// The file of a session is removed.
    SessionRemoved,
    /// The directory of sessions is.
    SessionsRemoved,
    /// The file of a queue is.
    QueueRemoved,
    /// It is emptied.
    QueueEmptied,
    /// It is cut before the first entry.
    QueueCut,
    /// A copy of it takes its place.
    QueueReplaced,
    /// The directory of queues is renamed.
    QueuesRenamed,
    /// The whole directory is.
    DirectoryRenamed,
    /// An operator breaks a lock.
    LockBroken,
}

/// Faults of one lane never happen at the same time: they would undo each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Clients,
    Between,
    Store,
}

const LANES: [Lane; 3] = [Lane::Clients, Lane::Between, Lane::Store];

/// What is known of a kind.
#[derive(Clone, Debug)]
struct Row {
    fault: Fault,
    name: &'static str,
    lane: Lane,
    stores: Stores,
    millis: Range<u64>,
    cost: Cost,
}

/// What a kind may cost, when it happens alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cost {
    /// Time only: no session is lost.
    Keep,
    /// Sessions.
    Lose,
    /// Timed exclusion too, for all, on etcd before 3.4.31 and 3.5.13: it breaks assumption A2.
    Untimed,
    /// Timed exclusion of the spoiled group, until it is noticed.
    Spoil,
}

/// On which stores a kind happens.
#[derive(Clone, Copy, Debug)]
enum Stores {
    All,
    /// With a server, or several.
    Servers,
    /// With one only.
    One,
    Several,
    /// With several that can be cut off from each other.
    Apart,
    Only(Backend),
    /// Whose operator ends connections.
    Killable,
}

impl Stores {
    fn have(self, store: Store) -> bool {
        match self {
            Self::All => true,
            Self::Servers => store.nodes > 0,
            Self::One => store.nodes == 1,
            Self::Several => store.nodes > 1,
            // Servers of Consul meet at the ports that they serve.
            Self::Apart => store.nodes > 1 && store.backend != Backend::Consul,
            Self::Only(backend) => store.backend == backend,
            Self::Killable => {
                matches!(store.backend, Backend::Mysql | Backend::Postgres | Backend::Redis)
            }
        }
    }
}

const fn row(
    fault: Fault,
    name: &'static str,
    lane: Lane,
    stores: Stores,
    millis: Range<u64>,
    cost: Cost,
) -> Row {
    Row { fault, name, lane, stores, millis, cost }
}

/// All kinds. A pause that is "brief" is shorter than a lease of 2 s by more than two heartbeats.
#[rustfmt::skip]
const ROWS: &[Row] = {
    use {Cost::{Keep, Lose, Spoil, Untimed}, Fault as F, Lane::{Between, Clients}};
    use Stores::{All, Apart, Killable, Only, One, Servers, Several};
    const ETCD: Stores = Only(Backend::Etcd);
    const FILE: Stores = Only(Backend::File);
    const REDIS: Stores = Only(Backend::Redis);
    &[
        row(F::ClientKilled, "client killed", Clients, All, 100..1_000, Keep),
        row(F::ClientsKilled, "two clients killed", Clients, All, 100..1_000, Keep),
        row(F::ClientPausedBriefly, "client paused briefly", Clients, All, 100..800, Keep),
        row(F::ClientPaused, "client paused", Clients, All, 2_000..5_000, Lose),
        row(F::ClientsPaused, "two clients paused", Clients, All, 1_500..3_000, Lose),
        row(F::Delay, "delay", Between, Servers, 500..1_500, Keep),
        row(F::LongDelay, "delay longer than an attempt", Between, Servers, 1_000..3_000, Lose),
        row(F::Dribble, "bytes one by one", Between, Servers, 500..1_500, Keep),
        row(F::Reset, "connections reset", Between, Servers, 200..1_000, Keep),
        row(F::Closed, "connections closed", Between, Servers, 200..1_000, Keep),
        row(F::HalfClosed, "connections half-closed", Between, Servers, 100..600, Keep),
        row(F::Stall, "network stalls", Between, Servers, 200..800, Keep),
        row(F::LostToServer, "black hole to the server", Between, Servers, 500..4_000, Lose),
        row(F::LostToClient, "black hole to the client", Between, Servers, 500..4_000, Lose),
        row(F::LostBothWays, "black hole both ways", Between, Servers, 500..4_000, Lose),
        row(F::Refused, "connections refused", Between, Servers, 300..3_000, Lose),
        row(F::Cut, "cut at a message", Between, Servers, 500..1_500, Keep),
        row(F::ServerPausedBriefly, "server paused briefly", Lane::Store, One, 100..800, Keep),
        row(F::ServerPaused, "server paused", Lane::Store, One, 1_500..4_000, Lose),
        row(F::ServerRestarted, "server restarted", Lane::Store, One, 50..300, Lose),
        row(F::ServerDown, "server down", Lane::Store, One, 2_000..4_000, Lose),
        row(F::MemberKilled, "member killed", Lane::Store, Several, 500..2_500, Keep),
        row(F::LeaderKilled, "leader killed", Lane::Store, Several, 500..2_500, Keep),
        row(F::MemberPaused, "member paused", Lane::Store, Several, 300..3_000, Keep),
        row(F::LeaderPaused, "leader paused", Lane::Store, Several, 300..3_500, Untimed),
        row(F::AllPaused, "all members paused", Lane::Store, Several, 1_000..3_000, Untimed),
        row(F::MemberIsolated, "member isolated", Lane::Store, Apart, 500..3_000, Keep),
        row(F::LeaderIsolated, "leader isolated", Lane::Store, Apart, 500..3_000, Keep),
        row(F::MajorityLost, "majority lost", Lane::Store, Several, 1_000..3_000, Lose),
        row(F::Compaction, "compaction and defragmentation", Lane::Store, ETCD, 500..1_500, Keep),
        row(F::NoSpace, "no space", Lane::Store, ETCD, 300..1_500, Keep),
        row(F::ScriptsFlushed, "scripts forgotten", Lane::Store, REDIS, 300..1_000, Keep),
        row(F::ConnectionsKilled, "connections killed", Lane::Store, Killable, 100..600, Keep),
        row(F::SessionEnded, "session ended by an operator", Lane::Store, Servers, 300..1_000, Spoil),
        row(F::EntryDeleted, "entry deleted", Lane::Store, Servers, 300..1_000, Spoil),
        row(F::DiskFull, "disk full", Between, FILE, 100..1_000, Keep),
        row(F::FileHeld, "queue file held by another program", Clients, FILE, 50..500, Keep),
        row(F::Starved, "no processor", Clients, FILE, 100..700, Keep),
        row(F::SessionRemoved, "session file removed", Between, FILE, 300..600, Spoil),
        row(F::SessionsRemoved, "sessions removed", Between, FILE, 300..600, Spoil),
        row(F::QueueRemoved, "queue file removed", Lane::Store, FILE, 300..600, Spoil),
        row(F::QueueEmptied, "queue file emptied", Lane::Store, FILE, 300..600, Spoil),
        row(F::QueueCut, "queue file cut", Lane::Store, FILE, 300..600, Spoil),
        row(F::QueueReplaced, "queue file replaced by a copy", Lane::Store, FILE, 300..600, Spoil),
        row(F::QueuesRenamed, "queues renamed", Lane::Store, FILE, 300..600, Spoil),
        row(F::DirectoryRenamed, "directory renamed", Lane::Store, FILE, 300..600, Spoil),
        row(F::LockBroken, "lock broken", Between, All, 300..600, Spoil),
    ]
};

impl Fault {
    fn row(self) -> (usize, &'static Row) {
        let found = ROWS.iter().enumerate().find(|(_, row)| row.fault == self);
        found.expect("every kind has a row")
    }

    /// Its number in histories.
    pub(super) fn kind(self) -> u32 {
        u32::try_from(self.row().0).expect("a few")
    }
}

/// The names, by the numbers in histories.
pub(super) fn names() -> Vec<String> {
    ROWS.iter().map(|row| row.name.to_owned()).collect()
}

/// The numbers of the kinds that cost timed exclusion, of all or of the spoiled group.
pub(super) fn untimed(store: Store, spoiled: bool) -> Vec<u32> {
    let costs = |row: &&Row| match row.cost {
        Cost::Keep | Cost::Lose => false,
        Cost::Untimed => store.backend == Backend::Etcd,
        Cost::Spoil => spoiled,
    };
    ROWS.iter().filter(costs).map(|row| row.fault.kind()).collect()
}

/// Whether sessions of the judged group survive the kind, when it happens alone.
pub(super) fn keeps(kind: u32) -> bool {
    let row = usize::try_from(kind).ok().and_then(|index| ROWS.get(index));
    row.is_some_and(|row| matches!(row.cost, Cost::Keep | Cost::Spoil))
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) fault: Fault,
    pub(super) length: Duration,
    /// Decides whom it strikes.
    pub(super) whom: u64,
    /// Nothing happens for so long afterwards.
    pub(super) quiet: Duration,
}

/// What a seed makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    /// One after the other.
    pub(super) alone: Vec<Step>,
    /// At the same time, each lane one after the other.
    pub(super) mixed: Vec<Vec<Step>>,
}

/// What it takes to bring a fault about, besides its length.
const OVERHEAD: Duration = Duration::from_millis(250);

impl Schedule {
    /// About as long as `budget`.
    pub(super) fn new(seed: u64, store: Store, budget: Duration) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut rows: Vec<&Row> = ROWS.iter().filter(|row| row.stores.have(store)).collect();
        rows.shuffle(&mut rng);
        let mut left = budget.mul_f64(0.65);
        let mut alone = Vec::new();
        for row in &rows {
            let step = Self::step(row, &mut rng, 200..500);
            let Some(rest) = left.checked_sub(step.time()) else { break };
            left = rest;
            alone.push(step);
        }
        let length = budget.mul_f64(0.35) + left;
        let lane = |lane: &Lane| {
            let rows: Vec<&Row> = rows.iter().filter(|row| row.lane == *lane).copied().collect();
            let mut left = length;
            let mut steps = Vec::new();
            while let Some(row) = rows.get(rng.random_range(0..rows.len())) {
                let step = Self::step(row, &mut rng, 200..1_500);
                let Some(rest) = left.checked_sub(step.time()) else { break };
                left = rest;
                steps.push(step);
            }
            steps
        };
        let mixed = LANES.iter().map(lane).collect();
        Self { alone, mixed }
    }

    fn step(row: &Row, rng: &mut StdRng, quiet: Range<u64>) -> Step {
        Step {
            fault: row.fault,
            length: Duration::from_millis(rng.random_range(row.millis.clone())),
            whom: rng.random(),
            quiet: Duration::from_millis(rng.random_range(quiet)),
        }
    }
}

impl Step {
    fn time(&self) -> Duration {
        self.length + self.quiet + OVERHEAD
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const BUDGET: Duration = Duration::from_secs(75);

    #[test]
    fn a_seed_makes_one_schedule() {
        for store in Store::ALL.iter().copied() {
            assert_eq!(Schedule::new(7, store, BUDGET), Schedule::new(7, store, BUDGET));
            assert_ne!(Schedule::new(7, store, BUDGET), Schedule::new(8, store, BUDGET));
        }
    }

    #[test]
    fn ninety_seconds_have_enough_faults_whatever_the_seed() {
        for store in Store::ALL.iter().copied() {
            for seed in 0..200 {
                let schedule = Schedule::new(seed, store, BUDGET);
                let steps = schedule.alone.iter().chain(schedule.mixed.iter().flatten());
                let kinds = steps.clone().map(|step| step.fault).collect::<BTreeSet<_>>().len();
                let faults = steps.count();
                assert!(faults >= 30 && kinds >= 12, "{store:?} {seed}: {faults} of {kinds} kinds");
            }
        }
    }
}
