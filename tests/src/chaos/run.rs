//! A run consists of rounds. Each round causes faults, repairs them, lets the clients finish, looks for entries that
//! are left, and has the history checked.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use coordination::Coordinator;
use coordination_history::{Answer, Event, Operation, Record, now};
use rand::{rngs::StdRng, seq::IndexedRandom};
use tokio::runtime::Runtime;

use super::{
    Store,
    delay::Delays,
    fleet::{Book, Common, Fleet},
    installation::{self, Installation},
    nemesis::Schedule,
    operations::number,
    report::{Judge, Summary},
    resource::Resource,
    sample::Sampler,
    strike::Nemesis,
    things::{Group, NAMED, What, pace},
    turn::Recipe,
    work,
};
use crate::bounds::{self, SCHEDULING};
use crate::harness::{SchedulerLag, Scratch, wait_until};

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Chaos {
    /// The store.
    pub store: Store,
    /// How long the whole run takes, approximately.
    pub length: Duration,
    /// The seed that determines the faults.
    pub seed: u64,
    /// The number of client processes, at least four. The last two are in the spoiled group.
    pub clients: usize,
    /// The directory in which the files of failed rounds are kept.
    pub keep: PathBuf,
    /// The program that is started as a client, with the argument `client`.
    pub program: PathBuf,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What was counted.
    pub summary: Summary,
    /// Descriptions of everything that was wrong.
    pub failures: Vec<String>,
}

/// The approximate length of a round, if the run has several.
const ROUND: Duration = Duration::from_secs(60);
/// After more failures than this, the run ends.
const ENOUGH: usize = 50;
/// How long clients work without faults at the end of a round, so that the checker can see that waiters are served.
const LIVENESS: Duration = Duration::from_secs(3);

impl Chaos {
    /// Runs all rounds. Prints the progress to standard output.
    ///
    /// # Panics
    ///
    /// If servers, clients or files cannot be created.
    pub fn run(&self) -> Outcome {
        let mut actors = Actors::new(self);
        let begun = Instant::now();
        let length = if self.length < 2 * ROUND { self.length } else { ROUND };
        let mut failures = Vec::new();
        let mut seed = self.seed;
        loop {
            let (found, goes_on) = actors.round(seed, length.saturating_sub(aside(self.store)));
            actors.judge.summary.needs = actors.sampler.needs();
            let (seconds, line) = (begun.elapsed().as_secs(), actors.judge.summary.line());
            println!("{seconds:>5} s, seed {seed}: {line}");
            self.report(&actors, seed, length, found, &mut failures);
            if !goes_on || failures.len() > ENOUGH {
                return Outcome { summary: actors.judge.summary.clone(), failures };
            }
            if begun.elapsed() + length / 2 > self.length {
                break;
            }
            seed = seed.wrapping_add(1);
        }
        let found = actors.end();
        // These failures are reported as part of the last round, because its history still exists.
        self.report(&actors, seed, length, found, &mut failures);
        Outcome { summary: actors.judge.summary.clone(), failures }
    }

    /// Prints what is wrong, and keeps the files that show it. Does nothing if nothing is wrong.
    fn report(
        &self,
        actors: &Actors,
        seed: u64,
        length: Duration,
        mut found: Vec<String>,
        failures: &mut Vec<String>,
    ) {
        if !found.is_empty() {
            found.push(self.kept(actors, seed, length));
        }
        found.iter().for_each(|failure| println!("FAILED {failure}"));
        failures.append(&mut found);
    }

    /// Keeps the files of a failed round. Returns a text with the place of the files, and the command that runs the
    /// same schedule again.
    fn kept(&self, actors: &Actors, seed: u64, length: Duration) -> String {
        let directory = self.keep.join(format!("{}-{seed}", self.store.name()));
        if let Err(error) = anew(&directory) {
            return format!("nothing is kept: {}: {error}", directory.display());
        }
        let parts = [(actors.scratch.path(), "run"), (actors.installation.data(), "store")];
        let copies =
            parts.map(|(from, name)| installation::keep(from, &directory.join(name)).err());
        let again = format!(
            "cargo run -p coordination-tests{} --bin chaos -- --store {} --seconds {} --seed {seed} \
             --clients {}",
            self.store.feature(),
            self.store.name(),
            length.as_secs(),
            self.clients,
        );
        let show = "cargo run -p coordination-history --bin history";
        let place = directory.display();
        let missing: String =
            copies.into_iter().flatten().map(|error| format!("; {error}")).collect();
        let note = format!(
            "kept in {place}{missing}; `{show}` shows run/history; the same schedule: {again}"
        );
        // This file is for anybody who finds the directory without having seen the message.
        let _ = fs::write(directory.join("again"), format!("{again}\n"));
        note
    }
}

/// Creates the directory empty. If an earlier run has failed with the same seed, its files are deleted, so that nobody
/// takes them for those of this failure.
fn anew(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir_all(directory),
    }
}

