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
        let contenders = lock.holders().await?;
        let meant = match asked.token {
            Some(token) => contenders.into_iter().find(|who| who.token.value() == token),
            // One who shares it may have come to hold it behind one who waits.
            None => {
                let holder = contenders.iter().position(|who| who.holding).unwrap_or(0);
                contenders.into_iter().nth(holder)
            }
        };
        let Some(holder) = meant else {
            let token = asked.token.map(|token| format!(" with token {token}")).unwrap_or_default();
            say(format_args!("nobody holds {:?}{token}", lock.name()));
            return Ok(0);
        };
        let shown = shown(lock.name(), &holder);
        if !asked.yes && !is_confirmed(&shown)? {
            return Ok(REFUSED);
        }
        // Exactly the one that was seen: somebody else may hold it by now.
        if lock.break_grant(holder.token).await?.is_none() {
            let what = "the holder has changed meanwhile; nothing was done";
            return Err(Failure::new(exit::BUSY, what));
        }
        if !store.quiet {
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
    let how = if holder.holding { "held" } else { "waited for" };
    format!("{name:?}, {how} by {} with token {}", printable(member), holder.token)
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
