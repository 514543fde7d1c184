//! What was answered, beside the model.

use std::collections::BTreeSet;
use std::time::Duration;

use coordination::{ClaimId, ClaimView, ErrorKind, ItemId, Result, WorkItem};

use super::model::Ms;
use super::{Run, Time, ids, ms};

impl Run<'_> {
    pub(super) async fn compare(&mut self, step: usize) -> Result<()> {
        let stats = self.jobs().stats().await?;
        let counts = (stats.ready, stats.claimed, stats.delayed);
        assert_eq!(counts, self.model.counts(), "{}", self.place);
        if self.time == Time::Paused {
            let (oldest, newest) = self.model.ages();
            assert_eq!((stats.oldest, stats.newest), (oldest.map(ms), newest.map(ms)));
        }
        let id = self.claim_id();
        let found = self.jobs().get(id).await;
        match self.model.is_standing(id) {
            true => self.is_as_in_the_model(id, &found?),
            false => self.fails(found, &[ErrorKind::NoSuchClaim]),
        }
        // A server is asked for each claim by a request: only now and then for all of them.
        if self.time == Time::Paused || step.is_multiple_of(8) {
            self.no_item_is_in_two_claims().await?;
        }
        Ok(())
    }

    pub(super) fn are_handed_out(&self, found: &[WorkItem], taken: &[ItemId]) {
        assert_eq!(ids(found), taken, "{}", self.place);
        self.are_as_in_the_model(found);
    }

    pub(super) fn are_as_in_the_model(&self, found: &[WorkItem]) {
        for found in found {
            let item = &self.model.items[&found.id()];
            assert_eq!(
                (found.body(), found.claims()),
                (&item.body[..], item.claims),
                "{}",
                self.place
            );
            self.is_time(found.age(), self.model.now - item.made);
            self.is_time(found.expires_in(), item.expires - self.model.now);
        }
    }

    pub(super) fn is_as_in_the_model(&self, id: ClaimId, found: &ClaimView) {
        let claim = &self.model.claims[&id];
        let terms = (found.ttl, found.grace, found.token.value());
        assert_eq!(terms, (ms(claim.ttl), ms(claim.grace), claim.token), "{}", self.place);
        self.is_time(found.age, self.model.now - claim.touched);
        self.is_time(found.expires_in, claim.expires - self.model.now);
        self.are_handed_out(&found.items, &self.model.members(id));
    }

    /// In paused time, each time is exact.
    fn is_time(&self, found: Duration, expected: Ms) {
        if self.time == Time::Paused {
            assert_eq!(found, ms(expected), "{}", self.place);
        }
    }

    /// C1, as all claims show it.
    async fn no_item_is_in_two_claims(&mut self) -> Result<()> {
        let jobs = self.jobs();
        let mut items = BTreeSet::new();
        for id in self.model.claims.keys().filter(|id| self.model.is_standing(**id)) {
            for item in jobs.get(*id).await?.items {
                assert!(items.insert(item.id()), "{}: {} is in two", self.place, item.id());
            }
        }
        Ok(())
    }

    pub(super) fn fails<T>(&self, outcome: Result<T>, kinds: &[ErrorKind]) {
        let kind = outcome.err().map(|error| error.kind());
        assert!(kind.is_some_and(|kind| kinds.contains(&kind)), "{}: {kind:?}", self.place);
    }
}
