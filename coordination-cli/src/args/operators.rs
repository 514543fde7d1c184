//! What operators change: `break`, `resize`, `reset` and `prune`.

use std::time::Duration;

use clap::{ArgGroup, Args};

use super::values::{Permits, duration, rate, reason, semaphore};
use super::{Broken, Rate};

/// Take away what somebody holds, and give it to who waits; for operators
///
/// The holder is told at once, or with its next heartbeat, and may go on until then. If it is `coordination run` or
/// `coordination elect`, it stops its command. A holder that is stopped or hangs, or that the store does not reach, is not told: it goes on until its
/// lease ends. `coordination run`, `elect` and `acquire` that follow start when its command has ended or its lease is over, by the longer of their lease and yours;
/// on one host after five seconds at most, so end such a holder there. Programs that use the library do not wait. Whoever still waits is sent to the end of the queue. With `--recipe queue`
/// the items of a claim can be claimed again at once; `coordination work` stops its command when it next renews the claim.
#[derive(Args, Debug)]
pub(crate) struct Break {
    /// What is held: a lock, unless --recipe says otherwise
    pub(crate) name: String,
    /// What it is the name of
    #[arg(long, value_enum, default_value_t = Broken::Lock)]
    pub(crate) recipe: Broken,
    /// Only the grant with this token, as `status` shows it: whoever has followed by now keeps it
    #[arg(long, value_name = "N")]
    pub(crate) token: Option<u64>,
    /// Why, for `coordination status --history`
    #[arg(long, value_name = "TEXT", value_parser = reason, default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// The holder's command has ended for certain, as its host is down: what follows does not wait for its lease
    #[arg(long)]
    pub(crate) ended: bool,
    /// Only ask all holders of the lock to let go of it; ends with 1 if nobody holds it
    ///
    /// Programs that use the library learn of it, if they want to know. `coordination run` does not stop its command.
    #[arg(long, conflicts_with_all = ["token", "yes", "recipe", "reason", "ended"])]
    pub(crate) ask: bool,
}

/// Change a number for all who use it: a semaphore's permits, a singleton's places on standby, a rate
///
/// All have to give the same number. Whoever gives another one is refused; but where nobody holds anything or waits, a
/// semaphore's or singleton's new number is taken over by itself. Nobody loses what he has when a number becomes smaller.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("resized").args(["semaphore", "singleton", "rate"]).required(true)))]
#[command(after_help = "Example:\n  coordination resize --semaphore encode:4")]
pub(crate) struct Resize {
    /// So many permits
    #[arg(long, value_name = "NAME:N", value_parser = semaphore)]
    pub(crate) semaphore: Option<Permits>,
    /// So many on standby as --standby says, or the last one as --replace says
    #[arg(long, value_name = "NAME")]
    pub(crate) singleton: Option<String>,
    /// So many may wait to follow the singleton [default: 0]
    #[arg(long, value_name = "M", requires = "singleton", conflicts_with_all = ["semaphore", "rate"])]
    pub(crate) standby: Option<u32>,
    /// The one that came last may wait to follow the singleton
    #[arg(long, requires = "singleton", conflicts_with_all = ["standby", "semaphore", "rate"])]
    pub(crate) replace: bool,
    /// So many starts in so long a window
    #[arg(long, value_name = "NAME:N/W", value_parser = rate)]
    pub(crate) rate: Option<Rate>,
}

/// Forget when a job with --every or --at-least ran last, so that it runs at once; for operators
///
/// For instance after a host whose clock was years ahead has claimed it. A run that is under way is not stopped.
#[derive(Args, Debug)]
pub(crate) struct Reset {
    /// What the job runs under: its lock, semaphore or singleton
    pub(crate) name: String,
}

/// Remove what unused names have left at the store; safe at any time, for instance once a day
///
/// On one host each name that was ever used has a file of its own. It goes if nobody holds the name or waits for it, and it
/// has no value. Servers keep nothing of such names.
#[derive(Args, Debug)]
pub(crate) struct Prune {
    /// Only what was not used for this long
    #[arg(long, value_name = "D", value_parser = duration, default_value = "1h")]
    pub(crate) unused: Duration,
}