/// Everything that takes part in a run.
struct Actors {
    judge: Judge,
    sampler: Sampler,
    fleet: Fleet,
    book: Arc<Book>,
    resource: Arc<Resource>,
    own: Own,
    installation: Installation,
    lag: SchedulerLag,
    delays: Delays,
    scratch: Scratch,
}

impl Actors {
    fn new(chaos: &Chaos) -> Self {
        let scratch = Scratch::new("chaos");
        let socket = scratch.join("resource");
        let resource = Resource::serve(&socket).expect("the scratch directory is ours");
        let installation = Installation::new(chaos.store, chaos.clients);
        let group = |seat| match seat + 2 < chaos.clients {
            true => Group::Judged,
            false => Group::Spoiled,
        };
        let seats =
            (0..chaos.clients).map(|seat| (group(seat), installation.url(seat, group(seat))));
        let own = Own::new(&installation);
        let book = Arc::new(Book::default());
        let common = Common {
            store: chaos.store,
            program: chaos.program.clone(),
            resource: socket,
            logs: scratch.path().to_owned(),
            seed: chaos.seed,
        };
        let fleet = Fleet::start(common, &seats.collect::<Vec<_>>(), Arc::clone(&book));
        Self {
            judge: Judge::new(chaos.store, installation.crash_release(), wait_bound(chaos)),
            sampler: Sampler::start(fleet.survivors()),
            delays: Delays::start(fleet.roster()),
            fleet,
            book,
            resource,
            own,
            installation,
            lag: SchedulerLag::start(),
            scratch,
        }
    }

    /// Runs a round whose faults take as long as `budget`. Returns what is wrong, and whether another round can follow.
    fn round(&mut self, seed: u64, budget: Duration) -> (Vec<String>, bool) {
        let path = self.scratch.join("history");
        let _ = fs::remove_file(&path);
        let writer = self.book.turn_to(&path);
        self.resource.record_to(Some(writer));
        self.lag.forget();
        self.delays.forget();
        self.judge.carry_over(&self.book);
        self.own.carry_over(&self.book);
        self.fleet.begin_round();
        let schedule = Schedule::new(seed, self.judge.store, budget);
        let nemesis = Nemesis {
            installation: &self.installation,
            fleet: &self.fleet,
            resource: &self.resource,
            book: &self.book,
            operator: &self.own,
        };
        let mut mixed = 0;
        nemesis.run(&schedule, || mixed = now());
        let mut failures = self.fleet.ended();
        failures.extend(self.installation.heal().err());
        self.book.note(0, Event::Healed);
        let healed = Instant::now();
        thread::sleep(LIVENESS);
        let scheduling = 4 * self.withheld();
        let patience = self.judge.wait_bound + scheduling + LIVENESS;
        failures.extend(self.fleet.drain(patience.saturating_sub(healed.elapsed())));
        failures.extend(self.fleet.ended());
        let goes_on = failures.is_empty();
        let bound = self.judge.crash_release + SCHEDULING + scheduling;
        self.own.remains(&self.book, bound);
        failures.extend(self.own.empty_queues(&self.book, bound));
        self.resource.record_to(None);
        self.judge.summary.tally = self.resource.tally();
        failures.extend(self.judge.judge(&path, mixed, self.withheld()));
        (failures, goes_on)
    }

    /// The longest time in this round for which the machine kept a thread waiting for a processor.
    fn withheld(&self) -> Duration {
        self.lag.worst_between(0, u64::MAX).max(self.delays.worst())
    }

    /// Stops all clients, and checks that no session is left. Returns what is wrong.
    fn end(&mut self) -> Vec<String> {
        let mut failures = self.fleet.stop();
        failures.extend(self.own.stop());
        let mut left = Vec::new();
        let bound = self.judge.crash_release + SCHEDULING + 4 * self.withheld();
        wait_until(bound, || {
            left = self.installation.sessions();
            left.is_empty()
        });
        self.judge.summary.sessions_left = left.len();
        failures.extend(left.into_iter().map(|session| format!("left at the end: {session}")));
        failures
    }
}

/// How long the part of a round takes that has no faults.
fn aside(store: Store) -> Duration {
    LIVENESS + store.recovery().div_f64(if store.has_server() { 1.0 } else { 2.0 })
}

/// L5 and L2: the longest time for which a waiter may have to wait. It includes the time until everything works again,
/// and the turns of all contenders before the waiter.
fn wait_bound(chaos: &Chaos) -> Duration {
    let tasks = Group::ALL.into_iter().flat_map(Group::things).map(|thing| thing.tasks).max();
    let ahead = u32::try_from(chaos.clients * tasks.unwrap_or_default()).unwrap_or(u32::MAX);
    // In each turn the holder also writes to the resource. Only two of a hundred holds are long, so on average a quarter
    // of the longest hold is enough for a turn.
    chaos.store.recovery() + bounds::served() + ahead * pace(chaos.store).longest / 4 + SCHEDULING
}

