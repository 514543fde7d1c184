//! Looking at a queue without changing it.

use super::ahead::fetch_ahead;
use super::claim::{SeenItem, seen_items};
use super::draft::{Draft, Step};
use super::ids::ItemId;
use super::layout::{GROUP, Item, Micros, State, Summary};
use super::select::{length_of, page_of};

/// How long the bodies of a list are together, in base64, before it ends.
const BODIES: u64 = 1024 * 1024;

/// How many items are in each state, and how old the oldest and the newest are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) ready: u64,
    pub(super) claimed: u64,
    pub(super) delayed: u64,
    pub(super) dead: u64,
    pub(super) letters: u64,
    pub(super) oldest: Option<Micros>,
    pub(super) newest: Option<Micros>,
}

/// Counts the items by their state now. A summary is exact until an item of it changes by time: so most often the head is
/// enough.
pub(super) fn stats(draft: &mut Draft<'_>) -> Step<Counts> {
    let (now, mut sum) = (draft.now, Summary::NOTHING);
    let groups: Vec<_> = draft.head.live.groups.iter().map(|(group, all)| (*group, *all)).collect();
    let due = groups.iter().filter(|(_, all)| all.is_alive(now) && all.is_due(now));
    let names: Vec<_> = due.map(|(group, _)| draft.group_name(group * GROUP)).collect();
    draft.want(names)?;
    // All at once: each round of reading begins the count anew.
    let mut names = Vec::new();
    for (group, _) in groups.iter().filter(|(_, all)| all.is_alive(now) && all.is_due(now)) {
        let index = draft.group(*group)?;
        let due = index.iter().filter(|(_, all)| all.is_alive(now) && all.is_due(now));
        let due: Vec<_> = due.map(|(page, _)| *page).collect();
        names.extend(due.into_iter().map(|page| draft.page_name(page)));
    }
    draft.want(names)?;
    for (group, all) in groups {
        sum = sum.with(match all.is_due(now) && all.is_alive(now) {
            true => sum_of_group(draft, group)?,
            false => at(all, now),
        });
    }
    let is_there = sum.ready + sum.claimed + sum.delayed > 0;
    let age = |made: Micros| is_there.then(|| now.saturating_sub(made));
    Ok(Counts {
        ready: sum.ready,
        claimed: sum.claimed,
        delayed: sum.delayed,
        dead: sum.dead,
        letters: draft.head.letters_on_their_way(),
        oldest: age(sum.oldest),
        newest: age(sum.newest),
    })
}

fn sum_of_group(draft: &mut Draft<'_>, group: u64) -> Step<Summary> {
    let (now, mut sum) = (draft.now, Summary::NOTHING);
    let pages: Vec<_> = draft.group(group)?.iter().map(|(page, all)| (*page, *all)).collect();
    for (page, all) in pages {
        sum = sum.with(match all.is_alive(now) && all.is_due(now) {
            true => Summary::of(draft.page(page)?, now),
            false => at(all, now),
        });
    }
    Ok(sum)
}

/// A summary as of now, if it is not due or all its items are dead.
fn at(all: Summary, now: Micros) -> Summary {
    if all.is_alive(now) { all } else { all.when_dead() }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Which {
    pub(super) after: Option<ItemId>,
    pub(super) limit: usize,
    pub(super) claimed: bool,
    pub(super) delayed: bool,
}

pub(super) fn list(draft: &mut Draft<'_>, which: Which) -> Step<Vec<SeenItem>> {
    let Some(mut first) = start(draft, which.after)? else { return Ok(Vec::new()) };
    let mut seen = Vec::new();
    loop {
        let left = Which { limit: which.limit - seen.len(), ..which };
        let items = listed(draft, left, first)?;
        let found = seen_items(draft, &items)?;
        // Those whose bodies are missing make room for others.
        let is_whole = found.len() == items.len();
        seen.extend(found);
        match items.last() {
            Some((last, _)) if !is_whole => first = last + 1,
            _ => return Ok(seen),
        }
    }
}

/// The items that are to be listed from this rank on.
fn listed(draft: &mut Draft<'_>, which: Which, first: u64) -> Step<Vec<(u64, Item)>> {
    let now = draft.now;
    let (mut items, mut length) = (Vec::new(), 0);
    let mut from = page_of(first);
    let may_be_listed = |all: &Summary| {
        let is_asked_for =
            all.ready > 0 || which.claimed && all.claimed > 0 || which.delayed && all.delayed > 0;
        all.is_alive(now) && (is_asked_for || all.is_due(now))
    };
    'pages: while let Some(page) = draft.next_page(from, may_be_listed)? {
        fetch_ahead(draft, page, which.limit - items.len(), may_be_listed)?;
        for (rank, item) in draft.page(page)?.range(first..) {
            let is_listed = match item.state(now) {
                State::Ready => true,
                State::Claimed => which.claimed,
                State::Delayed => which.delayed,
                State::Dead => false,
            };
            if is_listed {
                length += length_of(item);
                items.push((*rank, item.clone()));
            }
            if items.len() == which.limit || length > BODIES {
                break 'pages;
            }
        }
        from = page + 1;
    }
    Ok(items)
}

/// The rank after that of this item; `None`: there is no such item.
fn start(draft: &mut Draft<'_>, after: Option<ItemId>) -> Step<Option<u64>> {
    let Some(after) = after else { return Ok(Some(0)) };
    let rank = after.rank();
    if rank >= draft.head.rank {
        return Ok(None);
    }
    let item = draft.page(page_of(rank))?.get(&rank);
    Ok(item.filter(|item| item.mark == after.mark()).map(|_| rank + 1))
}
