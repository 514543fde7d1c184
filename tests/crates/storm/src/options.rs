//! Reads the command line of the program `storm`.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::plan::{Target, targets};

/// The kind of store that the storm uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    File,
}

/// What the command line tells the program to do.
pub(crate) enum Command {
    Storm(Options),
    /// Run one client process of a storm. The number is the client's.
    Client(Options, u32),
}

/// The parameters of a storm.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) kind: Kind,
    pub(crate) grants: u64,
    /// The number of threads or processes.
    pub(crate) clients: u32,
    /// The number of tasks of each client.
    pub(crate) tasks: u32,
    pub(crate) locks: usize,
    pub(crate) seed: u64,
    /// The directory in which the histories are, and the locks of `file://`.
    pub(crate) directory: PathBuf,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::File => "file",
        }
    }

    /// The name of the option for the number of clients.
    fn clients(self) -> &'static str {
        match self {
            Self::Memory => "--threads",
            Self::File => "--processes",
        }
    }
}

impl Options {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Command, String> {
        let usage = "storm memory|file [--grants N] [--threads N | --processes N] [--tasks N] [--locks N] [--seed N]";
        let kind = match words.next().as_deref() {
            Some("memory") => Kind::Memory,
            Some("file") => Kind::File,
            _ => return Err(usage.to_owned()),
        };
        let seed = rand::random();
        let mut options = Self::default(kind, seed);
        let mut client = None;
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--grants" => options.grants = number(&word, &value)?,
                "--tasks" => options.tasks = number(&word, &value)?,
                "--locks" => options.locks = number(&word, &value)?,
                "--seed" => options.seed = number(&word, &value)?,
                "--directory" => options.directory = value.into(),
                "--client" => client = Some(number(&word, &value)?),
                word if word == kind.clients() => options.clients = number(word, &value)?,
                word => return Err(format!("what is {word}? {usage}")),
            }
        }
        if options.directory.as_os_str().is_empty() {
            options.directory = own_directory(kind, options.seed)?;
        }
        Ok(match client {
            None => Command::Storm(options),
            Some(id) => Command::Client(options, id),
        })
    }

    /// The default parameters. The numbers of names and tasks are chosen so that two cores are busy for almost a
    /// minute.
    fn default(kind: Kind, seed: u64) -> Self {
        let (clients, tasks, locks) = match kind {
            Kind::Memory => (8, 8, 8),
            Kind::File => (4, 8, 16),
        };
        Self { kind, grants: 1_000_000, clients, tasks, locks, seed, directory: PathBuf::new() }
    }

    pub(crate) fn targets(&self) -> Arc<[Target]> {
        targets(self.locks).into()
    }

    pub(crate) fn histories(&self) -> PathBuf {
        self.directory.join("histories")
    }

    /// The directory of the locks of `file://`.
    pub(crate) fn store(&self) -> PathBuf {
        self.directory.join("store")
    }

    pub(crate) fn url(&self) -> String {
        match self.kind {
            Kind::Memory => "memory://storm".to_owned(),
            Kind::File => format!("file://{}", self.store().display()),
        }
    }

    /// The command line that starts a storm with the same parameters.
    pub(crate) fn command_line(&self) -> String {
        let Self { kind, grants, clients, tasks, locks, seed, .. } = self;
        let (name, number) = (kind.name(), kind.clients());
        format!(
            "{name} --grants {grants} {number} {clients} --tasks {tasks} --locks {locks} --seed {seed}"
        )
    }
}

/// A new directory next to the build's output. There the disk has room, and git ignores it.
fn own_directory(kind: Kind, seed: u64) -> Result<PathBuf, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("no path of its own: {error}"))?;
    let target = program.ancestors().nth(2).ok_or("the program is in no build directory")?;
    let name = format!("{}-{seed}-{}", kind.name(), std::process::id());
    Ok(target.join("storm").join(name))
}

fn number<N: FromStr>(word: &str, value: &str) -> Result<N, String> {
    value.parse().map_err(|_| format!("{word} takes a number, not {value:?}"))
}
