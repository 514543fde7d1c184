//! Random calls of several clients on a work queue. Each answer is compared with a model, and after each call no item
//! may be in two live claims (C1 of the specification).
//!
//! On `memory://` the run takes place in paused time, so that each time is exact. Servers have clocks of their own: there a time is
//! either so long that it never ends in a run, or so short that the run waits for its end before it goes on.

mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use coordination::{
    Ack, ClaimId, ClaimOptions, ClaimView, Coordinator, ErrorKind, ItemId, ListOptions, NewItem,
    Result, WorkClaim, WorkItem, WorkQueue,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};

use crate::bounds::PATIENCE;
use model::{Model, Ms};

const CLIENTS: usize = 3;
/// How many calls are made on one queue.
const STEPS: usize = 500;
/// Whatever lasts so long outlasts the run.
const LONG: Ms = 3_600_000;
/// The longest delay that is allowed.
const DELAY: Ms = 900_000;
/// What lasts so long is over before the next call, and ([`MARGIN`]) how much longer the run waits for that.
const SHORT: Ms = 60;
const MARGIN: Ms = 20;

/// How time passes in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// It is tokio's, which is paused, and the store's clock is tokio's too.
    Paused,
    /// It is that of servers.
    Real,
}

/// Makes `steps` random calls on the store of a URL. Panics when an answer is none that the model allows.
pub async fn run(url: &str, steps: usize, seed: u64, time: Time) -> Result<()> {
    for (number, first) in (0..steps).step_by(STEPS).enumerate() {
        let seed = seed.wrapping_add(number as u64);
        let mut run = Run::begin(url, seed, time).await?;
        for step in 0..STEPS.min(steps - first) {
            run.place = format!("COORDINATION_TEST_SEED={seed}, step {step}");
            run.step().await?;
            run.compare(step).await?;
        }
        run.finish().await?;
    }
    Ok(())
}

struct Client {
    coordinator: Coordinator,
    jobs: WorkQueue,
    /// Another number for each session.
    session: u64,
}

struct Run<'a> {
    url: &'a str,
    time: Time,
    rng: StdRng,
    model: Model,
    begun: Instant,
    /// Something that is [`SHORT`] has begun, and the run has not waited for its end yet.
    has_short: bool,
    clients: Vec<Client>,
    sessions: u64,
    name: String,
    guards: BTreeMap<ClaimId, WorkClaim>,
    /// The names so far: calls also use those of items and claims that are gone or over.
    items: Vec<ItemId>,
    claims: Vec<ClaimId>,
    /// Most claims are in one bucket, which has several parts before long.
    is_crowded: bool,
    /// Where the run is, for a message.
    place: String,
}

impl<'a> Run<'a> {
    async fn begin(url: &'a str, seed: u64, time: Time) -> Result<Self> {
        let mut run = Self {
            url,
            time,
            rng: StdRng::seed_from_u64(seed),
            model: Model::default(),
            begun: Instant::now(),
            has_short: false,
            clients: Vec::new(),
            sessions: 0,
            name: format!("model-{seed:x}"),
            guards: BTreeMap::new(),
            items: Vec::new(),
            claims: Vec::new(),
            is_crowded: false,
            place: String::new(),
        };
        for _ in 0..CLIENTS {
            let client = run.connect().await?;
            run.clients.push(client);
        }
        run.is_crowded = run.rng.random_bool(0.5);
        if run.rng.random_bool(0.5) {
            let dead = run.dead_letters()?;
            // The two queues have to be of one coordinator.
            run.clients[0].jobs.set_dead_letters(2, &dead, Some(ms(LONG))).await?;
            run.model.max_claims = Some(2);
        }
        run.note_time();
        Ok(run)
    }

    async fn connect(&mut self) -> Result<Client> {
        self.sessions += 1;
        let coordinator = Coordinator::connect(self.url).await?;
        let jobs = coordinator.queue(&self.name)?;
        Ok(Client { coordinator, jobs, session: self.sessions })
    }

