//! Decides what a failure of a check means: the test fails, the check is run again, or it is reported as unstable.
//!
//! * If the failure is a [violation](super::violation), the test fails at once, and the check is not repeated.
//! * A machine that withholds processor time delays everything. What it withheld ([`SchedulerLag`]) is added to the
//!   bounds of a check, but only up to a limit. A machine that withholds more is *starved*: answers come after their
//!   timeouts and leases expire, although nothing is wrong with the library. So a failure on a starved machine proves
//!   nothing. The check runs again from the beginning, with no other check at the same time, until the machine is not
//!   starved. After [a few](STARVED) attempts the test fails.
//! * If a check fails in any other way, for instance because it exceeded a bound in time or a server did not start, it
//!   runs [twice more](AGAIN), with no other check at the same time. If it fails in one of these two runs, the test
//!   fails. If it passes both, the check is *unstable*.
//!
//! An unstable check does not fail the test, but somebody has to find the cause later. So it is printed, and added to
//! the list that `COORDINATION_TEST_UNSTABLE` names. Its first failure is written to a file in `target/unstable`; that of
//! a check on a starved machine, to one in `target/starved`.
//! `tests/run` allows ten unstable checks in one run.

use std::cell::Cell;
use std::fmt::Debug;
use std::fs::File;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::scheduler_lag::{SchedulerLag, Withheld, processors};
use super::violation::{Account, is_of_time, is_violation, keep_accounts};
use super::{netns, once_more};

/// How many attempts a check gets while the machine is starved. No other check runs at the same time.
const STARVED: usize = 3;
/// How often a check has to pass after a failure that may be a matter of time. No other check runs at the same time.
const AGAIN: usize = 2;
/// The machine is starved if, on average, at least this number of threads want each processor. A thread that only
/// computes then gets a quarter of the time that it needs. For comparison: with twenty processes that only compute, on
/// two processors, the number is ten.
const CROWD: f64 = 4.0;
/// The machine is also starved if it withholds this part of the time, a fifth, even from a thread that only wants to
/// wake up. With the twenty processes above, it withholds half.
const SHARE: u32 = 5;
/// [`SHARE`] applies only if at least this much was withheld in sum, because in a short check a fifth is very little.
const ENOUGH: Duration = Duration::from_millis(100);
/// The machine is also starved if it lets no thread run for this long at a time. With the shortest leases of the tests,
/// a heartbeat may take twice as long.
const STALL: Duration = Duration::from_millis(150);

/// The result of a check.
pub trait Outcome {
    /// Why the check failed; `None` if it passed.
    fn fault(&self) -> Option<String>;
}

impl Outcome for () {
    fn fault(&self) -> Option<String> {
        None
    }
}

impl<E: Debug> Outcome for Result<(), E> {
    fn fault(&self) -> Option<String> {
        self.as_ref().err().map(|error| format!("{error:?}"))
    }
}

/// Runs a check. If it fails without a violation, runs it again, with no other check at the same time. The check has to
/// start everything that it needs itself.
///
/// # Panics
///
/// If the check has failed, by the rules at the head of this module.
pub fn rerun_if_starved<T: Outcome>(check: impl Fn() -> T) -> T {
    on_this_machine(&check, false)
}

/// Runs a check that takes so much of the machine that no other check can run at the same time. So its first run is
/// alone too, and not only its repeated runs.
///
/// # Panics
///
/// If the check has failed, by the rules at the head of this module.
pub fn rerun_alone<T: Outcome>(check: impl Fn() -> T) -> T {
    on_this_machine(&check, true)
}

fn on_this_machine<T: Outcome>(check: &dyn Fn() -> T, is_alone: bool) -> T {
    // A check in a network namespace, or with an environment of its own, runs in a child process, which executes the same test
    // again. In the child this function only runs the check, because the parent process decides whether to repeat it.
    if netns::is_inside() || once_more::is_inside() {
        return check();
    }
    let _judged = Judged::begin();
    keep_accounts();
    let machine =
        Machine { lock: lock_file(), withheld: SchedulerLag::withheld, tell: Failure::tell };
    machine.judge(&name(), check, is_alone)
}

