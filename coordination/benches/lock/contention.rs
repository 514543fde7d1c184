//! Processes that want one lock all the time; what counts is how often its owner changes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use coordination::Coordinator;

use crate::Outcome;
use crate::compare::spread;
use crate::server::{Locking, Ours, Server, Store};

const PROCESSES: usize = 8;
const SECONDS: u64 = 3;
/// After one that warms up: a server on a virtual machine of its own compiles for some seconds.
const ROUNDS: usize = 5;

/// Ours and the rival's in turn: prints the median ratio of what they did.
pub(crate) fn contended<S: Store>(server: &Server) -> Outcome {
    let (mut ratios, mut own, mut rivals) = (Vec::new(), Vec::new(), Vec::new());
    let mut evenness = Vec::new();
    for round in 0..=ROUNDS {
        let (ours, rival) = (turns::<S>(server, "ours")?, turns::<S>(server, "rival")?);
        if round > 0 {
            ratios.push(ours.changes / rival.changes);
            own.push(ours.changes);
            rivals.push(rival.changes);
            evenness.push(ours.greatest / ours.least);
        }
    }
    let (ratio, low, high) = spread(&mut ratios);
    println!(
        "{}, owner changes, {PROCESSES} processes on one lock: {ratio:.2} × the rival ({low:.2} to {high:.2}; {}) — {:.0} a second beside {:.0} ({}); greatest ÷ least share {:.2}",
        S::NAME,
        S::WANTED.1,
        spread(&mut own).0,
        spread(&mut rivals).0,
        S::RIVAL,
        spread(&mut evenness).0,
    );
    Ok(())
}

/// What the processes did.
struct Turns {
    /// A second.
    changes: f64,
    /// How often the one with the fewest and the one with the most had the lock.
    least: f64,
    greatest: f64,
}

fn turns<S: Store>(server: &Server, kind: &str) -> Outcome<Turns> {
    let record = tempfile::NamedTempFile::new()?;
    record.as_file().set_len(8 * (2 + PROCESSES as u64))?;
    let workers: Vec<_> = (1..=PROCESSES)
        .map(|worker| {
            let contender =
                format!("{},{kind},{},{worker}", server.address, record.path().display());
            Command::new(std::env::current_exe()?).args(["contend", S::NAME, &contender]).spawn()
        })
        .collect::<Result<_, _>>()?;
    for mut worker in workers {
        if !worker.wait()?.success() {
            return Err("a worker failed".into());
        }
    }
    let count = |slot| number(record.as_file(), slot).map(|number| number as f64);
    let mut shares = (2..2 + PROCESSES).map(count).collect::<Result<Vec<_>, _>>()?;
    let (_, least, greatest) = spread(&mut shares);
    Ok(Turns { changes: count(1)? / SECONDS as f64, least, greatest })
}

/// One of the processes: under the lock it notes in the record whether the owner changed.
pub(crate) async fn contend<S: Store>(contender: &str) -> Outcome {
    let mut parts = contender.rsplitn(4, ',');
    let mut part = || parts.next().ok_or("a contender is ADDRESS,KIND,RECORD,NUMBER");
    let (worker, record, kind, address) = (part()?.parse()?, part()?, part()?, part()?);
    let record = OpenOptions::new().read(true).write(true).open(record)?;
    if kind == "ours" {
        let coordinator = Coordinator::connect(&S::url(address)).await?;
        take_turns(Ours::new(&coordinator, "contended")?, worker, &record).await
    } else {
        take_turns(S::rival(address).await?, worker, &record).await
    }
}

async fn take_turns(mut lock: impl Locking, worker: usize, record: &File) -> Outcome {
    // All are connected by then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let end = Instant::now() + Duration::from_secs(SECONDS);
    while Instant::now() < end {
        lock.acquire().await?;
        if number(record, 0)? != worker as u64 {
            add(record, 1)?;
            record.write_at(&(worker as u64).to_le_bytes(), 0)?;
        }
        add(record, 1 + worker)?;
        lock.release().await?;
    }
    Ok(())
}

fn number(record: &File, slot: usize) -> io::Result<u64> {
    let mut bytes = [0; 8];
    record.read_exact_at(&mut bytes, 8 * slot as u64)?;
    Ok(u64::from_le_bytes(bytes))
}

fn add(record: &File, slot: usize) -> io::Result<()> {
    let number = number(record, slot)? + 1;
    record.write_all_at(&number.to_le_bytes(), 8 * slot as u64)
}
