//! The calls by which claims begin and end.

use std::time::Duration;

use coordination::{ClaimId, ClaimOptions, ClaimView, ErrorKind, Result, WorkClaim};
use rand::RngExt;
use tokio::time::{Instant, sleep};

use super::model::Ms;
use super::{CLIENTS, LONG, Run, SHORT, Time, ms, named};
use crate::bounds::PATIENCE;

impl Run<'_> {
    pub(super) async fn claim(&mut self) -> Result<()> {
        let (mut options, mut asked) = self.options();
        if self.time == Time::Real {
            // The time of a guard counts from before the call: that of a short claim may be over before it is given.
            (options, asked.1) = (options.ttl(ms(LONG)), LONG);
        }
        let client = self.rng.random_range(0..CLIENTS);
        let (jobs, session) = (self.clients[client].jobs.clone(), self.clients[client].session);
        let claim = jobs.claim(options).await?;
        self.model.bring_back();
        let id = claim.as_ref().map_or_else(ClaimId::random, WorkClaim::id);
        let taken = self.model.claim(id, asked, Some(session));
        let found = claim.as_ref().map_or(&[][..], WorkClaim::items);
        self.are_handed_out(found, &taken);
        if let Some(claim) = claim {
            self.note_claim(id, claim.token().value());
            self.guards.insert(id, claim);
        }
        Ok(())
    }

    pub(super) async fn claim_as(&mut self, id: ClaimId) -> Result<()> {
        let (options, asked) = self.options();
        let view = self.jobs().claim_as(id, options).await?;
        self.model.bring_back();
        self.was_claimed(id, asked, view.as_ref());
        Ok(())
    }

    fn was_claimed(&mut self, id: ClaimId, asked: (usize, Ms, Ms), view: Option<&ClaimView>) {
        let taken = self.model.claim(id, asked, None);
        self.are_handed_out(view.map_or(&[][..], |view| &view.items[..]), &taken);
        if let Some(view) = view {
            self.note_claim(id, view.token.value());
        }
    }

    /// A claim of an id that was used before: as after a lost answer.
    pub(super) async fn claim_again(&mut self) -> Result<()> {
        let id = self.claim_id();
        if id == named::<ClaimId>("'; DROP TABLE") {
            return Ok(());
        }
        let has_orphan = self.model.claims.get(&id).is_some_and(|claim| claim.is_orphan);
        if self.model.is_live(id) && !has_orphan {
            let again = self.jobs().claim_as(id, ClaimOptions::default()).await?;
            self.model.bring_back();
            self.is_as_in_the_model(id, &again.expect("it is live"));
            return Ok(());
        }
        if self.model.may_be_made(id) == Some(false) || has_orphan {
            let again = self.jobs().claim_as(id, ClaimOptions::default()).await;
            self.fails(again, &[ErrorKind::ClaimIdReused]);
        }
        Ok(())
    }

    /// C2: those who claim at the same time get different items, together as many as there are or as they asked for.
    pub(super) async fn claim_at_once(&mut self) -> Result<()> {
        let (mut options, mut asked) = self.options();
        if self.time == Time::Real {
            // A short claim may be over before the last of them is made, which then finds the items of the first.
            (options, asked.1) = (options.ttl(ms(LONG)), LONG);
        }
        // In paused time they are in one process: between processes, who comes late waits, and time passes.
        let one = self.jobs();
        let queues = (0..CLIENTS).map(|client| match self.time {
            Time::Paused => one.clone(),
            Time::Real => self.clients[client].jobs.clone(),
        });
        let claiming: Vec<_> = queues
            .map(|jobs| {
                let (id, options) = (self.new_id(), options.clone());
                let claiming = tokio::spawn(async move { jobs.claim_as(id, options).await });
                (id, claiming)
            })
            .collect();
        let mut views = Vec::new();
        for (id, claiming) in claiming {
            views.push((id, claiming.await.expect("no panic")?));
        }
        // In the order in which they were made; whoever found nothing was last.
        views.sort_by_key(|(_, view)| view.as_ref().map_or(u64::MAX, |view| view.token.value()));
        self.model.bring_back();
        for (id, view) in &views {
            self.was_claimed(*id, asked, view.as_ref());
        }
        Ok(())
    }

    fn note_claim(&mut self, id: ClaimId, token: u64) {
        assert!(token > self.model.token, "{}: tokens rise", self.place);
        self.model.token = token;
        self.model.claims.get_mut(&id).expect("it has items").token = token;
        self.claims.push(id);
    }

    pub(super) async fn renew(&mut self) -> Result<()> {
        let id = self.claim_id();
        let ttl = self.rng.random_bool(0.7).then(|| self.span());
        let grace = (self.rng.random_bool(0.5) && ttl != Some(SHORT)).then(|| self.span());
        let asked = (ttl.map(ms), grace.map(ms));
        let jobs = self.jobs();
        let renewed = match self.guards.get(&id) {
            // A guard goes by the clock of its process, which is not paused, and may take a short claim for over.
            Some(guard) if self.time == Time::Real && ttl != Some(SHORT) => {
                guard.renew(asked.0, asked.1).await
            }
            _ => jobs.renew(id, asked.0, asked.1).await,
        };
        match self.model.is_standing(id) {
            true => assert_eq!(renewed?, ms(self.model.renew(id, ttl, grace)), "{}", self.place),
            // Whoever had it may have been told of its loss.
            false => self.fails(renewed, &[ErrorKind::NoSuchClaim, ErrorKind::Lost]),
        }
        Ok(())
    }

    pub(super) async fn release(&mut self) -> Result<()> {
        let id = self.claim_id();
        let jobs = self.jobs();
        let released = match self.guards.remove(&id) {
            Some(guard) if self.model.is_standing(id) => guard.release().await?,
            _ => jobs.release(id).await?,
        };
        assert_eq!(released, self.model.end(id, 0), "{}", self.place);
        Ok(())
    }

    pub(super) async fn detach(&mut self) -> Result<()> {
        let newest = self.claims.iter().rev().copied().find(|id| self.guards.contains_key(id));
        let Some((id, guard)) = self.take_guard(newest) else { return Ok(()) };
        let detached = guard.detach().await;
        if self.model.is_standing(id) {
            assert_eq!(detached?, id, "{}", self.place);
            self.model.claims.get_mut(&id).expect("it is there").holder = None;
        } else {
            // The client that made it may have been stopped since.
            let kinds = [ErrorKind::NoSuchClaim, ErrorKind::Lost, ErrorKind::Closed];
            self.fails(detached, &kinds);
            self.is_over(id).await?;
        }
        Ok(())
    }

    /// By the order of claiming: ids are random, and another run of the same seed has others.
    fn take_guard(&mut self, id: Option<ClaimId>) -> Option<(ClaimId, WorkClaim)> {
        id.and_then(|id| self.guards.remove_entry(&id))
    }

    pub(super) async fn drop_a_claim(&mut self) -> Result<()> {
        let oldest = self.claims.iter().copied().find(|id| self.guards.contains_key(id));
        let Some((id, guard)) = self.take_guard(oldest) else { return Ok(()) };
        drop(guard);
        self.is_over(id).await
    }

    /// Waits until a claim whose guard was dropped is over.
    async fn is_over(&mut self, id: ClaimId) -> Result<()> {
        let (jobs, begun) = (self.jobs(), Instant::now());
        sleep(Duration::from_millis(1)).await;
        while jobs.get(id).await.is_ok() {
            assert!(begun.elapsed() < PATIENCE, "{}: it is not given back", self.place);
            sleep(Duration::from_millis(1)).await;
        }
        // It may have ended by itself, and an orphan's items come back only when somebody claims.
        if self.model.is_standing(id) {
            self.model.end(id, 0);
        }
        self.note_time();
        Ok(())
    }

    /// A claim that its caller never got was never made.
    pub(super) async fn undo(&mut self) -> Result<()> {
        let mut id = self.claim_id();
        let is_detached = self.model.claims.get(&id).is_some_and(|claim| claim.holder.is_none());
        if !is_detached || self.model.may_be_made(id).is_none() {
            id = self.new_id();
        }
        self.jobs().undo_claim(id).await;
        match self.model.claims.contains_key(&id) {
            true if self.model.is_live(id) => drop(self.model.end(id, 1)),
            true => self.model.count_less(id),
            false => {
                self.model.note_as_over(id);
                self.claims.push(id);
            }
        }
        Ok(())
    }

    pub(super) async fn end_a_session(&mut self) -> Result<()> {
        let next = self.connect().await?;
        let client = self.rng.random_range(0..CLIENTS);
        let last = std::mem::replace(&mut self.clients[client], next);
        last.coordinator.stop().await?;
        for (id, claim) in &mut self.model.claims {
            if claim.holder == Some(last.session) {
                claim.is_orphan = true;
                drop(self.guards.remove(id));
            }
        }
        Ok(())
    }
}
