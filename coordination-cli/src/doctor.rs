//! `coordination doctor`: tries what everything else rests on, and says what to mend.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, Instant};

use coordination::{Coordinator, Durability, Error, ErrorKind, Group, Scope};
use serde::Serialize;

use crate::args::Store;
use crate::exit::{self, Outcome, print, printable};
use crate::{info, settings};

/// Locks taken and released.
const TRIES: usize = 100;
/// One that takes longer makes whoever starts many commands wait.
const SLOW: Duration = Duration::from_millis(50);

/// Clocks that differ by more are not both right, whatever the way between them takes, in milliseconds.
const APART: u64 = 2_000;

/// What an error says of a Redis that grants nothing for a while.
const QUARANTINE: &str = "`quarantine`";

/// What one look came to.
#[derive(Serialize)]
#[serde(tag = "finding", content = "text", rename_all = "lowercase")]
enum Finding {
    #[serde(rename = "ok")]
    Fine(String),
    /// It works, and may not do what somebody counts on.
    Mind(String),
    Broken(String),
}

pub(crate) async fn doctor(is_json: bool, store: &Store) -> Outcome<u8> {
    let config = settings::read(store)?;
    let url = config.url.clone().unwrap_or_default();
    let scheme = url.split("://").next().unwrap_or_default().to_owned();
    let start = Instant::now();
    let coordinator = settings::connect(config).await?;
    let mut findings =
        vec![Finding::Fine(format!("connected to {scheme} within {:?}", rounded(start.elapsed())))];
    findings.extend(server(&coordinator));
    findings.extend(directory(&url));
    findings.extend(tried(&coordinator).await);
    findings.extend(promised(&coordinator));
    findings.push(clock());
    let _ = coordinator.stop().await;
    let is_broken = findings.iter().any(|finding| matches!(finding, Finding::Broken(_)));
    let text = match is_json {
        true => exit::json(&findings)?,
        false => findings.iter().map(|finding| format!("{finding}\n")).collect(),
    };
    print(&text)?;
    Ok(if is_broken { exit::UNAVAILABLE } else { 0 })
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fine(text) => write!(f, "ok      {text}"),
            Self::Mind(text) => write!(f, "mind    {text}"),
            Self::Broken(text) => write!(f, "BROKEN  {text}"),
        }
    }
}

/// Whether we may do there what commands need.
async fn tried(coordinator: &Coordinator) -> Vec<Finding> {
    let name = format!("doctor-{}", coordinator.member_id());
    let mut findings =
        vec![timed(coordinator, &name).await.unwrap_or_else(|error| broken("a lock", &error))];
    for (what, outcome) in [
        ("a value, as for --semaphore, --rate and --every", value(coordinator, &name).await),
        ("a group, as for join", group(coordinator, &name).await),
    ] {
        findings.push(match outcome {
            Ok(()) => Finding::Fine(format!("{what}: made, read and removed")),
            Err(error) => broken(what, &error),
        });
    }
    if let Err(error) = coordinator.prune_name(&name).await {
        findings.push(Finding::Mind(format!("what this has used is left at the store: {error}")));
    }
    findings
}

async fn timed(coordinator: &Coordinator, name: &str) -> coordination::Result<Finding> {
    let lock = coordinator.lock(name)?;
    let mut took = Vec::with_capacity(TRIES);
    for _ in 0..TRIES {
        let start = Instant::now();
        let guard = lock.acquire(Some(Duration::from_secs(10))).await?;
        took.push(start.elapsed());
        guard.release().await?;
    }
    took.sort_unstable();
    let middle = took.get(TRIES / 2).copied().unwrap_or_default();
    let slowest = took.last().copied().unwrap_or_default();
    let text = format!(
        "{TRIES} locks, {:?} each in the middle, {:?} at worst",
        rounded(middle),
        rounded(slowest)
    );
    Ok(match middle > SLOW {
        true => Finding::Mind(format!(
            "{text}: that is slow; look at the store's disk, and at the way to it"
        )),
        false => Finding::Fine(text),
    })
}

async fn value(coordinator: &Coordinator, name: &str) -> coordination::Result<()> {
    let value = coordinator.value::<u32>(name)?;
    value.set(&7).await?;
    value.read().await?;
    value.delete().await.map(drop)
}

