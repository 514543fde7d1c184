//! How long `coordination run --lock x -- true` takes as a whole process on `file://`, beside `flock f true`.
//!
//! `cargo build --release -p coordination-cli && cargo bench -p coordination-cli -- target/release/coordination`:
//! without a path it is the program that the bench profile makes, which is not as small. Both run in turn, and what counts is
//! the ratio of the medians.

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::Instant;

const ROUNDS: usize = 300;

fn main() -> Result<(), Box<dyn Error>> {
    let named = std::env::args().skip(1).find(|word| word != "--bench");
    // Cargo runs us in the package's directory.
    let program = match named {
        Some(path) => std::path::absolute(std::path::Path::new("..").join(path))?,
        None => env!("CARGO_BIN_EXE_coordination").into(),
    };
    let scratch = tempfile::tempdir()?;
    let url = format!("file://{}", scratch.path().join("locks").display());
    let mut ours = Command::new(&program);
    ours.args(["run", "--url", &url, "--lock", "x", "--", "true"]);
    let mut flock = Command::new("flock");
    flock.arg(scratch.path().join("f")).arg("true");
    let (mut own, mut least) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let pair = (micros(&mut ours)?, micros(&mut flock)?);
        // The first pair warms up.
        if round > 0 {
            own.push(pair.0);
            least.push(pair.1);
        }
    }
    let (own, least) = (median(own), median(least));
    let size = std::fs::metadata(&program)?.len();
    println!(
        "run --lock x -- true: {:.2} × flock f true (at most 1.5 wanted) — {own:.0} µs beside {least:.0} µs; {size} bytes",
        own / least
    );
    Ok(())
}

fn micros(command: &mut Command) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    let status = command.stdin(Stdio::null()).status()?;
    let took = start.elapsed();
    if !status.success() {
        return Err(format!("{command:?}: {status}").into());
    }
    Ok(took.as_secs_f64() * 1e6)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
