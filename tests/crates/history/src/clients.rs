//! Crashes, pauses and faults of a history, and the quiet periods between them.

use std::collections::HashMap;

use crate::record::{Event, NEVER, Record};
use crate::rules::Rules;

/// A span of time. Both ends belong to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Period {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Crashes, pauses and faults of a history.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    crashed: HashMap<u32, u64>,
    /// Pauses of each client, in order of time.
    pauses: HashMap<u32, Vec<Period>>,
    /// Periods without any fault, pause or crash, in order of time. Each period begins with a record [`Event::Healed`].
    pub(crate) quiet: Vec<Period>,
    /// Periods with a fault of [`Rules::untimed`]. During such a fault the store may grant a lock to a second client
    /// while the first client still believes that it holds the lock.
    untimed: Vec<Period>,
}

impl Clients {
    /// Collects the crashes, pauses and faults from `records`, which are in order of time.
    pub(crate) fn new(records: &[Record], rules: &Rules) -> Self {
        let mut clients = Self::default();
        let crashes = records.iter().filter(|record| record.event == Event::Crash);
        clients.crashed = crashes.map(|record| (record.client, record.at)).collect();
        let mut healed: Option<u64> = None;
        let mut open: HashMap<u32, (u64, u64)> = HashMap::new();
        // For each client that is killed, the time of its latest record so far. At that time the client was certainly
        // alive.
        let mut last_words: HashMap<u32, u64> = HashMap::new();
        for record in records {
            let at = record.at;
            let mut broken_since = None;
            match record.event {
                Event::Healed => {
                    healed.get_or_insert(at);
                }
                Event::Crash => {
                    broken_since = Some(last_words.get(&record.client).copied().unwrap_or(0));
                }
                Event::Paused => {
                    let pauses = clients.pauses.entry(record.client).or_default();
                    if pauses.last().is_none_or(|last| last.to != NEVER) {
                        pauses.push(Period { from: at, to: NEVER });
                    }
                    broken_since = Some(at);
                }
                Event::Resumed => {
                    let last =
                        clients.pauses.get_mut(&record.client).and_then(|all| all.last_mut());
                    if let Some(last) = last.filter(|last| last.to == NEVER) {
                        last.to = at;
                    }
                }
                Event::Fault { kind } => {
                    broken_since = Some(at);
                    if rules.untimed.contains(&kind) {
                        let (from, count) = open.get(&kind).copied().unwrap_or((at, 0));
                        open.insert(kind, (from, count.saturating_add(1)));
                    }
                }
                Event::FaultEnd { kind } => match open.remove(&kind) {
                    Some((from, 1)) => clients.untimed.push(Period { from, to: at }),
                    Some((from, count)) => {
                        open.insert(kind, (from, count - 1));
                    }
                    None => {}
                },
                _ if clients.crashed.contains_key(&record.client) => {
                    last_words.insert(record.client, at);
                }
                _ => {}
            }
            if let Some((from, to)) = broken_since.and_then(|to| Some((healed.take()?, to))) {
                clients.quiet.push(Period { from, to });
            }
        }
        let end = records.last().map_or(0, |record| record.at);
        clients.quiet.extend(healed.map(|from| Period { from, to: end }));
        clients.quiet.retain(|quiet| quiet.from < quiet.to);
        clients.untimed.extend(open.into_values().map(|(from, _)| Period { from, to: NEVER }));
        clients.merge_untimed();
        clients
    }

    fn merge_untimed(&mut self) {
        self.untimed.sort_by_key(|period| period.from);
        self.untimed.dedup_by(|next, before| {
            let meet = next.from <= before.to;
            if meet {
                before.to = before.to.max(next.to);
            }
            meet
        });
    }

    /// When the client was found to be dead; `None` if the client was never killed.
    pub(crate) fn crashed(&self, client: u32) -> Option<u64> {
        self.crashed.get(&client).copied()
    }

    /// Whether any fault of [`Rules::untimed`] was present at any moment from `from` to `to`. If so, a violation in
    /// this time proves nothing.
    pub(crate) fn untimed(&self, from: u64, to: u64) -> bool {
        let after = self.untimed.partition_point(|period| period.to < from);
        self.untimed.get(after).is_some_and(|period| period.from <= to)
    }

    /// The latest moment at which a running client may do something that it has to do within `span` after `from`.
    /// Each time the client is paused before that moment, the moment is later by the length of the pause.
    pub(crate) fn due(&self, client: u32, from: u64, span: u64) -> u64 {
        let mut due = from.saturating_add(span);
        for pause in self.pauses.get(&client).into_iter().flatten() {
            if pause.to > from && pause.from <= due {
                due = due.saturating_add(pause.to - pause.from.max(from));
            }
        }
        due
    }

    /// The latest moment at which a running client may do something that is due at `at` and may be late by the
    /// tolerance `slack`. Each time the client is paused during this tolerance, the whole `slack` begins again when
    /// the client is resumed.
    pub(crate) fn due_at(&self, client: u32, at: u64, slack: u64) -> u64 {
        let mut start = at;
        for pause in self.pauses.get(&client).into_iter().flatten() {
            if pause.to > start && pause.from <= start.saturating_add(slack) {
                start = pause.to;
            }
        }
        start.saturating_add(slack)
    }
}
