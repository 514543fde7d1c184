//! The facts from earlier rounds that a round's history begins with, and the choice of the records that belong to one
//! group of clients.

use std::collections::{BTreeMap, BTreeSet};

use coordination_history::{Answer, Event, Record, Work, now};

use super::{
    fleet::Book,
    things::{Group, is_of},
};

/// What later rounds must not fall behind: for each object and slot the largest token, and for each register the last
/// write. Tokens have to rise over all rounds.
#[derive(Debug, Default)]
pub(super) struct Carried {
    tokens: BTreeMap<(u32, u32), u64>,
    writes: BTreeMap<u32, (u64, u64)>,
    /// The items of work queues, with their queue, whose post had no known result and which nobody has claimed.
    posts: BTreeSet<(u32, u64)>,
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
                Event::Work { item, what: Work::Posting, .. } => {
                    self.posts.insert((record.object, item));
                }
                Event::Work {
                    item, what: Work::Posted | Work::NotPosted | Work::Claimed, ..
                } => {
                    self.posts.remove(&(record.object, item));
                }
                _ => {}
            }
        }
    }

    /// Writes the tokens and writes of earlier rounds into the history of a round, before all other records. For the
    /// checker they come from a client with number 0, and each grant is an attempt of its own.
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
        for (object, item) in &self.posts {
            let event = Event::Work { call: now(), item: *item, token: 0, what: Work::Posting };
            book.write(Record { at: now(), client: 0, attempt: 0, object: *object, event });
        }
    }
}

/// Returns the records of a group, and those that concern both groups.
///
/// A client that may be killed records an operation twice: before it without a result, and after it with the result. If
/// there is a result, only the second record is returned.
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
            // If the operation never got a result, both of its records have none, and only one of them is returned.
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
