//! What a work queue is to be: all items and all claims in one list each, and a time.

use std::collections::BTreeMap;

use coordination::{ClaimId, ErrorKind, ItemId};

/// A time, or a length, in milliseconds.
pub(super) type Ms = u64;

/// How long a claim that is over is remembered, at least.
const REMEMBERED: Ms = 60_000;

#[derive(Default)]
pub(super) struct Model {
    pub(super) now: Ms,
    pub(super) items: BTreeMap<ItemId, Item>,
    pub(super) claims: BTreeMap<ClaimId, Claim>,
    /// How often an item is claimed before it goes to the dead letter queue.
    pub(super) max_claims: Option<u32>,
    /// How many items went there.
    pub(super) letters: u64,
    /// The largest token so far.
    pub(super) token: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) body: Vec<u8>,
    pub(super) made: Ms,
    pub(super) expires: Ms,
    pub(super) not_before: Ms,
    pub(super) claim: Option<ClaimId>,
    pub(super) claims: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) ttl: Ms,
    pub(super) grace: Ms,
    pub(super) touched: Ms,
    pub(super) expires: Ms,
    pub(super) token: u64,
    /// The session with which it ends.
    pub(super) holder: Option<u64>,
    /// That session has ended, and nobody has claimed since.
    pub(super) is_orphan: bool,
    /// What it was made of, unless it was ended.
    pub(super) items: Vec<ItemId>,
}

impl Model {
    pub(super) fn alive(&self, id: ItemId) -> Option<&Item> {
        self.items.get(&id).filter(|item| self.now < item.expires)
    }

    pub(super) fn all_alive(&self) -> impl Iterator<Item = (ItemId, &Item)> {
        self.items.iter().filter(|(_, item)| self.now < item.expires).map(|(id, item)| (*id, item))
    }

    /// Whether a claim's time is not over.
    pub(super) fn is_live(&self, id: ClaimId) -> bool {
        self.claims.get(&id).is_some_and(|claim| self.now < claim.expires)
    }

    /// Whether a claim is shown and renewed.
    pub(super) fn is_standing(&self, id: ClaimId) -> bool {
        self.is_live(id) && self.claims.get(&id).is_some_and(|claim| !claim.is_orphan)
    }

    /// The claim that has an item.
    pub(super) fn owner(&self, item: &Item) -> Option<ClaimId> {
        item.claim.filter(|id| self.is_live(*id))
    }

    pub(super) fn is_ready(&self, item: &Item) -> bool {
        self.owner(item).is_none() && self.now >= item.not_before
    }

    pub(super) fn members(&self, id: ClaimId) -> Vec<ItemId> {
        let has = |(_, item): &(ItemId, &Item)| self.owner(item) == Some(id);
        self.all_alive().filter(has).map(|(id, _)| id).collect()
    }

