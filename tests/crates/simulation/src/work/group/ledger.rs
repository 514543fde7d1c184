//! The memberships that clients believe they have, and the checks that follow from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use coordination::{FencingToken, Members, Membership};

use crate::stage::{Process, Stage};

/// A membership, as the client that joined knows it.
pub(super) struct Claim {
    pub(super) process: Arc<Process>,
    pub(super) membership: Arc<Membership>,
    /// When the call of `join` returned.
    pub(super) since: u64,
    /// The number that the member stores in its capabilities: the last one whose update is confirmed, and the newest
    /// one whose update has begun.
    pub(super) says: (u64, u64),
    /// Whether another client has removed the member, or may have done so.
    is_removed: bool,
}

impl Claim {
    /// Whether the membership says at this moment that it is held. False if its word would prove nothing: the member
    /// may have been removed, its process is dead, or the store has broken a promise.
    fn is_held(&self, stage: &Stage) -> bool {
        let client = &self.process.client;
        !self.is_removed
            && !client.is_dead()
            && stage.is_sound(self.since)
            && client.enter(|| self.membership.is_held())
    }
}

#[derive(Default)]
pub(crate) struct Ledger {
    claims: BTreeMap<FencingToken, Claim>,
    /// The incarnations whose leave was confirmed by the store.
    left: BTreeSet<FencingToken>,
    /// The largest incarnation that any client has seen.
    highest: Option<FencingToken>,
    /// For each member id, how many calls are running that remove the member with this id.
    removing: BTreeMap<String, u32>,
    /// The number of removals that have ended, over all member ids. At the end of a removal, `removed` gets this number
    /// for the member id that was removed.
    removals: u64,
    removed: BTreeMap<String, u64>,
    /// For each process, the members that its watch reported last.
    seen: BTreeMap<u32, Members>,
}

impl Ledger {
    pub(super) fn highest(&self) -> Option<FencingToken> {
        self.highest
    }

    pub(super) fn removals(&self) -> u64 {
        self.removals
    }

    pub(super) fn left(&self) -> BTreeSet<FencingToken> {
        self.left.clone()
    }

    /// For each incarnation whose membership its client holds, the last number that its capabilities certainly had.
    pub(super) fn said(&self) -> BTreeMap<FencingToken, u64> {
        self.claims.iter().map(|(token, claim)| (*token, claim.says.0)).collect()
    }

    /// G1 and G3: records a join, and checks it. `highest` was the largest incarnation when the call of `join` began,
    /// and `removals` the number of removals that had ended by then.
    pub(super) fn joined(
        &mut self,
        stage: &Stage,
        process: &Arc<Process>,
        (membership, since): (&Arc<Membership>, u64),
        (says, highest, removals): (u64, Option<FencingToken>, u64),
    ) {
        let (id, incarnation) = (membership.member_id(), membership.incarnation());
        stage.judges("G3");
        if Some(incarnation) <= highest {
            stage.broken(format!("G3: {membership:?} after {highest:?}"));
        }
        self.highest = self.highest.max(Some(incarnation));
        let (process, membership) = (Arc::clone(process), Arc::clone(membership));
        // An operator may have removed the member before the reply to its `join` arrived.
        let is_removed = self.removing.contains_key(id)
            || self.removed.get(id).is_some_and(|number| *number > removals);
        let says = (says, says);
        let new = Claim { process, membership: Arc::clone(&membership), since, says, is_removed };
        let is_twin = |claim: &&Claim| claim.membership.member_id() == id && claim.is_held(stage);
        let twin = self.claims.values().find(is_twin);
        if let Some(twin) = twin.filter(|_| new.is_held(stage)) {
            stage.broken(format!("G1: {membership:?} and {:?}", twin.membership));
        }
        self.claims.insert(incarnation, new);
    }

    /// Records that an update of the member's capabilities to this number begins or, if `is_certain`, was confirmed.
    pub(super) fn says(&mut self, incarnation: FencingToken, number: u64, is_certain: bool) {
        if let Some(claim) = self.claims.get_mut(&incarnation) {
            claim.says.1 = number;
            if is_certain {
                claim.says.0 = number;
            }
        }
    }

    /// Records that the member is about to leave, so that it may be missing in lists from now on.
    pub(super) fn leaves(&mut self, incarnation: FencingToken) {
        self.claims.remove(&incarnation);
    }

    pub(super) fn has_left(&mut self, incarnation: FencingToken) {
        self.left.insert(incarnation);
    }

    pub(super) fn removes(&mut self, id: &str) {
        *self.removing.entry(id.to_owned()).or_default() += 1;
        let of_id = |claim: &&mut Claim| claim.membership.member_id() == id;
        self.claims.values_mut().filter(of_id).for_each(|claim| claim.is_removed = true);
    }

    pub(super) fn removed(&mut self, id: &str) {
        if let Some(count) = self.removing.get_mut(id) {
            *count -= 1;
        }
        self.removals += 1;
        self.removed.insert(id.to_owned(), self.removals);
        self.removing.retain(|_, count| *count > 0);
    }

    /// G1 and G4: checks a list of members. `claims` are the memberships and numbers that were certain when the read
    /// began.
    pub(super) fn judge_listed(
        &self,
        stage: &Stage,
        members: &Members,
        claims: &BTreeMap<FencingToken, u64>,
    ) {
        for (incarnation, said) in claims {
            let Some(claim) = self.claims.get(incarnation).filter(|claim| claim.is_held(stage))
            else {
                continue;
            };
            stage.judges("G1");
            let id = claim.membership.member_id();
            let Some(member) = members.get(id).filter(|it| it.incarnation == *incarnation) else {
                stage.broken(format!("G1: {:?} is not among {members:?}", claim.membership));
                continue;
            };
            match member.capabilities.parse::<(u64, u64)>() {
                Ok((one, same)) if one == same && (*said..=claim.says.1).contains(&one) => {}
                says => stage.broken(format!(
                    "G4: {member:?} says {says:?}, and {said} to {} is to be said",
                    claim.says.1
                )),
            }
        }
    }

    /// G1: at some moment since `call` the group did not exist. Checks that no membership that is older than `call` is
    /// still held.
    pub(super) fn judge_missing(&self, stage: &Stage, call: u64) {
        let mut claims = self.claims.values();
        let is_in = |claim: &&Claim| claim.since < call && claim.is_held(stage);
        if let Some(claim) = claims.find(is_in).filter(|_| stage.has_all_data()) {
            stage.broken(format!("G1: there is no group, and in it {:?}", claim.membership));
        }
    }

    pub(super) fn sees(&mut self, process: u32, members: Option<Members>) {
        match members {
            Some(members) => drop(self.seen.insert(process, members)),
            None => drop(self.seen.remove(&process)),
        }
    }

    pub(super) fn seen(&self, process: u32) -> Option<&Members> {
        self.seen.get(&process)
    }
}
