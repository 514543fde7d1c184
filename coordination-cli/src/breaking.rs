//! `coordination break`: a lock is taken away from its holder.

use std::io::{self, IsTerminal, Write};

use coordination::Contender;

use crate::args::{Break, Store};
use crate::exit::{self, Failure, Outcome, printable, say};
use crate::settings;

/// The code of who was asked and said no.
const REFUSED: u8 = 1;

pub(crate) async fn break_lock(asked: &Break, store: &Store) -> Outcome<u8> {
    let coordinator = settings::connect(settings::read(store)?).await?;
    let lock = coordinator.lock(&asked.name)?;
    let outcome = async {
        let Some(holder) = lock.holders().await?.into_iter().next() else {
            say(format_args!("nobody holds {:?}", lock.name()));
            return Ok(0);
        };
        let shown = shown(lock.name(), &holder);
        if !asked.yes && !is_confirmed(&shown)? {
            return Ok(REFUSED);
        }
        // Somebody else may hold it by now: it was not he who was meant.
        match lock.holders().await?.into_iter().next() {
            Some(now) if now.token == holder.token => {}
            _ => {
                return Err(Failure::new(
                    exit::BUSY,
                    "the holder has changed meanwhile; nothing was done",
                ));
            }
        }
        if lock.break_lock().await?.is_some() && !store.quiet {
            say(format_args!(
                "broken: {shown}; a holder with our settings is told within {:?}",
                coordinator.loss_delay()
            ));
        }
        Ok(0)
    }
    .await;
    let _ = coordinator.stop().await;
    outcome
}

fn shown(name: &str, holder: &Contender) -> String {
    let member = if holder.member.is_empty() { "another program" } else { &holder.member };
    format!("{name:?}, held by {} with token {}", printable(member), holder.token)
}

fn is_confirmed(what: &str) -> Outcome<bool> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("nobody is there to be asked: give --yes"));
    }
    let _ = write!(io::stderr(), "Break {what}? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::system("cannot read", &error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
