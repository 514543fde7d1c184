//! The command line. Each command's arguments stand with those of its kind.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, FromArgMatches, Parser, Subcommand};

mod looking;
mod operators;
mod queue;
mod running;
mod script;
#[cfg(feature = "serve")]
mod serve;
mod values;

pub(crate) use self::looking::{Leader, Members, Status};
pub(crate) use self::operators::{Break, Prune, Reset, Resize};
pub(crate) use self::queue::{Post, Work};
pub(crate) use self::running::{Child, Elect, Join, Run};
pub(crate) use self::script::{Acquire, Release};
#[cfg(feature = "serve")]
pub(crate) use self::serve::{ClientAuth, Serve};
#[cfg(feature = "serve")]
pub(crate) use self::values::Listen;
pub(crate) use self::values::{Broken, IfBusy, Notice, OnLost, Rate, Wait};

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

impl Arguments {
    /// Our own words, the program's name first.
    pub(crate) fn of(words: Vec<OsString>) -> Result<Self, clap::Error> {
        Self::of_run(&words).map_or_else(|| Self::try_parse_from(words), Ok)
    }

    /// Those of a run, which starts often, by what there is to know of `run` alone: to describe all our commands takes several times as
    /// long. `None`: it is another command, or something is to be said, which takes all of them.
    fn of_run(words: &[OsString]) -> Option<Self> {
        if words.get(1).is_none_or(|word| word != "run") {
            return None;
        }
        let run = Run::augment_args(clap::Command::new("run"));
        let ours = Store::augment_args(clap::Command::new("coordination")).subcommand(run);
        let mut matches = ours.try_get_matches_from(words).ok()?;
        Self::from_arg_matches_mut(&mut matches).ok()
    }
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
    Info {
        /// For scripts: an object
        #[arg(long)]
        json: bool,
    },
    /// Try the store: reach it, time it, and say what to mend
    ///
    /// Takes and releases a lock a hundred times, writes a value, makes a group, all under names of its own that it removes,
    /// and lists what the store does not promise. Ends with 69 if something does not work.
    Doctor {
        /// For scripts: an array of objects
        #[arg(long)]
        json: bool,
    },
    /// Print what makes a shell complete our commands: `source <(coordination completions bash)`
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page: `coordination man | man -l -`
    Man,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_run_that_is_read_alone_is_the_same_as_among_all_commands() {
        for (words, is_read) in [
            ("coordination run --lock x -- true", true),
            ("coordination run --lock x --lock y --shared -- true --lock z", true),
            (
                "coordination run --url file:///x -q --member-id me --config c --lock x -- true",
                true,
            ),
            ("coordination run --lock x --wait 1m --if-busy skip --label l -- true", true),
            (
                "coordination run --lock=x -w 0 --on-lost kill --kill-after 1s --settle 0 -- -h",
                true,
            ),
            (
                "coordination run --semaphore x:2 --every 1h --at-least 1m --foreground -- true",
                true,
            ),
            ("coordination run --singleton x --standby 1 --release-after 1s -- true", true),
            ("coordination run --singleton x --replace -- true", true),
            ("coordination run --rate x:1/1s -- help", true),
            ("coordination run --lock x --no-fork -- run", true),
            ("coordination --url file:///x run --lock x -- true", false),
            ("coordination elect x -- run", false),
            ("coordination run -- true", false),
            ("coordination run --lock x true", false),
            ("coordination run --lock x --semaphore y:2 -- true", false),
            ("coordination run --lock x --wait soon -- true", false),
            ("coordination run --help", false),
            ("coordination run -V", false),
            ("coordination run help", false),
            ("coordination run", false),
            ("coordination", false),
        ] {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            let shown = |read: Option<Arguments>| read.map(|read| format!("{read:?}"));
            let (alone, among_all) =
                (Arguments::of_run(&words), Arguments::try_parse_from(&words).ok());
            assert_eq!(alone.is_some(), is_read, "{words:?}");
            if is_read {
                assert_eq!(shown(alone), shown(among_all));
            }
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let parse = |words: &str| Arguments::of(words.split(' ').map(OsString::from).collect());
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
            "coordination info --json",
            "coordination doctor --json",
            "coordination work jobs --wait 0 --once --on-lost kill -- true",
            "coordination post jobs --delay 10s one other",
            "coordination acquire x y --shared --tokens --max-hold 1h --on-lost usr1 --for-pid 7",
            "coordination release /run/user/1000/coordination/1-2",
        ] {
            assert!(parse(words).is_ok(), "{words}");
        }
    }
}
