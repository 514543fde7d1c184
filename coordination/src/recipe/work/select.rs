//! Finding ready items, in the order of their ranks.

use std::collections::{BTreeSet, VecDeque};

use super::ahead::fetch_ahead;
use super::draft::{Draft, Step};
use super::layout::{Body, GROUP, Item, PAGE, State, Summary};
use super::letters;
use crate::canary::{Canary, sings};

/// How many dead items one step removes on its way.
const DEAD: usize = 100;
/// How many records of groups are read at once where one was read in vain.
const GROUPS_AHEAD: usize = 39;
/// How long the bodies may be that are handed out at once, in base64; one is always handed out.
const BODIES: u64 = 1024 * 1024;

#[derive(Default)]
pub(super) struct Selected {
    pub(super) ranks: Vec<u64>,
    /// There was more to look at, for another step.
    pub(super) is_cut_short: bool,
    length: u64,
    dead: usize,
}

/// Finds ready items, at most this many. Those that were claimed too often leave the queue on the way, and dead ones.
pub(super) fn select(draft: &mut Draft<'_>, limit: usize) -> Step<Selected> {
    let (now, mut selected, mut from) = (draft.now, Selected::default(), 0);
    while let Some(page) = selected.next_page(draft, from)? {
        let may_be_ready = |summary: &Summary| summary.may_be_ready(now);
        fetch_ahead(draft, page, limit - selected.ranks.len(), may_be_ready)?;
        let ranks: Vec<_> = draft.page_mut(page)?.keys().copied().collect();
        for rank in ranks {
            if !selected.visit(draft, page, rank)? {
                return Ok(selected);
            }
            if selected.ranks.len() == limit {
                return Ok(selected);
            }
        }
        if draft.is_full() {
            selected.is_cut_short = true;
            return Ok(selected);
        }
        from = page + 1;
    }
    Ok(selected)
}

/// Those of these items whose bodies are there. The others leave the queue: somebody has removed the records of their bodies, and
/// whoever claims next is not to be held up by them.
pub(super) fn with_bodies(draft: &mut Draft<'_>, ranks: &[u64]) -> Step<Vec<u64>> {
    want_pages(draft, ranks)?;
    let mut items = Vec::new();
    for rank in ranks {
        items.extend(draft.page(page_of(*rank))?.get(rank).map(|item| (*rank, item.body.clone())));
    }
    let bodies: Vec<_> = items.iter().filter_map(|(_, body)| draft.unread_body(body)).collect();
    draft.want(bodies)?;
    let mut there = Vec::new();
    for (rank, body) in items {
        match draft.body(rank, &body)? {
            Some(_) => there.push(rank),
            None => remove_without_body(draft, rank)?,
        }
    }
    Ok(there)
}

fn remove_without_body(draft: &mut Draft<'_>, rank: u64) -> Step<()> {
    draft.without_body.push(rank);
    draft.remove(rank).map(drop)
}

pub(super) fn want_pages(draft: &Draft<'_>, ranks: &[u64]) -> Step<()> {
    let pages: BTreeSet<_> = ranks.iter().map(|rank| page_of(*rank)).collect();
    draft.want(pages.into_iter().flat_map(|page| [draft.page_name(page), draft.group_name(page)]))
}

impl Selected {
    /// The first page from this one on of which an item may be ready. The groups that have none on the way are [noted](note_dead): the
    /// head says otherwise of them, for as long as nobody writes that, and each step that looks for ready items would read them.
    fn next_page(&mut self, draft: &mut Draft<'_>, from: u64) -> Step<Option<u64>> {
        let (now, live) = (draft.now, &draft.head.live);
        let groups = live.groups.range(live.group_of(from)..);
        let groups = groups.filter(|(_, all)| all.may_be_ready(now)).map(|(group, _)| *group);
        let (mut groups, mut is_known) = (groups.collect::<VecDeque<_>>(), true);
        while let Some(group) = groups.pop_front() {
            if draft.is_full() {
                self.is_cut_short = true;
                return Ok(None);
            }
            if !is_known {
                // Where one group has none, so may many.
                let some = groups.iter().take(GROUPS_AHEAD).map(|group| group * GROUP);
                let names = some.chain([group * GROUP]).map(|page| draft.group_name(page));
                draft.want(names.collect::<Vec<_>>())?;
            }
            let mut pages = draft.group(group)?.range(from..);
            if let Some((page, _)) = pages.find(|(_, summary)| summary.may_be_ready(now)) {
                return Ok(Some(*page));
            }
            is_known = !note_dead(draft, group)?;
        }
        Ok(None)
    }

    /// Takes, removes or passes over one item. False: this step takes no more.
    fn visit(&mut self, draft: &mut Draft<'_>, page: u64, rank: u64) -> Step<bool> {
        let now = draft.now;
        let Some(item) = draft.page(page)?.get(&rank).cloned() else { return Ok(true) };
        let state = match item.state(now) {
            State::Claimed if sings(Canary::RestIsFree) && !self.ranks.is_empty() => State::Ready,
            state => state,
        };
        match state {
            State::Ready if is_poisoned(draft, &item) => {
                if !draft.has_room_for_letter(length_of(&item) as usize) {
                    self.is_cut_short = true;
                    return Ok(false);
                }
                match draft.body(rank, &item.body)? {
                    Some(body) => letters::send(draft, rank, &item, body)?,
                    None => remove_without_body(draft, rank)?,
                }
            }
            State::Ready => {
                let length = length_of(&item);
                if !self.ranks.is_empty() && self.length + length > BODIES {
                    return Ok(false);
                }
                self.length += length;
                self.ranks.push(rank);
            }
            State::Dead if self.dead < DEAD => {
                self.dead += 1;
                draft.remove(rank)?;
            }
            State::Claimed | State::Delayed | State::Dead => {}
        }
        Ok(true)
    }
}

/// Notes that all items of some pages are dead, in a group of no page of which an item may be ready. After that the head says so too.
/// Answers whether it was to be noted.
fn note_dead(draft: &mut Draft<'_>, group: u64) -> Step<bool> {
    let (now, index) = (draft.now, draft.group(group)?);
    if index.values().any(|summary| summary.may_be_ready(now)) {
        return Ok(false);
    }
    for summary in draft.group_mut(group)?.values_mut().filter(|summary| !summary.is_alive(now)) {
        *summary = summary.when_dead();
    }
    let index = draft.group(group)?;
    let all = (!index.is_empty()).then(|| Summary::of_all(index));
    draft.change().live.note_group(group, all);
    Ok(true)
}

fn is_poisoned(draft: &Draft<'_>, item: &Item) -> bool {
    draft.head.poison.as_ref().is_some_and(|poison| item.claims >= poison.max_claims)
}

pub(super) fn length_of(item: &Item) -> u64 {
    match &item.body {
        Body::Here(text) => text.len() as u64,
        Body::There(_, length) => *length,
    }
}

pub(super) fn page_of(rank: u64) -> u64 {
    rank / PAGE
}
