//! O7, tries: a try returns "not free" only while somebody else may hold the object or wait for it.
//!
//! An attempt may have an entry at the store from its call until its release is confirmed, or until
//! [`entry_bound`](super::Rules::entry_bound) after it ended in any other way. Reported is a refused try if too few
//! attempts of others may have had an entry at any moment between the try's call and its return. A shared try of a lock
//! needs one exclusive attempt, any other try needs one of any kind. One is enough for a semaphore too, whatever its
//! number of permits: its entries are decided in order, and a try behind an undecided entry is refused.
//!
//! Not found: a refusal while another attempt could have been in the way, but was not. A smaller `entry_bound` finds
//! more. Set it for runs that break nothing, and leave it out where an entry may stay as long as its session.

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
        // The refused try itself is among the attempts that are counted, unless only exclusive attempts are counted.
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

/// The times at which entries may have been added to and removed from the store, each sorted.
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

    /// How many entries may have been at the store at some moment between `from` and `to`.
    fn between(&self, from: u64, to: u64) -> usize {
        let begun = self.begins.partition_point(|begin| *begin <= to);
        begun.saturating_sub(self.ends.partition_point(|end| *end < from))
    }
}
