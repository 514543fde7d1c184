//! Random calls of several clients on a work queue. Each answer is compared with a model, and after each call no item
//! may be in two live claims (C1 of the specification): of servers, all claims are asked for that only after each eighth call, and one
//! claim after each of the others.
//!
//! On `memory://` the run takes place in paused time, so that each time is exact. Servers have clocks of their own: there a time is
//! either so long that it never ends in a run, or so short that the run waits for its end before it goes on.
//!
//! The calls are in `claims` and `items`, and `draw` chooses what they are made with. `compare` holds the answers against
//! `model`.

mod claims;
mod compare;
mod draw;
mod items;
mod model;

use std::collections::BTreeMap;
use std::time::Duration;

use coordination::{
    ClaimId, ClaimOptions, Coordinator, ErrorKind, ItemId, NewItem, Result, WorkClaim, WorkItem,
    WorkQueue,
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