/// [`rerun_if_starved`] for an async check.
///
/// # Panics
///
/// If the check has failed, by the rules at the head of this module.
pub fn rerun_on_threads<T: Outcome>(check: impl AsyncFn() -> T) -> T {
    rerun_if_starved(|| on_threads(check()))
}

/// Runs `future` on a runtime with threads of its own. When the future has ended or panicked, waits at most a second
/// for the threads: after a panic they may wait for something that never comes.
///
/// # Panics
///
/// If the future panics.
pub fn on_threads<T>(future: impl Future<Output = T>) -> T {
    struct Threads(Option<Runtime>);
    impl Drop for Threads {
        fn drop(&mut self) {
            let runtime = self.0.take().expect("nobody else takes it");
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let threads = Threads(Some(runtime.expect("a runtime")));
    threads.0.as_ref().expect("it is taken at the end").block_on(future)
}

/// Marks that this thread runs a check. Panics if the thread already runs one: if the inner check needed [the
/// lock](turn) exclusively, it would wait for ever for the outer check.
struct Judged;

thread_local! {
    static IS_JUDGED: Cell<bool> = const { Cell::new(false) };
}

impl Judged {
    fn begin() -> Self {
        assert!(!IS_JUDGED.replace(true), "a check within a check would wait for itself");
        Self
    }
}

impl Drop for Judged {
    fn drop(&mut self) {
        IS_JUDGED.set(false);
    }
}

/// The name of the test program and of the test.
fn name() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    // Cargo appends a hash to the program's name.
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    format!("{program} {}", thread::current().name().unwrap_or_default())
}

/// The path of the lock file. It is next to the test programs, so that all test programs of one target directory share
/// it.
fn lock_file() -> PathBuf {
    std::env::current_exe().expect("a test runs").with_file_name("coordination-checks.lock")
}

/// How checks are run on this machine. In unit tests the functions are replaced.
struct Machine {
    /// A file that each check locks while it runs. The lock is shared, or exclusive if no other check may run at the
    /// same time.
    lock: PathBuf,
    withheld: fn(&SchedulerLag) -> Withheld,
    tell: fn(&Failure, &str, &str),
}

impl Machine {
    fn judge<T: Outcome>(&self, name: &str, check: &dyn Fn() -> T, is_alone: bool) -> T {
        let first = match self.attempt(check, is_alone) {
            Ok(outcome) => return outcome,
            Err(failure) => failure,
        };
        if first.kind == Kind::Violation {
            first.end(name, None);
        }
        (self.tell)(&first, name, first.kind.word());
        let again = || self.alone(name, check).unwrap_or_else(|last| last.end(name, Some(&first)));
        if first.kind == Kind::Starved {
            return again();
        }
        for _ in 1..AGAIN {
            again();
        }
        let outcome = again();
        (self.tell)(&first, name, UNSTABLE);
        outcome
    }

    /// Runs the check with no other check at the same time. As long as the machine is starved, repeats it, up to
    /// [`STARVED`] runs in all.
    fn alone<T: Outcome>(&self, name: &str, check: &dyn Fn() -> T) -> Result<T, Failure> {
        let mut attempt = self.attempt(check, true);
        for _ in 1..STARVED {
            match &attempt {
                Err(failure) if failure.kind == Kind::Starved => {
                    (self.tell)(failure, name, failure.kind.word());
                }
                _ => break,
            }
            attempt = self.attempt(check, true);
        }
        attempt
    }

    /// Runs the check once.
    fn attempt<T: Outcome>(&self, check: &dyn Fn() -> T, is_alone: bool) -> Result<T, Failure> {
        // A thread must never acquire this file lock while it holds it already, because it would wait for ever for
        // itself. `Judged` makes sure of that.
        let _turn = turn(&self.lock, is_alone);
        let lag = SchedulerLag::start();
        drop(Account::take());
        let outcome = catch_unwind(AssertUnwindSafe(check));
        let withheld = (self.withheld)(&lag);
        let fault = match outcome {
            Ok(outcome) => match outcome.fault() {
                None => return Ok(outcome),
                Some(fault) => fault,
            },
            Err(panic) => said(&*panic),
        };
        Err(Failure::new(fault, Account::take().as_ref(), withheld))
    }
}

/// Waits until a check may run, by locking this file: exclusively if no other check may run at the same time. The lock
/// is released when the returned file is dropped.
fn turn(lock: &Path, is_alone: bool) -> File {
    let file = File::options().create(true).append(true).open(lock);
    let file = file.expect("there is room beside the tests");
    let locked = if is_alone { file.lock() } else { file.lock_shared() };
    locked.expect("a file can be locked");
    file
}

impl Withheld {
    fn is_starvation(&self) -> bool {
        let is_share = self.total >= ENOUGH && self.total >= self.of / SHARE;
        is_share || self.worst >= STALL || self.running >= CROWD * processors()
    }
}

/// Why a check has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The library has broken a promise.
    Violation,
    /// The machine was starved, so the failure proves nothing.
    Starved,
    /// Any other failure, probably because something took too long.
    Time,
}

