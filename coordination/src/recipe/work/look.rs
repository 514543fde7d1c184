//! Looking at a queue without changing it.

use super::claim::{SeenItem, seen_items};
use super::draft::{Draft, Outcome, Step};
use super::ids::ItemId;
use super::layout::{GROUP, Micros, State, Summary};
use super::select::{length_of, page_of};

/// How long the bodies of a list are together, in base64, before it ends.
const BODIES: u64 = 1024 * 1024;

/// How many items are what, and how old the oldest and the newest are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) ready: u64,
    pub(super) claimed: u64,
    pub(super) delayed: u64,
    pub(super) oldest: Option<Micros>,
    pub(super) newest: Option<Micros>,
}

impl Counts {
    fn add(&mut self, summary: &Summary) {
        self.ready += summary.ready;
        self.claimed += summary.claimed;
        self.delayed += summary.delayed;
    }
}

/// Counts what is so now. What is said of pages that have not changed by time is taken for granted.
pub(super) fn stats(draft: &mut Draft<'_>) -> Step<Outcome<Counts>> {
    let (now, mut counts) = (draft.now, Counts::default());
    let groups: Vec<_> = draft.head.live.groups.iter().map(|(group, all)| (*group, *all)).collect();
    let due = groups.iter().filter(|(_, all)| all.is_alive(now) && all.is_due(now));
    let names: Vec<_> = due.map(|(group, _)| draft.group_name(group * GROUP)).collect();
    draft.want(names)?;
    for (group, all) in groups.iter().filter(|(_, all)| all.is_alive(now)) {
        match all.is_due(now) {
            false => counts.add(all),
            true => count_group(draft, *group, &mut counts)?,
        }
    }
    let is_alive = |summary: &Summary| summary.is_alive(now);
    if let Some(first) = draft.next_page(0, is_alive)? {
        let last = last_page(draft)?.unwrap_or(first);
        draft.want([draft.page_name(first), draft.page_name(last)])?;
        let age = |made: Option<Micros>| made.map(|made| now.saturating_sub(made));
        let alive = |draft: &mut Draft<'_>, page| -> Step<Vec<Micros>> {
            let items = draft.page(page)?.values().filter(|item| item.state(now) != State::Dead);
            Ok(items.map(|item| item.made).collect())
        };
        counts.oldest = age(alive(draft, first)?.first().copied());
        counts.newest = age(alive(draft, last)?.last().copied());
    }
    Ok(Outcome::Done(counts))
}

fn count_group(draft: &mut Draft<'_>, group: u64, counts: &mut Counts) -> Step<()> {
    let now = draft.now;
    let pages = draft.group(group)?.iter().filter(|(_, summary)| summary.is_alive(now));
    let pages: Vec<_> = pages.map(|(page, summary)| (*page, *summary)).collect();
    let due = pages.iter().filter(|(_, summary)| summary.is_due(now));
    let names: Vec<_> = due.map(|(page, _)| draft.page_name(*page)).collect();
    draft.want(names)?;
    for (page, summary) in pages {
        match summary.is_due(now) {
            false => counts.add(&summary),
            true => counts.add(&Summary::of(draft.page(page)?, now)),
        }
    }
    Ok(())
}

fn last_page(draft: &mut Draft<'_>) -> Step<Option<u64>> {
    let now = draft.now;
    let groups = draft.head.live.groups.iter().rev();
    let last = groups.filter(|(_, all)| all.is_alive(now)).map(|(group, _)| *group).next();
    let Some(last) = last else { return Ok(None) };
    let mut pages = draft.group(last)?.iter().rev();
    Ok(pages.find(|(_, summary)| summary.is_alive(now)).map(|(page, _)| *page))
}

/// Which items are listed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Which {
    pub(super) after: Option<ItemId>,
    pub(super) limit: usize,
    pub(super) claimed: bool,
    pub(super) delayed: bool,
}

pub(super) fn list(draft: &mut Draft<'_>, which: Which) -> Step<Outcome<Vec<SeenItem>>> {
    let now = draft.now;
    let (mut items, mut length) = (Vec::new(), 0);
    let Some(first) = start(draft, which.after)? else { return Ok(Outcome::Done(Vec::new())) };
    let mut from = page_of(first);
    'pages: while let Some(page) = draft.next_page(from, |summary| summary.is_alive(now))? {
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
    seen_items(draft, &items).map(Outcome::Done)
}

/// The first rank after a marker; `None`: it is none that there was.
fn start(draft: &mut Draft<'_>, after: Option<ItemId>) -> Step<Option<u64>> {
    let Some(after) = after else { return Ok(Some(0)) };
    let rank = after.rank();
    if rank >= draft.head.rank {
        return Ok(None);
    }
    let item = draft.page(page_of(rank))?.get(&rank);
    Ok(item.filter(|item| item.mark == after.mark()).map(|_| rank + 1))
}
