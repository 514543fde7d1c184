//! Removing what nobody can see any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ahead::fetch_ahead;
use super::buckets::Bucket;
use super::draft::{Draft, Outcome, Step, name};
use super::layout::{
    Body, Claims, Contents, GROUP, Index, MOST_LITTER, PAGE, Page, State, Summary,
};
use crate::backend::MOST_BESIDE;

/// How many pages whose items are all dead are removed by a step that writes for another reason.
const DEAD_PAGES: usize = 2;

/// How many groups the head has before some of them are joined.
const MOST_GROUPS: usize = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Removed {
    pub(super) items: usize,
    pub(super) claims: usize,
}

/// Removes dead items, and claims that are over and forgotten; at most so many together.
pub(super) fn gc(draft: &mut Draft<'_>, budget: usize) -> Step<Outcome<Removed>> {
    draft.sets_no_time = true;
    let mut removed = Removed::default();
    sweep_trash(draft)?;
    remove_dead(draft, (budget, usize::MAX), &mut removed)?;
    forget_some_claims(draft, budget, &mut removed)?;
    if !draft.head.litter.is_empty() {
        draft.change();
    }
    // Whoever is told of nothing believes that there is nothing. The next step passes over what this one has counted anew.
    let is_cut_short = removed == Removed::default() && draft.is_full();
    Ok(if is_cut_short { Outcome::Again } else { Outcome::Done(removed) })
}

/// Removes dead items: so many, or from so many pages, at the most. Answers how many pages it has looked at.
fn remove_dead(
    draft: &mut Draft<'_>,
    (budget, pages): (usize, usize),
    removed: &mut Removed,
) -> Step<usize> {
    let (now, mut from, mut looked_at) = (draft.now, 0, 0);
    while let Some(page) = draft.next_page(from, |summary| summary.may_be_dead(now))? {
        // The page counts as changed, so that its summary is made anew even if none of its items is dead.
        let items = draft.page_mut(page)?.iter();
        let dead = items.filter(|(_, item)| item.state(now) == State::Dead).map(|(rank, _)| *rank);
        let dead: Vec<_> = dead.take(budget - removed.items).collect();
        for rank in &dead {
            draft.remove(*rank)?;
        }
        (removed.items, looked_at) = (removed.items + dead.len(), looked_at + 1);
        if removed.items == budget || looked_at == pages || draft.is_full() {
            break;
        }
        from = page + 1;
    }
    Ok(looked_at)
}

/// There may be thousands of records of claims: no more are read than it takes to find claims that are forgotten. Each time twice as
/// many are, since each time the step is made anew.
fn forget_some_claims(draft: &mut Draft<'_>, budget: usize, removed: &mut Removed) -> Step<()> {
    let buckets = draft.head.live.all_buckets();
    let (mut rest, mut count) = (&buckets[..], MOST_BESIDE);
    while !rest.is_empty() && removed.claims == 0 && removed.items < budget && !draft.is_full() {
        let (some, others) = rest.split_at(count.min(rest.len()));
        draft.want(some.iter().map(|bucket| draft.bucket_name_of(*bucket)))?;
        for bucket in some {
            forget_claims(draft, *bucket, budget, removed)?;
        }
        (rest, count) = (others, 2 * count);
    }
    Ok(())
}

fn forget_claims(
    draft: &mut Draft<'_>,
    bucket: Bucket,
    budget: usize,
    removed: &mut Removed,
) -> Step<()> {
    let now = draft.now;
    let left = budget - removed.items - removed.claims;
    if draft.is_full() || left == 0 {
        return Ok(());
    }
    let claims = draft.bucket(bucket)?.iter();
    let over =
        claims.filter(|(_, claim)| claim.is_forgotten(now)).map(|(id, claim)| (*id, claim.holder));
    for (id, holder) in over.take(left).collect::<Vec<_>>() {
        if draft.is_full() {
            break;
        }
        draft.bucket_mut(bucket)?.remove(&id);
        if let Some(holder) = holder {
            draft.held(holder)?.remove(&id);
        }
        removed.claims += 1;
    }
    Ok(())
}