/// The word before the name of an unstable check in the output.
const UNSTABLE: &str = "unstable";

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Violation => "violation",
            Self::Starved => "starved",
            Self::Time => "failed once",
        }
    }
}

/// A failed run of a check.
struct Failure {
    kind: Kind,
    fault: String,
    /// The panic with its backtrace, if it was on the check's own thread; otherwise the same as `fault`.
    account: String,
    withheld: Withheld,
}

impl Failure {
    fn new(fault: String, account: Option<&Account>, withheld: Withheld) -> Self {
        let is_starved = withheld.is_starvation();
        let kind = match () {
            () if is_starved && is_of_time(&fault) => Kind::Starved,
            () if is_violation(&fault, account) => Kind::Violation,
            () if is_starved => Kind::Starved,
            () => Kind::Time,
        };
        let account = account.map_or_else(|| fault.clone(), |account| account.text.clone());
        Self { kind, fault, account, withheld }
    }

    /// Prints the failure directly to stderr, because Rust's test harness shows captured output only for tests that
    /// fail in the end. The text begins with a line break, because the harness may have printed dots on the same line.
    fn tell(&self, name: &str, word: &str) {
        let Self { withheld, fault, .. } = self;
        let fault = one_line(fault);
        let line = format!("\n{word}: {name}: {withheld} ({fault:.200})\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        if self.kind == Kind::Starved {
            note("COORDINATION_TEST_STARVED", &format!("{name}\t{withheld}\n"));
            self.keep_beside("COORDINATION_TEST_STARVED", "starved", name);
        }
        if word == UNSTABLE {
            note("COORDINATION_TEST_UNSTABLE", &format!("{name}\t{fault:.200}\n"));
            self.keep_beside("COORDINATION_TEST_UNSTABLE", "unstable", name);
        }
    }

    /// [Keeps](Self::keep) the failure in this folder beside the list that the environment variable `list` names. Does
    /// nothing if the variable is not set.
    fn keep_beside(&self, list: &str, folder: &str, name: &str) {
        if let Some(list) = std::env::var_os(list) {
            self.keep(&Path::new(&list).with_file_name(folder), name);
        }
    }

