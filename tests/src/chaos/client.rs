//! The program of a client process. It has one coordinator, and tasks that contend for objects.
//!
//! The driver controls the process by lines of JSON, like any worker (see [`harness::worker`](crate::harness::worker)):
//!
//! * `begin` connects, and retries until that succeeds. Its fields are `member`, `client` (the client's number in
//!   histories), `group`, `store`, `resource` (the path of a socket) and `seed`.
//! * `round` makes the tasks begin to work. They write their records to the file `history`.
//! * `drain` makes the tasks finish what they have begun, without beginning anything new.
//! * `stop` closes the session.

use std::{
    path::PathBuf,
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use coordination::Coordinator;
use coordination_history::{Event, Record, Writer, now};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::watch,
    time::sleep,
};

use super::{
    Store,
    effects::Effects,
    operations::Clerk,
    things::{Group, Thing, pace},
    turn::{Contender, Recipe},
    work::Worker,
};
use crate::harness::worker::URL;

/// Writes the records of one attempt to the history of the round.
pub(super) struct Pen {
    writer: Arc<Writer>,
    client: u32,
    attempt: u64,
    object: u32,
}

impl Pen {
    pub(super) fn write(&self, event: Event) {
        self.write_at(now(), event);
    }

    pub(super) fn write_at(&self, at: u64, event: Event) {
        let Self { client, attempt, object, .. } = *self;
        let record = Record { at, client, attempt, object, event };
        self.writer.append(&record).expect("the history is writable");
    }

    pub(super) fn attempt(&self) -> u64 {
        self.attempt
    }
}

/// The history of the present round. `None` between rounds, when no task may begin anything.
type Round = Option<Arc<Writer>>;

struct Client {
    coordinator: Coordinator,
    number: u32,
    store: Store,
    resource: PathBuf,
    attempts: AtomicU64,
    busy: AtomicUsize,
    round: watch::Sender<Round>,
}

/// Carries out the commands of the driver one after the other, until standard input ends.
pub async fn main() {
    let mut client = None;
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = orders.next_line().await {
        let order: Value = serde_json::from_str(&line).expect("an order is a line of JSON");
        let mut answer = match carry_out(&mut client, &order).await {
            Ok(()) => json!({ "ok": {} }),
            Err(error) => json!({ "error": error }),
        };
        answer["id"] = order["id"].clone();
        println!("{answer}");
    }
    process::exit(0);
}

async fn carry_out(client: &mut Option<Arc<Client>>, order: &Value) -> Result<(), String> {
    let text = |name: &str| order[name].as_str().ok_or_else(|| format!("it needs `{name}`"));
    let number = |name: &str| order[name].as_u64().ok_or_else(|| format!("it needs `{name}`"));
    let begun = || client.as_ref().ok_or_else(|| "`begin` comes first".to_owned());
    match text("command")? {
        "begin" if client.is_some() => return Err("it has begun".to_owned()),
        "begin" => {
            let store = Store::named(text("store")?).ok_or("no such store")?;
            let group = Group::named(text("group")?).ok_or("no such group")?;
            let coordinator = connect(store, text("member")?).await;
            let new = Arc::new(Client {
                coordinator,
                number: u32::try_from(number("client")?).map_err(|error| error.to_string())?,
                store,
                resource: PathBuf::from(text("resource")?),
                attempts: AtomicU64::new(0),
                busy: AtomicUsize::new(0),
                round: watch::Sender::new(None),
            });
            new.start(group, number("seed")?).await;
            *client = Some(new);
        }
        "round" => {
            let writer = Writer::open(text("history")?).map_err(|error| error.to_string())?;
            begun()?.round.send_replace(Some(Arc::new(writer)));
        }
        "drain" => begun()?.drain().await,
        "stop" => begun()?.coordinator.stop().await.map_err(|error| error.to_string())?,
        other => return Err(format!("no such order: {other}")),
    }
    Ok(())
}

