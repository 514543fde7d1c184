//! O7, tries: "not free" is said only while somebody else may have it.
//!
//! An attempt may have an entry at the store from its call until its release was confirmed, or until
//! [`entry_bound`](super::Rules::entry_bound) after it ended in any other way. A try that was refused without enough
//! such attempts of others at any moment between its call and its answer is proved wrong: an exclusive one for a share of a
//! lock, any one else. One is enough for a semaphore too, however many its permits: its entries decide in their order,
//! and a try behind one that has not decided yet is refused.
//!
//! Not proved: a refusal because of somebody who was not in the way but might have been. The bound decides how sharp
//! this is: give it where a run breaks nothing, and leave it out where an entry may stay for as long as its session.

use super::{ENOUGH, Found, Kind};
use crate::record::Why;
use crate::report::Rule;
use crate::timeline::{Attempt, Scope};

pub(super) fn judge(scope: &Scope<'_>, found: &mut Found<'_>) {
    if scope.object.kind == Kind::Other {
        return;
    }
    let is_refused = |attempt: &&&Attempt| {
        attempt.timeout == 0 && attempt.why == Some(Why::NotFree) && attempt.refused.is_some()
    };
    if !scope.attempts.iter().any(|attempt| is_refused(&attempt)) {
        return;
    }
    let lock = scope.object.kind == Kind::Lock;
    let all = Entries::new(scope.attempts.iter().copied(), found);
    let alone = Entries::new(scope.attempts.iter().copied().filter(|one| !one.shared), found);
    let mut violations = 0;
    for refused in scope.attempts.iter().filter(is_refused) {
        let Some(call) = refused.call.time() else { continue };
        let shares = lock && refused.shared;
        let others = if shares { &alone } else { &all };
        // It is one of those that it is compared with, unless they are all exclusive.
        let met = others.between(call, refused.refused.at);
        if met <= usize::from(!shares) {
            let proof = [refused.call.index, refused.refused.index];
            let what = "refused, though nobody can have been in the way".to_owned();
            found.add(Rule::O7, scope.object, what, &proof);
            violations += 1;
            if violations >= ENOUGH {
                return;
            }
        }
    }
}

/// When entries may have been at the store.
struct Entries {
    begins: Vec<u64>,
    ends: Vec<u64>,
}

impl Entries {
    fn new<'a>(attempts: impl Iterator<Item = &'a Attempt>, found: &Found<'_>) -> Self {
        let (clients, bound) = (&found.timeline.clients, found.rules.entry_bound);
        let (mut begins, mut ends): (Vec<_>, Vec<_>) = attempts
            .map(|attempt| {
                let begin = attempt.call.time().unwrap_or(0);
                (begin, attempt.gone(clients.crashed(attempt.client), bound).max(begin))
            })
            .unzip();
        begins.sort_unstable();
        ends.sort_unstable();
        Self { begins, ends }
    }

    /// How many may have been there at some moment between the two.
    fn between(&self, from: u64, to: u64) -> usize {
        let begun = self.begins.partition_point(|begin| *begin <= to);
        begun.saturating_sub(self.ends.partition_point(|end| *end < from))
    }
}