    /// Writes the failure with its backtrace to a file in this folder.
    fn keep(&self, folder: &Path, name: &str) {
        let text = format!("{name}\n{}\n{}\n", self.withheld, self.account);
        let path = folder.join(format!("{}.log", name.replace([' ', ':'], "_")));
        let kept = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(path, text));
        kept.expect("there is room beside the tests");
    }

    /// Ends the test with this failure. If this is the failure of a repeated run, `first` is the failure of the first
    /// run.
    fn end(&self, name: &str, first: Option<&Self>) -> ! {
        let Self { kind, fault, withheld, .. } = self;
        let before = first.map(|first| format!("; the first time: {}", first.fault));
        let why = format!("{}: {fault}{} ({withheld})", kind.word(), before.unwrap_or_default());
        note("COORDINATION_TEST_FAILED", &format!("{name}\t{:.300}\n", one_line(&why)));
        panic!("{why}")
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\t'], "; ")
}

/// Counts one fault that a test causes, for the table that `tests/soak` prints.
pub(super) fn count_fault() {
    note("COORDINATION_TEST_FAULTS", "fault\n");
}

/// Appends a line to the file whose path is in this environment variable. Does nothing if the variable is not set.
pub(crate) fn note(variable: &str, line: &str) {
    if let Some(path) = std::env::var_os(variable) {
        let file = File::options().create(true).append(true).open(path);
        // The line is written by one call, because several test processes may append to the file at the same time.
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list can be written");
    }
}

