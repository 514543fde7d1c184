//! O1: an object never has more holders at once than allowed.
//!
//! A grant holds *for certain* from the return of its acquire until the beginning of the last call of `is_held` that
//! returned true. A lost guard stays lost, so the guard cannot have been lost between these two moments. The checker
//! reports
//!
//! * two grants that both hold for certain at one moment, if one of them is exclusive or if both have the same slot;
//! * grants of a semaphore that hold for certain at one moment, if they are more than its permits;
//! * a grant that still holds for certain when a **later** grant returns, even if `is_held` was never called on the
//!   later grant. The store granted the later one before its acquire returned, and by S3 the earlier one had to have
//!   ended by then. Of two grants, the later one is the one with the larger token, or the one whose acquire was called
//!   after the other's had returned;
//! * a guard whose `is_held` returns true although an earlier call returned false, or although the guard had reported
//!   its loss or was released (S4).
//!
//! The checker does not find an overlap if `is_held` was not called during it. So a test should call `is_held` often,
//! and once more right before each release.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{ENOUGH, Found, Kind};
use crate::display::Span;
use crate::report::Rule;
use crate::timeline::{Attempt, Mark, Scope};

pub(super) fn judge(scope: &Scope<'_>, found: &mut Found<'_>) {
    for mut grants in scope.groups() {
        let all = grants.len();
        grants.retain(|grant| !found.excused(grant));
        found.report.excused += (all - grants.len()) as u64;
        by_return(&mut grants);
        pairs(scope, &grants, found);
    }
    if let Kind::Slots { count } = scope.object.kind {
        permits(scope, count as usize, found);
    }
    finality(scope, found);
}

/// Sorts the grants by the time at which their acquire returned. If two have the same time, the one that held longer
/// comes first.
fn by_return(grants: &mut [&Attempt]) {
    grants.sort_by_key(|grant| (grant.granted.at, Reverse(grant.held_until())));
}

fn pairs(scope: &Scope<'_>, grants: &[&Attempt], found: &mut Found<'_>) {
    let (mut alone, mut sharing): (Vec<&Attempt>, Vec<&Attempt>) = (Vec::new(), Vec::new());
    let mut violations = 0;
    for grant in grants {
        let now = grant.granted.at;
        alone.retain(|before| before.held_until() > now);
        let shares = grant.shared && scope.object.kind == Kind::Lock;
        if !shares {
            sharing.retain(|before| before.held_until() > now);
        }
        let others = alone.iter().chain(sharing.iter().filter(|_| !shares));
        for other in others {
            if judge_pair(scope, other, grant, found) {
                violations += 1;
            }
        }
        if violations >= ENOUGH {
            return;
        }
        if grant.held_until() > now {
            if shares { sharing.push(grant) } else { alone.push(grant) }
        }
    }
}

/// Reports a violation if both grants certainly held at one moment, or if `other` is certainly the later grant. Returns
/// whether it reported a violation. To be called only if `one` returned first and still holds for certain when `other`
/// returns.
fn judge_pair(scope: &Scope<'_>, one: &Attempt, other: &Attempt, found: &mut Found<'_>) -> bool {
    let from = other.granted.at;
    let both = one.held_until().min(other.held_until()).saturating_sub(from);
    let by_token = found.rules.tokens_rise && other.token > one.token;
    let proof = [one.granted.index, other.granted.index, one.held.index, other.held.index];
    if both > 0 {
        let what = format!("two hold at once, for {} at least", Span(both));
        found.add(Rule::O1, scope.object, what, &proof);
    } else if by_token || is_after(other, one) {
        let late = Span(one.held_until() - from);
        let what = format!("the first still holds {late} after the second returned");
        found.add(Rule::O1, scope.object, what, &proof[..3]);
    } else {
        return false;
    }
    true
}

/// Whether the acquire of `other` was called after the acquire of `one` had returned.
fn is_after(other: &Attempt, one: &Attempt) -> bool {
    other.call.time().is_some_and(|call| one.granted.at < call)
}

/// Checks that never more grants hold for certain than there are permits, whichever slots the grants have.
fn permits(scope: &Scope<'_>, count: usize, found: &mut Found<'_>) {
    let granted = scope.attempts.iter().copied().filter(|attempt| attempt.granted.is_some());
    let mut grants: Vec<_> = granted.filter(|grant| !found.excused(grant)).collect();
    by_return(&mut grants);
    let mut holding = BinaryHeap::new();
    let mut violations = 0;
    for (place, grant) in grants.iter().enumerate() {
        let now = grant.granted.at;
        while holding.peek().is_some_and(|Reverse((until, _))| *until <= now) {
            holding.pop();
        }
        let asked = grant.held_until() > now;
        if asked {
            holding.push(Reverse((grant.held_until(), place)));
        }
        let at_once = if asked {
            holding.len()
        } else if holding.len() >= count {
            let before = |place: usize| grants.get(place).is_some_and(|one| is_after(grant, one));
            1 + holding.iter().filter(|Reverse((_, place))| before(*place)).count()
        } else {
            0
        };
        if at_once > count {
            let others = holding.iter().filter_map(|Reverse((_, place))| grants.get(*place));
            let mut proof: Vec<_> = others.map(|other| other.held.index).take(16).collect();
            proof.push(grant.granted.index);
            let what = format!("{at_once} hold at once, {count} may");
            found.add(Rule::O1, scope.object, what, &proof);
            violations += 1;
            if violations >= ENOUGH {
                return;
            }
        }
    }
}

/// Checks that `is_held` never returns true after the guard was lost or released.
fn finality(scope: &Scope<'_>, found: &mut Found<'_>) {
    let mut violations = 0;
    for grant in scope.attempts.iter().filter(|attempt| attempt.held.is_some()) {
        let ends = [grant.not_held, grant.lost, grant.release_return];
        let end = ends.into_iter().filter(|end| end.is_some()).min_by_key(|end| end.at);
        let Some(Mark { at, index }) = end.filter(|end| end.at < grant.held.at) else { continue };
        let what = format!("held again, {} after its end", Span(grant.held.at - at));
        found.add(Rule::O1, scope.object, what, &[index, grant.held.index]);
        violations += 1;
        if violations >= ENOUGH {
            return;
        }
    }
}
