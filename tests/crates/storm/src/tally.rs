//! How an object went from hand to hand: who came after whom, and how long it took.

use std::collections::HashMap;
use std::time::Duration;

use coordination_history::{Event, Record};

/// Of one object, or of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Grants whose predecessor was another client's.
    pub(crate) hand_overs: u64,
    /// Holders that were killed while somebody waited.
    pub(crate) orphaned: u64,
    /// From a call to its grant.
    pub(crate) longest_wait: Duration,
    /// From the death of a holder to the next grant.
    pub(crate) slowest_freeing: Duration,
}

/// One who holds the object, or was killed while he did.
struct Hold {
    client: u32,
    /// Nobody else is granted the object meanwhile.
    alone: bool,
}

/// What is going on at one moment of a history.
#[derive(Default)]
struct Moment {
    is_lock: bool,
    /// Of each attempt that waits: since when, and whether for a share.
    waiting: HashMap<(u32, u64), (u64, bool)>,
    holding: HashMap<(u32, u64), Hold>,
    /// When a client was killed.
    killed: HashMap<u32, u64>,
}

impl Tally {
    /// Of an object's records in the order of time.
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
            // Written before the signal is sent.
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
        // Only who was waiting when it happened has waited for it.
        let died = died.filter_map(|(_, hold)| killed.get(&hold.client)).filter(|at| since < **at);
        if let Some(at) = died.max() {
            self.orphaned += 1;
            self.slowest_freeing = self.slowest_freeing.max(Duration::from_nanos(record.at - at));
        }
        let alone = moment.is_lock && !shared;
        moment.holding.insert(attempt, Hold { client: record.client, alone });
    }

    /// Of several objects.
    pub(crate) fn add(&mut self, other: &Self) {
        self.hand_overs += other.hand_overs;
        self.orphaned += other.orphaned;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.slowest_freeing = self.slowest_freeing.max(other.slowest_freeing);
    }
}