/// Removes the items of a few pages all of whose items are dead: whoever looks for ready items passes over these pages, and never
/// finds them. A post does it, since what grows by posts is to shrink by posts; a claim has no time for it (C8).
pub(super) fn remove_dead_pages(draft: &mut Draft<'_>) -> Step<()> {
    let now = draft.now;
    for page in dead_pages(draft)? {
        if !draft.has_room_for(&BTreeSet::from([page]))? {
            return Ok(());
        }
        // A page that this step has changed already still has the summary that it had before.
        let is_still_dead = draft.page(page)?.values().all(|item| item.state(now) == State::Dead);
        let ranks: Vec<_> = draft.page(page)?.keys().copied().filter(|_| is_still_dead).collect();
        for rank in ranks {
            draft.remove(rank)?;
        }
    }
    Ok(())
}

/// A few pages all of whose items are dead; they are all in one group. If no group is wholly dead, each step looks into another
/// one: an item that lives for long may stand among thousands of dead ones.
fn dead_pages(draft: &mut Draft<'_>) -> Step<Vec<u64>> {
    let now = draft.now;
    let is_dead = |summary: &Summary| summary.may_be_dead(now) && !summary.is_alive(now);
    let groups = &draft.head.live.groups;
    // The group of the items that are being posted is not dead any more, whatever its summary says.
    let own = draft.head.rank.saturating_sub(1) / PAGE / GROUP;
    let dead = groups.iter().find(|(group, all)| **group != own && is_dead(all));
    let dead = dead.map(|(group, _)| *group);
    let some: Vec<_> =
        groups.iter().filter(|(_, all)| all.may_be_dead(now)).map(|(group, _)| *group).collect();
    // The ranks of successive posts may all be multiples of the number of groups, and so are mixed.
    let mixed = draft.head.rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let other = || some.get(mixed as usize % some.len().max(1)).copied();
    let Some(group) = dead.or_else(other) else { return Ok(Vec::new()) };
    let pages = draft.group(group)?.iter().filter(|(_, summary)| is_dead(summary));
    Ok(pages.map(|(page, _)| *page).take(DEAD_PAGES).collect())
}

/// How many pages a post of so many items still has to [`tidy`], in steps of its own: the step that posts has no room for it where the
/// post is long, or begins many pages. None, if there are neither dead items nor groups to be joined.
pub(super) fn left_of_post(draft: &Draft<'_>, count: usize, is_short: bool) -> usize {
    let may_be_dead = draft.head.live.groups.values().any(|all| all.may_be_dead(draft.now));
    let (has_done, may_be_joined) = match is_short {
        true => (DEAD_PAGES, false),
        false => (0, to_be_joined(draft).is_some()),
    };
    let wanted = (DEAD_PAGES * count.div_ceil(PAGE as usize)).saturating_sub(has_done);
    if may_be_dead || may_be_joined { wanted } else { 0 }
}

/// Removes the dead items of so many pages, at the most, as a post has left it to a step of its own. Answers how many pages it has
/// looked at.
pub(super) fn tidy(draft: &mut Draft<'_>, most: usize) -> Step<Outcome<usize>> {
    draft.sets_no_time = true;
    let (now, mut looked_at) = (draft.now, 0);
    if draft.head.litter.len() < MOST_LITTER / 2 {
        let may_be_dead = |summary: &Summary| summary.may_be_dead(now);
        if let Some(page) = draft.next_page(0, may_be_dead)? {
            fetch_ahead(draft, page, most * PAGE as usize, may_be_dead)?;
        }
        looked_at = remove_dead(draft, (usize::MAX, most), &mut Removed::default())?;
        join_groups(draft)?;
    }
    if !draft.head.litter.is_empty() {
        draft.change();
    }
    Ok(Outcome::Done(looked_at))
}

/// When the head has many groups, two neighbours with few pages become one. Whatever lives for long would stand in a group of its own
/// otherwise, one for every few thousand items that come and go. A post that fills a page does it; the last group, to which the next
/// posts add pages, is left alone.
pub(super) fn join_groups(draft: &mut Draft<'_>) -> Step<()> {
    to_be_joined(draft).map_or(Ok(()), |(first, second)| draft.join_groups(first, second))
}

/// The two neighbours with the fewest living items, of those that are not sure to have too many pages together.
fn to_be_joined(draft: &Draft<'_>) -> Option<(u64, u64)> {
    let newest = draft.head.rank / PAGE / GROUP;
    let groups = || draft.head.live.groups.range(..newest);
    if groups().count() < MOST_GROUPS {
        return None;
    }
    let alive = |all: &Summary| all.ready + all.claimed + all.delayed;
    let pairs = groups().zip(groups().skip(1));
    let may_fit = pairs.filter(|((_, one), (_, next))| {
        alive(one) + one.dead + alive(next) + next.dead <= PAGE * GROUP
    });
    let fewest = may_fit.min_by_key(|((_, one), (_, next))| alive(one) + alive(next));
    fewest.map(|((first, _), (second, _))| (*first, *second))
}

