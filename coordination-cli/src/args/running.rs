//! Commands that run another one: `run`, `elect` and `join`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgGroup, Args};

use super::values::{Permits, duration, json, rate, semaphore, wait};
use super::{IfBusy, OnLost, Rate, Wait};

/// Run a command while holding a lock, a permit of a semaphore, or a slot of a singleton
///
/// The command runs without a shell, in a process group of its own. It gets LOCK_NAME, LOCK_TOKEN (larger with
/// each grant: hand it to what you write to) and, on stores with leases, LOCK_DEADLINE (seconds since 1970; moved
/// on while we run); it gets COORDINATION_URL if that has no password. It is ended when the lock is lost or we die, with all that it has started, and what
/// it leaves running is ended before the lock is released, but for what has COORDINATION_RUN=leave in its environment. Signals
/// are passed on to the group.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("held").args(["lock", "semaphore", "singleton", "rate"]).required(true).multiple(true)))]
#[command(group(ArgGroup::new("named").args(["lock", "semaphore", "singleton"])))]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Run {
    /// Hold the lock of this name: one at a time; given several times, all of these locks or none
    ///
    /// They are acquired in the order of their names. LOCK_NAME and LOCK_TOKEN are those of the first one here; with several there
    /// are LOCK_NAME_1 and LOCK_TOKEN_1, LOCK_NAME_2 and LOCK_TOKEN_2, and so on, in the order given here. If one is lost, so are all.
    #[arg(long, value_name = "NAME")]
    pub(crate) lock: Vec<String>,
    /// Share the lock, or all of them, with others who share it; who does not waits for all of them
    // `requires` alone is waived where what it wants is in conflict with something that is there.
    #[arg(long, requires = "lock", conflicts_with_all = ["semaphore", "singleton"])]
    pub(crate) shared: bool,
    /// Hold one of N permits
    #[arg(long, value_name = "NAME:N", value_parser = semaphore)]
    pub(crate) semaphore: Option<Permits>,
    /// Be the only one; who comes second is busy at once, however long he would wait
    #[arg(long, value_name = "NAME")]
    pub(crate) singleton: Option<String>,
    /// So many may wait to follow the singleton; the others are busy at once
    #[arg(long, value_name = "M", requires = "singleton", conflicts_with_all = ["lock", "semaphore"])]
    pub(crate) standby: Option<u32>,
    /// One may wait to follow the singleton, the one that came last: who waited before is busy
    #[arg(long, requires = "singleton", conflicts_with_all = ["standby", "lock", "semaphore"])]
    pub(crate) replace: bool,
    /// Start at most N times in any window of the length W, as in api:5/1s
    ///
    /// So it is if each start follows its permit at once. One that is put off, as we were stopped (SIGSTOP) or had no processor, may come beside later ones.
    #[arg(long, value_name = "NAME:N/W", value_parser = rate)]
    pub(crate) rate: Option<Rate>,
    /// Succeed once in each period over all hosts; periods begin at multiples of it since 1970 UTC
    ///
    /// By the hosts' wall clocks. Who comes when the period is spent ends with 0. A run that fails gives the period back, and
    /// one that dies leaves it to who holds the same next: one that stands by takes over from the dead, not from the done.
    /// With --shared or --semaphore, who holds it beside a run that is under way ends with 0 at once, without having run.
    #[arg(long, value_name = "PERIOD", value_parser = duration, requires = "named")]
    pub(crate) every: Option<Duration>,
    /// After a start, do not start again within this time, though the command was short and whether it succeeded
    ///
    /// For more than the hosts' clocks differ. Who comes within it ends with 0. A run that dies does not count.
    #[arg(long, value_name = "D", value_parser = duration, requires = "named")]
    pub(crate) at_least: Option<Duration>,
    /// What others see of this run beside the member id, by `coordination status`
    #[arg(long, value_name = "TEXT", requires = "named")]
    pub(crate) label: Option<String>,
    /// How long to wait: a duration, 0, or forever [default: forever]
    ///
    /// Where it is given, and is not 0, a store that is out of reach when we begin is tried again for as long, too. Without it that is told at once, with 69.
    #[arg(long, short, value_name = "D", value_parser = wait)]
    pub(crate) wait: Option<Wait>,
    /// What to do when it is not free in time: fail with 75, or skip with 0
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    pub(crate) if_busy: IfBusy,
    #[command(flatten)]
    pub(crate) child: Child,
    /// Release after this time, though the command may still run
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) release_after: Option<Duration>,
    /// On one host: become the command, which holds the lock by a descriptor that it inherits, as with `flock --no-fork`
    ///
    /// No process stays beside the command, and it keeps our process id. The lock is held until the command has ended, and
    /// whatever it has started that has not closed the descriptor. Nothing is ended with the command, and nobody tells it when `coordination
    /// break` takes the lock away.
    #[arg(long, requires = "named", conflicts_with_all = ["every", "at_least", "on_lost", "kill_after", "release_after"])]
    pub(crate) no_fork: bool,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Run a command while leading: one leader at a time for each name
