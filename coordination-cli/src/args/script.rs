//! What a shell script holds from one line to another: `acquire` and `release`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::values::{duration, wait};
use super::{Notice, Wait};

/// Acquire a lock for a shell script, and print a handle by which `release` lets go of it
///
/// A small process in the background holds the lock until then, but not longer than the script lives. Where a single command is to
/// run under a lock, let `run` do it: it stops the command when the lock is lost, and nothing tells this script but --on-lost
/// and the code of `release`.
#[derive(Args, Debug)]
#[command(after_help = HOLDING)]
pub(crate) struct Acquire {
    /// The lock; several: all of these locks or none
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Share the lock, or all of them, with others who share it; who does not waits for all of them
    #[arg(long)]
    pub(crate) shared: bool,
    /// What others see of it beside the member id, by `coordination status`
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// How long to wait: a duration, 0, or forever [default: forever]
    ///
    /// Where it is given, and is not 0, a store that is out of reach when we begin is tried again for as long, too. Without it that is told at once, with 69.
    #[arg(long, short, value_name = "D", value_parser = wait)]
    pub(crate) wait: Option<Wait>,
    /// Print after the handle, in the same line, the fencing token of each lock, in the order given here
    #[arg(long)]
    pub(crate) tokens: bool,
    /// Hold it for this process: when that ends, the lock is released [default: the shell that has started us]
    ///
    /// A subshell counts as its shell, unless it is named here.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) for_pid: Option<i32>,
    /// Release it after this time, though nobody has asked for that; it counts as lost then
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) max_hold: Option<Duration>,
    /// What signal to send to the process that it is held for when the lock is lost
    #[arg(long, value_name = "WHAT", default_value = "ignore")]
    pub(crate) on_lost: Notice,
    /// How long to wait once it is held, so that a holder who lost the lock just now has ended; by default as `run` does
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) settle: Option<Duration>,
}

/// Release what `acquire` has acquired, and wait for the store to confirm
///
/// Ends with 0 if the lock was held until now, with 1 if nothing is held by this handle any more, as it was released before or
/// whom it was for has ended, with 69 if the store has not confirmed the release or the holder cannot be asked, and with 70 if the
/// lock was lost before.
#[derive(Args, Debug)]
pub(crate) struct Release {
    /// What `acquire` has printed
    #[arg(value_name = "HANDLE")]
    pub(crate) handle: PathBuf,
}

const HOLDING: &str = "\
Example:
  lock=$(coordination acquire deploy --wait 5m --on-lost term) || exit
  ./build && ./upload
  coordination release \"$lock\" || exit

Exit codes: 0 when it is held; otherwise those of `coordination run`, as 75 if it was not free in time.";