    /// How many items are ready, claimed and delayed.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let claimed = self.all_alive().filter(|(_, item)| self.owner(item).is_some()).count();
        let ready = self.all_alive().filter(|(_, item)| self.is_ready(item)).count();
        let delayed = self.all_alive().count() - ready - claimed;
        (ready as u64, claimed as u64, delayed as u64)
    }

    /// The ages of the oldest and the newest item.
    pub(super) fn ages(&self) -> (Option<Ms>, Option<Ms>) {
        let ages = || self.all_alive().map(|(_, item)| self.now - item.made);
        (ages().max(), ages().min())
    }

    /// The first ready items. Those before them that were claimed too often go to the dead letter queue.
    pub(super) fn select(&mut self, limit: usize) -> Vec<ItemId> {
        let (mut taken, mut letters) = (Vec::new(), Vec::new());
        for (id, item) in self.all_alive().filter(|(_, item)| self.is_ready(item)) {
            match self.max_claims {
                _ if taken.len() == limit => break,
                Some(max) if item.claims >= max => letters.push(id),
                _ => taken.push(id),
            }
        }
        letters.iter().for_each(|id| drop(self.items.remove(id)));
        self.letters += letters.len() as u64;
        taken
    }

    /// Somebody claims: what the sessions had that have ended comes back.
    pub(super) fn bring_back(&mut self) {
        let orphans = self.claims.iter().filter(|(_, claim)| claim.is_orphan).map(|(id, _)| *id);
        for id in orphans.collect::<Vec<_>>() {
            self.end(id, 0);
        }
    }

    pub(super) fn claim(
        &mut self,
        id: ClaimId,
        (limit, ttl, grace): (usize, Ms, Ms),
        holder: Option<u64>,
    ) -> Vec<ItemId> {
        let taken = self.select(limit);
        let (touched, expires) = (self.now, self.now + ttl);
        for item in &taken {
            let item = self.items.get_mut(item).expect("it was selected");
            (item.claim, item.claims) = (Some(id), item.claims + 1);
            item.expires = item.expires.max(expires + grace);
        }
        if !taken.is_empty() {
            let (token, is_orphan, items) = (0, false, taken.clone());
            let claim = Claim { ttl, grace, touched, expires, token, holder, is_orphan, items };
            self.claims.insert(id, claim);
        }
        taken
    }

    pub(super) fn renew(&mut self, id: ClaimId, ttl: Option<Ms>, grace: Option<Ms>) -> Ms {
        let (now, members) = (self.now, self.members(id));
        let claim = self.claims.get_mut(&id).expect("it is live");
        (claim.ttl, claim.grace) = (ttl.unwrap_or(claim.ttl), grace.unwrap_or(claim.grace));
        (claim.touched, claim.expires) = (now, now + claim.ttl);
        let (lasts, least) = (claim.ttl, claim.expires + claim.grace);
        for item in members {
            let item = self.items.get_mut(&item).expect("it is a member");
            item.expires = item.expires.max(least);
        }
        lasts
    }

    /// Ends a claim, and takes `less` off the number of times that its items were claimed. Answers how many it frees.
    pub(super) fn end(&mut self, id: ClaimId, less: u32) -> usize {
        let members = self.members(id);
        for item in &members {
            let item = self.items.get_mut(item).expect("it is a member");
            item.claims -= less;
        }
        let now = self.now;
        if let Some(claim) = self.claims.get_mut(&id) {
            // One that has ended by its time alone, and has no holder, is left as it is.
            if now < claim.expires || claim.holder.is_some() {
                claim.items.clear();
            }
            claim.expires = claim.expires.min(now);
            (claim.holder, claim.is_orphan) = (None, false);
        }
        members.len()
    }

    /// Takes one off the number of times that the items of a claim were claimed, whose time is over.
    pub(super) fn count_less(&mut self, id: ClaimId) {
        let items = self.claims.get_mut(&id).map(|claim| std::mem::take(&mut claim.items));
        for item in items.unwrap_or_default() {
            if let Some(item) = self.items.get_mut(&item) {
                item.claims -= 1;
            }
        }
    }

    /// A claim of this id is over; nobody had any.
    pub(super) fn note_as_over(&mut self, id: ClaimId) {
        let (touched, expires, is_orphan, items) = (self.now, self.now, false, Vec::new());
        let (ttl, grace, token, holder) = (0, 0, 0, None);
        let over = Claim { ttl, grace, touched, expires, token, holder, is_orphan, items };
        self.claims.insert(id, over);
    }

    /// Whether a claim of this id may be made; `None`: its end may be forgotten.
    pub(super) fn may_be_made(&self, id: ClaimId) -> Option<bool> {
        match self.claims.get(&id) {
            None => Some(true),
            Some(claim) if self.now < claim.expires + REMEMBERED => Some(false),
            Some(_) => None,
        }
    }

    /// Whether the claim may acknowledge the item; false: the item is gone.
    pub(super) fn check(&self, id: ItemId, claim: ClaimId) -> Result<bool, ErrorKind> {
        let Some(item) = self.alive(id) else { return Ok(false) };
        if !self.is_live(claim) {
            return Err(ErrorKind::NoSuchClaim);
        }
        match self.owner(item) {
            None => Err(ErrorKind::NotClaimed),
            Some(owner) if owner != claim => Err(ErrorKind::NotClaimedBy),
            Some(_) => Ok(true),
        }
    }

    pub(super) fn nack(&mut self, id: ItemId, claim: ClaimId, delay: Ms) {
        let (now, grace) = (self.now, self.claims.get(&claim).map_or(0, |claim| claim.grace));
        let item = self.items.get_mut(&id).expect("the claim has it");
        (item.claim, item.not_before) = (None, now + delay);
        item.expires = item.expires.max(item.not_before + grace);
    }

    /// What `list` shows after this rank.
    pub(super) fn list(
        &self,
        after: Option<ItemId>,
        limit: usize,
        (claimed, delayed): (bool, bool),
    ) -> Vec<ItemId> {
        let is_listed = |(id, item): &(ItemId, &Item)| {
            let is_of_state = match self.owner(item) {
                Some(_) => claimed,
                None => delayed || self.is_ready(item),
            };
            is_of_state && after.is_none_or(|after| *id > after)
        };
        self.all_alive().filter(is_listed).take(limit).map(|(id, _)| id).collect()
    }
}
