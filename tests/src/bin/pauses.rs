//! The study of pauses: clients that hold locks are paused and resumed at random, and it is measured how soon their
//! guards report a loss.
//!
//! `cargo run -p coordination-tests --features etcd --bin pauses -- --store etcd [--count 500] [--seed N]
//! [--processes 20]`
//!
//! Fails if a guard said that it was held when it was not, or if it reported its loss too late. The seed determines the
//! pauses, but what happens during a pause depends on the machine.

use std::process::{Command, ExitCode};
use std::time::Instant;
use std::{env, fs};

use coordination_tests::checks::{Backend, tools::seed};
use coordination_tests::faults::{Site, pauses::Study};

fn main() -> ExitCode {
    let Some((backend, study)) = arguments() else {
        eprintln!("usage: pauses --store etcd [--count 500] [--seed N] [--processes 20]");
        return ExitCode::FAILURE;
    };
    let site = Site::start(backend, 1, worker(backend));
    let start = Instant::now();
    let figures = study.run(&site);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("pauses: {figures}");
    println!("seed {}, {:?}, load {}", study.seed, start.elapsed(), load.trim());
    if figures.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn arguments() -> Option<(Backend, Study)> {
    let (mut store, mut count, mut processes, mut given) = (None, 500, 20, None);
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--store" => store = Backend::named(&value),
            "--count" => count = value.parse().ok()?,
            "--processes" => processes = value.parse().ok()?,
            "--seed" => given = Some(value.parse().ok()?),
            _ => return None,
        }
    }
    let store = store.filter(|store| store.is_in(&["servers"]))?;
    Some((store, Study { count, processes, seed: given.unwrap_or_else(|| seed("pauses")) }))
}

/// Returns the path of the client's program, which is next to this one. If cargo runs this program, it has not built
/// any other binary, so this function builds the client.
fn worker(backend: Backend) -> String {
    if let Some(cargo) = env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", "coordination-tests", "--bin", "worker"]);
        let built =
            build.args(["--features", backend.name()]).status().expect("cargo has started us");
        assert!(built.success(), "the worker is not built");
    }
    let worker = env::current_exe().expect("it runs").with_file_name("worker");
    assert!(worker.exists(), "there is no {}", worker.display());
    worker.display().to_string()
}
