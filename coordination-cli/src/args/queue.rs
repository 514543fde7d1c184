//! The two ends of a queue: `work` and `post`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::values::{duration, wait};
use super::{Child, Wait};

/// Run a command for each item of a queue: claim the item, and acknowledge it when the command has succeeded
///
/// The command reads the item's bytes from its stdin, and runs as with `run`: LOCK_NAME is the queue's name, and LOCK_TOKEN
/// larger with each claim of the queue. If it ends with 0 the item is done; with any other code it is given back, after a
/// delay that doubles with each claim of the item. While it runs the claim is renewed; if the claim is lost, the command is
/// stopped in time, and the item goes to somebody else. If we die, the item comes back as soon as the store knows that.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  coordination work resize-jobs --delay 10s -- ./resize\n\n\
    Ends with 0 when no item has come in the time given, by signal n (128 + n in a shell) once the command has ended.\n\
    With --once it ends as the command has, with 75 if no item came, and with 70 if the claim was lost.")]
pub(crate) struct Work {
    /// The queue
    pub(crate) queue: String,
    /// How long to wait for an item: a duration, 0, or forever [default: forever]
    ///
    /// Where it is given, and is not 0, a store that is out of reach when we begin is tried again for as long, too. Without it that is told at once, with 69.
    #[arg(long, short, value_name = "D", value_parser = wait)]
    pub(crate) wait: Option<Wait>,
    /// Run the command for one item only
    #[arg(long)]
    pub(crate) once: bool,
    /// How long a claim lasts that is not renewed, in case that we stand still
    #[arg(long, value_name = "D", value_parser = duration, default_value = "1m")]
    pub(crate) ttl: Duration,
    /// After how long an item comes back whose command has failed; twice as long each time, 15 minutes at most
    #[arg(long, value_name = "D", value_parser = duration, default_value = "1s")]
    pub(crate) delay: Duration,
    #[command(flatten)]
    pub(crate) child: Child,
    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Post items to a queue, and print their names
///
/// Each argument is an item; without any, what comes on stdin is one, or with --lines each of its lines. Everybody on the
/// host can read arguments. What is posted at once is there as a whole or not at all, up to 1,000 items and 352 KiB; more
/// are posted in parts.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  \
    printf 'vol-7\\nvol-8\\n' | coordination post resize-jobs --lines")]
pub(crate) struct Post {
    /// The queue
    pub(crate) queue: String,
    /// How long an item lives that nobody acknowledges, 14 days at most
    #[arg(long, value_name = "D", value_parser = duration, default_value = "14d")]
    pub(crate) ttl: Duration,
    /// For how long nobody may claim it, 15 minutes at most
    #[arg(long, value_name = "D", value_parser = duration, default_value = "0")]
    pub(crate) delay: Duration,
    /// Each line of stdin is an item
    #[arg(long, conflicts_with = "bodies")]
    pub(crate) lines: bool,
    /// The items
    #[arg(value_name = "ITEM")]
    pub(crate) bodies: Vec<OsString>,
}