/// Connects to the store, and retries for as long as the store cannot be reached.
async fn connect(store: Store, member: &str) -> Coordinator {
    let url = std::env::var(URL).expect("it is set by whoever starts a client");
    loop {
        let mut builder = Coordinator::builder().member_id(member).heartbeat(store.heartbeat());
        if let Some(ttl) = store.ttl() {
            builder = builder.ttl(ttl);
        }
        match builder.connect(&url).await {
            Ok(coordinator) => return coordinator,
            Err(error) => {
                eprintln!("connecting: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

impl Client {
    /// Starts all tasks. Each of them waits until a round begins.
    async fn start(self: &Arc<Self>, group: Group, seed: u64) {
        let mut seeds = StdRng::seed_from_u64(seed);
        for thing in group.things() {
            for _ in 0..thing.tasks {
                if let Some(recipe) = Recipe::new(&self.coordinator, thing) {
                    self.contend(thing, recipe, seeds.random()).await;
                }
            }
            if group == Group::Spoiled {
                // In this group the directory may be replaced by another one. During the replacement, reads may come
                // from either directory, so their results are not linearizable. So no task makes short operations here.
                continue;
            }
            for _ in 0..thing.tasks {
                let rng = StdRng::seed_from_u64(seeds.random());
                let pace = pace(self.store);
                if let Some(worker) = Worker::new(&self.coordinator, thing, self.number, rng, pace)
                {
                    self.post_and_claim(thing, worker, seeds.random());
                }
            }
            let rng = StdRng::seed_from_u64(seeds.random());
            if let Some(clerk) = Clerk::new(&self.coordinator, thing, self.number, rng) {
                self.ask_and_write(thing, clerk, seeds.random());
            }
        }
    }

    async fn contend(self: &Arc<Self>, thing: &'static Thing, recipe: Recipe, seed: u64) {
        let pace = pace(self.store);
        let mut rests = StdRng::seed_from_u64(seed.wrapping_add(1));
        let mut contender = Contender {
            thing,
            recipe,
            effects: Effects::connect(&self.resource, self.number).await,
            rng: StdRng::seed_from_u64(seed),
            pace,
            attempt: self.store.attempt(),
        };
        let client = Arc::clone(self);
        tokio::spawn(async move {
            let mut rounds = client.round.subscribe();
            loop {
                let pen = client.begin(thing, &mut rounds).await;
                contender.turn(&pen).await;
                client.end();
                sleep(Duration::from_micros(rests.random_range(0..=2 * pace.rest))).await;
            }
        });
    }

    fn post_and_claim(self: &Arc<Self>, thing: &'static Thing, mut worker: Worker, seed: u64) {
        let rest = pace(self.store).rest;
        let client = Arc::clone(self);
        tokio::spawn(async move {
            let mut rests = StdRng::seed_from_u64(seed);
            let mut rounds = client.round.subscribe();
            loop {
                let pen = client.begin(thing, &mut rounds).await;
                worker.turn(&pen).await;
                client.end();
                sleep(Duration::from_micros(rests.random_range(0..=2 * rest))).await;
            }
        });
    }

    fn ask_and_write(self: &Arc<Self>, thing: &'static Thing, mut clerk: Clerk, seed: u64) {
        let rest = pace(self.store).rest;
        let client = Arc::clone(self);
        tokio::spawn(async move {
            let mut rests = StdRng::seed_from_u64(seed);
            let mut rounds = client.round.subscribe();
            loop {
                let pen = client.begin(thing, &mut rounds).await;
                clerk.turn(&pen).await;
                client.end();
                sleep(Duration::from_micros(rests.random_range(0..=8 * rest))).await;
            }
        });
    }

    /// Waits until a round is running, and counts this task as busy from then on. Returns the pen for one attempt.
    async fn begin(&self, thing: &Thing, rounds: &mut watch::Receiver<Round>) -> Pen {
        loop {
            // This cannot fail, because `self` has the sender, and lives longer than this call.
            let _ = rounds.wait_for(Option::is_some).await;
            // The task counts as busy before it reads `round` again. So when `drain` has ended the round and after that
            // sees no busy task, no task can begin anything any more.
            self.busy.fetch_add(1, Ordering::SeqCst);
            let round = self.round.borrow().clone();
            if let Some(writer) = round {
                let attempt = self.attempts.fetch_add(1, Ordering::SeqCst) + 1;
                return Pen { writer, client: self.number, attempt, object: thing.id };
            }
            // The round had ended before this task counted as busy, so the task must not begin anything.
            self.end();
        }
    }

    fn end(&self) {
        self.busy.fetch_sub(1, Ordering::SeqCst);
    }

    async fn drain(&self) {
        self.round.send_replace(None);
        while self.busy.load(Ordering::SeqCst) > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    }
}
