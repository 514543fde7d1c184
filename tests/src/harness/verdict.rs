//! Whose fault it is when a check fails: that of the code, or of a machine that let nobody run.
//!
//! Bounds are corrected for what the machine withheld ([`Pulse`]), but there is an end to that: on a starved machine answers
//! come too late to be answers, leases run out that should be renewed, and what happens is right and not what the check
//! is about. Such a check cannot judge. It says so and runs again, from the beginning and alone on this machine. It
//! neither passes unjudged nor fails for the machine's fault alone.
//!
//! This is no way to repeat what fails now and then. A check that fails on a machine that was not starved has failed, in
//! company or alone; one that finds it starved [each time](ALONE) has failed too; and each repetition is
//! printed and added to the list that `COORDINATION_TEST_STARVED` names.

use std::cell::Cell;
use std::fmt::Debug;
use std::fs::File;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::pulse::{Pulse, Withheld, processors};
use super::{descriptors, netns};

/// How often a check is tried alone.
const ALONE: usize = 3;
/// A machine is starved if so many threads want each of its processors, in the mean: who has to compute gets a quarter of
/// what it asks for. Twenty processes that do nothing else are ten for each of two processors.
const CROWD: f64 = 4.0;
/// Or if it withholds a fifth of the time even from a thread that only wants to wake up. Beside those twenty it withholds half.
const SHARE: u32 = 5;
/// What it withholds in all of a short check, before that is a share worth the name.
const ENOUGH: Duration = Duration::from_millis(100);
/// Or if it lets nobody run for so long at a time: half of what a heartbeat may take where leases are shortest.
const STALL: Duration = Duration::from_millis(150);

/// What a check ends with.
pub trait Outcome {
    /// Why it failed, if it did.
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

/// Runs a check, which makes all that it needs itself; again and alone where it failed and could not judge.
///
/// # Panics
///
/// When the check does, or when it could not judge however often it was tried.
pub fn judged<T: Outcome>(check: impl Fn() -> T) -> T {
    on_this_machine(&check, false)
}

/// Runs a check that itself leaves others no time: from the first time no other runs beside it.
///
/// # Panics
///
/// Likewise.
pub fn judged_alone<T: Outcome>(check: impl Fn() -> T) -> T {
    on_this_machine(&check, true)
}

fn on_this_machine<T: Outcome>(check: &dyn Fn() -> T, is_alone: bool) -> T {
    // Of a check that starts itself again within, the process outside judges.
    if netns::is_inside() || descriptors::is_inside() {
        return check();
    }
    let _judged = Judged::begin();
    let machine = Machine { lock: lock_file(), withheld: Pulse::withheld, tell: Starved::tell };
    machine.judge(&name(), check, is_alone)
}

/// The same of a check that needs a runtime.
///
/// # Panics
///
/// Likewise.
pub fn judged_on_threads<T: Outcome>(check: impl AsyncFn() -> T) -> T {
    judged(|| on_threads(check()))
}

/// Runs this on threads of its own. When it is over, and when it has panicked, what still blocks one of them is left behind:
/// it may wait for what the panic has prevented.
///
/// # Panics
///
/// When it does.
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

/// That this thread is within a check: one within another would wait for its turn until the other is over.
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

/// Which test this is, of which program.
fn name() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    // Cargo adds a hash.
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    format!("{program} {}", thread::current().name().unwrap_or_default())
}

/// Beside the test programs, so that those of one target directory share it.
fn lock_file() -> PathBuf {
    std::env::current_exe().expect("a test runs").with_file_name("coordination-checks.lock")
}

/// Where checks run.
struct Machine {
    /// Locked by each check that runs: shared, or exclusively by one that runs alone.
    lock: PathBuf,
    withheld: fn(&Pulse) -> Withheld,
    tell: fn(&Starved, &str),
}

impl Machine {
    fn judge<T: Outcome>(&self, name: &str, check: &dyn Fn() -> T, is_alone: bool) -> T {
        let mut attempt = self.attempt(check, is_alone);
        for _ in 0..ALONE {
            let Err(starved) = &attempt else { break };
            (self.tell)(starved, name);
            attempt = self.attempt(check, true);
        }
        attempt.unwrap_or_else(|Starved { withheld, fault }| {
            panic!("the machine was starved: {withheld}; at last {fault}")
        })
    }