    fn dead_letters(&self) -> Result<WorkQueue> {
        self.clients[0].coordinator.queue(format!("{}-dead", self.name))
    }

    /// The queue, by any of the clients.
    fn jobs(&mut self) -> WorkQueue {
        self.clients[self.rng.random_range(0..CLIENTS)].jobs.clone()
    }

    /// How long something is to last.
    fn span(&mut self) -> Ms {
        match self.time {
            Time::Paused => self.rng.random_range(1..400),
            Time::Real if self.rng.random_bool(0.9) => LONG,
            Time::Real => {
                self.has_short = true;
                SHORT
            }
        }
    }

    /// How long an item is to be delayed that lives so long.
    fn delay(&mut self, life: Ms) -> Ms {
        match (self.time, self.rng.random_range(0..12)) {
            (Time::Paused, 0..4) => self.rng.random_range(0..life),
            (Time::Real, 0..3) if life > SHORT => DELAY,
            (Time::Real, 3) if life > SHORT => {
                self.has_short = true;
                SHORT
            }
            _ => 0,
        }
    }

    fn item(&mut self) -> ItemId {
        let newest = self.items.len().min(30);
        let newest = newest.checked_sub(1).map(|last| self.rng.random_range(0..=last));
        newest.map_or_else(|| named("0"), |nth| self.items[self.items.len() - 1 - nth])
    }

    fn claim_id(&mut self) -> ClaimId {
        match self.claims.len().min(8) {
            0 => named("'; DROP TABLE"),
            _ if self.rng.random_bool(0.03) => named("'; DROP TABLE"),
            newest => self.claims[self.claims.len() - 1 - self.rng.random_range(0..newest)],
        }
    }

    fn new_id(&self) -> ClaimId {
        let id = ClaimId::random();
        match self.is_crowded {
            true => named(&format!("{}00", &id.to_string()[..30])),
            false => id,
        }
    }

    /// A claim, and most often one of its items.
    fn claimed_item(&mut self) -> (ItemId, ClaimId) {
        let claim = self.claim_id();
        match self.model.members(claim).first() {
            Some(item) if self.rng.random_bool(0.7) => (*item, claim),
            _ => (self.item(), claim),
        }
    }

    async fn step(&mut self) -> Result<()> {
        match self.rng.random_range(0..40) {
            0..=7 => self.post().await?,
            8..=11 => self.claim().await?,
            12..=13 => self.claim_as(self.new_id()).await?,
            14 => self.claim_again().await?,
            15 => self.claim_at_once().await?,
            16..=17 => self.renew().await?,
            18 => self.release().await?,
            19 => self.detach().await?,
            20 => self.drop_a_claim().await?,
            21..=24 => self.ack().await?,
            25 => self.ack_many().await?,
            26..=27 => self.nack().await?,
            28 => self.delete().await?,
            29 => self.pop().await?,
            30..=31 => self.list().await?,
            32 => self.gc().await?,
            33 => self.undo().await?,
            34 => self.ask_for_what_is_refused().await,
            35 if self.rng.random_bool(0.2) => self.end_a_session().await?,
            36 if self.rng.random_bool(0.02) => self.delete_queue().await?,
            _ => self.pass().await,
        }
        self.what_is_short_is_over().await;
        self.note_time();
        Ok(())
    }

    async fn what_is_short_is_over(&mut self) {
        if std::mem::take(&mut self.has_short) {
            sleep(ms(SHORT + MARGIN)).await;
            self.model.now += SHORT;
        }
    }

    /// Time passes.
    async fn pass(&mut self) {
        if self.time == Time::Paused {
            let long = if self.rng.random_bool(0.02) { 61_000 } else { 100 };
            let passed = [1, 5, 20, long][self.rng.random_range(0..4)];
            sleep(ms(passed)).await;
        }
        self.note_time();
    }

    /// In paused time, only what sleeps takes time.
    fn note_time(&mut self) {
        if self.time == Time::Paused {
            self.model.now = self.begun.elapsed().as_millis() as Ms;
        }
    }

