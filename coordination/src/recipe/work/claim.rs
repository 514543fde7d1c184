//! Claiming items, and what becomes of a claim.

use super::buckets::is_long;
use super::draft::{Draft, Outcome, Step, Stop, corrupt};
use super::ids::{ClaimId, ItemId};
use super::layout::{Claim, Micros};
use super::select::{page_of, select, want_pages, with_bodies};
use crate::error::{Error, ErrorKind};

/// How many live claims one process has of a queue.
const MOST_HELD: usize = 1_000;
/// For how many dead holders, and ([`CLAIMS_AHEAD`]) for how many of their claims, what is needed is read at once.
const HOLDERS_AHEAD: usize = 20;
const CLAIMS_AHEAD: usize = 40;

#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) id: ClaimId,
    pub(super) limit: usize,
    pub(super) ttl: Micros,
    pub(super) grace: Micros,
    /// The entry with which the claim ends.
    pub(super) holder: Option<u64>,
}

/// A claim as it is now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) ttl: Micros,
    pub(super) grace: Micros,
    pub(super) age: Micros,
    pub(super) expires_in: Micros,
    pub(super) fence: u64,
    pub(super) items: Vec<SeenItem>,
}

/// An item as it is now, with its body in base64.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SeenItem {
    pub(super) id: ItemId,
    pub(super) body: String,
    pub(super) age: Micros,
    pub(super) claims: u32,
    pub(super) expires_in: Micros,
}

pub(super) fn claim(draft: &mut Draft<'_>, ask: &Ask) -> Step<Outcome<Option<Seen>>> {
    // A claim with a holder has a new id, which need not be looked up.
    if ask.holder.is_some() && draft.has_nothing() {
        return Ok(Outcome::Done(None));
    }
    let holder = ask.holder.map(|holder| draft.holder_name(holder));
    draft.want(holder.into_iter().chain([draft.bucket_name(ask.id)]))?;
    let now = draft.now;
    match draft.claims(ask.id)?.get(&ask.id).map(|claim| claim.is_live(now)) {
        Some(true) => return seen(draft, ask.id).map(|seen| Outcome::Done(Some(seen))),
        Some(false) => {
            let message = "a claim of this id is over, and no other may have it";
            return Err(Error::new(ErrorKind::ClaimIdReused, "claim", message).into());
        }
        None => {}
    }
    let selected = select(draft, ask.limit)?;
    let ranks = with_bodies(draft, &selected.ranks)?;
    if ranks.is_empty() {
        let is_over = selected.ranks.is_empty() && !selected.is_cut_short;
        return Ok(if is_over { Outcome::Done(None) } else { Outcome::Again });
    }
    take(draft, ask, ranks)?;
    seen(draft, ask.id).map(|seen| Outcome::Done(Some(seen)))
}

fn take(draft: &mut Draft<'_>, ask: &Ask, ranks: Vec<u64>) -> Step<()> {
    let (now, version) = (draft.now, draft.version);
    let expires = now.saturating_add(ask.ttl);
    for rank in &ranks {
        let item =
            draft.page_mut(page_of(*rank))?.get_mut(rank).ok_or_else(|| Stop::Fail(corrupt()))?;
        item.claim = Some((ask.id, expires));
        item.claims = item.claims.saturating_add(1);
        item.expires = item.expires.max(expires.saturating_add(ask.grace));
    }
    let head = draft.change();
    // Larger than the head's version, too: that goes on rising where the data were lost and the store's numbers were not.
    head.fence = version.max(head.fence + 1);
    let claim = Claim {
        ttl: ask.ttl,
        grace: ask.grace,
        touched: now,
        expires,
        fence: head.fence,
        holder: ask.holder,
        ranks,
    };
    let bucket = draft.claims_mut(ask.id)?;
    bucket.retain(|_, claim| claim.holder.is_some() || !claim.is_forgotten(now));
    bucket.insert(ask.id, claim);
    if is_long(bucket) {
        draft.divide_bucket(ask.id)?;
    }
    match ask.holder {
        Some(holder) => hold(draft, holder, ask.id),
        None => Ok(()),
    }
}

