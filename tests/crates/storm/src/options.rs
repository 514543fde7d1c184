//! Reads the command line of the program `storm`.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::plan::{Target, queues, targets};

/// The kind of store that the storm uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    File,
}

/// What the clients of the storm do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// They acquire locks and a semaphore.
    Locks,
    /// They post items to work queues, claim items and acknowledge them.
    Work,
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
    pub(crate) load: Load,
    /// The number of grants, or of claims with items, after which the storm ends.
    pub(crate) grants: u64,
    /// The number of threads or processes.
    pub(crate) clients: u32,
    /// The number of tasks of each client.
    pub(crate) tasks: u32,
    /// The number of locks or of work queues.
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

impl Load {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Locks => "locks",
            Self::Work => "work",
        }
    }
}

impl Options {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Command, String> {
        let usage = "storm memory|file [--load locks|work] [--grants N] [--threads N | --processes N] [--tasks N] [--locks N] [--seed N]";
        let kind = match words.next().as_deref() {
            Some("memory") => Kind::Memory,
            Some("file") => Kind::File,
            _ => return Err(usage.to_owned()),
        };
        let mut words = words.peekable();
        let load = match words.next_if(|word| word == "--load").and_then(|_| words.next()) {
            None => Load::Locks,
            Some(name) if name == Load::Locks.name() => Load::Locks,
            Some(name) if name == Load::Work.name() => Load::Work,
            Some(name) => return Err(format!("what is {name}? {usage}")),
        };
        let seed = rand::random();
        let mut options = Self::default(kind, load, seed);
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
            options.directory = own_directory(kind, load, options.seed)?;
        }
        Ok(match client {
            None => Command::Storm(options),
            Some(id) => Command::Client(options, id),
        })
    }

    /// The default parameters. The numbers are chosen so that two cores are busy for a minute or two.
    fn default(kind: Kind, load: Load, seed: u64) -> Self {
        let (clients, tasks, locks, grants) = match (kind, load) {
            (Kind::Memory, Load::Locks) => (8, 8, 8, 1_000_000),
            (Kind::File, Load::Locks) => (4, 8, 16, 1_000_000),
            (Kind::Memory, Load::Work) => (8, 4, 8, 1_000_000),
            // A million would take a quarter of an hour.
            (Kind::File, Load::Work) => (4, 4, 8, 200_000),
        };
        Self { kind, load, grants, clients, tasks, locks, seed, directory: PathBuf::new() }
    }

    pub(crate) fn targets(&self) -> Arc<[Target]> {
        match self.load {
            Load::Locks => targets(self.locks).into(),
            Load::Work => queues(self.locks).into(),
        }
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
        let Self { kind, load, grants, clients, tasks, locks, seed, .. } = self;
        let (name, number, load) = (kind.name(), kind.clients(), load.name());
        format!(
            "{name} --load {load} --grants {grants} {number} {clients} --tasks {tasks} --locks {locks} --seed {seed}"
        )
    }
}

/// A new directory next to the build's output. There the disk has room, and git ignores it.
fn own_directory(kind: Kind, load: Load, seed: u64) -> Result<PathBuf, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("no path of its own: {error}"))?;
    let target = program.ancestors().nth(2).ok_or("the program is in no build directory")?;
    let name = format!("{}-{}-{seed}-{}", kind.name(), load.name(), std::process::id());
    Ok(target.join("storm").join(name))
}

fn number<N: FromStr>(word: &str, value: &str) -> Result<N, String> {
    value.parse().map_err(|_| format!("{word} takes a number, not {value:?}"))
}
