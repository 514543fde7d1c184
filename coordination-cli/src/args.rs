//! The command line.

use std::ffi::OsString;
#[cfg(feature = "serve")]
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

mod values;

#[cfg(feature = "serve")]
pub(crate) use self::values::Listen;
#[cfg(feature = "serve")]
use self::values::listen;
pub(crate) use self::values::{Permits, Rate, Wait};
use self::values::{duration, json, rate, reason, semaphore, wait};

/// Locks, semaphores, limits, elections and groups, for commands on one host or many.
///
/// They are kept on a store that a URL names: a directory of this host, or an etcd, ZooKeeper, Consul, Redis,
/// PostgreSQL or MySQL server that many hosts share.
#[derive(Debug, Parser)]
#[command(name = "coordination", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "The same on one host, with nothing to set up:\n  \
    coordination run --url file:///run/lock/coordination --lock backup -- rsync -a /srv /mnt\n\n\
    `coordination help run` has the exit codes and more examples.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) store: Store,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which store, and as whom.
#[derive(Args, Debug)]
pub(crate) struct Store {
    /// The store, as in etcd://h1,h2/namespace or file:///run/lock/coordination; without a password
    ///
    /// Else COORDINATION_URL, else `url` in the config file. Those may have a password; arguments may not, as
    /// everybody on the host can read them.
    #[arg(long, global = true, value_name = "URL", help_heading = "Store")]
    pub(crate) url: Option<String>,
    /// A file with settings, in TOML
    ///
    /// Else COORDINATION_CONFIG, else ~/.config/coordination/config.toml, else /etc/coordination/config.toml.
    /// It has the fields of the library's `Config`, as in `url = "…"`, `namespace = "…"`, `ttl = "10s"`.
    #[arg(long, global = true, value_name = "FILE", help_heading = "Store")]
    pub(crate) config: Option<PathBuf>,
    /// What others see of us, as in `<host>-<pid>`, which are filled in; unique among those who run
    ///
    /// By default `<host>-<pid>-<random>`. All who use the store can read it: `<random>` alone says nothing of us.
    #[arg(long, global = true, value_name = "NAME", help_heading = "Store")]
    pub(crate) member_id: Option<String>,
    /// Say nothing but errors
    #[arg(long, short, global = true, help_heading = "Store")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<Run>),
    Elect(Box<Elect>),
    Join(Box<Join>),
    Work(Box<Work>),
    Acquire(Acquire),
    Release(Release),
    Post(Post),
    Status(Status),
    Members(Members),
    Leader(Leader),
    Break(Break),
    Reset(Reset),
    Resize(Resize),
    Prune(Prune),
    #[cfg(feature = "serve")]
    Serve(Box<Serve>),
    /// Show what the store promises, and what it does not
    Info,
    /// Try the store: reach it, time it, and say what to mend
    ///
    /// Takes and releases a lock a hundred times, writes a value, makes a group, all under names of its own that it removes,
    /// and lists what the store does not promise. Ends with 69 if something does not work.
    Doctor,
    /// Print what makes a shell complete our commands: `source <(coordination completions bash)`
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page: `coordination man | man -l -`
    Man,
}

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

/// Offer locks and other recipes over HTTP to programs in any language, and a page that shows who holds what
///
/// An API of its own under /v1, the page at /, and the APIs of rdlm, lockable.dev and Zaqar on listeners of their own. It
/// keeps nothing on its own disk: what is held is held at the store. SIGTERM lets clients renew and release for a while; a
/// second one ends it at once.
#[cfg(feature = "serve")]
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  coordination serve --url file:///run/lock/coordination\n  \
    curl -X POST localhost:8420/v1/locks/backup -d '{\"wait_ms\":5000}'")]
