//! The calls by which items come and go, and those that only look at them.

use coordination::{Ack, ClaimId, ErrorKind, ItemId, ListOptions, NewItem, Result};
use rand::RngExt;

use super::{LONG, Run, ids, model, ms};

impl Run<'_> {
    pub(super) async fn post(&mut self) -> Result<()> {
        let count = self.rng.random_range(1..5);
        let (mut new, mut items) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let life = self.span();
            let delay = self.delay(life);
            let length = [3, 300, 2_000][self.rng.random_range(0..3)];
            let body: Vec<u8> = (0..length).map(|_| self.rng.random()).collect();
            items.push(NewItem::new(body.clone()).ttl(ms(life)).delay(ms(delay)));
            let (made, now) = (self.model.now, self.model.now);
            let (expires, not_before) = (now + life, now + delay);
            new.push(model::Item { body, made, expires, not_before, claim: None, claims: 0 });
        }
        let ids = self.jobs().post(&items).await?;
        assert!(ids.is_sorted() && ids.len() == count, "{}", self.place);
        assert!(self.items.last() < ids.first(), "{}: in the order of posting", self.place);
        self.model.items.extend(ids.iter().copied().zip(new));
        self.items.extend(ids);
        Ok(())
    }

    pub(super) async fn ack(&mut self) -> Result<()> {
        let (item, claim) = self.claimed_item();
        let done = self.jobs().ack(item, claim).await;
        if self.is_acknowledged(done, item, claim) {
            self.model.items.remove(&item);
        }
        Ok(())
    }

    /// Whether the claim had the item; checks that the answer says so.
    fn is_acknowledged(&self, done: Result<Ack>, item: ItemId, claim: ClaimId) -> bool {
        let done = done.map(|done| done == Ack::Done).map_err(|error| error.kind());
        assert_eq!(done, self.model.check(item, claim), "{}", self.place);
        done == Ok(true)
    }

    pub(super) async fn ack_many(&mut self) -> Result<()> {
        let claim = self.claim_id();
        let mut items = self.model.members(claim);
        items.retain(|_| self.rng.random_bool(0.7));
        let other = self.item();
        if !items.contains(&other) {
            items.push(other);
        }
        let done = self.jobs().ack_many(&items, claim).await.map_err(|error| error.kind());
        let is_own = |item: &ItemId| self.model.check(*item, claim);
        let own: std::result::Result<Vec<_>, _> = items.iter().map(is_own).collect();
        let own = own.map(|own| own.into_iter().filter(|is_own| *is_own).count());
        assert_eq!(done, own, "{}", self.place);
        if own.is_ok() {
            // Those that were gone before are gone for the model, too.
            items.iter().for_each(|item| drop(self.model.items.remove(item)));
        }
        Ok(())
    }

    pub(super) async fn nack(&mut self) -> Result<()> {
        let (item, claim) = self.claimed_item();
        let delay = self.delay(LONG / 1_000);
        let done = self.jobs().nack(item, claim, ms(delay)).await;
        if self.is_acknowledged(done, item, claim) {
            self.model.nack(item, claim, delay);
        }
        Ok(())
    }

    pub(super) async fn delete(&mut self) -> Result<()> {
        let (id, by_force) = (self.item(), self.rng.random_bool(0.3));
        let jobs = self.jobs();
        let done = if by_force { jobs.force_delete(id).await } else { jobs.delete(id).await };
        let item = self.model.alive(id);
        let is_claimed = item.is_some_and(|item| self.model.owner(item).is_some());
        let expected =
            if is_claimed && !by_force { Err(ErrorKind::IsClaimed) } else { Ok(item.is_some()) };
        assert_eq!(done.map_err(|error| error.kind()), expected, "{}", self.place);
        if expected == Ok(true) {
            self.model.items.remove(&id);
        }
        Ok(())
    }

    pub(super) async fn pop(&mut self) -> Result<()> {
        let limit = self.rng.random_range(1..6);
        let popped = self.jobs().pop(limit).await?;
        self.model.bring_back();
        let expected = self.model.select(limit);
        self.are_handed_out(&popped, &expected);
        expected.iter().for_each(|id| drop(self.model.items.remove(id)));
        Ok(())
    }

    pub(super) async fn list(&mut self) -> Result<()> {
        let after = self.rng.random_bool(0.5).then(|| self.item());
        let limit = self.rng.random_range(1..20);
        let which = (self.rng.random_bool(0.5), self.rng.random_bool(0.5));
        let (include_claimed, include_delayed) = which;
        let options = ListOptions { after, limit, include_claimed, include_delayed };
        let listed = self.jobs().list(options).await?;
        let is_known = after.is_none_or(|after| self.model.alive(after).is_some());
        // An item that is gone may be dead and not removed yet, and has its place then.
        if is_known || !listed.is_empty() {
            assert_eq!(ids(&listed), self.model.list(after, limit, which), "{}", self.place);
        }
        self.are_as_in_the_model(&listed);
        let id = self.item();
        let found = self.jobs().item(id).await?;
        assert_eq!(found.is_some(), self.model.alive(id).is_some(), "{}", self.place);
        self.are_as_in_the_model(found.as_slice());
        Ok(())
    }

    pub(super) async fn gc(&mut self) -> Result<()> {
        let budget = self.rng.random_range(1..30);
        let removed = self.jobs().gc(Some(budget)).await?;
        assert!(removed.items + removed.claims <= budget, "{}", self.place);
        Ok(())
    }

    pub(super) async fn delete_queue(&mut self) -> Result<()> {
        self.jobs().delete_queue().await?;
        (self.model.items, self.model.claims) = Default::default();
        self.model.max_claims = None;
        Ok(())
    }
}
