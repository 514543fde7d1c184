//! Four processes resize the same volumes, one is killed half-way, and no update is lost.
//!
//! ```text
//! cargo run --example resize                  # needs nothing: locks are files
//! cargo run --example resize -- --unlocked    # the same without the lock: updates are lost
//! cargo run --example resize -- --metrics     # and what Prometheus scrapes from one of the workers
//! COORDINATION_URL=etcd://127.0.0.1:2379 cargo run --example resize --features etcd
//! ```
//!
//! Start reading in `storage.rs`: the function `resize` is what the library is for.
//!
//! * `storage.rs`: volumes on disk, and `#[synchronized]` on the function that changes them
//! * `worker.rs`: a small storage service: connects at boot, resizes, survives an unwell store
//! * `journal.rs`: how workers tell what they do, in one order for all
//! * `demo.rs`: starts the workers, kills one, shows who takes over
//! * `verdict.rs`: replays the journal: was an update lost, did two overlap, do tokens rise?

mod demo;
mod journal;
mod storage;
mod verdict;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
Four worker processes resize the same volumes, each under its lock; one of them is killed half-way.
Ends within 15 seconds with a table and a verdict; the exit code is 0 when it is good, 1 otherwise.

usage: cargo run --example resize [--features etcd] [-- --unlocked | --metrics]

  --unlocked   do the same without the lock: updates are lost, and the verdict says so
  --metrics    print what Prometheus scrapes from a worker at its end
  --help       show this text

environment:
  COORDINATION_URL   the store of the locks; default: a file:// directory of its own";

/// What to do, as the command line says.
enum Command {
    Help,
    Demo { unlocked: bool, metrics: bool },
    Worker(worker::Task),
}

fn main() -> ExitCode {
    let done = match parse(std::env::args().skip(1).collect()) {
        Ok(Command::Help) => {
            println!("{USAGE}");
            Ok(true)
        }
        Ok(Command::Demo { unlocked, metrics }) => demo::run(unlocked, metrics),
        Ok(Command::Worker(task)) => worker::run(task).map(|()| true).map_err(Into::into),
        Err(problem) => {
            eprintln!("{problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: Vec<String>) -> Result<Command, String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [] => Ok(Command::Demo { unlocked: false, metrics: false }),
        ["--unlocked"] => Ok(Command::Demo { unlocked: true, metrics: false }),
        ["--metrics"] => Ok(Command::Demo { unlocked: false, metrics: true }),
        ["--help" | "-h"] => Ok(Command::Help),
        // How the demo starts its workers; not for people.
        ["--worker", number, directory, rest @ ..] => Ok(Command::Worker(worker::Task {
            number: number.parse().map_err(|_| format!("{number:?} is not a worker's number"))?,
            directory: PathBuf::from(directory),
            unlocked: rest == ["--unlocked"],
        })),
        [known @ ("--unlocked" | "--metrics"), ..] => Err(format!("{known} stands alone")),
        [unknown, ..] => Err(format!("unknown argument {unknown:?}")),
    }
}