pub(crate) struct Serve {
    /// Where to listen: an address, or unix:PATH, or one of each
    #[arg(long, value_name = "ADDR", value_parser = listen, default_value = "127.0.0.1:8420")]
    pub(crate) listen: Vec<Listen>,
    /// Serve rdlm's API there
    #[arg(long, value_name = "ADDR")]
    pub(crate) rdlm: Option<SocketAddr>,
    /// Serve the API of lockable.dev there
    #[arg(long, value_name = "ADDR")]
    pub(crate) lockable: Option<SocketAddr>,
    /// Serve the API of OpenStack's Zaqar there, version 2
    #[arg(long, value_name = "ADDR")]
    pub(crate) zaqar: Option<SocketAddr>,
    /// A name by which clients may call us, besides localhost and the addresses
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
    /// The file with tokens, which only we may read; without one everybody who reaches us may hold locks
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Encrypt with this certificate, in PEM, followed by those of its authorities; also read again at SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key, in PEM, which only we may read
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Listen where others can reach us though there are no tokens
    #[arg(long)]
    pub(crate) allow_anonymous: bool,
    /// Listen where others can reach us though nothing is encrypted
    #[arg(long)]
    pub(crate) allow_plaintext: bool,
    /// Names that begin so may have leases that outlive us; rdlm/ and lockable/ always may
    #[arg(long, value_name = "PREFIX")]
    pub(crate) long: Vec<String>,
    /// How long clients may still renew and release when we are to stop
    #[arg(long, value_name = "D", value_parser = duration, default_value = "30s")]
    pub(crate) drain: Duration,
    /// Write no line for each request to stdout
    #[arg(long)]
    pub(crate) no_access_log: bool,
    /// Accept memory://, which knows nothing after a restart
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Print a new token of this name and the lines for the file, and end
    #[arg(long, value_name = "NAME")]
    pub(crate) make_token: Option<String>,
    /// What the new token may hold: a prefix that ends in /, a name, or *
    #[arg(long = "use", value_name = "SPACE", requires = "make_token")]
    pub(crate) uses: Vec<String>,
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

/// Show who holds what, and who waits: locks, semaphores, limiters (singletons) and elections; and what queues have
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// Only what has this name
    pub(crate) name: Option<String>,
    /// End with 1 if nobody has what has this name: nobody holds it, works, leads, or has an item of the queue
    #[arg(long, requires = "name", conflicts_with = "watch")]
    pub(crate) exit_code: bool,
    /// Show instead what `coordination break` has taken away: the last twenty, by whom, from whom and why
    #[arg(long, conflicts_with_all = ["watch", "exit_code", "stored"])]
    pub(crate) history: bool,
    /// Show also what is stored and nobody holds: counters, jobs that are done once per period, and the names of values
    #[arg(long)]
    pub(crate) stored: bool,
    /// Show it again each second, until interrupted
    #[arg(long)]
    pub(crate) watch: bool,
    /// For scripts: an array of objects; with --watch one line for each change
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the members of a group, and what they say of themselves
#[derive(Args, Debug)]
pub(crate) struct Members {
    /// The group
    pub(crate) group: String,
    /// End with 1 if it has no members, or is not there
    #[arg(long, conflicts_with = "watch")]
    pub(crate) exit_code: bool,
    /// Go on with who comes (+), goes (-) and changes (~), until interrupted
    #[arg(long)]
    pub(crate) watch: bool,
    /// For scripts: a line of JSON for each
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show who leads; ends with 1 if nobody does
#[derive(Args, Debug)]
pub(crate) struct Leader {
    /// The election
    pub(crate) name: String,
    /// Go on with each change, until interrupted
    #[arg(long)]
    pub(crate) watch: bool,
    /// For scripts: a line of JSON for each
    #[arg(long)]
    pub(crate) json: bool,
}

/// Take away what somebody holds, and give it to who waits; for operators
///
/// The holder is told at once, or with its next heartbeat, and may go on until then. If it is `coordination run` or
/// `coordination elect`, it stops its command. Whoever still waits is sent to the end of the queue. With `--recipe queue`
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
    /// Only ask all holders of the lock to let go of it; ends with 1 if nobody holds it
    ///
    /// Programs that use the library learn of it, if they want to know. `coordination run` does not stop its command.
    #[arg(long, conflicts_with_all = ["token", "yes", "recipe", "reason"])]
    pub(crate) ask: bool,
}

/// What can be taken away from its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Broken {
    Lock,
    Semaphore,
    #[value(alias = "singleton")]
    Limiter,
    Election,
    Queue,
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
    /// well. On one host none: there one who follows a lock that was broken waits until the command before has ended, five
    /// seconds at most.
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) settle: Option<Duration>,
    /// Leave the command in our process group
    ///
    /// Then the terminal is not handed over, and signals are passed on to the command itself only; what it has started ends with it all the same.
    #[arg(long)]
    pub(crate) foreground: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IfBusy {
    Fail,
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    Term,
    Kill,
    Ignore,
}

