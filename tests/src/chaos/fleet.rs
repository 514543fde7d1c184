//! The client processes. This module starts, pauses, kills and replaces them.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use coordination_history::{Event, Record, Writer, now};
use serde_json::json;

use super::{
    Store,
    delay::{Roster, lock},
    things::Group,
};
use crate::harness::{Launch, Worker, worker::URL};

/// The history of the present round, as the driver writes to it: when clients are killed, and what the nemesis does.
#[derive(Debug, Default)]
pub(super) struct Book {
    page: Mutex<Option<(PathBuf, Arc<Writer>)>>,
}

impl Book {
    /// Begins the history of a new round in the file `path`. Further records go there.
    pub(super) fn turn_to(&self, path: &Path) -> Arc<Writer> {
        let writer = Arc::new(Writer::open(path).expect("the scratch directory is ours"));
        *lock(&self.page) = Some((path.to_owned(), Arc::clone(&writer)));
        writer
    }

    /// The path of the present round's history; `None` before the first round.
    fn path(&self) -> Option<PathBuf> {
        lock(&self.page).as_ref().map(|(path, _)| path.clone())
    }

    pub(super) fn note(&self, client: u32, event: Event) {
        self.write(Record { at: now(), client, attempt: 0, object: 0, event });
    }

    pub(super) fn write(&self, record: Record) {
        if let Some((_, writer)) = &*lock(&self.page) {
            writer.append(&record).expect("the history is writable");
        }
    }
}

/// The parameters that all clients of a run share.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) store: Store,
    pub(super) program: PathBuf,
    pub(super) resource: PathBuf,
    pub(super) logs: PathBuf,
    pub(super) seed: u64,
}

/// A place for one client process at a time. If the process is killed, another one takes the place.
#[derive(Debug)]
struct Seat {
    group: Group,
    url: String,
    /// Whether the clients in this place are never killed, so that the growth of their memory can be measured.
    survives: bool,
    present: Mutex<Present>,
}

#[derive(Debug)]
struct Present {
    worker: Worker,
    number: u32,
    /// The id of the command by which the client joins the round; `None` once its answer has been read.
    joining: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Fleet {
    common: Common,
    seats: Vec<Seat>,
    numbers: AtomicU32,
    book: Arc<Book>,
    roster: Roster,
    held_up: Mutex<HeldUp>,
    /// The errors of clients that could not join the round and were killed later.
    refusals: Mutex<Vec<String>>,
}

/// Whether faults keep some clients from running, because the clients are paused or get no processor.
#[derive(Debug)]
struct HeldUp {
    /// How many such faults there are at this moment.
    causes: usize,
    /// When the last such fault has ended.
    ended: Instant,
}

impl Fleet {
    /// Starts a client for each URL, in the group that is given with it. The first and the last client are never
    /// killed.
    pub(super) fn start(common: Common, urls: &[(Group, String)], book: Arc<Book>) -> Self {
        let (numbers, roster) = (AtomicU32::new(0), Roster::default());
        let held_up = Mutex::new(HeldUp { causes: 0, ended: Instant::now() });
        let (seats, refusals) = (Vec::new(), Mutex::default());
        let mut fleet = Self { common, seats, numbers, book, roster, held_up, refusals };
        for (index, (group, url)) in urls.iter().enumerate() {
            let survives = index == 0 || index + 1 == urls.len();
            let present = Mutex::new(fleet.begin(*group, url));
            fleet.seats.push(Seat { group: *group, url: url.clone(), survives, present });
        }
        fleet
    }

    fn begin(&self, group: Group, url: &str) -> Present {
        let number = self.numbers.fetch_add(1, Ordering::SeqCst) + 1;
        let log = self.common.logs.join(format!("client-{number}.log"));
        let launch = Launch::new(&self.common.program, log).args(["client"]).env(URL, url);
        let worker = Worker::launch(launch);
        lock(&self.roster).push(worker.child().id());
        worker.send(json!({
            "command": "begin",
            "member": format!("client-{number}"),
            "client": number,
            "group": group.name(),
            "store": self.common.store.name(),
            "resource": self.common.resource,
            "seed": self.common.seed.wrapping_mul(1_000).wrapping_add(u64::from(number)),
        }));
        Present { worker, number, joining: None }
    }

    /// Starts a new client in the seat of a killed one, and makes it join the present round.
    pub(super) fn replace(&self, seat: usize) {
        let Seat { group, url, present, .. } = &self.seats[seat];
        *lock(present) = self.begin(*group, url);
        self.join_round(seat);
    }

    /// Makes all clients join the present round and write to its history.
    pub(super) fn begin_round(&self) {
        (0..self.seats.len()).for_each(|seat| self.join_round(seat));
    }

    fn join_round(&self, seat: usize) {
        if let Some(history) = self.book.path() {
            let mut present = self.present(seat);
            // This does not wait for the answer, because the client may not be connected yet while the store is broken.
            let order = present.worker.send(json!({ "command": "round", "history": history }));
            present.joining = Some(order);
        }
    }

    /// Makes all clients finish what they have begun, and waits at most `patience` for them to finish. Returns the
    /// errors of clients that have not finished, and of clients that could not join the round.
    pub(super) fn drain(&self, patience: Duration) -> Vec<String> {
        let mut failures = self.order("drain", patience);
        failures.append(&mut lock(&self.refusals));
        failures.extend((0..self.len()).filter_map(|seat| self.present(seat).refusal()));
        failures
    }

