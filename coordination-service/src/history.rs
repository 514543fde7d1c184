//! The hand-overs that this instance saw.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::holds::{End, Hold};
use crate::kind::Kind;
use crate::text::rfc3339;

/// So many are kept of each name.
const EACH: usize = 50;
/// Of so many names: those that were used last.
const NAMES: usize = 1_000;

#[derive(Debug, Default)]
pub(crate) struct History(Mutex<Names>);

#[derive(Debug, Default)]
struct Names {
    of: HashMap<(Kind, String), VecDeque<Value>>,
    /// Names in the order in which they came.
    order: VecDeque<(Kind, String)>,
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
        names
            .of
            .get(&(kind, name.to_owned()))
            .map(|rows| rows.iter().cloned().collect())
            .unwrap_or_default()
    }
}

impl Names {
    fn add(&mut self, name: (Kind, String), row: Value) {
        if !self.of.contains_key(&name) {
            if self.order.len() >= NAMES
                && let Some(oldest) = self.order.pop_front()
            {
                self.of.remove(&oldest);
            }
            self.order.push_back(name.clone());
        }
        let rows = self.of.entry(name).or_default();
        if rows.len() >= EACH {
            rows.pop_front();
        }
        rows.push_back(row);
    }
}
