//! Commands that only look: `status`, `members` and `leader`.

use clap::Args;

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
