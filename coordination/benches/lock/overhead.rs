//! What log and metrics cost a lock: with a log at INFO, which is written nowhere, beside no log, and beside another build.
//!
//! A log that is installed stays for the whole process. So each figure comes from a process of its own, and two kinds of
//! process run in turn. The other build is named by the path of its program, as `--no-run` prints it:
//!
//! ```sh
//! bench="cargo bench -p coordination --bench lock"
//! $bench -- overhead                                        # a log at INFO beside no log
//! $bench --features tracing/max_level_off --no-run          # a build without the code of the log
//! $bench -- overhead target/release/deps/lock-…             # beside that one
//! $bench --no-run                                           # a build without the feature `metrics`
//! $bench --features metrics -- overhead target/release/deps/lock-…  # with it, and without a recorder, beside that one
//! ```

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use coordination::Coordinator;

use crate::Outcome;
use crate::compare::{spread, timed};
use crate::machine::stay_in_one_place;
use crate::record::{Measure, Side};

const ROUNDS: usize = 15;
/// A process answers the median of so many figures.
const FIGURES: usize = 20;

/// The kinds of process: the log at INFO, or none.
const INFO: &str = "info";
const NONE: &str = "none";

/// Compares this build with a log and without one, on the stores that ask the least of the machine, and with another build.
pub(crate) fn compare(other: Option<&str>) -> Outcome {
    stay_in_one_place()?;
    let this = std::env::current_exe()?;
    // Cargo runs us in the package's directory.
    let other: Option<PathBuf> =
        other.map(|path| std::path::absolute(Path::new("..").join(path))).transpose()?;
    for store in ["memory", "file"] {
        in_turn(store, "a log at INFO beside none", (&this, INFO), (&this, NONE))?;
        if let Some(other) = &other {
            in_turn(store, "a log at INFO beside the other build", (&this, INFO), (other, NONE))?;
            in_turn(store, "no log beside the other build", (&this, NONE), (other, NONE))?;
        }
    }
    Ok(())
}

/// Runs processes of both kinds in turn, and prints the median ratio of the pairs.
fn in_turn(store: &str, title: &str, ours: (&Path, &str), least: (&Path, &str)) -> Outcome {
    let (mut ratios, mut own, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (a, b) = (figure(store, ours)?, figure(store, least)?);
        // The first pair warms up.
        if round > 0 {
            ratios.push(a / b);
            own.push(a);
            others.push(b);
        }
    }
    let measure = Measure { store, part: "overhead", measure: title, unit: "µs", parameter: None };
    measure.values(Side::Ours, None, &own)?;
    measure.values(Side::Floor, None, &others)?;
    let (ratio, low, high) = spread(&mut ratios);
    println!(
        "{store}, acquire + release, {title}: {ratio:.3} × ({low:.3} to {high:.3}; at most 1.03 wanted) — {:.3} µs beside {:.3} µs",
        spread(&mut own).0,
        spread(&mut others).0,
    );
    Ok(())
}

fn figure(store: &str, (program, log): (&Path, &str)) -> Outcome<f64> {
    let mut command = Command::new(program);
    let output = command.args(["cycle", store, log]).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// One of the processes: prints how many microseconds an acquire and a release take.
pub(crate) async fn cycle(store: &str, log: &str) -> Outcome {
    if log == INFO {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO);
        log.with_writer(std::io::sink).init();
    }
    let directory = tempfile::tempdir()?;
    let (url, repeats) = match store {
        "memory" => ("memory://bench".to_owned(), 20_000),
        _ => (format!("file://{}/locks", directory.path().display()), 4_000),
    };
    let coordinator = Coordinator::connect(&url).await?;
    let lock = coordinator.lock("vol-7")?;
    let mut work = async || {
        lock.acquire(Some(Duration::from_secs(10))).await?.release().await?;
        Ok(())
    };
    let mut figures = Vec::new();
    for round in 0..=FIGURES {
        let took = timed(repeats, &mut work).await?;
        // The first ones warm up.
        if round > 0 {
            figures.push(took);
        }
    }
    println!("{}", spread(&mut figures).0);
    Ok(coordinator.stop().await?)
}
