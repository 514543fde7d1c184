//! Runs the simulation for the seeds that the command line names.
//!
//! ```text
//! simulate --seeds 20000 [--from N] [--threads N]   runs many seeds; fails if anything is wrong with one
//! simulate --seed N [--history]                      runs one seed, and prints everything that happened
//! simulate --seconds 60 …                            runs seeds until one fails, or each thread had the processor so long
//! simulate --canaries                                prints the names of the deliberate mistakes
//! ```
//!
//! With the environment variable `COORDINATION_CANARY=name`, the library makes the deliberate mistake of that name, and
//! the simulation has to find it: see `docs/testing.md`.
//!
//! The library has the simulated world only if it is built with `--cfg coordination_internals`. In other builds this
//! crate is empty.
#![cfg(coordination_internals)]

mod nemesis;
mod plan;
mod run;
mod stage;
mod work;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use coordination::simulation::CANARIES;
use run::{Outcome, run};
use rustix::time::{ClockId, clock_gettime};
use stage::lock;

const USAGE: &str = "simulate [--seeds N] [--from N] [--threads N] [--seconds N] [--twice] | --seed N [--history] | --canaries";

/// How many seeds are run if the command line does not say.
const SEEDS: u64 = 1_000;
/// The most processor time that the run of one seed may take. A run that takes more is in a loop in which no simulated
/// time passes, so it would never end. On a busy machine a run lasts longer, but takes no more processor time.
const STUCK: Duration = Duration::from_secs(30);
/// The longest real time that the run of one seed may last. A run whose thread is blocked takes no processor time.
const BLOCKED: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct Options {
    from: u64,
    seeds: Option<u64>,
    threads: u64,
    seconds: Option<u64>,
    /// Whether each seed is run twice. Both runs have to be the same; otherwise a failure could not be repeated by its
    /// seed.
    twice: bool,
    /// If set, only this seed is run.
    seed: Option<u64>,
    history: bool,
    canaries: bool,
}

/// The program `simulate`.
pub fn main() -> ExitCode {
    if !cfg!(tokio_unstable) {
        eprintln!("in this build a seed is not a run: use tests/simulate");
        return ExitCode::from(69);
    }
    match options() {
        Ok(Options { canaries: true, .. }) => {
            CANARIES.iter().for_each(|name| println!("{name}"));
            ExitCode::SUCCESS
        }
        Ok(Options { seed: Some(seed), history, .. }) => replay(seed, history),
        Ok(options) => many(&options),
        Err(problem) => {
            eprintln!("{problem}\nusage: {USAGE}");
            ExitCode::from(64)
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        from: 0,
        seeds: None,
        threads: std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64),
        seconds: None,
        twice: false,
        seed: None,
        history: false,
        canaries: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let text = arguments.next().ok_or(format!("{argument} needs a number"))?;
            text.parse::<u64>().map_err(|_| format!("{argument} {text}: not a number"))
        };
        match argument.as_str() {
            "--from" => options.from = number()?,
            "--seeds" => options.seeds = Some(number()?),
            "--threads" => options.threads = number()?.max(1),
            "--seconds" => options.seconds = Some(number()?),
            "--seed" => options.seed = Some(number()?),
            "--twice" => options.twice = true,
            "--help" => return Err("runs seeds of the simulation; see docs/testing.md".to_owned()),
            "--canaries" => options.canaries = true,
            "--history" => options.history = true,
            _ => return Err(format!("unknown argument {argument:?}")),
        }
    }
    Ok(options)
}

fn replay(seed: u64, history: bool) -> ExitCode {
    let outcome = run(seed);
    if history {
        outcome.records.iter().for_each(|record| println!("{record}"));
    }
    println!("{:?}", plan::Plan::of(seed));
    println!("{}", outcome.report);
    tell(seed, &outcome);
    if outcome.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tell(seed: u64, outcome: &Outcome) {
    for wrong in &outcome.wrong {
        println!("seed {seed}: {wrong}");
    }
}

/// Counts over all runs, shared by the threads that run them.
#[derive(Default)]
struct Sum {
    next: AtomicU64,
    runs: AtomicU64,
    grants: AtomicU64,
    records: AtomicU64,
    faults: AtomicU64,
    mishaps: AtomicU64,
    judged: Mutex<BTreeMap<&'static str, u64>>,
    has_failed: AtomicBool,
    failed: Mutex<Vec<u64>>,
    /// For each thread, what it runs at present. The program finds stuck runs by this.
    running: Mutex<BTreeMap<u64, Running>>,
}

/// A run that has not ended.
struct Running {
    seed: u64,
    since: Instant,
    /// The processor time that it has taken; `None` before it was first looked at.
    worked: Option<Duration>,
}

impl Running {
    fn of(seed: u64) -> Self {
        Self { seed, since: Instant::now(), worked: None }
    }

    /// Adds what it has taken since it was last looked at. Says why it will not end, if it has taken too much.
    fn took(&mut self, share: Duration) -> Option<String> {
        // The first share is in part that of the run before.
        let worked = self.worked.map_or(Duration::ZERO, |worked| worked + share);
        self.worked = Some(worked);
        let seed = self.seed;
        if worked > STUCK {
            let circles = "it goes in circles: after";
            Some(format!("seed {seed}: {circles} {STUCK:?} of processor time it has not ended"))
        } else if self.since.elapsed() > BLOCKED {
            Some(format!("seed {seed}: it is blocked: after {BLOCKED:?} it has not ended"))
        } else {
            None
        }
    }
}

/// The processor time of all threads of this program.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.try_into().expect("no time is negative")
}