///
/// Waits until it is elected, and then runs the command as `run` does, with its environment and its exit codes:
/// LOCK_NAME is the election's name, and LOCK_TOKEN the term. When the leadership is lost the command is stopped, and
/// we end with 70: let systemd or a loop start us again.
#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  coordination elect scheduler -- /usr/local/bin/scheduler --leader"
)]
pub(crate) struct Elect {
    /// The election
    pub(crate) name: String,
    /// What others see of the leader, by `coordination leader` [default: the member id]
    #[arg(long, value_name = "TEXT")]
    pub(crate) value: Option<String>,
    /// What others see of each candidate beside the member id, by `coordination status`
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// How long to wait: a duration, 0, or forever [default: forever]
    ///
    /// Where it is given, and is not 0, a store that is out of reach when we begin is tried again for as long, too. Without it that is told at once, with 69.
    #[arg(long, short, value_name = "D", value_parser = wait)]
    pub(crate) wait: Option<Wait>,
    #[command(flatten)]
    pub(crate) child: Child,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Run a command as a member of a group, which is made if it is not there
///
/// Others see the member for as long as the command runs: `coordination members`. A membership that is lost with its
/// session is taken up again; the command runs on.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  \
    coordination --member-id '<host>' join web --capabilities '{\"port\": 8080}' -- ./serve")]
pub(crate) struct Join {
    /// The group
    pub(crate) group: String,
    /// What the member says of itself, as JSON
    #[arg(long, value_name = "JSON", value_parser = json, default_value = "null")]
    pub(crate) capabilities: serde_json::Value,
    /// What others see of the member beside its id
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Leave the command in our process group
    #[arg(long)]
    pub(crate) foreground: bool,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// How a command is run.
#[derive(Args, Debug)]
pub(crate) struct Child {
    /// What to do with the command when what it runs under is lost
    ///
    /// `term` sends SIGTERM, in time for SIGKILL to follow before the store can give the lock to somebody else.
    /// `kill` sends SIGKILL at the last moment. `ignore` lets the command run on.
    #[arg(long, value_name = "WHAT", default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// From SIGTERM to SIGKILL, at most a third of the lease [default: a fifth of the lease]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) kill_after: Option<Duration>,
    /// How long to wait before the command starts, so that a holder who lost the lock just now has ended
    ///
    /// By default as long as the store needs to tell of a loss, and a command to end: 0.2 s, with ZooKeeper 0.4 s, Redis,
    /// PostgreSQL and MySQL 0.6 s; but under a lock on a store that keeps what it has confirmed nobody waits after a command that has ended
    /// well. After `coordination break` it takes until the command before has ended or its lease is over, however short this is; 0
    /// skips that. On one host none: there one who follows after `break` waits until the command before has ended, five seconds at
    /// most; under a lock 0 does not skip that.
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) settle: Option<Duration>,
    /// Leave the command in our process group
    ///
    /// Then the terminal is not handed over, and signals are passed on to the command itself only; what it has started ends with it all the same.
    #[arg(long)]
    pub(crate) foreground: bool,
}

const EXAMPLES: &str = "\
Examples:
  # One backup at a time, on all hosts; wait a minute at most.
  coordination run --lock backup --wait 1m -- rsync -a /srv /mnt

  # From the crontab of every host, each night: one runs, one stands by in case that it fails or dies.
  coordination run --singleton nightly --every 24h --standby 1 --if-busy skip -- nightly

  # From the crontab of every host, every five minutes: one runs, though it is done before another host's clock says so.
  coordination run --singleton report --at-least 1m --if-busy skip -- report

  # Two locks at once, or none: of both volumes, whoever comes from whichever side.
  coordination run --lock vol-1 --lock vol-2 -- ./clone vol-1 vol-2

  # Three at a time.
  coordination run --semaphore encode:3 -- ffmpeg -i in.mkv out.mp4

Exit codes:
  0-125    the command's own; 0 also: skipped
  64       wrong arguments, URL or settings
  69       the store is out of reach, or refuses
  70       the lock was lost; the command was stopped, or may have outlived it
  71       the system did not let us start what we need
  75       not free in time
  126, 127 the command cannot be run, or is not there
  128 + n  the command, or our waiting, was ended by signal n, of which we die as well

A command may use the same codes: 64 to 75 are rare, and a shell's 126 to 128 + n mean the same.";
