//! The state that all parts of a run share: the simulated world, its clients, and the records.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coordination::simulation::{Client, World, moment, nanos};
use coordination::{Cohort, Config, Coordinator, Error, ErrorKind, FencingToken, Version};
use coordination_history::{Answer, Event, Kind, Object, Operation, Record};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;

use crate::plan::Plan;
use crate::work::Ledgers;
use crate::work::cohort;
use crate::work::held::Held;
use crate::work::resize::{MOST, SIZED};
use crate::work::several::PERMITS;

/// The objects for which clients contend: the id in the history, the name, and how many clients may hold the object at
/// once.
pub(crate) const OBJECTS: [(u32, &str, Kind); 11] = [
    (1, "a", Kind::Lock),
    // The name "ab" begins with the name "a". The two locks have to be independent nevertheless.
    (2, "ab", Kind::Lock),
    (3, "pool", Kind::Slots { count: 2 }),
    (4, "gate", Kind::Slots { count: 1 }),
    (5, "lead", Kind::Leadership),
    (6, "value", Kind::Other),
    (7, "count", Kind::Other),
    (8, "wide", Kind::Slots { count: PERMITS }),
    (9, "latest", Kind::Slots { count: 1 }),
    (SIZED, "sized", Kind::Slots { count: MOST }),
    (EVERYTHING, "everything", Kind::Other),
];

/// The id of an object in the history that stands for all queues of the store together.
pub(crate) const EVERYTHING: u32 = 99;

/// A simulated process: a client of the simulated world, with its own clocks and network link, and the coordinator in
/// it.
pub(crate) struct Process {
    pub(crate) number: u32,
    pub(crate) client: Arc<Client>,
    pub(crate) coordinator: Coordinator,
    /// The tasks of the process that pass the lock "a" on among themselves.
    pub(crate) cohort: Cohort,
}

/// A guard that a task holds, on which `is_held` is called at each later grant of its object.
struct Live {
    attempt: u64,
    process: Arc<Process>,
    held: Arc<Held>,
}

/// A short operation whose call has begun and has no result yet.
struct Under {
    client: u32,
    object: u32,
    call: u64,
    what: Operation,
}

/// The state of a run.
pub(crate) struct Stage {
    pub(crate) plan: Plan,
    pub(crate) world: World,
    records: Mutex<Vec<Record>>,
    live: Mutex<BTreeMap<u32, Vec<Live>>>,
    random: Mutex<StdRng>,
    processes: Mutex<Vec<Arc<Process>>>,
    tasks: Mutex<Vec<(Arc<Process>, JoinHandle<()>)>>,
    /// The versions of the value that clients have seen, by their numbers in the history.
    versions: Mutex<BTreeMap<u64, Version>>,
    last_version: AtomicU64,
    /// Short operations that have no result yet.
    operations: Mutex<BTreeMap<u64, Under>>,
    numbers: AtomicU64,
    grants: AtomicU64,
    is_over: AtomicBool,
    /// When the store last broke a promise, that is, ended a session early or lost data; zero if it never did.
    word_broken: AtomicU64,
    has_lost_data: AtomicBool,
    /// For each recipe, a ledger of what clients did with it. The recipe's promises are checked against the ledger.
    pub(crate) ledgers: Ledgers,
    /// For each promise, how often the run would have noticed that the promise is broken.
    judged: Mutex<BTreeMap<&'static str, u64>>,
    /// Descriptions of broken promises that were found by the run itself and not by the history checker.
    broken: Mutex<Vec<String>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    pub(crate) fn new(plan: Plan) -> Arc<Self> {
        let world = World::new(plan.seed, plan.traits);
        world.set_weather(plan.weather.clone());
        // A store lists nothing, no more than one held entry, or as many as there are. This goes by the seed's number and not by its
        // plan, so that the plans of seeds stay the same.
        let longest = [None, Some(1), Some(usize::MAX), Some(usize::MAX)];
        world.set_longest_list(longest[(plan.seed % 4) as usize]);
        Arc::new(Self {
            random: Mutex::new(StdRng::seed_from_u64(plan.seed ^ 0x776f_726b)),
            plan,
            world,
            records: Mutex::default(),
            live: Mutex::default(),
            processes: Mutex::default(),
            tasks: Mutex::default(),
            versions: Mutex::default(),
            last_version: AtomicU64::new(0),
            operations: Mutex::default(),
            numbers: AtomicU64::new(0),
            grants: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            word_broken: AtomicU64::new(0),
            has_lost_data: AtomicBool::new(false),
            ledgers: Ledgers::default(),
            judged: Mutex::default(),
            broken: Mutex::default(),
        })
    }

