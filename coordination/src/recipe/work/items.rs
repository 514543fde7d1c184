//! What is done with single items.

use super::claim::{SeenItem, live, seen_items};
use super::draft::{Draft, Outcome, Step};
use super::ids::{ClaimId, ItemId};
use super::layout::{Item, Micros, State};
use super::select::{page_of, select, with_bodies};
use super::types::{ClaimOptions, micros};
use crate::canary::{Canary, sings};
use crate::error::{Error, ErrorKind, Result};

/// The item, if it is alive.
fn alive(draft: &mut Draft<'_>, id: ItemId) -> Step<Option<Item>> {
    let (now, rank) = (draft.now, id.rank());
    if rank >= draft.head.rank {
        return Ok(None);
    }
    let is_it = |item: &&Item| item.mark == id.mark() && item.state(now) != State::Dead;
    Ok(draft.page(page_of(rank))?.get(&rank).filter(is_it).cloned())
}

/// The item as it is to be shown, if it is alive.
pub(super) fn seen(draft: &mut Draft<'_>, id: ItemId) -> Step<Option<SeenItem>> {
    let Some(item) = alive(draft, id)? else { return Ok(None) };
    Ok(seen_items(draft, &[(id.rank(), item)])?.pop())
}

/// Whether the item is there and belongs to this claim; an error if it is there and does not.
fn is_own(draft: &mut Draft<'_>, id: ItemId, claim: ClaimId) -> Step<bool> {
    let now = draft.now;
    let Some(item) = alive(draft, id)? else { return Ok(false) };
    if sings(Canary::AckOfAnyClaim) {
        return Ok(true);
    }
    live(draft, claim)?;
    if item.is_of(claim, now) {
        return Ok(true);
    }
    let (kind, message) = match item.state(now) {
        State::Claimed => (ErrorKind::NotClaimedBy, "another claim has the item"),
        _ => (ErrorKind::NotClaimed, "no claim has the item"),
    };
    Err(Error::new(kind, "ack", message).into())
}

fn want(draft: &Draft<'_>, items: &[ItemId], claim: ClaimId) -> Step<()> {
    let ranks = items.iter().map(|item| item.rank()).filter(|rank| *rank < draft.head.rank);
    let ranks: Vec<_> = ranks.collect();
    let names = ranks.iter().map(|rank| draft.page_name(page_of(*rank)));
    let names: Vec<_> = names.chain([draft.bucket_name(claim)]).collect();
    let groups = ranks.iter().map(|rank| draft.group_name(page_of(*rank)));
    draft.want(names.into_iter().chain(groups))
}

/// Removes items that this claim has, all or none; those that are gone are passed over. Answers how many it removed.
pub(super) fn ack(draft: &mut Draft<'_>, items: &[ItemId], claim: ClaimId) -> Step<Outcome<usize>> {
    draft.sets_no_time = true;
    want(draft, items, claim)?;
    let mut done = 0;
    for item in items {
        if is_own(draft, *item, claim)? {
            draft.remove(item.rank())?;
            done += 1;
        }
    }
    Ok(Outcome::Done(done))
}

/// Removes those of these items that this claim still has. Answers how many it removed.
pub(super) fn ack_left(
    draft: &mut Draft<'_>,
    items: &[ItemId],
    claim: ClaimId,
) -> Step<Outcome<usize>> {
    draft.sets_no_time = true;
    want(draft, items, claim)?;
    let (now, mut done) = (draft.now, 0);
    for id in items {
        let Some(item) = alive(draft, *id)? else { continue };
        live(draft, claim)?;
        if item.is_of(claim, now) {
            draft.remove(id.rank())?;
            done += 1;
        }
    }
    Ok(Outcome::Done(done))
}

/// Gives an item back, to be ready after a while; false: it is gone. It lives until then, and for the claim's grace, at least: its
/// life may be nearly over, and whoever gives it back wants it to be tried again.
pub(super) fn nack(
    draft: &mut Draft<'_>,
    item: ItemId,
    claim: ClaimId,
    delay: Micros,
) -> Step<Outcome<bool>> {
    want(draft, &[item], claim)?;
    let now = draft.now;
    let is_own = is_own(draft, item, claim)?;
    let grace = draft.claims(claim)?.get(&claim).map_or(0, |claim| claim.grace);
    if is_own && let Some(item) = draft.page_mut(page_of(item.rank()))?.get_mut(&item.rank()) {
        item.claim = None;
        item.not_before = now.saturating_add(delay);
        item.expires = item.expires.max(item.not_before.saturating_add(grace));
    }
    Ok(Outcome::Done(is_own))
}

/// Removes an item that no claim has, or `by_force` any; false: it was gone.
pub(super) fn delete(draft: &mut Draft<'_>, id: ItemId, by_force: bool) -> Step<Outcome<bool>> {
    draft.sets_no_time = true;
    let now = draft.now;
    let Some(item) = alive(draft, id)? else { return Ok(Outcome::Done(false)) };
    if item.state(now) == State::Claimed && !by_force {
        let message = "a claim has the item";
        return Err(Error::new(ErrorKind::IsClaimed, "delete", message).into());
    }
    draft.remove(id.rank())?;
    Ok(Outcome::Done(true))
}

/// Removes ready items, and answers what is `read` of them. Where one of them cannot be read, removes none, and [puts aside](put_aside)
/// those that cannot: the next call takes the others.
pub(super) fn pop<T>(
    draft: &mut Draft<'_>,
    limit: usize,
    read: impl Fn(SeenItem) -> Result<T>,
) -> Step<Outcome<Result<Vec<T>>>> {
    let selected = select(draft, limit)?;
    if selected.ranks.is_empty() && selected.is_cut_short {
        return Ok(Outcome::Again);
    }
    let ranks = with_bodies(draft, &selected.ranks)?;
    if ranks.is_empty() && !selected.ranks.is_empty() {
        return Ok(Outcome::Again);
    }
    let mut items = Vec::new();
    for rank in ranks {
        items.extend(draft.page(page_of(rank))?.get(&rank).cloned().map(|item| (rank, item)));
    }
    let (mut popped, mut failed) = (Vec::new(), None);
    for seen in seen_items(draft, &items)? {
        let rank = seen.id.rank();
        match read(seen) {
            Ok(item) => popped.push(item),
            Err(error) => {
                put_aside(draft, rank)?;
                failed.get_or_insert(error);
            }
        }
    }
    if let Some(error) = failed {
        return Ok(Outcome::Done(Err(error)));
    }
    for (rank, _) in &items {
        draft.remove(*rank)?;
    }
    Ok(Outcome::Done(Ok(popped)))
}

/// Puts a ready item off for as long as a claim would have it, and counts that as a claim: so it comes to the dead letters in the end, if
/// there are any, and meanwhile holds up nobody.
fn put_aside(draft: &mut Draft<'_>, rank: u64) -> Step<()> {
    let ClaimOptions { ttl, grace, .. } = ClaimOptions::default();
    let until = draft.now.saturating_add(micros(ttl));
    if let Some(item) = draft.page_mut(page_of(rank))?.get_mut(&rank) {
        item.claims = item.claims.saturating_add(1);
        item.not_before = until;
        item.expires = item.expires.max(until.saturating_add(micros(grace)));
    }
    Ok(())
}
