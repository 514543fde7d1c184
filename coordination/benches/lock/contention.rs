//! Eight processes that want one lock all the time, where what counts is how often its owner changes; and eight that have a lock each.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use coordination::Coordinator;
use serde::Deserialize;

use crate::compare::spread;
use crate::record::{Measure, Side};
use crate::server::{Locking, Ours, Server, Store, cycle};
use crate::{Outcome, peers};

pub(crate) const PROCESSES: usize = 8;
const SECONDS: u64 = 3;
/// After one that warms up: a server on a virtual machine of its own compiles for some seconds.
const ROUNDS: usize = 5;

/// Ours and the rival's in turn: prints the median ratio of what they did.
pub(crate) fn contended<S: Store>(server: &Server) -> Outcome {
    let (mut ratios, mut own, mut rivals) = (Vec::new(), Vec::new(), Vec::new());
    let (mut evenness, mut rival_evenness) = (Vec::new(), Vec::new());
    let mut peers = Others::of(S::NAME, "contended")?;
    for round in 0..=ROUNDS {
        let (ours, rival) = (turns::<S>(server, "ours")?, turns::<S>(server, "rival")?);
        if round > 0 {
            ratios.push(ours.changes / rival.changes);
            own.push(ours.changes);
            rivals.push(rival.changes);
            evenness.push(ours.evenness());
            rival_evenness.push(rival.evenness());
            peers.run(&server.address);
        }
    }
    let changes = measure(S::NAME, "contended", "owner changes", "1/s");
    changes.values(Side::Ours, None, &own)?;
    changes.values(Side::Rival, Some(S::RIVAL), &rivals)?;
    let shares = measure(S::NAME, "contended", "greatest ÷ least share", "×");
    shares.values(Side::Ours, None, &evenness)?;
    shares.values(Side::Rival, Some(S::RIVAL), &rival_evenness)?;
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
    peers.tell(&changes, |turns| turns.changes)?;
    peers.tell(&shares, Turns::evenness)
}

/// Ours and the floor's in turn, a lock for each process: prints the median ratio of what they did.
pub(crate) fn apart<S: Store>(server: &Server) -> Outcome {
    let (mut ratios, mut own, mut least) = (Vec::new(), Vec::new(), Vec::new());
    let mut peers = Others::of(S::NAME, "apart")?;
    for round in 0..=ROUNDS {
        let ours = turns::<S>(server, "ours-apart")?.cycles();
        let floor = turns::<S>(server, "floor-apart")?.cycles();
        if round > 0 {
            ratios.push(ours / floor);
            own.push(ours);
            least.push(floor);
            peers.run(&server.address);
        }
    }
    let cycles = measure(S::NAME, "apart", "cycles", "1/s");
    cycles.values(Side::Ours, None, &own)?;
    cycles.values(Side::Floor, None, &least)?;
    let (ratio, low, high) = spread(&mut ratios);
    println!(
        "{}, acquire + release, {PROCESSES} processes with a lock each: {ratio:.2} × the floor ({low:.2} to {high:.2}; at least 0.9 wanted) — {:.0} a second beside {:.0}",
        S::NAME,
        spread(&mut own).0,
        spread(&mut least).0,
    );
    peers.tell(&cycles, Turns::cycles)
}

fn measure<'a>(store: &'a str, part: &'a str, measure: &'a str, unit: &'a str) -> Measure<'a> {
    Measure { store, part, measure, unit, parameter: None }
}

/// What the processes did.
#[derive(Deserialize)]
struct Turns {
    /// How often the owner changed, a second.
    changes: f64,
    /// How often each had the lock.
    shares: Vec<f64>,
    seconds: f64,
}

impl Turns {
    /// The greatest share by the least.
    fn evenness(&self) -> f64 {
        let (_, least, greatest) = spread(&mut self.shares.clone());
        greatest / least
    }

    /// How often a lock was had, a second.
    fn cycles(&self) -> f64 {
        self.shares.iter().sum::<f64>() / self.seconds
    }
}

