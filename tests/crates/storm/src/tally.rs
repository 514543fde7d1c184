//! Statistics of an object: how often it passed from one client to another, and how long waits took.

use std::collections::HashMap;
use std::time::Duration;

use coordination_history::{Event, Record};

/// The statistics of one object, or the sum of those of several objects.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// How often the object passed from one client to another: grants that followed a grant of another client.
    pub(crate) hand_overs: u64,
    /// How often a holder was killed while another client waited for the object.
    pub(crate) orphaned: u64,
    /// The longest time from the call of an acquire to its grant.
    pub(crate) longest_wait: Duration,
    /// The longest time from the kill of a holder to the next grant to a client that was already waiting.
    pub(crate) slowest_freeing: Duration,
}

/// A client that was granted the object and has not released it. It may have been killed.
struct Hold {
    client: u32,
    /// Whether it holds a lock exclusively.
    alone: bool,
}

/// The state of an object at one moment, computed from the records up to that moment.
#[derive(Default)]
struct Moment {
    is_lock: bool,
    /// The attempts that wait, with the time of the call and whether they want the lock shared.
    waiting: HashMap<(u32, u64), (u64, bool)>,
    holding: HashMap<(u32, u64), Hold>,
    /// When each killed client was killed.
    killed: HashMap<u32, u64>,
}

impl Tally {
    /// Computes the statistics of an object from its records, which have to be in the order of time.
    pub(crate) fn of(records: &[Record], is_lock: bool) -> Self {
        let (mut tally, mut moment) = (Self::default(), Moment { is_lock, ..Moment::default() });
        let mut by_token = Vec::new();
        for record in records {
            if let Event::Granted { token, .. } = record.event {
                by_token.push((token, record.client));
            }
            tally.take(record, &mut moment);
        }
        by_token.sort_unstable();
        tally.hand_overs = by_token.windows(2).filter(|pair| pair[0].1 != pair[1].1).count() as u64;
        tally
    }

    fn take(&mut self, record: &Record, moment: &mut Moment) {
        let attempt = (record.client, record.attempt);
        match record.event {
            Event::Call { shared, .. } => {
                moment.waiting.insert(attempt, (record.at, shared));
            }
            Event::Granted { .. } => self.grant(record, moment),
            Event::Cancelled | Event::Refused { .. } => {
                moment.waiting.remove(&attempt);
            }
            Event::ReleaseCall => {
                moment.holding.remove(&attempt);
            }
            // The driver writes this record right before it sends the signal that kills the client.
            Event::Fault { .. } => {
                moment.killed.insert(record.client, record.at);
            }
            Event::Crash => {
                moment.waiting.retain(|(client, _), _| *client != record.client);
                moment.holding.retain(|_, hold| hold.alone || hold.client != record.client);
            }
            _ => {}
        }
    }

    fn grant(&mut self, record: &Record, moment: &mut Moment) {
        let attempt = (record.client, record.attempt);
        let Some((since, shared)) = moment.waiting.remove(&attempt) else { return };
        self.longest_wait = self.longest_wait.max(Duration::from_nanos(record.at - since));
        let killed = &moment.killed;
        let died = moment.holding.extract_if(|_, hold| killed.contains_key(&hold.client));
        // Counts only attempts that were already waiting when the holder was killed: only these had to wait because of
        // the kill.
        let died = died.filter_map(|(_, hold)| killed.get(&hold.client)).filter(|at| since < **at);
        if let Some(at) = died.max() {
            self.orphaned += 1;
            self.slowest_freeing = self.slowest_freeing.max(Duration::from_nanos(record.at - at));
        }
        let alone = moment.is_lock && !shared;
        moment.holding.insert(attempt, Hold { client: record.client, alone });
    }

    /// Adds the statistics of another object to these.
    pub(crate) fn add(&mut self, other: &Self) {
        self.hand_overs += other.hand_overs;
        self.orphaned += other.orphaned;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.slowest_freeing = self.slowest_freeing.max(other.slowest_freeing);
    }
}