/// What is sent to whom a lock is held for, when it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Notice {
    Ignore,
    Hup,
    Int,
    Term,
    Kill,
    Usr1,
    Usr2,
}

const HOLDING: &str = "\
Example:
  lock=$(coordination acquire deploy --wait 5m --on-lost term) || exit
  ./build && ./upload
  coordination release \"$lock\" || exit

Exit codes: 0 when it is held; otherwise those of `coordination run`, as 75 if it was not free in time.";

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
  70       the lock was lost; the command was stopped
  71       the system did not let us start what we need
  75       not free in time
  126, 127 the command cannot be run, or is not there
  128 + n  the command, or our waiting, was ended by signal n, of which we die as well

A command may use the same codes: 64 to 75 are rare, and a shell's 126 to 128 + n mean the same.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let parse = |words: &str| Arguments::try_parse_from(words.split(' '));
        for words in [
            "coordination run -- true",
            "coordination run --lock x true",
            "coordination run --lock x --",
            "coordination run --lock x --semaphore y:2 -- true",
            "coordination run --lock x --lock y --semaphore y:2 -- true",
            "coordination run --singleton x --shared -- true",
            "coordination run --lock x --standby 1 -- true",
            "coordination run --lock x --replace -- true",
            "coordination run --singleton x --replace --standby 1 -- true",
            "coordination resize",
            "coordination resize --semaphore x:2 --standby 1",
            "coordination break x --token y",
            "coordination break x --ask --yes",
            "coordination break x --ask --reason hangs",
            "coordination status x --history --watch",
            "coordination status --history --stored",
            "coordination break x --ask --recipe semaphore",
            "coordination run --rate x:1/1s --every 1h -- true",
            "coordination run --rate x:1/1s --at-least 1h -- true",
            "coordination run --rate x:1/1s --no-fork -- true",
            "coordination run --lock x --no-fork --every 1h -- true",
            "coordination run --lock x --no-fork --on-lost term -- true",
            "coordination run --lock x --wait soon -- true",
            "coordination elect -- true",
            "coordination join g --capabilities {x -- true",
            "coordination break",
            "coordination work -- true",
            "coordination acquire",
            "coordination acquire x --for-pid 0",
            "coordination acquire x --on-lost stop",
            "coordination release",
            "coordination release x y",
            "coordination work jobs true",
            "coordination post jobs --lines item",
            "coordination post",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
        for words in [
            "coordination run --lock x --shared -- true",
            "coordination run --rate x:1/1s -- true",
            "coordination run --semaphore x:2 --no-fork --foreground -- true",
            "coordination run --lock x --lock y --shared -- true",
            "coordination run --lock x --rate y:1/1s --every 1h -- true --lock z",
            "coordination run --semaphore x:2 --every 1h --at-least 1m -- true",
            "coordination elect x --wait 1m -- true",
            "coordination run --singleton x --replace -- true",
            "coordination resize --singleton x --standby 1",
            "coordination resize --rate x:2/1s",
            "coordination break x --token 7 --yes",
            "coordination break x --reason hangs",
            "coordination status --history --json",
            "coordination status x --stored --watch --json",
            "coordination break x --recipe queue --token 7",
            "coordination break x --ask",
            "coordination join g --capabilities {} -- true",
            "coordination status x --watch --json",
            "coordination work jobs --wait 0 --once --on-lost kill -- true",
            "coordination post jobs --delay 10s one other",
            "coordination acquire x y --shared --tokens --max-hold 1h --on-lost usr1 --for-pid 7",
            "coordination release /run/user/1000/coordination/1-2",
        ] {
            assert!(parse(words).is_ok(), "{words}");
        }
    }
}
