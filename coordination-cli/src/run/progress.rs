//! What is told while we wait: for what, for how long, and who has it. At a terminal by a line that is drawn again, elsewhere by
//! lines that come more and more rarely.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant, SystemTime};

use super::wanted::{Other, Wanted};
use crate::exit::{self, say};
use crate::status::age;
use crate::stderr;

/// Who waits for less does not wonder.
const PATIENCE: Duration = Duration::from_secs(1);
/// In a log a line comes after [`PATIENCE`]; each later one when the wait is so many times as long,
const RARER: u32 = 10;
/// but at least so often.
const RAREST: Duration = Duration::from_secs(600);
/// How long a command may wait for the line to be gone: the terminal may stand still.
const WIPING: Duration = Duration::from_millis(100);
const CLEAR: &str = "\r\x1b[K";

/// A line on the terminal that is drawn again each second while we are its foreground, and gone when this is dropped.
pub(super) struct Progress {
    is_drawn: bool,
}

impl Progress {
    /// Shows how the wait stands until it is dropped; notes whether a line was left that wants an end.
    pub(super) async fn show(wanted: &Wanted, us: &str, is_quiet: bool, was_told: &Cell<bool>) {
        let how = async || {
            // A store that does not answer is no reason to say nothing.
            let others = tokio::time::timeout(PATIENCE, wanted.others(Some(us))).await;
            who(others.ok().and_then(Result::ok).as_deref(), Some(us))
        };
        Self::tell(&wanted.shown(), is_quiet, was_told, how).await;
    }

    /// The same of a wait for this, which stands so.
    pub(super) async fn tell(
        what: &str,
        is_quiet: bool,
        was_told: &Cell<bool>,
        how: impl AsyncFn() -> String,
    ) {
        if is_quiet {
            return std::future::pending().await;
        }
        let (start, mut progress) = (Instant::now(), Self { is_drawn: false });
        let is_terminal = io::stderr().is_terminal();
        let mut next = PATIENCE;
        loop {
            tokio::time::sleep(next.saturating_sub(start.elapsed())).await;
            let how = how().await;
            let line = line(what, &how, start.elapsed());
            if is_terminal {
                progress.draw(&format!("coordination: {line}"));
                next = start.elapsed() + PATIENCE;
            } else {
                say(format_args!("{line}"));
                was_told.set(true);
                next = (next * RARER).min(next + RAREST);
            }
        }
    }

    fn draw(&mut self, line: &str) {
        // In the background it would be drawn over a shell's prompt.
        if !stderr::is_idle() || stderr::is_in_background() {
            return;
        }
        self.is_drawn = true;
        // Some terminals do not know how wide they are.
        let size = rustix::termios::tcgetwinsize(io::stderr());
        let width = size.ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 1);
        let line: String = line.chars().take(width.unwrap_or(80) - 1).collect();
        stderr::write(format!("{CLEAR}{line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_drawn && !stderr::is_in_background() {
            stderr::write(CLEAR.to_owned());
            stderr::flush(WIPING);
        }
    }
}

fn line(what: &str, how: &str, waited: Duration) -> String {
    format!("waiting for {what} since {} s: {how}", waited.as_secs())
}

/// Who has it, since when, and how many wait, before us if we are among them; `None`: the store does not answer.
pub(super) fn who(others: Option<&[Other]>, us: Option<&str>) -> String {
    let Some(others) = others else { return "the store does not answer".to_owned() };
    let names: Vec<_> = others.iter().filter(|who| who.holds).map(shown).collect();
    let is_us = |who: &Other| !who.holds && us.is_some_and(|us| who.member == us);
    let waiting = others.iter().take_while(|who| !is_us(who)).filter(|who| !who.holds).count();
    let queue = match (waiting, us) {
        (0, _) => String::new(),
        (_, Some(_)) => format!(", {waiting} before us in the queue"),
        (_, None) => format!(", {waiting} in the queue"),
    };
    match names.as_slice() {
        [] => format!("free just now{queue}"),
        [first, second, third, rest @ ..] if !rest.is_empty() => {
            format!("held by {first}, {second}, {third} and {} more{queue}", rest.len())
        }
        names => format!("held by {}{queue}", names.join(", ")),
    }
}

/// `host-7 since 3 min`, escaped: it is another's text, on our terminal.
pub(super) fn shown(other: &Other) -> String {
    let name = exit::who(&other.member, &other.label);
    let since = other.since.and_then(|since| SystemTime::now().duration_since(since).ok());
    match since {
        Some(since) => format!("{name} since {}", age(since.as_secs_f64())),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_who_has_it() {
        let other = |member: &str, holds| Other {
            member: member.to_owned(),
            label: String::new(),
            token: 1,
            since: None,
            holds,
            shares: false,
            has: 1,
        };
        let line = |others: Option<&[Other]>| {
            line("lock \"x\"", &who(others, Some("me")), Duration::from_secs(3))
        };
        let prefix = "waiting for lock \"x\" since 3 s: ";
        let said = |others: &[Other]| line(Some(others)).split_off(prefix.len());
        assert_eq!(line(None), format!("{prefix}the store does not answer"));
        assert_eq!(said(&[other("h1", true), other("me", false)]), "held by h1");
        assert_eq!(
            said(&[
                other("a\x1b[2J", true),
                other("b", false),
                other("me", false),
                other("c", false)
            ]),
            "held by a\\u{1b}[2J, 1 before us in the queue"
        );
        let many: Vec<_> = (0..5).map(|n| other(&format!("h{n}"), true)).collect();
        assert_eq!(said(&many), "held by h0, h1, h2 and 2 more");
        assert_eq!(said(&[other("", true)]), "held by another program");
        let labelled = Other { label: "a\tb".to_owned(), ..other("h1", true) };
        assert_eq!(said(&[labelled]), "held by h1 (a\\tb)");
        let since = SystemTime::now().checked_sub(Duration::from_secs(200));
        let old = Other { since, ..other("old", true) };
        assert_eq!(
            who(Some(&[old, other("b", false)]), None),
            "held by old since 3 min, 1 in the queue"
        );
    }
}
