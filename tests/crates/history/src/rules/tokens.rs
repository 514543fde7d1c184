//! O2: the later grant has the larger token.
//!
//! A grant is certainly later than another one if its acquire was called after the other's acquire had returned. All
//! grants of a lock are compared with each other, exclusive and shared ones. Grants of a semaphore are compared only
//! within a slot, because tokens rise only there. Two grants never have the same token.
//!
//! If two acquires ran at the same time, the order of their grants is unknown, so it is not checked here. O4 checks
//! some of these grants.

use super::{ENOUGH, Found};
use crate::report::Rule;
use crate::timeline::{Attempt, Scope};

pub(super) fn judge(scope: &Scope<'_>, found: &mut Found<'_>) {
    if !found.rules.tokens_rise {
        return;
    }
    for mut grants in scope.groups() {
        rising(scope, &mut grants, found);
        unique(scope, &mut grants, found);
    }
}

fn rising(scope: &Scope<'_>, grants: &mut [&Attempt], found: &mut Found<'_>) {
    grants.sort_by_key(|grant| grant.granted.at);
    let mut called: Vec<_> = grants.iter().filter(|grant| grant.call.is_some()).collect();
    called.sort_by_key(|grant| grant.call.at);
    let mut returned = grants.iter().peekable();
    let mut highest: Option<&Attempt> = None;
    let mut violations = 0;
    for later in called {
        while let Some(grant) = returned.next_if(|grant| grant.granted.at < later.call.at) {
            if highest.is_none_or(|highest| highest.token < grant.token) {
                highest = Some(grant);
            }
        }
        // Two grants with the same token are reported by `unique`, and not here.
        let Some(earlier) = highest.filter(|highest| highest.token > later.token) else { continue };
        let what = format!("token {} after token {}", later.token, earlier.token);
        let proof = [earlier.granted.index, later.call.index, later.granted.index];
        found.add(Rule::O2, scope.object, what, &proof);
        violations += 1;
        if violations >= ENOUGH {
            return;
        }
    }
}

fn unique(scope: &Scope<'_>, grants: &mut [&Attempt], found: &mut Found<'_>) {
    grants.sort_by_key(|grant| grant.token);
    let twice = grants.windows(2).filter_map(|pair| match pair {
        [one, other] if one.token == other.token => Some((one, other)),
        _ => None,
    });
    for (one, other) in twice.take(ENOUGH as usize) {
        let what = format!("token {} twice", one.token);
        let proof = [one.granted.index, other.granted.index];
        found.add(Rule::O2, scope.object, what, &proof);
    }
}
