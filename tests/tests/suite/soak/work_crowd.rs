//! Sixteen processes work through ten thousand items of one queue, while processes are killed and paused at random.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use coordination::{Coordinator, NewItem, WorkQueue};
use coordination_history::{Event, Kind, Object, Record, Rules, Work, Writer, check, now, read};
use coordination_tests::checks::{Backend, tools::seed};
use coordination_tests::faults::Site;
use coordination_tests::harness::{Scratch, Worker, rerun_alone};
use coordination_tests::must_hold;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use crate::WORKER;

const PROCESSES: usize = 16;
const ITEMS: u64 = 10_000;
const QUEUE: &str = "crowd";
/// How long the processes may take for all items.
const LIMIT: Duration = Duration::from_secs(300);
/// The time between two kills or pauses, at the most.
const PACE: Duration = Duration::from_millis(400);
/// The longest pause: long enough that the process loses its session.
const PAUSE: Duration = Duration::from_secs(5);
/// How often it is looked whether a pause is over.
const LOOK: Duration = Duration::from_millis(5);
/// The number of the queue in the history.
const OBJECT: u32 = 1;

/// The processes of a run.
struct Crowd<'a> {
    backend: Backend,
    site: &'a Site,
    history: &'a Path,
    writer: Writer,
    workers: Vec<(u32, Worker)>,
    /// The processes that are paused, and until when.
    paused: Vec<(u32, Instant)>,
    started: u32,
}

impl Crowd<'_> {
    fn note(&self, client: u32, event: Event) {
        let record = Record { at: now(), client, attempt: 0, object: OBJECT, event };
        self.writer.append(&record).expect("the history is writable");
    }

    fn work(&self, call: u64, item: u64, what: Work) {
        self.note(0, Event::Work { call, item, token: 0, what });
    }

    fn start(&mut self) {
        self.started += 1;
        let worker = Worker::start(&self.site.worker, &self.site.url, &[]);
        let member = format!("process-{}", self.started);
        let heartbeat = self.site.heartbeat.as_millis() as u64;
        let mut connect =
            json!({ "command": "connect", "member": member, "heartbeat_ms": heartbeat });
        if let Some(ttl) = self.site.ttl {
            connect["ttl_ms"] = json!(ttl.as_millis() as u64);
        }
        worker.call(connect);
        worker.send(json!({
            "command": "work_through", "queue": QUEUE, "client": self.started,
            "history": self.history.display().to_string(),
        }));
        self.workers.push((self.started, worker));
    }

    fn kill(&mut self, index: usize) {
        let (client, worker) = self.workers.swap_remove(index);
        self.paused.retain(|(paused, _)| *paused != client);
        worker.kill();
        self.note(client, Event::Crash);
    }

    /// Pauses a process, unless it is paused already.
    fn pause(&mut self, index: usize, length: Duration) {
        let (client, worker) = &self.workers[index];
        if self.paused.iter().all(|(paused, _)| paused != client) {
            self.note(*client, Event::Paused);
            worker.pause();
            self.paused.push((*client, Instant::now() + length));
        }
    }

    /// Resumes the processes whose pause is over.
    fn resume(&mut self) {
        let now = Instant::now();
        let over: Vec<_> = self.paused.extract_if(.., |(_, until)| *until <= now).collect();
        for (client, worker) in &self.workers {
            if over.iter().any(|(paused, _)| paused == client) {
                worker.resume();
                self.note(*client, Event::Resumed);
            }
        }
    }

    /// How many items are left.
    ///
    /// On files, a process that is stopped in its turn keeps all others out until it goes on, which no store on the locks of files
    /// can help. So processes whose pause is over go on while this waits, and it asks again after an outage that a pause may explain.
    /// None begins meanwhile: once nobody is paused any more, the answer has to come.
    fn left(&mut self, runtime: &Runtime, queue: &WorkQueue) -> u64 {
        loop {
            let is_excused = self.backend == Backend::File && !self.paused.is_empty();
            let asked = queue.clone();
            let asking = runtime.spawn(async move { asked.stats().await });
            while !asking.is_finished() {
                self.resume();
                thread::sleep(LOOK);
            }
            match runtime.block_on(asking).expect("no panic") {
                Ok(stats) => return stats.total(),
                Err(error) if is_excused && error.is_transient() => {}
                Err(error) => panic!("the store is there: {error}"),
            }
        }
    }

    async fn post(&self, queue: &WorkQueue) {
        for first in (1..=ITEMS).step_by(1_000) {
            let numbers: Vec<_> = (first..=ITEMS).take(1_000).collect();
            let call = now();
            numbers.iter().for_each(|item| self.work(call, *item, Work::Posting));
            let items: Vec<_> =
                numbers.iter().map(|item| NewItem::new(item.to_le_bytes().to_vec())).collect();
            queue.post(&items).await.expect("the store is there");
            numbers.iter().for_each(|item| self.work(call, *item, Work::Posted));
        }
    }
}