fn hold(draft: &mut Draft<'_>, holder: u64, id: ClaimId) -> Step<()> {
    let held = draft.held(holder)?;
    if held.len() >= MOST_HELD {
        let message = format!("this process has {MOST_HELD} claims of the queue: release some");
        return Err(Error::new(ErrorKind::Input, "claim", message).into());
    }
    held.insert(id);
    Ok(())
}

/// A claim whose time is not over; the error is the same whatever else there is.
///
/// The session that had made it may have ended. Its items are nobody else's until somebody claims, so what is done may be
/// acknowledged by it; but nothing may rely on it, see [`standing`].
pub(super) fn live(draft: &mut Draft<'_>, id: ClaimId) -> Step<Claim> {
    let now = draft.now;
    let claim = draft.claims(id)?.get(&id).filter(|claim| claim.is_live(now));
    claim.cloned().ok_or_else(none)
}

/// A claim that can be relied on until its time is over: nobody who claims next would bring its items back.
fn standing(draft: &mut Draft<'_>, id: ClaimId) -> Step<Claim> {
    let claim = live(draft, id)?;
    let is_standing = claim.holder.is_none_or(|holder| draft.is_there(holder));
    if is_standing { Ok(claim) } else { Err(none()) }
}

fn none() -> Stop {
    Error::new(ErrorKind::NoSuchClaim, "claim", "there is no such claim, or it is over").into()
}

/// A claim, and those of its items that it still has.
pub(super) fn seen(draft: &mut Draft<'_>, id: ClaimId) -> Step<Seen> {
    let (now, claim) = (draft.now, standing(draft, id)?);
    let mut items = Vec::new();
    want_pages(draft, &claim.ranks)?;
    for rank in &claim.ranks {
        let item = draft.page(page_of(*rank))?.get(rank).filter(|item| item.is_of(id, now));
        items.extend(item.cloned().map(|item| (*rank, item)));
    }
    let items = seen_items(draft, &items)?;
    Ok(Seen {
        ttl: claim.ttl,
        grace: claim.grace,
        age: now.saturating_sub(claim.touched),
        expires_in: claim.expires.saturating_sub(now),
        fence: claim.fence,
        items,
    })
}

/// Items with their bodies; those whose bodies somebody has removed are left out.
pub(super) fn seen_items(
    draft: &mut Draft<'_>,
    items: &[(u64, super::layout::Item)],
) -> Step<Vec<SeenItem>> {
    let now = draft.now;
    let bodies: Vec<_> =
        items.iter().filter_map(|(_, item)| draft.unread_body(&item.body)).collect();
    draft.want(bodies)?;
    let seen = |(rank, item): &(u64, super::layout::Item)| {
        let body = draft.body(*rank, &item.body);
        let seen = |body| SeenItem {
            id: item.id(*rank),
            body,
            age: now.saturating_sub(item.made),
            claims: item.claims,
            expires_in: item.expires.saturating_sub(now),
        };
        body.map(|body| body.map(seen)).transpose()
    };
    items.iter().filter_map(seen).collect()
}

/// An error unless the claim lasts until then, at least. If the claim is there, but for a shorter time, it goes on: a server that has
/// taken over does not know its last renewal, and the next one is written there.
pub(super) fn lasts(draft: &mut Draft<'_>, id: ClaimId, until: Micros) -> Step<()> {
    if standing(draft, id)?.expires >= until {
        return Ok(());
    }
    let message = "the server that has taken over does not know the renewal";
    Err(Error::new(ErrorKind::Unavailable, "renew", message).into())
}

/// How long a claim lasts now, and until when by the queue's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Renewed {
    pub(super) lasts: Micros,
    pub(super) until: Micros,
}