/// What eight processes of each peer did.
struct Others {
    part: &'static str,
    peers: Vec<(String, Outcome<Vec<Turns>>)>,
}

impl Others {
    fn of(store: &str, part: &'static str) -> Outcome<Self> {
        let peers = peers::names(store)?.into_iter().map(|name| (name, Ok(Vec::new())));
        Ok(Self { part, peers: peers.collect() })
    }

    /// A round of each, unless one has failed.
    fn run(&mut self, address: &str) {
        for (name, rounds) in &mut self.peers {
            if let Ok(done) = rounds {
                match peers::measured(name, self.part, address) {
                    Ok(turns) => done.push(turns),
                    Err(error) => *rounds = Err(error),
                }
            }
        }
    }

    fn tell(&self, measure: &Measure<'_>, figure: impl Fn(&Turns) -> f64) -> Outcome {
        for (name, rounds) in &self.peers {
            match rounds {
                Ok(rounds) => {
                    let mut values: Vec<f64> = rounds.iter().map(&figure).collect();
                    measure.values(Side::Peer, Some(name), &values)?;
                    let (median, ..) = spread(&mut values);
                    println!("{}, {}, {name}: {median:.2}", measure.store, measure.measure);
                }
                Err(why) => measure.cut(Side::Peer, Some(name), &why.to_string())?,
            }
        }
        Ok(())
    }
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
    let shares = (2..2 + PROCESSES).map(count).collect::<Result<Vec<_>, _>>()?;
    Ok(Turns { changes: count(1)? / SECONDS as f64, shares, seconds: SECONDS as f64 })
}

/// One of the processes.
pub(crate) async fn contend<S: Store>(contender: &str) -> Outcome {
    let mut parts = contender.rsplitn(4, ',');
    let mut part = || parts.next().ok_or("a contender is ADDRESS,KIND,RECORD,NUMBER");
    let (worker, record, kind, address) = (part()?.parse()?, part()?, part()?, part()?);
    let record = OpenOptions::new().read(true).write(true).open(record)?;
    match kind {
        "ours" => {
            let coordinator = Coordinator::connect(&S::url(address)).await?;
            take_turns(Ours::new(&coordinator, "contended")?, worker, &record).await
        }
        "ours-apart" => {
            let coordinator = Coordinator::connect(&S::url(address)).await?;
            take_own(Ours::new(&coordinator, &format!("apart-{worker}"))?, worker, &record).await
        }
        "floor-apart" => {
            take_own(S::floor(address, &format!("floor-{worker}")).await?, worker, &record).await
        }
        _ => take_turns(S::rival(address).await?, worker, &record).await,
    }
}

/// Under the lock it notes in the record whether the owner changed.
async fn take_turns(mut lock: impl Locking, worker: usize, record: &File) -> Outcome {
    let end = begin().await;
    while Instant::now() < end {
        lock.acquire().await?;
        if number(record, 0)? != worker as u64 {
            add(record, 1, 1)?;
            record.write_at(&(worker as u64).to_le_bytes(), 0)?;
        }
        add(record, 1 + worker, 1)?;
        lock.release().await?;
    }
    Ok(())
}

/// Takes a lock that nobody else wants.
async fn take_own(mut lock: impl Locking, worker: usize, record: &File) -> Outcome {
    let end = begin().await;
    let mut cycles = 0;
    while Instant::now() < end {
        cycle(&mut lock).await?;
        cycles += 1;
    }
    Ok(add(record, 1 + worker, cycles)?)
}

/// Waits until all are connected; answers when to end.
async fn begin() -> Instant {
    tokio::time::sleep(Duration::from_secs(1)).await;
    Instant::now() + Duration::from_secs(SECONDS)
}

fn number(record: &File, slot: usize) -> io::Result<u64> {
    let mut bytes = [0; 8];
    record.read_exact_at(&mut bytes, 8 * slot as u64)?;
    Ok(u64::from_le_bytes(bytes))
}

fn add(record: &File, slot: usize, more: u64) -> io::Result<()> {
    let number = number(record, slot)? + more;
    record.write_all_at(&number.to_le_bytes(), 8 * slot as u64)
}