/// The message of a panic.
pub(super) fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Scratch;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn starved(_: &SchedulerLag) -> Withheld {
        Withheld { total: ms(2_500), worst: ms(40), of: ms(5_000), running: 3.0 }
    }

    fn calm(_: &SchedulerLag) -> Withheld {
        Withheld { total: ms(250), worst: ms(12), of: ms(5_000), running: 3.0 }
    }

    fn machine(scratch: &Scratch, withheld: fn(&SchedulerLag) -> Withheld) -> Machine {
        Machine { lock: scratch.join("lock"), withheld, tell: |_, _, _| {} }
    }

    /// Runs a check that fails with the message `text` in those runs for which `fails` is true. Returns how often the
    /// check was run, and whether it has failed in the end.
    fn runs(
        fails: impl Fn(usize) -> bool,
        text: &str,
        withheld: fn(&SchedulerLag) -> Withheld,
    ) -> (usize, Result<(), String>) {
        let scratch = Scratch::new("verdict");
        let (machine, count) = (machine(&scratch, withheld), AtomicUsize::new(0));
        let check = || assert!(!fails(count.fetch_add(1, Ordering::SeqCst)), "{text}");
        let outcome = catch_unwind(AssertUnwindSafe(|| machine.judge("check", &check, false)));
        (count.into_inner(), outcome.map_err(|panic| said(&*panic)))
    }

    #[test]
    fn what_holds_is_not_run_again() {
        assert_eq!(runs(|_| false, "", starved), (1, Ok(())));
    }

    #[test]
    fn a_violation_is_red_at_once() {
        for withheld in [calm, starved] {
            let (count, outcome) = runs(|run| run == 0, "violation: two holders", withheld);
            assert_eq!(count, 1);
            assert!(outcome.expect_err("it is red").contains("two holders"));
        }
    }

    #[test]
    fn a_violation_of_time_is_excused_on_a_starved_machine_only() {
        let text = "violation: unless the machine was starved: both ran";
        assert_eq!(runs(|run| run == 0, text, starved), (2, Ok(())));
        assert_eq!(runs(|run| run == 0, text, calm).0, 1);
        let another = format!("{text}; violation: two holders");
        assert_eq!(runs(|run| run == 0, &another, starved).0, 1);
    }

    #[test]
    fn what_seems_late_has_to_pass_twice_alone() {
        assert_eq!(runs(|run| run == 0, "late", calm), (1 + AGAIN, Ok(())));
        for again in 1..=AGAIN {
            let (count, outcome) = runs(|run| run == 0 || run == again, "late", calm);
            assert_eq!(count, 1 + again);
            let text = outcome.expect_err("it is red");
            assert!(text.starts_with("failed once: late; the first time: late"), "{text}");
        }
    }

    #[test]
    fn a_starved_check_runs_again_and_fails_in_the_end() {
        assert_eq!(runs(|run| run < 1, "a fault", starved), (2, Ok(())));
        assert_eq!(runs(|run| run < STARVED, "a fault", starved), (1 + STARVED, Ok(())));
        let (count, outcome) = runs(|_| true, "a fault", starved);
        assert_eq!(count, 1 + STARVED);
        let text = outcome.expect_err("it never held");
        assert!(text.starts_with("starved: a fault; the first time: a fault"), "{text}");
    }

    #[test]
    fn who_is_unstable_is_told_and_kept_in_full() {
        static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let scratch = Scratch::new("verdict");
        let mut machine = machine(&scratch, calm);
        machine.tell =
            |_, name, word| TOLD.lock().expect("no panic").push(format!("{word}: {name}"));
        let count = AtomicUsize::new(0);
        // The check fails in the first run and then in every third one, so both repetitions pass.
        let check = || assert!(!count.fetch_add(1, Ordering::SeqCst).is_multiple_of(3), "late");
        machine.judge("third", &check, false);
        assert_eq!(*TOLD.lock().expect("no panic"), ["failed once: third", "unstable: third"]);
        let failure = Failure::new("late".to_owned(), None, calm(&SchedulerLag::start()));
        failure.keep(&scratch.join("unstable"), "suite gate::third");
        let kept = std::fs::read_to_string(scratch.join("unstable/suite_gate__third.log"));
        assert!(kept.expect("it is kept").contains("late"));
    }

    #[test]
    fn an_error_is_a_fault_too() {
        let scratch = Scratch::new("verdict");
        let machine = machine(&scratch, starved);
        let outcomes = Mutex::new(vec![Ok(()), Err("refused")]);
        let check = || outcomes.lock().expect("no panic").pop().expect("two are enough");
        assert_eq!(machine.judge("check", &check, false), Ok(()));
    }

    #[test]
    fn a_check_within_a_check_says_so() {
        rerun_if_starved(|| {
            let within = catch_unwind(AssertUnwindSafe(|| rerun_alone(|| ())));
            let text = said(&*within.expect_err("it would wait for itself"));
            assert_eq!(text, "a check within a check would wait for itself");
        });
        rerun_if_starved(|| ());
    }

    #[test]
    fn who_panics_leaves_behind_what_blocks() {
        let (told, stays) = std::sync::mpsc::channel::<()>();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            on_threads(async {
                tokio::task::spawn_blocking(move || stays.recv());
                panic!("a fault");
            });
        }));
        assert_eq!(said(&*outcome.expect_err("it panicked")), "a fault");
        drop(told);
    }

    #[test]
    fn a_short_stall_is_no_starvation_and_a_long_one_is() {
        let stalled = |total, worst, of| Withheld {
            total: ms(total),
            worst: ms(worst),
            of: ms(of),
            running: 1.0,
        };
        assert!(!stalled(30, 30, 60).is_starvation());
        assert!(!stalled(900, 40, 5_000).is_starvation());
        assert!(stalled(1_000, 40, 5_000).is_starvation());
        assert!(stalled(160, 160, 60_000).is_starvation());
        assert!(Withheld { running: 1_000_000.0, ..stalled(0, 0, 5_000) }.is_starvation());
    }

    #[test]
    fn who_runs_alone_waits_for_all_others() {
        let scratch = Scratch::new("verdict");
        let (lock, running) = (&scratch.join("lock"), &AtomicUsize::new(0));
        let first = turn(lock, false);
        thread::scope(|scope| {
            let alone = scope.spawn(move || {
                let _turn = turn(lock, true);
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                thread::sleep(ms(20));
                running.fetch_sub(1, Ordering::SeqCst);
            });
            let second = turn(lock, false);
            running.store(1, Ordering::SeqCst);
            drop(first);
            thread::sleep(ms(20));
            assert!(!alone.is_finished());
            running.store(0, Ordering::SeqCst);
            drop(second);
        });
    }
}
