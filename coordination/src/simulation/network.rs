//! What is between a client and the store: a decorator around the backend that loses, delays and repeats.

use std::future::Future;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::oneshot;

use super::{Client, Weather, World};
use crate::backend::memory::Memory;
use crate::backend::{
    Backend, EntryId, EntryRef, Listing, Mode, NewEntry, NewSession, Position, SessionId, Write,
};
use crate::canary::{Canary, sings};
use crate::characteristics::{Characteristics, Durability, Liveness, LossDetection, Scope};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::QueueKey;

/// The store itself loses no notification: only the way from it does.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A client's connection to the store.
pub(crate) struct Network {
    client: Arc<Client>,
    world: World,
    /// For [`Canary::AnswerOfAnotherCall`]: the answer to a heartbeat that nobody waits for any more.
    stray: Arc<Mutex<Option<Result<Vec<EntryId>>>>>,
}

/// What becomes of one call.
struct Way {
    there: Duration,
    back: Duration,
    request_lost: bool,
    reply_lost: bool,
    /// The connection breaks, and the client sees it; otherwise it hears nothing.
    is_noticed: bool,
    again: Option<Duration>,
}

/// What kind of call it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Heartbeat,
    Other,
}

fn happens(random: &mut StdRng, millionths: u32) -> bool {
    millionths > 0 && random.random_range(0..1_000_000) < millionths
}

impl Way {
    fn draw(random: &mut StdRng, weather: &Weather) -> Self {
        let mut later = |(chance, by): &(u32, RangeInclusive<u64>)| {
            let by = if happens(random, *chance) { random.random_range(by.clone()) } else { 0 };
            Duration::from_millis(random.random_range(weather.delay.clone()) + by)
        };
        let (there, back) =
            (later(&weather.slow), later(&weather.slow) + later(&weather.slow_reply));
        let (again, later) = &weather.repeated_request;
        Self {
            there,
            back,
            request_lost: happens(random, weather.lost_request),
            reply_lost: happens(random, weather.lost_reply),
            is_noticed: random.random(),
            again: happens(random, *again)
                .then(|| Duration::from_millis(random.random_range(later.clone()))),
        }
    }
}

async fn on_its_way(delay: Duration) {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}

impl Network {
    /// The connection of the client that is running.
    pub(crate) fn new(client: Arc<Client>) -> Self {
        let world = client.world().clone();
        Self { client, world, stray: Arc::default() }
    }

    fn take_stray(&self) -> Option<Result<Vec<EntryId>>> {
        self.stray.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }

    fn is_remote(&self) -> bool {
        self.world.traits().is_remote
    }

