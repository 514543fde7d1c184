//! How long `coordination run --lock x -- true` takes as a whole process, beside each store's own command: `flock f true` on
//! `file://`, `etcdctl lock x true` on etcd, `consul lock x true` on Consul.
//!
//! ```sh
//! cargo build --release -p coordination-cli
//! (. tests/features && cargo bench "${everything[@]}" --profile dev --bench start -- target/release/coordination)
//! ```
//!
//! The harness of the tests starts the servers, with their data in memory. The dev profile is that of the tests, so that what
//! they have built is used; the programs that are timed do not depend on it. Without a path the program is the one that this
//! build makes, which is much slower. Words such as `file` or `etcd consul` after the path choose the stores. With
//! `taskset -c 0` before `cargo bench`, all that runs, servers too, is on one CPU.
//!
//! Both commands of a pair run in turn, and what counts is the ratio of their medians. The spread beside it is that of ten
//! such ratios, each of a tenth of the rounds.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::available_parallelism;
use std::time::Instant;

use coordination_tests::harness::{Consul, Etcd, Server};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const STORES: [&str; 3] = ["file", "etcd", "consul"];
const ROUNDS: usize = 300;
const PARTS: usize = 10;

fn main() -> Outcome {
    let words = env::args().skip(1).filter(|word| word != "--bench");
    let (stores, paths): (Vec<_>, Vec<_>) = words.partition(|word| STORES.contains(&word.as_str()));
    // Cargo runs us in the package's directory.
    let program = match paths.first() {
        Some(path) => std::path::absolute(Path::new("..").join(path))?,
        None => env!("CARGO_BIN_EXE_coordination").into(),
    };
    let wanted = |store: &str| stores.is_empty() || stores.iter().any(|word| word == store);
    println!("{}: {} bytes", program.display(), fs::metadata(&program)?.len());
    println!("| `run --lock x -- true` beside | CPUs | ratio | of ten parts | wanted | ms |");
    println!("| --- | --- | --- | --- | --- | --- |");
    if wanted("file") {
        let scratch = tempfile::tempdir()?;
        let url = format!("file://{}", scratch.path().join("locks").display());
        let mut flock = Command::new("flock");
        flock.arg(scratch.path().join("f")).arg("true");
        compare(&mut run(&program, &url), "flock f true", &mut flock, "at most 1.5")?;
    }
    if wanted("etcd") {
        let server = Etcd::one();
        let url = server.url(&server.authority(), "start");
        let mut etcdctl = Command::new("etcdctl");
        etcdctl.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", server.client_urls().join(","));
        etcdctl.args(["lock", "x", "true"]);
        compare(&mut run(&program, &url), "etcdctl lock x true", &mut etcdctl, "below 1")?;
    }
    if wanted("consul") {
        let server = Consul::one();
        let url = server.url(&server.authority(), "start");
        let mut consul = Command::new("consul");
        consul.env("CONSUL_HTTP_ADDR", server.authority()).args(["lock", "x", "true"]);
        compare(&mut run(&program, &url), "consul lock x true", &mut consul, "below 1")?;
    }
    Ok(())
}

fn run(program: &Path, url: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["run", "--url", url, "--lock", "x", "--", "true"]);
    command
}

/// Times both commands in turn, and prints a row of the table.
fn compare(ours: &mut Command, title: &str, other: &mut Command, wanted: &str) -> Outcome {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let pair = (millis(ours)?, millis(other)?);
        // The first pair warms up.
        if round > 0 {
            own.push(pair.0);
            others.push(pair.1);
        }
    }
    let parts = own.chunks(ROUNDS / PARTS).zip(others.chunks(ROUNDS / PARTS));
    let mut ratios: Vec<_> = parts.map(|(own, others)| median(own) / median(others)).collect();
    ratios.sort_by(f64::total_cmp);
    let (own, others) = (median(&own), median(&others));
    println!(
        "| `{title}` | {} | {:.2} | {:.2} to {:.2} | {wanted} | {own:.2} beside {others:.2} |",
        available_parallelism()?,
        own / others,
        ratios[0],
        ratios[ratios.len() - 1],
    );
    Ok(())
}

fn millis(command: &mut Command) -> Outcome<f64> {
    // Cargo names directories in which the loader would look first for each library.
    command.env_remove("LD_LIBRARY_PATH").stdin(Stdio::null()).stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status()?;
    let took = start.elapsed();
    if !status.success() {
        return Err(format!("{command:?}: {status}").into());
    }
    Ok(took.as_secs_f64() * 1e3)
}

fn median(figures: &[f64]) -> f64 {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