/// Everything in the queue goes at once; what it leaves is removed by and by.
pub(super) fn delete_queue(draft: &mut Draft<'_>) -> Step<Outcome<()>> {
    if draft.version > 0 {
        let head = draft.change();
        let generation = head.live.generation + 1;
        let next = Contents { generation, ..Contents::default() };
        let old = std::mem::replace(&mut head.live, next);
        head.trash.push(old);
        head.poison = None;
    }
    Ok(Outcome::Done(()))
}

/// A step in place of another one that would write while too much is left of what was removed before.
pub(super) fn sweep<T>(draft: &mut Draft<'_>) -> Step<Outcome<T>> {
    draft.sets_no_time = true;
    sweep_trash(draft)?;
    draft.change();
    Ok(Outcome::Again)
}

/// Removes a part of what deleted queues have left, until there is nothing.
pub(super) fn clean(draft: &mut Draft<'_>) -> Step<Outcome<()>> {
    match draft.head.trash.is_empty() && draft.head.litter.is_empty() {
        true => Ok(Outcome::Done(())),
        false => sweep(draft),
    }
}

/// Adds some of the records that a deleted queue has left to those that the head names as to be removed, unless these are many
/// already.
fn sweep_trash(draft: &mut Draft<'_>) -> Step<()> {
    let Some(old) = draft.head.trash.last().cloned() else { return Ok(()) };
    if draft.head.litter.len() > MOST_LITTER {
        return Ok(());
    }
    let generation = old.generation;
    let (mut litter, mut is_part): (Vec<Arc<str>>, _) = (Vec::new(), false);
    if let Some(group) = old.groups.keys().next() {
        (litter, is_part) = of_old_group(draft, generation, *group)?;
    } else if !old.parts.is_empty() {
        let parts = old.divided_buckets(MOST_BESIDE).into_iter().flatten();
        let names: Vec<_> = parts.map(|part| name('c', generation, part.into())).collect();
        draft.want(names.iter().cloned())?;
        for part in names {
            // A part without claims has no record.
            litter.extend((!draft.old::<Claims>(&part)?.is_empty()).then_some(part));
        }
    } else {
        let buckets = old.all_buckets().into_iter();
        litter.extend(buckets.map(|bucket| name('c', generation, bucket.into())));
        litter.extend(old.holders.iter().map(|holder| name('h', generation, *holder)));
    }
    let head = draft.change();
    match head.trash.last_mut() {
        _ if is_part => {}
        Some(old) if !old.groups.is_empty() => drop(old.groups.pop_first()),
        Some(old) if !old.parts.is_empty() => old.remove_divided_buckets(MOST_BESIDE),
        _ => drop(head.trash.pop()),
    }
    head.litter.extend(litter.iter().map(|name| name.to_string()));
    Ok(())
}

/// The names of a group's records in a deleted queue that are still there, and whether there are more of them than the head is to
/// name at once: where each item has a record of its own for its body, a group has thousands.
fn of_old_group(draft: &mut Draft<'_>, generation: u64, group: u64) -> Step<(Vec<Arc<str>>, bool)> {
    let group_name = name('g', generation, group);
    let pages = draft.old::<Index>(&group_name)?;
    let named: BTreeSet<_> = draft.head.litter.iter().map(String::as_str).collect();
    let names = pages.keys().map(|page| name('p', generation, *page));
    let names: Vec<_> = names.filter(|page| !named.contains(&**page)).collect();
    draft.want(names.iter().cloned())?;
    let mut litter = Vec::new();
    for page in names {
        let items = draft.old::<Page>(&page)?;
        // An earlier step has removed it.
        if items.is_empty() {
            continue;
        }
        litter.extend(bodies_of(&items).into_iter().map(|bodies| name('b', generation, bodies)));
        litter.push(page);
        if litter.len() > MOST_LITTER {
            return Ok((litter, true));
        }
    }
    litter.push(group_name);
    Ok((litter, false))
}

fn bodies_of(page: &Page) -> BTreeSet<u64> {
    let bodies = page.values().filter_map(|item| match item.body {
        Body::There(bodies, _) => Some(bodies),
        Body::Here(_) => None,
    });
    bodies.collect()
}