impl Sum {
    fn begins(&self, thread: u64, seed: Option<u64>) {
        let mut running = lock(&self.running);
        match seed {
            Some(seed) => running.insert(thread, Running::of(seed)),
            None => running.remove(&thread),
        };
    }

    /// Ends the whole program if a run is stuck. Returns when no thread runs a seed any more.
    fn watch(&self) {
        let mut before = processor_time();
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let mut running = lock(&self.running);
            if running.is_empty() {
                return;
            }
            // No thread can ask for the processor time of another one. All of them only compute, so the system gives
            // each the same share.
            let now = processor_time();
            let share = now.saturating_sub(before) / running.len() as u32;
            before = now;
            if let Some(stuck) = running.values_mut().find_map(|run| run.took(share)) {
                println!("{stuck}");
                std::process::exit(1);
            }
        }
    }

    fn add(&self, seed: u64, outcome: &Outcome) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.grants.fetch_add(outcome.report.grants, Ordering::Relaxed);
        self.records.fetch_add(outcome.records.len() as u64, Ordering::Relaxed);
        self.faults.fetch_add(outcome.report.faults.values().sum(), Ordering::Relaxed);
        self.mishaps.fetch_add(outcome.mishaps, Ordering::Relaxed);
        let mut judged = lock(&self.judged);
        for (promise, times) in &outcome.judged {
            *judged.entry(promise).or_default() += times;
        }
        drop(judged);
        if !outcome.wrong.is_empty() {
            self.has_failed.store(true, Ordering::Relaxed);
            tell(seed, outcome);
            lock(&self.failed).push(seed);
        }
    }
}

fn many(options: &Options) -> ExitCode {
    let begun = Instant::now();
    let sum = Sum::default();
    std::thread::scope(|threads| {
        for thread in 0..options.threads {
            sum.begins(thread, Some(options.from));
            let sum = &sum;
            threads.spawn(move || {
                runs(options, sum, thread);
                sum.begins(thread, None);
            });
        }
        sum.watch();
    });
    let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
    println!(
        "simulation: {} seeds from {}, {} grants, {} faults, {} mishaps of the network, {} records in {:.1} s",
        of(&sum.runs),
        options.from,
        of(&sum.grants),
        of(&sum.faults),
        of(&sum.mishaps),
        of(&sum.records),
        begun.elapsed().as_secs_f64(),
    );
    let judged = lock(&sum.judged);
    let judged: Vec<_> = judged.iter().map(|(what, times)| format!("{what} {times}")).collect();
    println!("judged on the spot: {}", judged.join(", "));
    let failed = lock(&sum.failed);
    let Some(seed) = failed.iter().min() else { return ExitCode::SUCCESS };
    println!("{} seeds failed. To run the first again:", failed.len());
    println!("  tests/simulate --seed {seed} --history");
    ExitCode::FAILURE
}

fn runs(options: &Options, sum: &Sum, thread: u64) {
    // By processor time: on a busy machine it lasts longer, and runs no fewer seeds.
    let has_time =
        || options.seconds.is_none_or(|limit| processor_time().as_secs() < limit * options.threads);
    let seeds = options.seeds.unwrap_or(if options.seconds.is_some() { u64::MAX } else { SEEDS });
    while has_time() && !sum.has_failed.load(Ordering::Relaxed) {
        let index = sum.next.fetch_add(1, Ordering::Relaxed);
        if index >= seeds {
            return;
        }
        let seed = options.from + index;
        sum.begins(thread, Some(seed));
        let mut outcome = run(seed);
        if options.twice && run(seed).fingerprint() != outcome.fingerprint() {
            outcome.wrong.push("it goes another way when it is run again".to_owned());
        }
        sum.add(seed, &outcome);
    }
}
