//! How long it takes until the lock of a process that was killed is another's.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use coordination::{Coordinator, Lock};
use tokio::task::JoinSet;

use crate::compare::spread;
use crate::record::{Measure, Side};
use crate::server::{Server, Store};
use crate::{Outcome, peers};

/// How many processes are killed at the same time, where it takes a lease.
#[cfg(feature = "_network")]
pub(crate) const AT_ONCE: usize = 5;
/// How long holders and waiters stand before the kill: longer than the default heartbeat.
const SETTLED: Duration = Duration::from_millis(1_500);

/// What a peer answers.
#[derive(serde::Deserialize)]
struct Killed {
    seconds: Vec<f64>,
}

/// Kills so many holders at the same time, each of a lock that another process waits for.
#[cfg(feature = "_network")]
pub(crate) async fn killed<S: Store>(server: &Server, at_once: usize) -> Outcome {
    tell::<S>(server, &mut round(&S::url(&server.address), at_once).await?)
}

/// Kills one holder after the other.
pub(crate) async fn one_by_one<S: Store>(server: &Server, rounds: usize) -> Outcome {
    let mut seconds = Vec::new();
    for _ in 0..rounds {
        seconds.extend(round(&S::url(&server.address), 1).await?);
    }
    tell::<S>(server, &mut seconds)
}

/// Seconds until each lock was granted to the one who waited.
async fn round(url: &str, locks: usize) -> Outcome<Vec<f64>> {
    let coordinator = Coordinator::connect(url).await?;
    let (mut holders, mut waiters) = (Vec::new(), JoinSet::new());
    for number in 0..locks {
        let name = format!("killed-{number}");
        holders.push(Holder::start(url, &name)?);
        waiters.spawn(granted(coordinator.lock(&name)?));
    }
    tokio::time::sleep(SETTLED).await;
    let begun = Instant::now();
    for Holder(holder) in &mut holders {
        holder.kill()?;
    }
    let mut seconds = Vec::new();
    while let Some(granted) = waiters.join_next().await {
        seconds.push((granted?? - begun).as_secs_f64());
    }
    coordinator.stop().await?;
    Ok(seconds)
}

/// A process that has a lock.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Holder {
    fn start(url: &str, name: &str) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let command = command.args(["hold", url, name]).stdout(Stdio::piped());
        let mut holder = Self(command.spawn()?);
        let output = holder.0.stdout.take().ok_or("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        match line.trim() {
            "held" => Ok(holder),
            _ => Err("the holder has no lock".into()),
        }
    }
}

async fn granted(lock: Lock) -> coordination::Result<Instant> {
    let guard = lock.acquire(None).await?;
    let granted = Instant::now();
    guard.release().await?;
    Ok(granted)
}

/// The process that is killed.
pub(crate) async fn hold(url: &str, name: &str) -> Outcome {
    let coordinator = Coordinator::connect(url).await?;
    let _guard = coordinator.lock(name)?.acquire(None).await?;
    println!("held");
    std::future::pending().await
}

fn tell<S: Store>(server: &Server, seconds: &mut [f64]) -> Outcome {
    let measure = Measure {
        store: S::NAME,
        part: "killed",
        measure: "next grant",
        unit: "s",
        parameter: Some(S::FREE_AFTER),
    };
    measure.values(Side::Ours, None, seconds)?;
    let (median, low, high) = spread(seconds);
    println!(
        "{}, a holder is killed: granted to the next after {median:.4} s ({low:.4} to {high:.4}; at most {} s promised)",
        S::NAME,
        S::FREE_AFTER,
    );
    for name in peers::names(S::NAME)? {
        match peers::measured::<Killed>(&name, "killed", &server.address) {
            Ok(Killed { mut seconds }) => {
                measure.values(Side::Peer, Some(&name), &seconds)?;
                println!(
                    "{}, a holder is killed, {name}: {:.4} s",
                    S::NAME,
                    spread(&mut seconds).0
                );
            }
            Err(why) => measure.cut(Side::Peer, Some(&name), &why.to_string())?,
        }
    }
    Ok(())
}
