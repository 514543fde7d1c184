//! O7, leaders: if an observer reads a leader, the store had that leader at some moment during the read.
//!
//! The checker reports a read that returns
//!
//! * a term that was never granted, if no attempt had been called by the end of the read;
//! * a term whose leader called its acquire only after the read, or whose resignation was confirmed before the read;
//! * a term that is smaller than a term that was granted or read before this read began;
//! * no leader, or another leader, although one leader held for certain throughout the read.
//!
//! If the leader may have changed during a read, the read may return the old leader, the new one, or none.

use std::collections::HashMap;

use super::{ENOUGH, Found};
use crate::record::{Answer, Operation};
use crate::report::Rule;
use crate::timeline::{Attempt, Scope, Small};

pub(super) fn judge(scope: &Scope<'_>, found: &mut Found<'_>) {
    let is_read = |small: &&Small| {
        small.what == Operation::Leader
            && matches!(small.answer, Answer::Leader { .. } | Answer::Nobody)
    };
    let mut reads: Vec<_> = scope.operations.iter().filter(is_read).collect();
    if reads.is_empty() {
        return;
    }
    reads.sort_by_key(|read| read.call);
    let granted = scope.attempts.iter().copied().filter(|attempt| attempt.granted.is_some());
    let mut terms: Vec<_> = granted.collect();
    terms.sort_by_key(|term| term.granted.at);
    let by_token: HashMap<_, _> = terms.iter().map(|term| (term.token, *term)).collect();
    // From the first call of an acquire on, a read may return a term that no record has. If a candidate's session is
    // lost before its acquire returns, nobody recorded the token of the candidate's entry, but the store may have made
    // that candidate the leader.
    let nameless = scope.attempts.iter().map(|attempt| attempt.call.time().unwrap_or(0)).min();
    let mut violations = 0;
    for read in &reads {
        let wrong = match read.answer {
            Answer::Leader { token } => match by_token.get(&token) {
                Some(term) => outside(term, read),
                None if nameless.is_none_or(|call| call > read.returned) => {
                    Some(("nobody had the term that was read", read.index))
                }
                None => None,
            },
            _ => None,
        };
        if let Some((what, index)) = wrong.or_else(|| another(&terms, read, found)) {
            found.add(Rule::O7, scope.object, what, &[index, read.index]);
            violations += 1;
            if violations >= ENOUGH {
                return;
            }
        }
    }
    if found.rules.tokens_rise {
        rising(scope, &reads, &terms, found);
    }
}

/// Why the term cannot have been read: the read ended before the term can have begun, or began after the term had
/// ended.
fn outside(term: &Attempt, read: &Small) -> Option<(&'static str, usize)> {
    if term.call.time().is_some_and(|call| call > read.returned) {
        return Some(("a term was read before its leader was a candidate", term.call.index));
    }
    let resigned = term.released.then(|| term.release_return.time()).flatten();
    if resigned.is_some_and(|resigned| resigned < read.call) {
        return Some(("a term was read after its leader had resigned", term.release_return.index));
    }
    None
}

/// Why the result cannot be right: a leader that the read did not return held for certain throughout the read.
fn another(terms: &[&Attempt], read: &Small, found: &Found<'_>) -> Option<(&'static str, usize)> {
    let before = terms.partition_point(|term| term.granted.at < read.call);
    let term = terms.get(before.checked_sub(1)?)?;
    let is_it = read.answer == Answer::Leader { token: term.token };
    if is_it || term.held_until() <= read.returned || found.excused(term) {
        return None;
    }
    Some(("somebody else led all the time", term.held.index))
}

/// Checks that each read returns a term that is not smaller than the terms that were read or granted before the read
/// began.
fn rising(scope: &Scope<'_>, reads: &[&Small], terms: &[&Attempt], found: &mut Found<'_>) {
    let read = reads.iter().filter_map(|read| match read.answer {
        Answer::Leader { token } => Some((read.returned, token, read.index)),
        _ => None,
    });
    let granted = terms.iter().map(|term| (term.granted.at, term.token, term.granted.index));
    let mut seen: Vec<_> = read.chain(granted).collect();
    seen.sort_unstable();
    let mut seen = seen.into_iter().peekable();
    let (mut highest, mut violations) = ((0, usize::MAX), 0);
    for read in reads {
        while let Some((_, token, index)) = seen.next_if(|(at, ..)| *at < read.call) {
            highest = highest.max((token, index));
        }
        let Answer::Leader { token } = read.answer else { continue };
        if token < highest.0 {
            let proof = [highest.1, read.index];
            found.add(Rule::O7, scope.object, "a term was read after a later one", &proof);
            violations += 1;
            if violations >= ENOUGH {
                return;
            }
        }
    }
}
