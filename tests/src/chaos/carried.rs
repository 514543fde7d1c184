//! What the history of a round takes over from earlier rounds, and which of its records belong to a group of clients.

use std::collections::{BTreeMap, BTreeSet};

use coordination_history::{Answer, Event, Record, now};

use super::{
    fleet::Book,
    things::{Group, is_of},
};

/// The largest token of each object and slot, and the last write to each register. In the next round, tokens must be
/// larger.
#[derive(Debug, Default)]
pub(super) struct Carried {
    tokens: BTreeMap<(u32, u32), u64>,
    writes: BTreeMap<u32, (u64, u64)>,
}

impl Carried {
    pub(super) fn learn(&mut self, records: &[Record]) {
        for record in records {
            match record.event {
                Event::Granted { token, slot } => {
                    let last = self.tokens.entry((record.object, slot)).or_default();
                    *last = token.max(*last);
                }
                Event::Write { token, value, accepted: true } => {
                    let last = self.writes.entry(record.object).or_default();
                    *last = (token, value).max(*last);
                }
                _ => {}
            }
        }
    }

    /// Writes these tokens and writes into a round's history, before all other records, as records of a client 0 with
    /// attempts of its own.
    pub(super) fn tell(&self, book: &Book) {
        for (attempt, ((object, slot), token)) in (1..).zip(&self.tokens) {
            let tell = |event| {
                book.write(Record { at: now(), client: 0, attempt, object: *object, event });
            };
            tell(Event::Call { shared: false, timeout: 0 });
            tell(Event::Granted { token: *token, slot: *slot });
            tell(Event::ReleaseCall);
            tell(Event::ReleaseReturn { outcome: 0 });
        }
        for (object, (token, value)) in &self.writes {
            let event = Event::Write { token: *token, value: *value, accepted: true };
            book.write(Record { at: now(), client: 0, attempt: 0, object: *object, event });
        }
    }
}

/// The records of a group, and the records that concern both groups.
///
/// Before an operation is sent, a record without a result is written, for the case that the client is killed. If there
/// is a record with the result too, only the latter is returned.
pub(super) fn of_group(records: &[Record], group: Group) -> Vec<Record> {
    let mut answered = BTreeSet::new();
    for record in records {
        if let Event::Operation { answer, .. } = record.event
            && answer != Answer::Unknown
        {
            answered.insert((record.client, record.attempt));
        }
    }
    let mut open = BTreeSet::new();
    let mut is_its = |record: &&Record| {
        let whose = (record.client, record.attempt);
        match record.event {
            // If the outcome is unknown, there are two records without a result, and one of them is returned.
            Event::Operation { answer: Answer::Unknown, .. } => {
                !answered.contains(&whose) && open.insert(whose) && is_of(group, record.object)
            }
            _ => record.object == 0 || is_of(group, record.object),
        }
    };
    records.iter().filter(|record| is_its(record)).copied().collect()
}

#[cfg(test)]
mod tests {
    use coordination_history::NO_SLOT;

    use super::*;

    #[test]
    fn the_largest_token_is_carried_over() {
        let granted = |token, object| Record {
            at: token,
            client: 1,
            attempt: token,
            object,
            event: Event::Granted { token, slot: NO_SLOT },
        };
        let mut carried = Carried::default();
        carried.learn(&[granted(4, 1), granted(9, 1), granted(7, 2), granted(5, 1)]);
        assert_eq!(carried.tokens, BTreeMap::from([((1, NO_SLOT), 9), ((2, NO_SLOT), 7)]));
    }
}