    /// Runs the check once; answers or panics as it does, but where it failed on a starved machine.
    fn attempt<T: Outcome>(&self, check: &dyn Fn() -> T, is_alone: bool) -> Result<T, Starved> {
        // Invariant: nobody waits for the lock who has it.
        let _turn = turn(&self.lock, is_alone);
        let pulse = Pulse::start();
        let outcome = catch_unwind(AssertUnwindSafe(check));
        let withheld = (self.withheld)(&pulse);
        let fault = match &outcome {
            Ok(outcome) => outcome.fault(),
            Err(panic) => Some(said(&**panic)),
        };
        match fault {
            Some(fault) if withheld.is_starvation() => Err(Starved { withheld, fault }),
            _ => Ok(outcome.unwrap_or_else(|panic| resume_unwind(panic))),
        }
    }
}

/// The right to run a check, until it is dropped.
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

/// A check that failed and could not judge.
struct Starved {
    withheld: Withheld,
    fault: String,
}

impl Starved {
    /// Past what the test harness captures: a check that passes in the end says it too. On a line of its own, as others print
    /// dots.
    fn tell(&self, name: &str) {
        let Self { withheld, fault } = self;
        let fault = fault.replace('\n', ";");
        let line = format!("\nstarved: {name}: {withheld}; again, alone ({fault:.200})\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        note("COORDINATION_TEST_STARVED", &format!("{name}\t{withheld}\n"));
    }
}

/// Counts a fault that a test makes, for the table of `tests/soak`.
pub(super) fn count_fault() {
    note("COORDINATION_TEST_FAULTS", "fault\n");
}

/// Adds a line to the list that this variable names, if it does.
pub(crate) fn note(variable: &str, line: &str) {
    if let Some(path) = std::env::var_os(variable) {
        let file = File::options().create(true).append(true).open(path);
        // One write each: several test processes may share the file.
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list can be written");
    }
}

/// What a panic says.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
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

    fn starved(_: &Pulse) -> Withheld {
        Withheld { total: ms(2_500), worst: ms(40), of: ms(5_000), running: 3.0 }
    }

    fn calm(_: &Pulse) -> Withheld {
        Withheld { total: ms(250), worst: ms(12), of: ms(5_000), running: 3.0 }
    }

    fn machine(scratch: &Scratch, withheld: fn(&Pulse) -> Withheld) -> Machine {
        Machine { lock: scratch.join("lock"), withheld, tell: |_, _| {} }
    }

    /// How often a check that fails `failures` times is run, and what comes of it.
    fn runs(failures: usize, withheld: fn(&Pulse) -> Withheld) -> (usize, Result<(), String>) {
        let scratch = Scratch::new("verdict");
        let (machine, count) = (machine(&scratch, withheld), AtomicUsize::new(0));
        let check = || assert!(count.fetch_add(1, Ordering::SeqCst) >= failures, "a fault");
        let outcome = catch_unwind(AssertUnwindSafe(|| machine.judge("check", &check, false)));
        (count.into_inner(), outcome.map_err(|panic| said(&*panic)))
    }

    #[test]
    fn what_holds_is_not_run_again() {
        assert_eq!(runs(0, starved), (1, Ok(())));
    }

    #[test]
    fn a_fault_on_a_calm_machine_is_one() {
        assert_eq!(runs(1, calm), (1, Err("a fault".to_owned())));
    }

    #[test]
    fn a_starved_check_runs_again_and_fails_in_the_end() {
        assert_eq!(runs(1, starved), (2, Ok(())));
        assert_eq!(runs(ALONE, starved), (1 + ALONE, Ok(())));
        let (count, outcome) = runs(usize::MAX, starved);
        assert_eq!(count, 1 + ALONE);
        let text = outcome.expect_err("it never held");
        assert!(text.starts_with("the machine was starved: withheld 2.5s of 5.0s"), "{text}");
        assert!(text.ends_with("at last a fault"), "{text}");
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
        judged(|| {
            let within = catch_unwind(AssertUnwindSafe(|| judged_alone(|| ())));
            let text = said(&*within.expect_err("it would wait for itself"));
            assert_eq!(text, "a check within a check would wait for itself");
        });
        judged(|| ());
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
