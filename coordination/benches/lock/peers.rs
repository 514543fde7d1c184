//! Locks that others use, measured in turn with ours: those of the client crates, and those of a program that
//! `COORDINATION_BENCH_PEERS` names.
//!
//! They are measured only where the measurements are [recorded](crate::record). The program, `tests/report/peers.py`, has this form:
//!
//! * `list STORE` prints the names of the peers that it can measure.
//! * `NAME cycles ADDRESS` prints `ready`, and then for each line that it reads how many microseconds an acquire and a release take.
//! * `NAME contended ADDRESS`, `NAME apart ADDRESS` and `NAME killed ADDRESS` print an object of JSON.
//!
//! A line that begins with `error` says why there is nothing.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::Outcome;
use crate::compare::{Comparison, spread};
use crate::record::{self, Side};
#[cfg(feature = "_network")]
use crate::server::{Locking, cycle};

/// How long a peer may take to begin, and for one round.
const LONGEST: Duration = Duration::from_secs(60);

/// A lock that takes part in a comparison.
pub(crate) struct Peer<'a> {
    name: String,
    rounds: Box<dyn Rounds + 'a>,
    values: Vec<f64>,
    failed: Option<String>,
}

#[async_trait(?Send)]
trait Rounds {
    /// Microseconds per acquire and release.
    async fn round(&mut self) -> Outcome<f64>;
}

impl<'a> Peer<'a> {
    #[cfg(feature = "_network")]
    pub(crate) fn of_crate(name: &str, lock: impl Locking + 'a, repeats: u32) -> Self {
        Self::new(name, Box::new(Cycles { lock, repeats }))
    }

    fn new(name: &str, rounds: Box<dyn Rounds + 'a>) -> Self {
        Self { name: name.to_owned(), rounds, values: Vec::new(), failed: None }
    }

    /// Runs a round, unless one has failed.
    pub(crate) async fn run(&mut self, counts: bool) {
        if self.failed.is_some() {
            return;
        }
        match self.rounds.round().await {
            Ok(value) if counts => self.values.push(value),
            Ok(_) => {}
            Err(error) => self.failed = Some(error.to_string()),
        }
    }

    /// Records and prints what was measured.
    pub(crate) fn tell(&self, what: &Comparison<'_>, floor: f64) -> Outcome {
        let Self { name, values, .. } = self;
        if let Some(why) = &self.failed {
            println!("{}, {name}: {why}", what.title);
            return what.measure.cut(Side::Peer, Some(name), why);
        }
        what.measure.values(Side::Peer, Some(name), values)?;
        let (median, ..) = spread(&mut values.clone());
        let ratio = median / floor;
        println!("{}, {name}: {ratio:.2} × the floor — {median:.1} µs", what.title);
        Ok(())
    }
}

#[cfg(feature = "_network")]
struct Cycles<L> {
    lock: L,
    repeats: u32,
}

#[cfg(feature = "_network")]
#[async_trait(?Send)]
impl<L: Locking> Rounds for Cycles<L> {
    async fn round(&mut self) -> Outcome<f64> {
        crate::compare::timed(self.repeats, &mut async || cycle(&mut self.lock).await).await
    }
}

/// A program that measures a round when it is told to.
struct Script {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Script {
    async fn start(name: &str, address: &str) -> Outcome<Self> {
        let program = program().ok_or("no program of peers")?;
        let mut command = tokio::process::Command::new(program);
        command.args([name, "cycles", address]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn()?;
        let input = child.stdin.take().ok_or("no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        let mut script = Self { input, output, _child: child };
        match script.line().await?.as_str() {
            "ready" => Ok(script),
            line => Err(line.into()),
        }
    }

    async fn line(&mut self) -> Outcome<String> {
        let line = tokio::time::timeout(LONGEST, self.output.next_line()).await??;
        line.ok_or("it ended".into())
    }
}

#[async_trait(?Send)]
impl Rounds for Script {
    async fn round(&mut self) -> Outcome<f64> {
        self.input.write_all(b"round\n").await?;
        let line = self.line().await?;
        line.parse().map_err(|_| line.into())
    }
}

fn program() -> Option<OsString> {
    std::env::var_os("COORDINATION_BENCH_PEERS").filter(|_| record::is_wanted())
}

/// The names of the peers that can be measured on this store; none, if no program is named.
pub(crate) fn names(store: &str) -> Outcome<Vec<String>> {
    let Some(program) = program() else { return Ok(Vec::new()) };
    let output = Command::new(program).args(["list", store]).stderr(Stdio::inherit()).output()?;
    Ok(String::from_utf8(output.stdout)?.split_whitespace().map(str::to_owned).collect())
}

/// The peers of this store, ready for rounds.
pub(crate) async fn programs<'a>(store: &str, address: &str) -> Outcome<Vec<Peer<'a>>> {
    let mut peers = Vec::new();
    for name in names(store)? {
        peers.push(match Script::start(&name, address).await {
            Ok(script) => Peer::new(&name, Box::new(script)),
            Err(error) => {
                let rounds = Box::new(Nothing(error.to_string()));
                Peer::new(&name, rounds)
            }
        });
    }
    Ok(peers)
}

/// A peer that did not begin.
struct Nothing(String);

#[async_trait(?Send)]
impl Rounds for Nothing {
    async fn round(&mut self) -> Outcome<f64> {
        Err(self.0.clone().into())
    }
}

/// What a peer measures in a run of its own.
pub(crate) fn measured<T: DeserializeOwned>(name: &str, what: &str, address: &str) -> Outcome<T> {
    let program = program().ok_or("no program of peers")?;
    let mut command = Command::new(program);
    let output = command.args([name, what, address]).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8(output.stdout)?;
    let line = text.lines().last().unwrap_or("it printed nothing");
    serde_json::from_str(line).map_err(|_| line.into())
}