    /// Makes all clients close their sessions. Returns the errors.
    pub(super) fn stop(&self) -> Vec<String> {
        self.order("stop", Duration::from_secs(10))
    }

    fn order(&self, command: &str, patience: Duration) -> Vec<String> {
        let until = Instant::now() + patience;
        let orders: Vec<_> = (0..self.seats.len())
            .map(|seat| self.present(seat).worker.send(json!({ "command": command })))
            .collect();
        let mut late = Vec::new();
        for (seat, order) in orders.into_iter().enumerate() {
            let present = self.present(seat);
            let left = until.saturating_duration_since(Instant::now());
            match present.worker.receive(order, left) {
                Some(Ok(_)) => {}
                Some(Err(error)) => late.push(format!("client {}: {error}", present.number)),
                None => late.push(format!("client {} did not {command}", present.number)),
            }
        }
        late
    }

    /// Descriptions of the clients that have ended although nobody has killed them.
    pub(super) fn ended(&self) -> Vec<String> {
        let seats = (0..self.seats.len()).map(|seat| self.present(seat));
        seats
            .filter(|present| !present.worker.child().is_running())
            .map(|present| {
                let log = present.worker.child().log();
                let lines: Vec<_> = log.lines().rev().take(12).collect();
                let end: Vec<_> = lines.into_iter().rev().collect();
                format!("client {} ended by itself: {}", present.number, end.join(" | "))
            })
            .collect()
    }

    pub(super) fn len(&self) -> usize {
        self.seats.len()
    }

    pub(super) fn survives(&self, seat: usize) -> bool {
        self.seats[seat].survives
    }

    /// The seat in which the client with this number is, if it is in any.
    pub(super) fn seat_of(&self, number: u32) -> Option<usize> {
        (0..self.seats.len()).find(|seat| self.present(*seat).number == number)
    }

    /// The process ids of all running clients, for the measurement of delays.
    pub(super) fn roster(&self) -> Roster {
        Arc::clone(&self.roster)
    }

    /// The process ids of the clients that are never killed.
    pub(super) fn survivors(&self) -> Vec<u32> {
        let seats = (0..self.seats.len()).filter(|seat| self.survives(*seat));
        seats.map(|seat| self.present(seat).worker.child().id()).collect()
    }

    /// Kills a client. Its seat stays without a client until [`replace`](Self::replace).
    pub(super) fn kill(&self, seat: usize) {
        let mut present = self.present(seat);
        lock(&self.roster).retain(|process| *process != present.worker.child().id());
        present.worker.kill();
        self.book.note(present.number, Event::Crash);
        lock(&self.refusals).extend(present.refusal());
    }

    /// Pauses the clients in these seats for this long.
    ///
    /// On `file`, a client that is paused while it holds a `flock` delays all other clients, as the documentation says.
    /// So there all clients count as paused, and nothing that they do during the pause counts as late.
    pub(super) fn pause(&self, seats: &[usize], length: Duration) {
        let affected: Vec<usize> = match self.common.store.has_server() {
            false => (0..self.len()).collect(),
            true => seats.to_vec(),
        };
        self.held_up(&affected, || {
            let resumed = Finally(|| {
                seats.iter().for_each(|seat| self.present(*seat).worker.resume());
            });
            seats.iter().for_each(|seat| self.present(*seat).worker.pause());
            thread::sleep(length);
            drop(resumed);
        });
    }

    /// Runs `cause`, which keeps the clients in these seats from running, and records that they could not run while it
    /// ran.
    pub(super) fn held_up(&self, seats: &[usize], cause: impl FnOnce()) {
        let numbers: Vec<_> = seats.iter().map(|seat| self.present(*seat).number).collect();
        numbers.iter().for_each(|number| self.book.note(*number, Event::Paused));
        lock(&self.held_up).causes += 1;
        // The count goes down even if `cause` panics. If it stayed up, threads that wait until all clients can run
        // would wait for ever.
        let over = Finally(|| {
            let mut held_up = lock(&self.held_up);
            (held_up.causes, held_up.ended) = (held_up.causes - 1, Instant::now());
        });
        cause();
        drop(over);
        numbers.iter().for_each(|number| self.book.note(*number, Event::Resumed));
    }

    /// Waits until all clients have been able to run for this long without a break, so that they notice the last fault.
    pub(super) fn runs_for(&self, length: Duration) {
        let begun = Instant::now();
        let runs = || {
            let held_up = lock(&self.held_up);
            held_up.causes == 0 && held_up.ended.max(begun).elapsed() >= length
        };
        while !runs() {
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn present(&self, seat: usize) -> MutexGuard<'_, Present> {
        lock(&self.seats[seat].present)
    }
}

/// Calls the function when this value is dropped, even if that is because of a panic.
struct Finally<F: Fn()>(F);

impl<F: Fn()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Present {
    /// The error with which the client refused to join the round. `None` if the client has not answered: it was killed
    /// before it answered, or it is still busy with an earlier command, because it carries out its commands one after
    /// the other.
    fn refusal(&mut self) -> Option<String> {
        // If the process has ended, everything that it has answered is here or arrives at once. So it is enough to wait
        // for a second.
        let answer = self.worker.receive(self.joining.take()?, Duration::from_secs(1))?;
        let error = answer.err()?;
        Some(format!("client {} did not join the round: {error}", self.number))
    }
}