pub(super) fn renew(
    draft: &mut Draft<'_>,
    id: ClaimId,
    ttl: Option<Micros>,
    grace: Option<Micros>,
) -> Step<Outcome<Renewed>> {
    let (now, mut claim) = (draft.now, standing(draft, id)?);
    (claim.ttl, claim.grace) = (ttl.unwrap_or(claim.ttl), grace.unwrap_or(claim.grace));
    (claim.touched, claim.expires) = (now, now.saturating_add(claim.ttl));
    want_pages(draft, &claim.ranks)?;
    for rank in &claim.ranks {
        let page = page_of(*rank);
        if draft.page(page)?.get(rank).is_some_and(|item| item.is_of(id, now))
            && let Some(item) = draft.page_mut(page)?.get_mut(rank)
        {
            item.claim = Some((id, claim.expires));
            item.expires = item.expires.max(claim.expires.saturating_add(claim.grace));
        }
    }
    let renewed = Renewed { lasts: claim.ttl, until: claim.expires };
    draft.claims_mut(id)?.insert(id, claim);
    Ok(Outcome::Done(renewed))
}

/// Ends a claim, live or not, and answers how many items are free by that.
pub(super) fn release(draft: &mut Draft<'_>, id: ClaimId) -> Step<Outcome<usize>> {
    give_back(draft, id, 0)
}

/// Ends a claim that its caller never got, as if it had not been made. If there is none, its id is noted as that of a claim
/// that is over: so a call that makes the claim, and comes late, is refused.
pub(super) fn undo(draft: &mut Draft<'_>, id: ClaimId) -> Step<Outcome<usize>> {
    let now = draft.now;
    if !draft.claims(id)?.contains_key(&id) {
        let (ranks, holder) = (Vec::new(), None);
        let over = Claim { ttl: 0, grace: 0, touched: now, expires: now, fence: 0, holder, ranks };
        end(draft, id, over)?;
        return Ok(Outcome::Done(0));
    }
    give_back(draft, id, 1)
}

/// Ends a claim, frees its items, and takes `less` off the number of times that they were claimed.
fn give_back(draft: &mut Draft<'_>, id: ClaimId, less: u32) -> Step<Outcome<usize>> {
    let now = draft.now;
    let Some(claim) = draft.claims(id)?.get(&id).cloned() else { return Ok(Outcome::Done(0)) };
    if !claim.is_live(now) {
        let has_counted = less > 0 && !claim.ranks.is_empty();
        if has_counted {
            count_less(draft, &claim.ranks, less)?;
        }
        if has_counted || claim.holder.is_some() {
            end(draft, id, claim)?;
        }
        return Ok(Outcome::Done(0));
    }
    want_pages(draft, &claim.ranks)?;
    let mut freed = 0;
    for rank in &claim.ranks {
        let page = page_of(*rank);
        if draft.page(page)?.get(rank).is_some_and(|item| item.is_of(id, now))
            && let Some(item) = draft.page_mut(page)?.get_mut(rank)
        {
            item.claim = None;
            item.claims = item.claims.saturating_sub(less);
            freed += 1;
        }
    }
    end(draft, id, claim)?;
    Ok(Outcome::Done(freed))
}

/// Takes `less` off the number of times that these items were claimed, whoever has them by now. This is done once, as a claim that
/// has [ended](end) has none.
fn count_less(draft: &mut Draft<'_>, ranks: &[u64], less: u32) -> Step<()> {
    want_pages(draft, ranks)?;
    for rank in ranks {
        let page = page_of(*rank);
        if draft.page(page)?.contains_key(rank)
            && let Some(item) = draft.page_mut(page)?.get_mut(rank)
        {
            item.claims = item.claims.saturating_sub(less);
        }
    }
    Ok(())
}

