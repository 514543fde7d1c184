//! O4: first come, first served. An acquire gets its token when it enters the queue, so the token is its place in the
//! queue.
//!
//! The checker reports a grant that was overtaken by one with a larger token. The proof needs three facts: the grant
//! with the larger token returned **before** the grant with the smaller token, the two exclude each other, and the
//! grant with the smaller token held for certain after its own return. If the smaller token had been granted first,
//! both grants would have held at once. So the smaller token was granted second, which is wrong.
//!
//! If the object is not [`fifo`](super::Object::fifo), tokens are given at the grant and not in the queue. Such a pair
//! of grants then breaks O2, so it is reported as a violation of O2.
//!
//! The checker does not find an overtaken grant on which `is_held` was never called. It does not know either which of
//! two acquires without tokens came first, because the moment at which an acquire enters the queue cannot be seen from
//! outside.

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
    // The grants with the largest tokens among those that returned so far: the exclusive one and the shared one.
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
            // The next two conditions leave out pairs that other rules report: O1 if both grants held at once, O2 if
            // this grant was called after the other grant had returned.
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