async fn group(coordinator: &Coordinator, name: &str) -> coordination::Result<()> {
    let group = coordinator.group(name)?;
    let joined = joined(&group).await;
    // It may have been made although nobody could join it.
    let deleted = group.delete().await;
    joined.and(deleted)
}

async fn joined(group: &Group) -> coordination::Result<()> {
    let membership = group.join_or_create("doctor").await?;
    group.members().await?;
    membership.leave().await
}

/// What the server has said of itself.
fn server(coordinator: &Coordinator) -> Vec<Finding> {
    let info = coordinator.server_info();
    let version = info
        .version
        .map(|version| Finding::Fine(format!("the server's version is {}", printable(&version))));
    let clock = info.clock_ahead_ms.map(|ahead| match ahead.unsigned_abs() {
        0..=APART => Finding::Fine("the server's clock and this host's show the same".to_owned()),
        apart => {
            let apart = Duration::from_secs(apart / 1_000);
            let how = if ahead > 0 { "ahead of" } else { "behind" };
            Finding::Mind(format!(
                "the server's clock is {apart:?} {how} this host's: one of them is wrong. `run --every` counts by the hosts' clocks, and if \
                 the server's is set right by a jump, leases may end early"
            ))
        }
    });
    version.into_iter().chain(clock).collect()
}

/// Whose the directory is, and who may use it, on `file://`.
fn directory(url: &str) -> Option<Finding> {
    let path = url.strip_prefix("file://")?.split('?').next()?;
    let of = fs::metadata(path).ok()?;
    let owner = settings::name_of(settings::USERS, of.uid());
    let group = settings::name_of(settings::GROUPS, of.gid());
    let mode = of.mode() & 0o7777;
    let text = format!("{path} belongs to {owner} and the group {group}, and has mode {mode:04o}");
    Some(match mode & 0o002 {
        0 => Finding::Fine(text),
        _ => Finding::Mind(format!(
            "{text}: everybody may write there, so that another user may take its place first; choose a directory of your own"
        )),
    })
}

fn broken(what: &str, error: &Error) -> Finding {
    let advice = match error.kind() {
        ErrorKind::Permission | ErrorKind::Auth => {
            "; the store's page in docs/backends lists the rights that it takes"
        }
        ErrorKind::Quota => "; make room in the store",
        ErrorKind::Unavailable if error.to_string().contains(QUARANTINE) => {
            "; it passes by itself: run this again then"
        }
        ErrorKind::Collision | ErrorKind::Corrupt => {
            "; something else writes under this namespace: choose another"
        }
        _ => "",
    };
    Finding::Broken(format!("{what}: {error}{advice}"))
}

/// What it does not promise, and what it keeps.
fn promised(coordinator: &Coordinator) -> Vec<Finding> {
    let store = coordinator.characteristics();
    let broken = info::lines(&store).into_iter().filter(|(holds, _)| !holds);
    let mut findings: Vec<_> =
        broken.map(|(_, line)| Finding::Mind(format!("not promised: {line}"))).collect();
    let forgets = matches!(store.survives_restart, Durability::No | Durability::Unknown);
    if store.scope == Scope::Hosts && forgets {
        let advice = "a restart of the store may forget who holds what, and then nothing is granted for a lease: let it \
                      sync its log for each write (Redis: appendonly yes, appendfsync always)";
        findings.push(Finding::Mind(advice.to_owned()));
    }
    findings
}

/// Leases do not need it; periods do.
fn clock() -> Finding {
    let asked = Command::new("timedatectl")
        .args(["show", "--property=NTPSynchronized", "--value"])
        .output();
    let answer = asked.ok().filter(|asked| asked.status.success()).map(|asked| asked.stdout);
    match answer.as_deref() {
        Some(b"yes\n") => Finding::Fine("this host's clock is synchronised".to_owned()),
        Some(b"no\n") => Finding::Mind(
            "this host's clock is not synchronised: `run --every` counts by it, nothing else does (start an NTP client)".to_owned(),
        ),
        _ => Finding::Mind(
            "whether this host's clock is synchronised is not known here: `run --every` counts by it, nothing else does".to_owned(),
        ),
    }
}

/// To what somebody reads.
fn rounded(time: Duration) -> Duration {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(if micros < 10_000 { micros / 10 * 10 } else { micros / 1_000 * 1_000 })
}
