//! `run --no-fork`: we become the command, and the command holds the lock by a descriptor that it inherits.
//!
//! On one host a session lasts as long as any process has its file open, whoever that is. So nobody has to stay beside the command, as
//! with `flock --no-fork`. What is given up for that: nobody is there who could tell the command of a loss, or end what it leaves.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

use coordination::Coordinator;
use rustix::io::{FdFlags, fcntl_setfd};
use tokio::time::sleep;

use super::child::{SHELL, by_shell, find, is_for_shell, not_begun, tell};
use super::finish::finish;
use super::reach::reach;
use super::signals::Signals;
use super::wanted::{Budget, Hold};
use super::{Ready, Settling, after, busy, prepare, started};
use crate::args::{Run, Store};
use crate::exit::{self, Failure, Outcome};
use crate::settings::{self, HandedOn};
use crate::stderr;

const ON_FILES: &str = "--no-fork is for file:// URLs: elsewhere a lock ends when nobody renews it";
/// For so long our runtime looks what has come: any wait will do for that.
const LOOK: Duration = Duration::from_millis(1);

/// Returns only if the command does not run.
pub(super) async fn run(run: &Run, store: &Store) -> Outcome<u8> {
    // As a shell has it, before anything is waited for.
    let program = find(&run.command)?;
    let config = settings::read(store)?;
    if settings::lease(&config).is_some() {
        return Err(Failure::usage(ON_FILES));
    }
    let mut signals = Signals::new()?;
    let budget = Budget::new(run.wait);
    let reaching = reach(config, run.wait, budget, store.quiet);
    let coordinator = unless_signal(&mut signals, reaching).await?;
    let settling = Settling { asked: run.child.settle, lease: None, is_quiet: store.quiet };
    let preparing = prepare(run, &settling, &coordinator, budget);
    let prepared = unless_signal(&mut signals, preparing).await;
    let after = after(&prepared);
    let outcome = match prepared {
        Ok(Ready::Run { hold, .. }) => {
            // It may take a second, in which a signal is only noted.
            stderr::finish();
            Err(match unless_signal(&mut signals, look()).await {
                Ok(()) => become_command(run, &program, hold, &coordinator, store),
                Err(failure) => failure,
            })
        }
        Ok(Ready::Done) => Ok(0),
        Ok(Ready::Busy(what)) => busy(run, what),
        Err(failure) => Err(failure),
    };
    finish(&coordinator, &outcome, after).await;
    outcome
}

/// Gives up at a signal that ends us.
async fn unless_signal<T>(
    signals: &mut Signals,
    work: impl Future<Output = Outcome<T>>,
) -> Outcome<T> {
    tokio::select! {
        biased;
        number = signals.ending() => Err(Failure::by_signal(number)),
        outcome = work => outcome,
    }
}

/// Has the runtime see the signals that have come so far: what we have received is not the command's any more.
async fn look() -> Outcome {
    sleep(LOOK).await;
    Ok(())
}

/// Answers why we could not; what we hold is released then, as it is dropped.
fn become_command(
    run: &Run,
    program: &Path,
    hold: Option<Hold>,
    coordinator: &Coordinator,
    store: &Store,
) -> Failure {
    let Some(hold) = hold else { return Failure::usage("nothing is held") };
    let file = match hold.session_file() {
        Ok(Some(file)) => file,
        Ok(None) => return Failure::usage(ON_FILES),
        Err(error) => return error.into(),
    };
    // The only one of ours that the command inherits.
    if let Err(error) = fcntl_setfd(&file, FdFlags::empty()) {
        return Failure::system("cannot hand the lock over", &error.into());
    }
    if !hold.is_held() {
        let what = format!("{} was lost before the command started", hold.shown());
        return Failure::new(exit::LOST, what);
    }
    let become_it = |program: &Path, words: &[_]| {
        let mut command = started::command(program, words);
        HandedOn::of(store).apply(&mut command);
        tell(&mut command, &hold, coordinator.member_id());
        command.as_std_mut().exec()
    };
    let mut error = become_it(program, &run.command);
    if is_for_shell(&error) {
        error = become_it(Path::new(SHELL), &by_shell(program, &run.command));
    }
    not_begun(&run.command[0], &error)
}
