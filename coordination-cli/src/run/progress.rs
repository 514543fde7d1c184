//! What somebody at a terminal sees while we wait: for what, for how long, and who has it.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use super::wanted::{Other, Wanted};
use crate::exit::printable;
use crate::stderr;

/// Who waits for less does not wonder.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a command may wait for the line to be gone: the terminal may stand still.
const WIPING: Duration = Duration::from_millis(100);
const CLEAR: &str = "\r\x1b[K";

/// A line on the terminal that is drawn again each second, and gone when this is dropped.
pub(super) struct Progress {
    is_drawn: bool,
}

impl Progress {
    /// Shows how the wait stands until it is dropped; says nothing where nobody looks.
    pub(super) async fn show(wanted: &Wanted, is_quiet: bool) {
        if is_quiet || !io::stderr().is_terminal() {
            return std::future::pending().await;
        }
        let (start, mut progress) = (Instant::now(), Self { is_drawn: false });
        loop {
            tokio::time::sleep(PATIENCE).await;
            // A store that does not answer is no reason to say nothing.
            let others = tokio::time::timeout(PATIENCE, wanted.others()).await;
            let others = others.ok().and_then(Result::ok);
            progress.draw(&line(&wanted.shown(), others.as_deref(), start.elapsed()));
        }
    }

    fn draw(&mut self, line: &str) {
        if !stderr::is_idle() {
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
        if self.is_drawn {
            stderr::write(CLEAR.to_owned());
            stderr::flush(WIPING);
        }
    }
}

fn line(what: &str, others: Option<&[Other]>, waited: Duration) -> String {
    let who = match others {
        None => "the store does not answer".to_owned(),
        Some(others) => {
            let names: Vec<_> =
                others.iter().filter(|who| who.holds).map(|who| name(&who.member)).collect();
            // We are among those who wait.
            let before = others.len().saturating_sub(names.len() + 1);
            let queue =
                if before > 0 { format!(", {before} more in the queue") } else { String::new() };
            match names.as_slice() {
                [] => format!("free just now{queue}"),
                [first, second, third, rest @ ..] if !rest.is_empty() => {
                    format!("held by {first}, {second}, {third} and {} more{queue}", rest.len())
                }
                names => format!("held by {}{queue}", names.join(", ")),
            }
        }
    };
    format!("coordination: waiting for {what} since {} s: {who}", waited.as_secs())
}

/// Escaped: it is another's text, on our terminal.
fn name(member: &str) -> String {
    match member {
        "" => "another program".to_owned(),
        _ => printable(member),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_who_has_it() {
        let other = |member: &str, holds| Other { member: member.to_owned(), holds };
        let line = |others: Option<&[Other]>| line("lock \"x\"", others, Duration::from_secs(3));
        let prefix = "coordination: waiting for lock \"x\" since 3 s: ";
        let said = |others: &[Other]| line(Some(others)).split_off(prefix.len());
        assert_eq!(line(None), format!("{prefix}the store does not answer"));
        assert_eq!(said(&[other("h1", true), other("me", false)]), "held by h1");
        assert_eq!(
            said(&[other("a\x1b[2J", true), other("b", false), other("me", false)]),
            "held by a\\u{1b}[2J, 1 more in the queue"
        );
        let many: Vec<_> = (0..5).map(|n| other(&format!("h{n}"), true)).collect();
        assert_eq!(said(&many), "held by h0, h1, h2 and 2 more");
        assert_eq!(said(&[other("", true)]), "held by another program");
    }
}
