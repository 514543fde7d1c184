//! O7, tries: a try may return "not free" only while another attempt may hold the object or wait for it.
//!
//! An attempt may have an entry at the store from its call until its release is confirmed. If it ends in any other way,
//! its entry may stay for [`entry_bound`](super::Rules::entry_bound) after its end. The checker reports a refused try
//! if no other attempt may have had an entry at any moment between the call and the return of the try. For a shared try
//! of a lock, only exclusive attempts count, because shared ones do not block it. For a semaphore one attempt is
//! enough, whatever its number of permits: its entries are decided in their order, so a try is refused if the entry
//! before it is still undecided.
//!
//! The checker may miss a wrong refusal: if another attempt could have blocked the refused try, the checker takes the
//! refusal for right, even if that attempt did not block the try. The smaller `entry_bound` is, the fewer wrong refusals
//! are missed. A run without faults should set `entry_bound`. But if an entry may stay as long as its session in a run,
//! the run must not set it.

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
        // `others` includes the refused try itself, with one exception: for a shared try of a lock, `others` has only
        // exclusive attempts.
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

/// When entries may have appeared at the store (`begins`) and when they were certainly gone (`ends`). Both lists are
/// sorted.
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

    /// How many entries may have been at the store at any moment from `from` to `to`. These are the entries that had
    /// begun by `to`, without those that had ended before `from`.
    fn between(&self, from: u64, to: u64) -> usize {
        let begun = self.begins.partition_point(|begin| *begin <= to);
        begun.saturating_sub(self.ends.partition_point(|end| *end < from))
    }
}