    async fn post(&mut self) -> Result<()> {
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

    fn options(&mut self) -> (ClaimOptions, (usize, Ms, Ms)) {
        let (limit, ttl) = (self.rng.random_range(1..6), self.span());
        let grace = if self.rng.random_bool(0.5) && ttl != SHORT { self.span() } else { 0 };
        let options = ClaimOptions::default().limit(limit).ttl(ms(ttl)).grace(ms(grace));
        (options, (limit, ttl, grace))
    }

    async fn claim(&mut self) -> Result<()> {
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

    async fn claim_as(&mut self, id: ClaimId) -> Result<()> {
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
    async fn claim_again(&mut self) -> Result<()> {
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
    async fn claim_at_once(&mut self) -> Result<()> {
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

    fn are_handed_out(&self, found: &[WorkItem], taken: &[ItemId]) {
        assert_eq!(ids(found), taken, "{}", self.place);
        self.are_as_in_the_model(found);
    }

    fn are_as_in_the_model(&self, found: &[WorkItem]) {
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

    /// In paused time, each time is exact.
    fn is_time(&self, found: Duration, expected: Ms) {
        if self.time == Time::Paused {
            assert_eq!(found, ms(expected), "{}", self.place);
        }
    }

    async fn renew(&mut self) -> Result<()> {
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

    async fn release(&mut self) -> Result<()> {
        let id = self.claim_id();
        let jobs = self.jobs();
        let released = match self.guards.remove(&id) {
            Some(guard) if self.model.is_standing(id) => guard.release().await?,
            _ => jobs.release(id).await?,
        };
        assert_eq!(released, self.model.end(id, 0), "{}", self.place);
        Ok(())
    }

    async fn detach(&mut self) -> Result<()> {
        let newest = self.claims.iter().rev().copied().find(|id| self.guards.contains_key(id));
        let Some((id, guard)) = self.take_guard(newest) else { return Ok(()) };
        let detached = guard.detach().await;
        if self.model.is_standing(id) {
            assert_eq!(detached?, id, "{}", self.place);
            self.model.claims.get_mut(&id).expect("it is there").holder = None;
        } else {
            self.fails(detached, &[ErrorKind::NoSuchClaim, ErrorKind::Lost]);
            self.is_over(id).await?;
        }
        Ok(())
    }

    /// By the order of claiming: ids are random, and another run of the same seed has others.
    fn take_guard(&mut self, id: Option<ClaimId>) -> Option<(ClaimId, WorkClaim)> {
        id.and_then(|id| self.guards.remove_entry(&id))
    }

    async fn drop_a_claim(&mut self) -> Result<()> {
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

    async fn ack(&mut self) -> Result<()> {
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

    async fn ack_many(&mut self) -> Result<()> {
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

    async fn nack(&mut self) -> Result<()> {
        let (item, claim) = self.claimed_item();
        let delay = self.delay(LONG / 1_000);
        let done = self.jobs().nack(item, claim, ms(delay)).await;
        if self.is_acknowledged(done, item, claim) {
            self.model.nack(item, claim, delay);
        }
        Ok(())
    }

    async fn delete(&mut self) -> Result<()> {
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

    async fn pop(&mut self) -> Result<()> {
        let limit = self.rng.random_range(1..6);
        let popped = self.jobs().pop(limit).await?;
        self.model.bring_back();
        let expected = self.model.select(limit);
        self.are_handed_out(&popped, &expected);
        expected.iter().for_each(|id| drop(self.model.items.remove(id)));
        Ok(())
    }

    async fn list(&mut self) -> Result<()> {
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

    async fn gc(&mut self) -> Result<()> {
        let budget = self.rng.random_range(1..30);
        let removed = self.jobs().gc(Some(budget)).await?;
        assert!(removed.items + removed.claims <= budget, "{}", self.place);
        Ok(())
    }

    /// A claim that its caller never got was never made.
    async fn undo(&mut self) -> Result<()> {
        let mut id = self.claim_id();
        let is_detached = self.model.claims.get(&id).is_some_and(|claim| claim.holder.is_none());
        if !is_detached || self.model.may_be_made(id).is_none() {
            id = self.new_id();
        }
        self.jobs().undo_claim(id).await;
        match self.model.claims.contains_key(&id) {
            true if self.model.is_live(id) => drop(self.model.end(id, 1)),
            true => {}
            false => {
                self.model.note_as_over(id);
                self.claims.push(id);
            }
        }
        Ok(())
    }

    /// What is out of range changes nothing.
    async fn ask_for_what_is_refused(&mut self) {
        let (jobs, claim) = (self.jobs(), self.claim_id());
        let (never, day) = (Duration::ZERO, Duration::from_secs(24 * 3_600));
        let late = NewItem::new("late").ttl(ms(1_000)).delay(ms(1_000));
        let (options, id) = (ClaimOptions::default(), ClaimId::random());
        let refused = [
            jobs.post(&[]).await.map(drop),
            jobs.post(&[NewItem::new("kept"), NewItem::new("dead").ttl(never)]).await.map(drop),
            jobs.post(&[late]).await.map(drop),
            jobs.claim_as(id, options.clone().ttl(day)).await.map(drop),
            jobs.claim_as(id, options.clone().limit(0)).await.map(drop),
            jobs.claim_as(named("'; DROP TABLE"), options).await.map(drop),
            jobs.renew(claim, Some(never), None).await.map(drop),
            jobs.pop(1_001).await.map(drop),
        ];
        for refused in refused {
            self.fails(refused, &[ErrorKind::Input]);
        }
    }

    async fn end_a_session(&mut self) -> Result<()> {
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

    async fn delete_queue(&mut self) -> Result<()> {
        self.jobs().delete_queue().await?;
        (self.model.items, self.model.claims) = Default::default();
        self.model.max_claims = None;
        Ok(())
    }

    async fn compare(&mut self, step: usize) -> Result<()> {
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
        if step.is_multiple_of(8) { self.no_item_is_in_two_claims().await } else { Ok(()) }
    }

    fn is_as_in_the_model(&self, id: ClaimId, found: &ClaimView) {
        let claim = &self.model.claims[&id];
        let terms = (found.ttl, found.grace, found.token.value());
        assert_eq!(terms, (ms(claim.ttl), ms(claim.grace), claim.token), "{}", self.place);
        self.is_time(found.age, self.model.now - claim.touched);
        self.is_time(found.expires_in, claim.expires - self.model.now);
        self.are_handed_out(&found.items, &self.model.members(id));
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

    fn fails<T>(&self, outcome: Result<T>, kinds: &[ErrorKind]) {
        let kind = outcome.err().map(|error| error.kind());
        assert!(kind.is_some_and(|kind| kinds.contains(&kind)), "{}: {kind:?}", self.place);
    }

    /// All letters have come, and the queue is emptied.
    async fn finish(mut self) -> Result<()> {
        self.place.push_str(", at the end");
        let (dead, begun) = (self.dead_letters()?, Instant::now());
        while dead.stats().await?.total() < self.model.letters {
            assert!(begun.elapsed() < PATIENCE, "{}: letters are missing", self.place);
            // Whoever claims delivers what others have left.
            let id = self.new_id();
            self.claim_as(id).await?;
            self.what_is_short_is_over().await;
            self.pass().await;
        }
        assert_eq!(dead.stats().await?.total(), self.model.letters, "{}", self.place);
        let jobs = self.jobs();
        jobs.delete_queue().await?;
        dead.delete_queue().await?;
        assert_eq!(jobs.stats().await?, Default::default());
        self.guards.clear();
        for client in self.clients {
            client.coordinator.stop().await?;
        }
        Ok(())
    }
}

fn ms(ms: Ms) -> Duration {
    Duration::from_millis(ms)
}

fn ids(items: &[WorkItem]) -> Vec<ItemId> {
    items.iter().map(WorkItem::id).collect()
}

/// What has this name; of any other text, nothing.
fn named<T: std::str::FromStr<Err = std::convert::Infallible>>(text: &str) -> T {
    text.parse().unwrap_or_else(|never| match never {})
}
