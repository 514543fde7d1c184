//! Makes a million grants in real time, without simulation: by many threads on memory, or by many processes on
//! `file://`. A tenth of all acquires is cancelled, and on `file://` one process is killed every second. With
//! `--load work` the clients claim items of work queues instead of acquiring locks.
//!
//! ```text
//! storm memory [--load locks|work] [--grants N] [--threads N] [--seed N]
//! storm file [--load locks|work] [--grants N] [--processes N] [--seed N]
//! ```
//!
//! Every client writes a [history](coordination_history) of its calls and their results. In the end the history of each
//! object is checked: no two clients held it at once, tokens rose, no waiter was forgotten, and no entry is left; no
//! item was in two claims, each was acknowledged once, and none is lost. After a violation the histories are kept.
//!
//! The seed determines what every task does, but not which task is faster. So the same seed makes the same calls, but
//! not the same run.

mod cancel;
mod client;
mod diary;
mod file;
mod memory;
mod options;
mod plan;
mod remains;
mod tally;
mod verdict;
mod work;

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use options::{Command, Kind, Options};

/// If there is no grant for this long, the storm counts as stuck.
const STUCK: Duration = Duration::from_secs(10);
/// After the storm has ended, all waiters have to be served within this time.
const ENDING: Duration = Duration::from_secs(10);

/// A description of what went wrong.
type Complaint = String;

/// The number of grants so far, and when this number last rose.
struct Progress {
    granted: u64,
    since: Instant,
}

impl Progress {
    fn new() -> Self {
        Self { granted: 0, since: Instant::now() }
    }

    /// Takes the present number of grants. Returns an error if it has not risen for too long.
    fn saw(&mut self, granted: u64) -> Result<(), Complaint> {
        if granted > self.granted {
            *self = Self { granted, since: Instant::now() };
        } else if self.since.elapsed() > STUCK {
            return Err(format!("nothing was granted for {STUCK:?}"));
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)) {
        Ok(Command::Storm(options)) => storm(&options),
        Ok(Command::Client(options, id)) => file::client(&options, id),
        Err(complaint) => {
            eprintln!("{complaint}");
            ExitCode::from(64)
        }
    }
}

fn storm(options: &Options) -> ExitCode {
    let begun = Instant::now();
    fs::create_dir_all(options.histories()).expect("the build directory is writable");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime needs no more than a few descriptors");
    let ended = runtime.block_on(async {
        match options.kind {
            Kind::Memory => memory::run(options).await,
            Kind::File => file::run(options).await,
        }
    });
    let stormed = begun.elapsed();
    let (mut verdict, complaint) = (verdict::judge(options), ended.err());
    verdict.violations.extend(complaint);
    println!(
        "storm {} {}: {verdict}, {:.1} s and {:.1} s to judge, seed {}",
        options.kind.name(),
        options.load.name(),
        stormed.as_secs_f64(),
        (begun.elapsed() - stormed).as_secs_f64(),
        options.seed
    );
    if verdict.violations.is_empty() {
        let _ = fs::remove_dir_all(&options.directory);
        return ExitCode::SUCCESS;
    }
    for violation in verdict.violations.iter().take(20) {
        println!("  {violation}");
    }
    println!(
        "{} violations; histories: {}",
        verdict.violations.len(),
        options.histories().display()
    );
    println!(
        "again: cargo run --profile checked -p coordination-storm -- {}",
        options.command_line()
    );
    ExitCode::FAILURE
}