fn ten_thousand_items(backend: Backend) {
    let site = Site::start(backend, 1, WORKER);
    let scratch = Scratch::new("work-crowd");
    let history = scratch.join("history");
    let writer = Writer::open(&history).expect("the scratch directory is ours");
    let mut crowd = Crowd {
        backend,
        site: &site,
        history: &history,
        writer,
        workers: Vec::new(),
        paused: Vec::new(),
        started: 0,
    };
    let mut rng = StdRng::seed_from_u64(seed("work crowd"));
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let coordinator = runtime.block_on(Coordinator::connect(&site.url)).expect("it is there");
    let queue = coordinator.queue(QUEUE).expect("a good name");
    runtime.block_on(crowd.post(&queue));
    (0..PROCESSES).for_each(|_| crowd.start());
    let (begun, mut kills, mut pauses) = (Instant::now(), 0_u64, 0_u64);
    loop {
        let left = crowd.left(&runtime, &queue);
        if left == 0 {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "{left} items are left after {LIMIT:?}");
        thread::sleep(PACE.mul_f64(rng.random_range(0.2..1.0)));
        crowd.resume();
        let victim = rng.random_range(0..crowd.workers.len());
        match rng.random_range(0..4) {
            0 => {
                crowd.pause(victim, PAUSE.mul_f64(rng.random_range(0.02..1.0)));
                pauses += 1;
            }
            _ => {
                crowd.kill(victim);
                crowd.start();
                kills += 1;
            }
        }
    }
    let took = begun.elapsed();
    // What a process had on its way may still arrive before the last one is dead.
    while !crowd.workers.is_empty() {
        crowd.kill(0);
    }
    let call = now();
    must_hold!(crowd.left(&runtime, &queue) == 0, "items have come back after the queue was empty");
    crowd.work(call, 0, Work::Emptied);
    runtime.block_on(coordinator.stop()).expect("the store is there");
    let records = read(&history).expect("whole records");
    let object = Object { id: OBJECT, name: QUEUE.to_owned(), kind: Kind::Other, fifo: false };
    let report = check(&records, &Rules::new(vec![object]));
    let table = write_table(backend, &records);
    println!(
        "{}: {ITEMS} items in {:.1} s by {PROCESSES} processes, {kills} kills and {pauses} pauses: {} claims with {} items, \
         {} acknowledged; every item's history: {}",
        backend.name(),
        took.as_secs_f64(),
        report.claims,
        report.handed_out,
        report.acked,
        table.display()
    );
    must_hold!(report.is_clean(), "{report}");
    // Acknowledgements of killed processes took effect without a record.
    assert!(
        report.acked > ITEMS.saturating_sub(16 * kills) && kills + pauses >= 5,
        "too little happened"
    );
    let moved = claimed_twice(&records) as u64;
    assert!(moved >= kills / 4, "few processes were killed with an item: {moved} had two claims");
}

/// Counts the items that were handed out to more than one claim.
fn claimed_twice(records: &[Record]) -> usize {
    let mut claims = BTreeMap::<u64, BTreeSet<u64>>::new();
    for record in records {
        if let Event::Work { item, token, what: Work::Claimed, .. } = record.event {
            claims.entry(item).or_default().insert(token);
        }
    }
    claims.values().filter(|tokens| tokens.len() > 1).count()
}

/// Writes a line for each item: when it was posted, which claims had it, and which of them acknowledged it.
fn write_table(backend: Backend, records: &[Record]) -> PathBuf {
    let mut items = BTreeMap::<u64, BTreeSet<(u64, String)>>::new();
    let begun = records.iter().map(|record| record.at).min().unwrap_or_default();
    for record in records {
        let Event::Work { item, token, what, .. } = record.event else { continue };
        if !matches!(what, Work::Posting | Work::Acking | Work::Had | Work::Emptied) {
            let seconds = (record.at - begun) as f64 / 1e9;
            let text = match what {
                Work::Posted => format!("posted {seconds:.3}"),
                what => format!("{what:?} {seconds:.3} client {} token {token}", record.client),
            };
            items.entry(item).or_default().insert((record.at, text));
        }
    }
    let mut table = String::new();
    for (item, events) in items {
        let events: Vec<_> = events.into_iter().map(|(_, text)| text).collect();
        let _ = writeln!(table, "{item}\t{}", events.join("\t"));
    }
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/work");
    std::fs::create_dir_all(&directory).expect("the build directory is writable");
    let path = directory.join(format!("{}.tsv", backend.name()));
    std::fs::write(&path, table).expect("the build directory is writable");
    path
}

#[test]
fn file() {
    rerun_alone(|| ten_thousand_items(Backend::File));
}

#[cfg(feature = "etcd")]
#[test]
fn etcd() {
    rerun_alone(|| ten_thousand_items(Backend::Etcd));
}

#[cfg(feature = "redis")]
#[test]
fn redis() {
    rerun_alone(|| ten_thousand_items(Backend::Redis));
}