    /// The settings of a coordinator that has this member id.
    pub(crate) fn config(&self, member: String) -> Config {
        Coordinator::builder().member_id(member).ttl(self.plan.ttl).into()
    }

    /// Starts another process and connects its coordinator; retries until the connection succeeds.
    pub(crate) async fn start(&self) -> Arc<Process> {
        let number = self.number() as u32;
        let client = self.world.client(self.plan.clocks(&mut lock(&self.random)));
        let config = self.config(format!("process-{number}"));
        loop {
            match client.connect(config.clone()).await {
                Ok(coordinator) => {
                    let cohort = cohort::of(&coordinator);
                    let process = Arc::new(Process { number, client, coordinator, cohort });
                    lock(&self.processes).push(Arc::clone(&process));
                    return process;
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// The living processes.
    pub(crate) fn processes(&self) -> Vec<Arc<Process>> {
        lock(&self.processes).clone()
    }

    /// Keeps the task of a process, so that the run can wait for the task's end when the run is over.
    pub(crate) fn expect(&self, process: &Arc<Process>, task: JoinHandle<()>) {
        lock(&self.tasks).push((Arc::clone(process), task));
    }

    pub(crate) fn take_tasks(&self) -> Vec<(Arc<Process>, JoinHandle<()>)> {
        std::mem::take(&mut lock(&self.tasks))
    }

    /// Takes a process that was killed out of the run: out of the list of processes, out of the holders, and out of the
    /// operations that have no result yet. The results of these operations are recorded as unknown.
    pub(crate) fn remove(&self, number: u32) {
        lock(&self.processes).retain(|process| process.number != number);
        let of_it = |under: &Under| under.client == number;
        let under: Vec<_> = lock(&self.operations)
            .iter()
            .filter_map(|(number, under)| of_it(under).then_some(*number))
            .collect();
        under.into_iter().for_each(|number| self.ends(number, Answer::Unknown));
        lock(&self.live)
            .values_mut()
            .for_each(|live| live.retain(|live| live.process.number != number));
    }

    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut lock(&self.random))
    }

    /// A random time between zero and `longest`.
    pub(crate) fn up_to(&self, longest: Duration) -> Duration {
        let longest = longest.as_millis() as u64;
        Duration::from_millis(self.draw(|random| random.random_range(0..=longest)))
    }

    /// A number that is unique in the run.
    pub(crate) fn number(&self) -> u64 {
        1 + self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn record(&self, client: u32, object: u32, attempt: u64, event: Event) {
        let record = Record { at: moment(), client, attempt, object, event };
        lock(&self.records).push(record);
    }

    /// Records a new grant. Then calls `is_held` on all guards of the object that were granted earlier, which shows at
    /// once whether two clients hold it.
    pub(crate) fn granted(
        &self,
        process: &Arc<Process>,
        object: u32,
        attempt: u64,
        held: &Arc<Held>,
    ) {
        self.grants.fetch_add(1, Ordering::Relaxed);
        let event = Event::Granted { token: held.recorded(), slot: held.slot() };
        self.record(process.number, object, attempt, event);
        let mut live = lock(&self.live);
        let live = live.entry(object).or_default();
        for other in &*live {
            self.ask(object, other);
        }
        live.push(Live { attempt, process: Arc::clone(process), held: Arc::clone(held) });
    }

    fn ask(&self, object: u32, live: &Live) {
        let before = moment();
        // `is_held` is called within the holder's process, so that it uses that process's clock.
        let held = live.process.client.enter(|| live.held.is_held());
        self.record(live.process.number, object, live.attempt, Event::Probe { before, held });
    }

    /// The attempt that has this lock exclusively at this moment according to its own guard, if there is one.
    pub(crate) fn who_excludes(&self, object: u32) -> Option<u64> {
        let live = lock(&self.live);
        let excludes = |live: &&Live| {
            live.held.excludes() && live.process.client.enter(|| live.held.is_held())
        };
        live.get(&object)?.iter().find(excludes).map(|live| live.attempt)
    }

    /// The tokens of all guards of this object that say at this moment that they are held.
    pub(crate) fn who_holds(&self, object: u32) -> Vec<FencingToken> {
        let live = lock(&self.live);
        let holding = live.get(&object).into_iter().flatten();
        let holding = holding.filter(|live| live.process.client.enter(|| live.held.is_held()));
        holding.map(|live| live.held.token()).collect()
    }

    /// Removes a guard from those on which `is_held` is called at each later grant.
    pub(crate) fn forget(&self, object: u32, attempt: u64) {
        if let Some(live) = lock(&self.live).get_mut(&object) {
            live.retain(|live| live.attempt != attempt);
        }
    }

    /// The number of the version that any client saw last; zero if the value did not exist when a client looked last.
    pub(crate) fn last_version(&self) -> u64 {
        self.last_version.load(Ordering::Relaxed)
    }

    pub(crate) fn version(&self, number: u64) -> Option<Version> {
        lock(&self.versions).get(&number).copied()
    }

    pub(crate) fn saw_version(&self, number: u64, version: Option<Version>) {
        self.last_version.store(number, Ordering::Relaxed);
        lock(&self.versions).extend(version.map(|version| (number, version)));
    }

    /// Records that a short operation begins; returns the operation's number.
    pub(crate) fn begins(&self, process: &Process, object: u32, what: Operation) -> u64 {
        let number = self.number();
        let under = Under { client: process.number, object, call: moment(), what };
        lock(&self.operations).insert(number, under);
        number
    }

    /// Records the result of a short operation.
    pub(crate) fn ends(&self, number: u64, answer: Answer) {
        let Some(Under { client, object, call, what }) = lock(&self.operations).remove(&number)
        else {
            return;
        };
        // Once the store has lost data, the results of operations prove nothing, because an earlier operation may have
        // seen the lost data.
        let answer = if self.has_all_data() { answer } else { Answer::Unknown };
        self.record(client, object, 0, Event::Operation { call, what, answer });
    }

    pub(crate) fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Records that the store now breaks a promise: it ends a session early, or loses its data.
    pub(crate) fn breaks_word(&self, loses_data: bool) {
        self.word_broken.store(nanos().max(1), Ordering::Relaxed);
        self.has_lost_data.fetch_or(loses_data, Ordering::Relaxed);
    }

    /// Whether a guard that was granted at `since` is really held for as long as its `is_held` says so. This is not
    /// certain if the store has broken a promise after `since`, or less than two lease times before `since`. In the
    /// second case some client may still have relied on an older reply at `since`.
    pub(crate) fn is_sound(&self, since: u64) -> bool {
        let broken = self.word_broken.load(Ordering::Relaxed);
        broken == 0 || broken + 2 * (self.plan.ttl.as_nanos() as u64) < since
    }

    /// Whether the store still has everything that was written to it.
    pub(crate) fn has_all_data(&self) -> bool {
        !self.has_lost_data.load(Ordering::Relaxed)
    }

    /// Counts one real test of a promise, that is, a moment at which a wrong result would have been noticed. If a run
    /// has no such moment for a promise, the run does not prove the promise.
    pub(crate) fn judges(&self, promise: &'static str) {
        *lock(&self.judged).entry(promise).or_default() += 1;
    }

    pub(crate) fn take_judged(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut lock(&self.judged))
    }

    /// Reports the error of a call as a broken promise, unless the simulated faults can cause an error of this kind.
    pub(crate) fn failed(&self, what: &str, error: &Error) {
        let may_be = matches!(
            error.kind(),
            ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Lost | ErrorKind::Closed
        );
        if !may_be {
            self.broken(format!("X1: {what}: {error}"));
        }
    }

    /// Reports the error of a call without a timeout. Such a call has to wait until the store is back, so it must not
    /// fail because the store does not reply.
    pub(crate) fn failed_without_limit(&self, what: &str, error: &Error) {
        match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Timeout => {
                self.broken(format!("L5: {what} has no limit of time, and said: {error}"));
            }
            _ => self.failed(what, error),
        }
    }

    /// Reports a broken promise that was found by the run itself and not by the history checker.
    pub(crate) fn broken(&self, text: String) {
        lock(&self.broken).push(format!("{} ms: {text}", nanos() / 1_000_000));
    }

    pub(crate) fn take_records(&self) -> Vec<Record> {
        std::mem::take(&mut lock(&self.records))
    }

    pub(crate) fn take_broken(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.broken))
    }

    /// The objects, as the history checker needs them.
    pub(crate) fn objects() -> Vec<Object> {
        let objects = OBJECTS.iter().map(|(id, name, kind)| Object {
            id: *id,
            name: (*name).to_owned(),
            kind: *kind,
            fifo: matches!(kind, Kind::Lock | Kind::Leadership),
        });
        objects.collect()
    }
}
