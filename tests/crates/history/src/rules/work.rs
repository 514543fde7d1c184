//! O8: no item of a work queue is in two live claims, each item is acknowledged once and by the claim that has it, no
//! item is lost, and the later claim has the larger token (WK1 to WK3).
//!
//! A claim certainly has an item from the return of the claim's call until the last moment at which the client saw that
//! the claim was held, or at which the client called an acknowledgement or a `nack` that succeeded. Two such spans of
//! one item must not have a moment in common.
//!
//! An acknowledgement that removed the item must not be called after a later claim had returned with the item. An
//! acknowledgement that finds the item gone needs another one that may have removed the item. Once the queue is empty,
//! each item whose post was confirmed needs an acknowledgement that removed it, or that may have removed it.

use std::collections::{HashMap, HashSet};

use super::{ENOUGH, Found};
use crate::record::{Event, Work};
use crate::report::Rule;
use crate::timeline::Scope;

/// One record about an item.
#[derive(Clone, Copy)]
struct Note {
    call: u64,
    at: u64,
    client: u32,
    attempt: u64,
    token: u64,
    what: Work,
    index: usize,
}

impl Note {
    fn is_of(&self, other: &Self) -> bool {
        (self.client, self.attempt) == (other.client, other.attempt)
    }
}

/// A claim that certainly has an item from one moment to another.
#[derive(Clone, Copy)]
struct Stay {
    from: u64,
    until: u64,
    claimed: usize,
    last: usize,
}

pub(super) fn judge(scope: &Scope<'_>, found: &mut Found<'_>) {
    let (mut items, mut emptied) = (HashMap::<u64, Vec<Note>>::new(), None);
    for index in &scope.work {
        let record = found.timeline.records[*index];
        let Event::Work { call, item, token, what } = record.event else { continue };
        let (at, client, attempt) = (record.at, record.client, record.attempt);
        let note = Note { call, at, client, attempt, token, what, index: *index };
        match what {
            Work::Emptied => emptied = Some(note),
            _ => items.entry(item).or_default().push(note),
        }
    }
    let mut sorted: Vec<_> = items.into_iter().collect();
    sorted.sort_unstable_by_key(|(item, _)| *item);
    let mut violations = 0;
    for (item, notes) in &sorted {
        for (what, proof) in wrong(*item, notes, emptied.as_ref(), found) {
            found.add(Rule::O8, scope.object, what, &proof);
            violations += 1;
        }
        if violations >= ENOUGH {
            break;
        }
    }
    tokens(scope, sorted.iter().flat_map(|(_, notes)| notes), found);
}

/// What is wrong with one item. Its records are in order of time.
fn wrong(
    item: u64,
    notes: &[Note],
    emptied: Option<&Note>,
    found: &Found<'_>,
) -> Vec<(String, Vec<usize>)> {
    let mut wrong = Vec::new();
    let of = |what: Work| notes.iter().filter(move |note| note.what == what);
    if let Some((one, other)) = overlap(notes, found) {
        let proof = vec![one.claimed, one.last, other.claimed, other.last];
        wrong.push((format!("item {item} is in two live claims"), proof));
    }
    let acked: Vec<_> = of(Work::Acked).collect();
    if let [one, other, ..] = acked[..] {
        let proof = vec![one.index, other.index];
        wrong.push((format!("item {item} is acknowledged twice"), proof));
    }
    for ack in &acked {
        let stale = of(Work::Claimed).find(|claim| claim.token > ack.token && claim.at < ack.call);
        if let Some(later) = stale {
            let text = format!("item {item} is acknowledged by a claim that is over");
            wrong.push((text, vec![later.index, ack.index]));
        }
        if let Some(claim) = of(Work::Claimed).find(|claim| claim.call > ack.at) {
            let text = format!("item {item} is handed out after it was acknowledged");
            wrong.push((text, vec![ack.index, claim.index]));
        }
    }
    for claim in of(Work::Claimed) {
        let posting = of(Work::Posting).find(|posting| posting.call < claim.at);
        let refused = of(Work::NotPosted).next();
        if posting.is_none() || refused.is_some() {
            let text = format!("item {item} is handed out, and was not posted");
            let refused = refused.map(|refused| refused.index);
            wrong.push((text, refused.into_iter().chain([claim.index]).collect()));
        }
    }
    for gone in of(Work::Gone) {
        if !notes.iter().any(|note| may_remove(note, notes, gone.at)) {
            let text = format!("item {item} is gone, and nobody has acknowledged it");
            wrong.push((text, vec![gone.index]));
        }
        let is_back =
            |note: &&Note| matches!(note.what, Work::Claimed | Work::Acked) && note.call > gone.at;
        if let Some(back) = notes.iter().find(is_back) {
            let text = format!("item {item} is back after it was gone");
            wrong.push((text, vec![gone.index, back.index]));
        }
    }
    if let (Some(emptied), Some(posted)) = (emptied, of(Work::Posted).next())
        && posted.at < emptied.call
        && !notes.iter().any(|note| may_remove(note, notes, emptied.at))
    {
        let text = format!("item {item} is lost: nobody has acknowledged it");
        wrong.push((text, vec![posted.index, emptied.index]));
    }
    wrong
}

