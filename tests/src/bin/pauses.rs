//! The pause study: clients of etcd that hold locks are stopped and continued at random.
//!
//! `cargo run -p coordination-tests --features etcd --bin pauses -- [--count 500] [--seed N] [--processes 20]`
//!
//! Fails when a guard was wrong about being held, or was told late of its loss. The seed chooses the pauses;
//! what happens in them is the machine's.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use std::{env, fs};

use coordination_tests::checks::tools::seed;
use coordination_tests::faults::{Site, pauses::Study};
use coordination_tests::harness::Etcd;

fn main() -> ExitCode {
    let Some(study) = arguments() else {
        eprintln!("usage: pauses [--count 500] [--seed N] [--processes 20]");
        return ExitCode::FAILURE;
    };
    let worker = worker();
    let etcd = Etcd::one();
    let site = Site::etcd(&etcd.authority(), Duration::from_secs(2), worker);
    let start = Instant::now();
    let figures = study.run(&site);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("pauses: {figures}");
    println!("seed {}, {:?}, load {}", study.seed, start.elapsed(), load.trim());
    if figures.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn arguments() -> Option<Study> {
    let (mut count, mut processes, mut given) = (500, 20, None);
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?.parse().ok()?;
        match word.as_str() {
            "--count" => count = usize::try_from(value).ok()?,
            "--processes" => processes = usize::try_from(value).ok()?,
            "--seed" => given = Some(value),
            _ => return None,
        }
    }
    Some(Study { count, processes, seed: given.unwrap_or_else(|| seed("pauses")) })
}

/// The client's program, beside this one; built if cargo has started us, since it builds one binary only.
fn worker() -> String {
    if let Some(cargo) = env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", "coordination-tests", "--features", "etcd"]);
        let built = build.args(["--bin", "worker"]).status().expect("cargo has started us");
        assert!(built.success(), "the worker is not built");
    }
    let worker = env::current_exe().expect("it runs").with_file_name("worker");
    assert!(worker.exists(), "there is no {}", worker.display());
    worker.display().to_string()
}
