//! The hand-overs that this instance saw.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::holds::{End, Hold};
use crate::kind::Kind;
use crate::text::rfc3339;

/// So many are kept of each name.
const EACH: usize = 50;
/// Of so many names: those of which something has ended last.
const NAMES: usize = 1_000;

#[derive(Debug, Default)]
pub(crate) struct History(Mutex<Names>);

#[derive(Debug, Default)]
struct Names {
    of: HashMap<(Kind, String), Rows>,
    /// Names in the order of their last rows.
    order: BTreeMap<u64, (Kind, String)>,
    /// How many rows there ever were.
    count: u64,
}

#[derive(Debug, Default)]
struct Rows {
    /// The number of the last one.
    last: u64,
    rows: VecDeque<Value>,
}

impl History {
    /// A hold has ended.
    pub(crate) fn add(&self, hold: &Hold, end: End) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, fence) in hold.parts() {
            names.add((hold.kind, name.to_owned()), json!({
                "fence": fence, "handle": hold.handle, "client": hold.client, "title": hold.title,
                "asked": rfc3339(hold.asked_at), "granted": rfc3339(hold.granted_at),
                "ended": rfc3339(SystemTime::now()), "how": end.text(),
            }));
        }
    }

    /// Those of this name, the oldest first.
    pub(crate) fn of(&self, kind: Kind, name: &str) -> Vec<Value> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = names.of.get(&(kind, name.to_owned()));
        of.map(|of| of.rows.iter().cloned().collect()).unwrap_or_default()
    }
}

impl Names {
    fn add(&mut self, name: (Kind, String), row: Value) {
        if !self.of.contains_key(&name)
            && self.of.len() >= NAMES
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.of.remove(&oldest);
        }
        self.count += 1;
        let of = self.of.entry(name.clone()).or_default();
        self.order.remove(&of.last);
        self.order.insert(self.count, name);
        of.last = self.count;
        if of.rows.len() >= EACH {
            of.rows.pop_front();
        }
        of.rows.push_back(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_in_use_are_remembered() {
        let mut names = Names::default();
        let of = |number: usize| (Kind::Lock, number.to_string());
        for number in 0..NAMES {
            names.add(of(number), Value::Null);
        }
        for _ in 0..EACH {
            names.add(of(0), json!(1));
        }
        names.add(of(NAMES), Value::Null);
        assert_eq!((names.of.len(), names.order.len()), (NAMES, NAMES));
        assert!(names.of.contains_key(&of(0)) && !names.of.contains_key(&of(1)));
        assert!(names.of[&of(0)].rows.iter().eq(std::iter::repeat_n(&json!(1), EACH)));
    }
}