/// Whether this is an acknowledgement that removed the item before `at`, or may have done so.
fn may_remove(note: &Note, notes: &[Note], at: u64) -> bool {
    match note.what {
        Work::Acked => note.call < at,
        // The result of a try has the same time of its call.
        Work::Acking => {
            let is_result = |result: &Note| {
                let ends = matches!(result.what, Work::Acked | Work::Gone | Work::NotAcked);
                ends && result.is_of(note) && result.call == note.call
            };
            // Whoever has claimed the item before that call has it for good: such a late try cannot remove it.
            let is_later = |claim: &Note| {
                claim.what == Work::Claimed && claim.token > note.token && claim.at < note.call
            };
            note.call < at && !notes.iter().any(is_result) && !notes.iter().any(is_later)
        }
        _ => false,
    }
}

/// Two claims that certainly had the item at the same moment.
fn overlap(notes: &[Note], found: &Found<'_>) -> Option<(Stay, Stay)> {
    let mut stays: Vec<Stay> = Vec::new();
    for claim in notes.iter().filter(|note| note.what == Work::Claimed) {
        let ends = notes.iter().filter(|note| {
            matches!(note.what, Work::Had | Work::Acked | Work::GivenBack) && note.is_of(claim)
        });
        let Some(last) = ends.max_by_key(|note| note.call) else { continue };
        if found.timeline.clients.untimed(claim.call, last.call) {
            continue;
        }
        let (claimed, until) = (claim.index, last.call);
        stays.push(Stay { from: claim.at.min(until), until, claimed, last: last.index });
    }
    stays.sort_unstable_by_key(|stay| stay.from);
    let mut longest: Option<Stay> = None;
    for stay in stays {
        match longest {
            Some(before) if stay.from < before.until => return Some((before, stay)),
            Some(before) if before.until >= stay.until => {}
            _ => longest = Some(stay),
        }
    }
    None
}

/// The later claim has the larger token, and no two claims have the same one.
fn tokens<'a>(scope: &Scope<'_>, notes: impl Iterator<Item = &'a Note>, found: &mut Found<'_>) {
    let mut seen = HashSet::new();
    let is_first =
        |note: &&Note| note.what == Work::Claimed && seen.insert((note.client, note.attempt));
    let mut claims: Vec<_> = notes.filter(is_first).collect();
    found.report.claims += claims.len() as u64;
    if !found.rules.tokens_rise {
        return;
    }
    let mut returned = claims.clone();
    returned.sort_unstable_by_key(|claim| claim.at);
    claims.sort_unstable_by_key(|claim| claim.call);
    let (mut returned, mut highest) = (returned.into_iter().peekable(), None::<&Note>);
    let mut violations = 0;
    for later in &claims {
        if violations >= ENOUGH {
            break;
        }
        while let Some(claim) = returned.next_if(|claim| claim.at < later.call) {
            if highest.is_none_or(|highest| highest.token < claim.token) {
                highest = Some(claim);
            }
        }
        if let Some(earlier) = highest.filter(|highest| highest.token >= later.token) {
            let what = format!("claim with token {} after token {}", later.token, earlier.token);
            found.add(Rule::O8, scope.object, what, &[earlier.index, later.index]);
            violations += 1;
        }
    }
    claims.sort_unstable_by_key(|claim| claim.token);
    let twice = claims.windows(2).filter(|pair| pair[0].token == pair[1].token);
    for pair in twice.take(ENOUGH as usize) {
        let what = format!("two claims with token {}", pair[0].token);
        found.add(Rule::O8, scope.object, what, &[pair[0].index, pair[1].index]);
    }
}
