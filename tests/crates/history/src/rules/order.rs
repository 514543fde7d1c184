//! O4: first come, first served; a token is the place in the queue.
//!
//! Reported is a grant that returned **before** another one that has a smaller token, excludes it, and held for certain
//! after its return. If the smaller token had been granted first, both would have held at once. So the smaller token
//! was granted second: it was overtaken. Where the object is not [`fifo`](super::Object::fifo), tokens are given at the
//! grant, and such a grant is a violation of O2.
//!
//! Not found: a grant that was overtaken, but on which `is_held` was never called; which of two acquires came first, if
//! neither has a token yet. The moment at which an acquire takes its place in the queue is not visible from outside.

use super::{ENOUGH, Found, Kind};
use crate::report::Rule;
use crate::timeline::{Attempt, Scope};

pub(super) fn judge(scope: &Scope<'_>, found: &mut Found<'_>) {
    if !found.rules.tokens_rise {
        return;
    }
    for mut grants in scope.groups() {
        grants.retain(|grant| !found.excused(grant));
        grants.sort_by_key(|grant| grant.granted.at);
        overtaken(scope, &grants, found);
    }
}

fn overtaken(scope: &Scope<'_>, grants: &[&Attempt], found: &mut Found<'_>) {
    let rule = if scope.object.fifo { Rule::O4 } else { Rule::O2 };
    // These are, of the grants that returned so far, the exclusive one and the shared one with the largest token.
    let (mut alone, mut sharing): (Option<&Attempt>, Option<&Attempt>) = (None, None);
    let mut violations = 0;
    for grant in grants {
        let shares = grant.shared && scope.object.kind == Kind::Lock;
        let others = alone.into_iter().chain(sharing.filter(|_| !shares));
        if let Some(other) = others.max_by_key(|other| other.token)
            && other.token > grant.token
            && grant.held.is_some()
            && other.granted.at < grant.granted.at
            && other.granted.at < grant.held.at
            // O1 reports grants that hold at once, O2 those that were called later.
            && other.held_until() <= grant.granted.at
            && grant.call.time().is_none_or(|call| call <= other.granted.at)
        {
            let what = format!("token {} was granted before token {}", other.token, grant.token);
            let proof = [other.granted.index, grant.granted.index, grant.held.index];
            found.add(rule, scope.object, what, &proof);
            violations += 1;
            if violations >= ENOUGH {
                return;
            }
        }
        let highest = if shares { &mut sharing } else { &mut alone };
        if highest.is_none_or(|highest| highest.token < grant.token) {
            *highest = Some(grant);
        }
    }
}
