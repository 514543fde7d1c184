//! O5: acquires and losses are reported in time.
//!
//! The checker reports
//!
//! * a waiter that gets no result, or a late one, in a quiet period. A quiet period begins with
//!   [`Healed`](crate::Event::Healed) and ends with the next fault, pause or crash. The waiter has to get a result
//!   within [`wait_bound`](super::Rules::wait_bound), counted from the beginning of the quiet period or from the
//!   waiter's call, whichever is later. The exact moment of a crash is unknown, so the quiet period ends at the last
//!   record of the client that died;
//! * an acquire that has not returned within [`timeout_slack`](super::Rules::timeout_slack) after its timeout. A try
//!   has no timeout, so it is not checked;
//! * a loss that is reported later than [`lost_slack`](super::Rules::lost_slack) after the deadline, or after a call of
//!   `is_held` that returned false;
//! * a loss that is never reported, if [`losses_told`](super::Rules::losses_told) is set.
//!
//! Time in which the client was paused is not counted. Two kinds of acquires are not checked: those whose caller
//! dropped them, and those whose client was killed before the acquire returned, because the exact moment of the
//! client's death is unknown.

use super::{ENOUGH, Found};
use crate::display::Span;
use crate::record::NEVER;
use crate::report::Rule;
use crate::timeline::{Attempt, Scope};

pub(super) fn judge(scope: &Scope<'_>, found: &mut Found<'_>) {
    let mut violations = 0;
    for attempt in &scope.attempts {
        violations += u64::from(acquire(scope, attempt, found));
        violations += u64::from(loss(scope, attempt, found));
        if violations >= ENOUGH {
            return;
        }
    }
}

/// Adds a violation if the acquire returned too late or not at all; returns whether it did.
fn acquire(scope: &Scope<'_>, attempt: &Attempt, found: &mut Found<'_>) -> bool {
    let Some(call) = attempt.call.time() else { return false };
    let clients = &found.timeline.clients;
    let answered = attempt.answered();
    if attempt.cancelled.is_some()
        || answered.is_none() && clients.crashed(attempt.client).is_some()
    {
        return false;
    }
    let proof = [attempt.call.index, attempt.granted.index, attempt.refused.index];
    let seen = answered.unwrap_or(found.timeline.end);
    if attempt.timeout != 0 && attempt.timeout != NEVER && found.rules.timeout_slack != NEVER {
        let span = attempt.timeout.saturating_add(found.rules.timeout_slack);
        let due = clients.due(attempt.client, call, span);
        if seen > due {
            let what = format!("no answer until {} after it was due", Span(seen - due));
            found.add(Rule::O5, scope.object, what, &proof);
            return true;
        }
    }
    let Some(due) = lost_in(attempt.client, call, seen, found) else { return false };
    let what = format!("still waits {} after it was due, and nothing is broken", Span(seen - due));
    found.add(Rule::O5, scope.object, what, &proof);
    true
}

/// For a waiter of this client that called at `call` and had no result until `seen`: if the waiter is late, the moment
/// at which it should have had a result; otherwise `None`.
fn lost_in(client: u32, call: u64, seen: u64, found: &Found<'_>) -> Option<u64> {
    let clients = &found.timeline.clients;
    let bound = found.rules.wait_bound;
    if bound == NEVER || seen.saturating_sub(call) <= bound {
        return None;
    }
    let first = clients.quiet.partition_point(|quiet| quiet.to <= call);
    let met = clients.quiet.iter().skip(first).take_while(|quiet| quiet.from < seen);
    met.filter_map(|quiet| {
        let due = clients.due(client, quiet.from.max(call), bound);
        (due < quiet.to.min(seen)).then_some(due)
    })
    .next()
}

/// Adds a violation if the guard's loss was reported too late or never; returns whether it did.
fn loss(scope: &Scope<'_>, grant: &Attempt, found: &mut Found<'_>) -> bool {
    let (clients, slack) = (&found.timeline.clients, found.rules.lost_slack);
    if !grant.granted.is_some() || slack == NEVER {
        return false;
    }
    let over = grant.deadline.min(grant.not_held.at);
    if over == NEVER {
        return false;
    }
    let due = clients.due_at(grant.client, over.max(grant.granted.at), slack);
    // Once a test has released a guard, it does not listen for the guard's loss any more.
    if grant.release_call.time().is_some_and(|release| release <= due) {
        return false;
    }
    let proof = [grant.granted.index, grant.not_held.index, grant.lost.index];
    match grant.lost.time() {
        Some(told) if told > due => {
            let what = format!("the loss was told {} after it was due", Span(told - due));
            found.add(Rule::O5, scope.object, what, &proof);
            true
        }
        None if found.rules.losses_told
            && found.timeline.end > due
            && clients.crashed(grant.client).is_none() =>
        {
            found.add(Rule::O5, scope.object, "the loss was never told", &proof);
            true
        }
        _ => false,
    }
}