    /// Sends a request and waits for the reply.
    async fn call<T, O>(
        &self,
        call: Call,
        operate: impl Fn(World) -> O + Send + Sync + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        O: Future<Output = Result<T>> + Send,
    {
        if self.client.is_dead() {
            return std::future::pending().await;
        }
        if !self.is_remote() {
            return operate(self.world.clone()).await;
        }
        let way = self.world.draw(Way::draw);
        let (answer, answered) = oneshot::channel();
        let (client, world) = (Arc::clone(&self.client), self.world.clone());
        // From here on it is out of the client's hands: a pause or a dropped call does not stop it.
        drop(tokio::spawn(async move {
            let is_noticed = way.is_noticed;
            match exchange(&client, &world, call, way, &operate).await {
                Some(outcome) => drop(answer.send(outcome)),
                None if is_noticed && !client.link().replies_cut => {
                    let message = "the connection was lost";
                    let error = Error::new(ErrorKind::Unavailable, "call", message);
                    drop(answer.send(Err(error.with_effect(Effect::Unknown))));
                }
                // The client will never hear of it.
                None => {}
            }
        }));
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits for a notification, or until it is time to look again.
    async fn notified<O>(
        &self,
        recheck: Duration,
        wait: impl FnOnce(Arc<Memory>) -> O + Send + 'static,
    ) -> Result<()>
    where
        O: Future<Output = Result<()>> + Send,
    {
        if !self.is_remote() {
            return wait(self.world.memory()).await;
        }
        let (way, lost, cut_short) = self.world.draw(|random, weather| {
            let way = Way::draw(random, weather);
            let lost = happens(random, weather.lost_notification);
            let is_broken = happens(random, weather.broken_watch);
            let is_cut_short = is_broken || happens(random, weather.early_notification);
            let after = Duration::from_millis(random.random_range(0..200));
            (way, lost, is_cut_short.then_some((after, is_broken)))
        });
        let (client, world) = (Arc::clone(&self.client), self.world.clone());
        let (tell, told) = oneshot::channel();
        let watch = tokio::spawn(async move {
            on_its_way(way.there).await;
            let Some(start) = world.start() else { return };
            if way.request_lost || client.link().requests_cut {
                return;
            }
            wait(world.memory()).await.ok();
            on_its_way(way.back).await;
            if lost {
                return world.count("lost notification");
            }
            if !client.link().replies_cut && world.start() == Some(start) {
                let _ = tell.send(());
            }
        });
        let _watch = Ended(watch);
        let notified = async {
            match told.await {
                Ok(()) => {}
                Err(_) => std::future::pending().await,
            }
        };
        let cut_short = async {
            let Some((after, is_broken)) = cut_short else { return std::future::pending().await };
            tokio::time::sleep(after).await;
            is_broken
        };
        tokio::select! {
            biased;
            () = notified => Ok(()),
            is_broken = cut_short => match is_broken {
                true => {
                    self.world.count("broken watch");
                    Err(Error::new(ErrorKind::Unavailable, "watch", "the watch broke"))
                }
                false => {
                    self.world.count("early notification");
                    Ok(())
                }
            },
            () = tokio::time::sleep(recheck) => Ok(()),
        }
    }
}

/// Carries a request to the store and its reply back; `None`: one of them was lost.
async fn exchange<T, O>(
    client: &Client,
    world: &World,
    call: Call,
    way: Way,
    operate: &impl Fn(World) -> O,
) -> Option<Result<T>>
where
    O: Future<Output = Result<T>>,
{
    on_its_way(way.there).await;
    let link = client.link();
    let is_cut = link.requests_cut || link.heartbeats_cut && call == Call::Heartbeat;
    if way.request_lost {
        world.count("lost request");
        return None;
    }
    let start = world.start()?;
    if is_cut || client.is_dead() {
        return None;
    }
    let outcome = operate(world.clone()).await;
    if let Some(later) = way.again {
        world.count("repeated request");
        on_its_way(later).await;
        if world.start() == Some(start) {
            let _ = operate(world.clone()).await;
        }
    }
    on_its_way(way.back).await;
    if way.reply_lost {
        world.count("lost reply");
        return None;
    }
    let arrives = world.start() == Some(start) && !client.link().replies_cut;
    arrives.then_some(outcome)
}

/// The answer to a call that arrives after a later one; nobody waits for it.
fn late(operation: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "another call has overtaken it")
}

/// Stops a task when it goes.
struct Ended(tokio::task::JoinHandle<()>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[async_trait]
impl Backend for Network {
    fn scheme(&self) -> &'static str {
        "simulation"
    }

    fn characteristics(&self) -> Characteristics {
        let is_remote = self.is_remote();
        Characteristics {
            scope: if is_remote { Scope::Hosts } else { Scope::Threads },
            liveness: if is_remote { Liveness::Lease } else { Liveness::Process },
            loss_detection: self.loss_detection(),
            survives_restart: Durability::Yes,
            survives_power_loss: Durability::No,
            survives_failover: Durability::NotApplicable,
            fifo: true,
            fencing_survives_data_loss: true,
            early_expiry: None,
            max_plain_name: usize::MAX,
            min_ttl: None,
        }
    }

    fn loss_detection(&self) -> LossDetection {
        match self.world.traits() {
            traits if traits.is_remote && traits.watches => LossDetection::Watch,
            _ => LossDetection::Heartbeat,
        }
    }

    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        let session = session.clone();
        self.client.has_opened(session.id);
        self.call(Call::Other, move |world| {
            let session = session.clone();
            async move { world.open(&session).await }
        })
        .await
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef]) -> Result<Vec<EntryId>> {
        if let Some(answer) = self.take_stray() {
            return answer;
        }
        let (held, stray) = (held.to_vec(), Arc::clone(&self.stray));
        let answer = self.call(Call::Heartbeat, move |world| {
            let (held, stray) = (held.clone(), Arc::clone(&stray));
            async move {
                world.renew(session)?;
                let answer = world.memory().renew(session, &held).await;
                if sings(Canary::AnswerOfAnotherCall) {
                    *stray.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
                        Some(answer.clone());
                }
                answer
            }
        });
        let answer = answer.await;
        self.take_stray();
        answer
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        self.call(Call::Other, move |world| async move {
            world.end(session);
            Ok(())
        })
        .await
    }

    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let entry = entry.clone();
        self.call(Call::Other, move |world| {
            let entry = entry.clone();
            async move {
                match world.has_left(&entry.place.id) {
                    true => Err(late("enter")),
                    false => world.memory().enter(&entry).await,
                }
            }
        })
        .await
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let (entry, number) = (entry.clone(), self.world.send_update());
        self.call(Call::Other, move |world| {
            let entry = entry.clone();
            async move {
                match world.is_newest(&entry.place.id, number) {
                    true => world.memory().update(&entry, seq).await,
                    false => Err(late("update")),
                }
            }
        })
        .await
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let entry = entry.clone();
        self.call(Call::Other, move |world| {
            let entry = entry.clone();
            async move {
                world.leaves(&entry.id);
                world.memory().leave(&entry, seq).await
            }
        })
        .await
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let entry = entry.clone();
        self.call(Call::Other, move |world| {
            let entry = entry.clone();
            async move { world.memory().position(&entry, seq).await }
        })
        .await
    }

    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        let entry = entry.clone();
        let wait = move |memory: Arc<Memory>| async move {
            memory.gone(&entry, seq, waiter, FOREVER).await
        };
        self.notified(recheck, wait).await
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let queue = queue.clone();
        self.call(Call::Other, move |world| {
            let queue = queue.clone();
            async move {
                let listing = world.memory().read(&queue).await?;
                let clock = listing.clock.filter(|_| world.traits().has_clock);
                Ok(Listing { clock, ..listing })
            }
        })
        .await
    }

    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        let write = write.clone();
        self.call(Call::Other, move |world| {
            let write = write.clone();
            async move { world.write(&write).await }
        })
        .await
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        let queue = queue.clone();
        let wait = move |memory: Arc<Memory>| async move {
            memory.changed(&queue, revision, FOREVER).await
        };
        self.notified(recheck, wait).await
    }

    async fn names(&self, kind: &'static str) -> Result<Vec<String>> {
        self.call(Call::Other, move |world| async move { world.memory().names(kind).await }).await
    }

    async fn queues(&self, kind: &'static str) -> Result<Vec<String>> {
        self.call(Call::Other, move |world| async move { world.memory().queues(kind).await }).await
    }

    fn enter_now(&self, entry: &NewEntry) -> Option<Result<Position>> {
        let is_here = !self.is_remote() && !self.client.is_dead();
        is_here.then(|| self.world.memory().enter_now(entry)).flatten()
    }

    fn leave_now(&self, entry: &EntryRef, seq: Option<u64>) -> Option<Result<()>> {
        let is_here = !self.is_remote() && !self.client.is_dead();
        is_here.then(|| self.world.memory().leave_now(entry, seq)).flatten()
    }

    fn close_now(&self, session: SessionId) {
        if !self.is_remote() && !self.client.is_dead() {
            self.world.memory().close_now(session);
        }
    }
}
