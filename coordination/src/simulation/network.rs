//! The network between a client and the store: a decorator of the memory backend, which loses, delays and repeats
//! messages.

mod entries;
mod session;
mod values;
mod watch;

use std::collections::HashSet;
use std::future::Future;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::oneshot;
use tokio::task;

use super::client::Client;
use super::run;
use super::server::{Weather, World};
use crate::backend::descriptor::{Connect, Descriptor};
use crate::backend::{EntryId, Store};
use crate::characteristics::{Characteristics, Durability, Liveness, LossDetection, Scope};
use crate::config::Settings;
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::url::Authority;

/// What is known of the store before a client connects. The rest differs from world to world.
pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "simulation",
    options: &[],
    authority: Authority::Name,
    namespace: |_| None,
    loss_detection: LossDetection::Heartbeat,
    is_in_process: true,
    parse: |_| {
        let client = run::client().ok_or_else(|| Error::config("no simulation runs here"))?;
        Ok(Box::new(Connecting(client)))
    },
};

/// A client that is about to connect.
struct Connecting(Arc<Client>);

#[async_trait]
impl Connect for Connecting {
    async fn connect(self: Box<Self>, _: &Settings) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Network::new(self.0)))
    }
}

/// A client's connection to the store.
pub(crate) struct Network {
    client: Arc<Client>,
    world: World,
    /// For [`Canary::AnswerOfAnotherCall`]: the answer to a heartbeat that nobody waits for any more.
    stray: Arc<Mutex<Option<Result<Vec<EntryId>>>>>,
    /// The tasks that observe a queue, because they have asked for its changes.
    observers: Mutex<HashSet<task::Id>>,
}

/// What the network does to one call.
struct Way {
    there: Duration,
    back: Duration,
    request_lost: bool,
    reply_lost: bool,
    /// Whether the client notices that a message was lost, by a broken connection; otherwise it hears nothing.
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
        Self { client, world, stray: Arc::default(), observers: Mutex::default() }
    }

    fn take_stray(&self) -> Option<Result<Vec<EntryId>>> {
        self.stray.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }

    /// Notes that the running task observes a queue.
    fn observes(&self) {
        let mut observers = self.observers.lock().unwrap_or_else(PoisonError::into_inner);
        observers.extend(task::try_id());
    }

    fn is_observer(&self) -> bool {
        let observers = self.observers.lock().unwrap_or_else(PoisonError::into_inner);
        task::try_id().is_some_and(|id| observers.contains(&id))
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
        self.world.count_call();
        if let Some(refused) = self.world.refusal() {
            return Err(refused);
        }
        let _slot = match call {
            Call::Heartbeat => None,
            Call::Other => self.world.slot().await,
        };
        let way = self.world.draw(Way::draw);
        let (answer, answered) = oneshot::channel();
        let (client, world) = (Arc::clone(&self.client), self.world.clone());
        // The request is sent: neither a pause of the client nor a dropped call stops it any more.
        drop(tokio::spawn(async move {
            let is_noticed = way.is_noticed;
            match exchange(&client, &world, call, way, &operate).await {
                Some(outcome) => drop(answer.send(outcome)),
                None if is_noticed && !client.link().replies_cut => {
                    let message = "the connection was lost";
                    let error = Error::new(ErrorKind::Unavailable, "call", message);
                    drop(answer.send(Err(error.with_effect(Effect::Unknown))));
                }
                // The client never gets an answer.
                None => {}
            }
        }));
        match answered.await {
            Ok(outcome) => outcome,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Store for Network {
    fn scheme(&self) -> &'static str {
        DESCRIPTOR.name
    }

    fn characteristics(&self) -> Characteristics {
        let is_remote = self.is_remote();
        Characteristics {
            scope: if is_remote { Scope::Hosts } else { Scope::Threads },
            liveness: if is_remote { Liveness::Lease } else { Liveness::Process },
            loss_detection: match self.world.traits() {
                traits if traits.is_remote && traits.watches => LossDetection::Watch,
                _ => LossDetection::Heartbeat,
            },
            survives_restart: Durability::Yes,
            survives_power_loss: Durability::No,
            survives_failover: Durability::NotApplicable,
            fifo: true,
            fencing_survives_data_loss: true,
            early_expiry: None,
            partition_overlap: None,
            max_plain_name: usize::MAX,
            min_ttl: None,
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
