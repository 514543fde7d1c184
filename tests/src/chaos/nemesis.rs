//! The schedule of faults, computed from a seed: which fault happens when, and for how long.
//!
//! In the first part each kind of fault happens once and alone, with a pause after it, so that its effects can be told
//! from those of other faults. If the time is short, some kinds are left out. In the second part several faults happen at
//! the same time. For this the kinds are divided into three lanes, and at most one fault of each lane happens at a time.

use std::{ops::Range, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use super::Store;
use crate::checks::Backend;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A client is killed, and another one takes its place.
    ClientKilled,
    /// Two clients are killed at once.
    ClientsKilled,
    /// A client is paused (SIGSTOP) for less than its lease.
    ClientPausedBriefly,
    /// A client is paused for longer than its lease.
    ClientPaused,
    /// Two clients are paused at once.
    ClientsPaused,
    /// The network delays bytes.
    Delay,
    /// The network delays bytes for longer than one attempt at a call may take.
    LongDelay,
    /// The network delivers bytes one by one.
    Dribble,
    /// Connections are reset.
    Reset,
    /// Connections are closed in the ordinary way.
    Closed,
    /// At the next bytes that arrive, one direction of each connection is closed (FIN).
    HalfClosed,
    /// The network delivers nothing for a while. Then it delivers everything that it has held back.
    Stall,
    /// Bytes from clients to servers are lost.
    LostToServer,
    /// Bytes from servers to clients are lost.
    LostToClient,
    /// Bytes are lost in both directions.
    LostBothWays,
    /// Connections are reset, and new ones are refused.
    Refused,
    /// Connections are closed right before or after some message.
    Cut,
    /// The only server is paused for a short time.
    ServerPausedBriefly,
    /// The only server is paused for longer than in `ServerPausedBriefly`.
    ServerPaused,
    /// The only server is killed, and started again at once.
    ServerRestarted,
    /// The only server is killed, and started again after a lease.
    ServerDown,
    /// A server that is not the leader is killed.
    MemberKilled,
    /// The leader is killed.
    LeaderKilled,
    /// A server that is not the leader is paused.
    MemberPaused,
    /// The leader is paused.
    LeaderPaused,
    /// All servers are paused.
    AllPaused,
    /// A server that is not the leader is cut off from the other servers. Clients can still reach it.
    MemberIsolated,
    /// The leader is cut off from the other servers. Clients can still reach it.
    LeaderIsolated,
    /// Two of three servers are killed.
    MajorityLost,
    /// The store's history is compacted ten times a second, and at the end the servers' files are rewritten.
    Compaction,
    /// The storage quota of the servers is used up.
    NoSpace,
    /// The server drops all cached scripts, ten times a second.
    ScriptsFlushed,
    /// The server closes all connections, ten times a second.
    ConnectionsKilled,
    /// An operator ends a session.
    SessionEnded,
    /// An operator deletes an entry.
    EntryDeleted,
    /// The disk is full.
    DiskFull,
    /// Another program locks the file of a queue.
    FileHeld,
    /// All processors are busy, so that clients get little time on them.
    Starved,
    /// The file of a session is deleted.
    SessionRemoved,
    /// The directory that has the files of all sessions is deleted.
    SessionsRemoved,
    /// The file of a queue is deleted.
    QueueRemoved,
    /// The file of a queue is emptied.
    QueueEmptied,
    /// The file of a queue is truncated at a place before its first entry.
    QueueCut,
    /// The file of a queue is replaced by a copy.
    QueueReplaced,
    /// The directory that has the files of all queues is renamed.
    QueuesRenamed,
    /// The group's whole directory is renamed.
    DirectoryRenamed,
    /// An operator breaks a lock.
    LockBroken,
}

/// The lanes into which the kinds of faults are divided. Two faults of one lane never happen at the same time, because
/// the end of one fault would undo the other fault. Most faults affect the clients (`Clients`), the network
/// (`Between`), or the store (`Store`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Clients,
    Between,
    Store,
}

const LANES: [Lane; 3] = [Lane::Clients, Lane::Between, Lane::Store];

/// The properties of a kind of fault.
#[derive(Clone, Debug)]
struct Row {
    fault: Fault,
    name: &'static str,
    lane: Lane,
    stores: Stores,
    millis: Range<u64>,
    cost: Cost,
}

/// What a fault may cost if it happens alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cost {
    /// It may only cost time: no session is lost.
    Keep,
    /// Sessions may be lost.
    Lose,
    /// Sessions may be lost. On etcd before 3.4.31 and 3.5.13, where the fault breaks assumption A2, clients of both
    /// groups may also hold a lock at the same time as others.
    Untimed,
    /// Until the clients notice the fault, clients of the spoiled group may hold a lock at the same time as others.
    Spoil,
}

/// The stores on which a kind of fault happens.
#[derive(Clone, Copy, Debug)]
enum Stores {
    All,
    /// All stores that have a server.
    Servers,
    /// Stores that have exactly one server.
    One,
    Several,
    /// Stores that have several servers which can be cut off from one another.
    Apart,
    Only(Backend),
    /// Stores on which an operator can make the server close all connections.
    Killable,
}

impl Stores {
    fn have(self, store: Store) -> bool {
        match self {
            Self::All => true,
            Self::Servers => store.nodes > 0,
            Self::One => store.nodes == 1,
            Self::Several => store.nodes > 1,
            // Consul's servers talk to one another on the ports on which they serve clients. So a proxy cannot separate
            // them.
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

/// All kinds of faults. A "brief" pause is so short that a lease of 2 s survives it: what is left of the lease is
/// longer than two heartbeat intervals.
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

    /// The number of this kind in histories.
    pub(super) fn kind(self) -> u32 {
        u32::try_from(self.row().0).expect("a few")
    }
}

/// The names of all kinds. The index of a name is the kind's number in histories.
pub(super) fn names() -> Vec<String> {
    ROWS.iter().map(|row| row.name.to_owned()).collect()
}

/// The numbers of the kinds during which clients may hold a lock at the same time: on this store, and, if `spoiled`, in
/// the spoiled group.
pub(super) fn untimed(store: Store, spoiled: bool) -> Vec<u32> {
    let costs = |row: &&Row| match row.cost {
        Cost::Keep | Cost::Lose => false,
        Cost::Untimed => store.backend == Backend::Etcd,
        Cost::Spoil => spoiled,
    };
    ROWS.iter().filter(costs).map(|row| row.fault.kind()).collect()
}

/// Whether sessions of the judged group must survive a fault of this kind that happens alone.
pub(super) fn keeps(kind: u32) -> bool {
    let row = usize::try_from(kind).ok().and_then(|index| ROWS.get(index));
    row.is_some_and(|row| matches!(row.cost, Cost::Keep | Cost::Spoil))
}

/// One fault of a schedule, and the pause after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) fault: Fault,
    pub(super) length: Duration,
    /// The seed by which the fault chooses the clients or servers that it affects.
    pub(super) whom: u64,
    /// How long the lane pauses after the fault.
    pub(super) quiet: Duration,
}

/// All faults of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    /// The first part: these faults happen one after the other.
    pub(super) alone: Vec<Step>,
    /// The second part: the lists are carried out at the same time, one for each lane. The faults of a list happen one
    /// after the other.
    pub(super) mixed: Vec<Vec<Step>>,
}

/// How long it takes to begin a fault and to end it, in addition to its length.
const OVERHEAD: Duration = Duration::from_millis(250);

impl Schedule {
    /// A schedule for this seed and store that takes about as long as `budget`.
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