/// The claim has no items any more; its name is remembered.
fn end(draft: &mut Draft<'_>, id: ClaimId, claim: Claim) -> Step<()> {
    let now = draft.now;
    if let Some(holder) = claim.holder {
        draft.held(holder)?.remove(&id);
    }
    let bucket = draft.claims_mut(id)?;
    bucket.retain(|_, claim| claim.holder.is_some() || !claim.is_forgotten(now));
    bucket.insert(
        id,
        Claim { expires: claim.expires.min(now), holder: None, ranks: Vec::new(), ..claim },
    );
    Ok(())
}

/// From now on the claim ends by its time only.
pub(super) fn detach(draft: &mut Draft<'_>, id: ClaimId) -> Step<Outcome<()>> {
    let claim = standing(draft, id)?;
    if let Some(holder) = claim.holder {
        draft.held(holder)?.remove(&id);
        draft.claims_mut(id)?.insert(id, Claim { holder: None, ..claim });
    }
    Ok(Outcome::Done(()))
}

/// Frees the items of holders whose sessions have ended, as far as one step can do that; `entries` are in order.
pub(super) fn bring_back(draft: &mut Draft<'_>, entries: &[u64]) -> Step<Outcome<()>> {
    let holders = draft.head.live.holders.iter();
    let dead: Vec<_> =
        holders.filter(|holder| entries.binary_search(holder).is_err()).copied().collect();
    want_of_the_dead(draft, &dead)?;
    for holder in dead {
        let claims: Vec<_> = draft.held(holder)?.iter().copied().collect();
        for id in claims {
            let ranks = draft.claims(id)?.get(&id).map(|claim| claim.ranks.clone());
            let ranks = ranks.unwrap_or_default();
            want_pages(draft, &ranks)?;
            let pages = ranks.into_iter().map(page_of).collect();
            if !draft.has_room_for(&pages)? {
                return Ok(Outcome::Again);
            }
            release(draft, id)?;
            draft.held(holder)?.remove(&id);
        }
    }
    Ok(Outcome::Done(()))
}

/// Does that, and makes the step once there is no more of it to do.
///
/// Where another server may take over, what the dead had is written by itself: only at the server that takes them for dead, as the other
/// one may have heard from them. The step is not bound to it: if the answer to its write is lost, that is made again elsewhere, too.
pub(super) fn bring_back_then<T>(
    draft: &mut Draft<'_>,
    entries: &[u64],
    step: impl FnOnce(&mut Draft<'_>) -> Step<Outcome<T>>,
) -> Step<Outcome<T>> {
    let is_dead = |holder: &u64| entries.binary_search(holder).is_err();
    draft.by_entries = draft.head.live.holders.iter().any(is_dead);
    let is_by_itself = draft.by_entries && draft.source.is_some();
    match bring_back(draft, entries)? {
        Outcome::Done(()) if !is_by_itself => {
            // Otherwise the step would pass over the pages on which nothing but that is ready.
            draft.sum_up()?;
            step(draft)
        }
        Outcome::Done(()) | Outcome::Again => Ok(Outcome::Again),
    }
}

/// Asks at once for what the first steps will need: the lists of some dead holders, then the claims on them, then their pages.
fn want_of_the_dead(draft: &mut Draft<'_>, dead: &[u64]) -> Step<()> {
    let some = &dead[..dead.len().min(HOLDERS_AHEAD)];
    draft.want(some.iter().map(|holder| draft.holder_name(*holder)))?;
    let mut claims = Vec::new();
    for holder in some {
        claims.extend(draft.peek_held(*holder)?.iter().copied());
    }
    claims.truncate(CLAIMS_AHEAD);
    draft.want(claims.iter().map(|id| draft.bucket_name(*id)))?;
    let mut ranks = Vec::new();
    for id in claims {
        ranks.extend(draft.claims(id)?.get(&id).into_iter().flat_map(|claim| claim.ranks.clone()));
    }
    ranks.dedup_by_key(|rank| page_of(*rank));
    ranks.truncate(CLAIMS_AHEAD);
    want_pages(draft, &ranks)
}
