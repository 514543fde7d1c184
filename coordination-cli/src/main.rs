//! `coordination`: locks, limits, elections and groups of many hosts, for commands.
//!
//! * `args` is the command line, `settings` finds the store, `exit` has the exit codes, `stderr` says what is said, `runtime` runs it.
//! * `run` is the heart: a command under a lock, and what makes sure that it does not outlive it; and `run::acquire`, a lock for a
//!   script.
//! * The others look, and one takes away: `status`, `follow` (members, leaders), `info`, `doctor`,
//!   `breaking`. `prune` tidies up, `reset` forgets the last run of a job, `resize` changes a
//!   number. `serve` offers it all over HTTP. `secrets` keeps passwords out of what is said. `post` is the other end of
//!   `run::work`. `note` and `broken` tell whether a command before has ended, and `history` what was taken away.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "what only those commands need that run another one")
)]

mod args;
mod breaking;
mod broken;
mod doctor;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
mod exit;
mod follow;
mod history;
mod info;
mod note;
mod post;
mod prune;
mod reset;
mod resize;
#[cfg(target_os = "linux")]
mod run;
mod runtime;
mod secrets;
#[cfg(feature = "serve")]
mod serve;
mod settings;
mod status;
mod stderr;

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::{Arguments, Command};
#[cfg(not(target_os = "linux"))]
use crate::elsewhere as run;
use crate::exit::{Failure, Outcome, last_code, print};
use crate::run::{holder, watch};
use crate::runtime::block_on;

fn main() -> ExitCode {
    // Before anything else: a command may be without it.
    let mut words = env::args_os().skip(1);
    match words.next() {
        Some(word) if word == watch::WATCH => {
            return watch::watch(&words.next().unwrap_or_default());
        }
        Some(word) if word == holder::HOLD => return holder::hold(words),
        _ => {}
    }
    let arguments = match Arguments::of(env::args_os().collect()) {
        Ok(arguments) => arguments,
        Err(error) => {
            // The same for all commands: they are parts of one.
            if error.kind() == clap::error::ErrorKind::DisplayVersion {
                let _ = print(concat!("coordination ", env!("CARGO_PKG_VERSION"), "\n"));
                return ExitCode::SUCCESS;
            }
            if !error.use_stderr() {
                let _ = error.print();
                return ExitCode::SUCCESS;
            }
            // It repeats the words that it does not understand.
            let _ = write!(io::stderr(), "{}", secrets::masked(&error.render().to_string()));
            return ExitCode::from(exit::USAGE);
        }
    };
    let ended = perform(&arguments);
    if let Err(failure) = &ended {
        failure.report();
    }
    stderr::finish();
    ExitCode::from(last_code(ended))
}

fn perform(arguments: &Arguments) -> Outcome<u8> {
    let store = &arguments.store;
    match &arguments.command {
        Command::Run(run) => block_on(run::run(run, store)),
        Command::Elect(elect) => block_on(run::elect::elect(elect, store)),
        Command::Join(join) => block_on(run::join::join(join, store)),
        Command::Acquire(asked) => run::acquire::acquire(asked, store),
        Command::Release(asked) => run::handle::release(asked),
        Command::Work(work) => block_on(run::work::work(work, store)),
        Command::Post(post) => block_on(post::post(post, store)),
        Command::Status(status) => block_on(status::status(status, store)),
        Command::Members(members) => block_on(follow::members(members, store)),
        Command::Leader(leader) => block_on(follow::leader(leader, store)),
        Command::Break(asked) => block_on(breaking::break_grant(asked, store)),
        Command::Reset(asked) => block_on(reset::reset(asked, store)),
        Command::Resize(asked) => block_on(resize::resize(asked, store)),
        Command::Prune(asked) => block_on(prune::prune(asked, store)),
        #[cfg(feature = "serve")]
        Command::Serve(asked) => block_on(serve::serve(asked, store)),
        Command::Doctor { json } => block_on(doctor::doctor(*json, store)),
        Command::Info { json } => block_on(info::info(*json, store)),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "coordination", &mut text);
            print(&String::from_utf8_lossy(&text)).map(|()| 0)
        }
        Command::Man => {
            let text = manual().map_err(|error| Failure::system("cannot write", &error))?;
            print(&String::from_utf8_lossy(&text)).map(|()| 0)
        }
    }
}

/// The manual page: of the command, and of each of its commands.
fn manual() -> io::Result<Vec<u8>> {
    let mut command = Arguments::command();
    command.build();
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    for part in
        command.get_subcommands().filter(|part| !part.is_hide_set() && part.get_name() != "help")
    {
        let man = clap_mangen::Man::new(part.clone());
        writeln!(text, ".SH \"COORDINATION {}\"", part.get_name().to_uppercase())?;
        man.render_description_section(&mut text)?;
        man.render_options_section(&mut text)?;
        man.render_extra_section(&mut text)?;
    }
    Ok(text)
}