/// The driver's own clients. They look for entries that are left, and act as an operator.
pub(super) struct Own {
    runtime: Runtime,
    groups: Vec<(Group, Coordinator)>,
}

impl Own {
    fn new(installation: &Installation) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be built");
        let connect = |group: Group| {
            let url = installation.own_url(group);
            runtime.block_on(Coordinator::builder().member_id("driver").connect(&url))
        };
        let groups =
            Group::ALL.map(|group| (group, connect(group).expect("nothing is broken yet")));
        Self { groups: groups.into(), runtime }
    }

    /// Breaks a random lock of the group, if the store can be reached.
    pub(super) fn break_lock(&self, group: Group, rng: &mut StdRng) {
        let locks = group.things().filter(|thing| matches!(thing.what, What::Lock { .. }));
        let names: Vec<_> = locks.map(|thing| thing.name).collect();
        let own = self.groups.iter().find(|(own, _)| *own == group);
        if let (Some((_, coordinator)), Some(name)) = (own, names.choose(rng)) {
            let lock = coordinator.lock(name).expect(NAMED);
            // An error is ignored, because the store may be out of reach. If the lock was broken, its holder learns of
            // the loss from its guard.
            let _ = self.runtime.block_on(lock.break_lock());
        }
    }

    /// Counts the entries of each object until there are none or `bound` is over. Records the last count.
    fn remains(&self, book: &Book, bound: Duration) {
        let until = Instant::now() + bound;
        for (group, coordinator) in &self.groups {
            for thing in group.things() {
                let Some(recipe) = Recipe::new(coordinator, thing) else { continue };
                // If the store does not answer, entries count as left.
                let count = || self.runtime.block_on(recipe.entries()).unwrap_or(usize::MAX);
                let mut entries = usize::MAX;
                wait_until(until.saturating_duration_since(Instant::now()), || {
                    entries = count();
                    entries == 0
                });
                let event = Event::Remains { entries: entries as u64 };
                book.write(Record { at: now(), client: 0, attempt: 0, object: thing.id, event });
            }
        }
    }

    /// Claims and acknowledges what is left in work queues. Returns what is wrong.
    fn empty_queues(&self, book: &Book, bound: Duration) -> Vec<String> {
        let queues = self.groups.iter().flat_map(|(group, coordinator)| {
            let queues = group.things().filter(|thing| thing.what == What::Queue);
            queues.map(move |queue| (coordinator, queue))
        });
        let empty = |(coordinator, queue)| {
            self.runtime.block_on(work::empty(coordinator, queue, book, bound))
        };
        queues.filter_map(empty).collect()
    }

    /// Records the values and counters that the last round has left, so that the checker of the next round knows them.
    fn carry_over(&self, book: &Book) {
        for (group, coordinator) in &self.groups {
            for thing in group.things() {
                let told = self.runtime.block_on(present(coordinator, thing.name, thing.what));
                if let Some((what, answer)) = told {
                    let event = Event::Operation { call: now(), what, answer };
                    let object = thing.id;
                    book.write(Record { at: now(), client: 0, attempt: 0, object, event });
                }
            }
        }
    }

    fn stop(&mut self) -> Vec<String> {
        let groups = std::mem::take(&mut self.groups);
        let stop = |(_, coordinator): (Group, Coordinator)| {
            self.runtime.block_on(coordinator.stop()).err().map(|error| error.to_string())
        };
        groups.into_iter().filter_map(stop).collect()
    }
}

/// The present value or counter of this name, as an operation that writes it now; `None` if the object has neither.
async fn present(coordinator: &Coordinator, name: &str, what: What) -> Option<(Operation, Answer)> {
    const READ: &str = "nothing is broken between rounds";
    match what {
        What::Value => {
            let value = coordinator.value::<u32>(name).expect(NAMED);
            let found = value.read().await.expect(READ)?;
            let version = number(found.version);
            Some((Operation::Set { value: found.value }, Answer::Written { version }))
        }
        What::Counter => {
            let counter = coordinator.counter(name).expect(NAMED);
            let number = counter.read().await.expect(READ);
            Some((Operation::Add { by: number }, Answer::Number(number)))
        }
        _ => None,
    }
}

/// The default directory for the files of failed rounds.
pub fn default_keep() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/chaos")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_failure_of_a_seed_is_kept_as_the_first_was() {
        let scratch = Scratch::new("kept");
        let [from, to] = ["from", "to"].map(|name| scratch.join(name));
        fs::create_dir(&from).expect("the scratch directory is ours");
        for text in ["first", "second"] {
            fs::write(from.join("history"), text).expect("it is ours");
            anew(&to).expect("it is ours");
            installation::keep(&from, &to.join("run")).expect("`cp` is there");
            assert_eq!(fs::read_to_string(to.join("run/history")).expect("a copy"), text);
        }
        let error =
            installation::keep(&scratch.join("nowhere"), &to.join("store")).expect_err("nothing");
        assert!(error.contains("nowhere"), "{error}");
    }
}
