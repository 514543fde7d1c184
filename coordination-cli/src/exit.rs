//! The exit codes that are ours; a command's own come through as they are.

use std::fmt;

use coordination::{Error, ErrorKind};
use serde::Serialize;

use crate::run::started;
use crate::secrets::masked;
use crate::stderr;

/// Nobody has it, leads or is there, for who asks that.
pub(crate) const NOBODY: u8 = 1;
/// Wrong arguments, a wrong URL or setting (`EX_USAGE`).
pub(crate) const USAGE: u8 = 64;
/// The store is out of reach, or refuses (`EX_UNAVAILABLE`).
pub(crate) const UNAVAILABLE: u8 = 69;
/// The lock was lost while the command ran (`EX_SOFTWARE`).
pub(crate) const LOST: u8 = 70;
/// The system did not let us start what we need (`EX_OSERR`).
pub(crate) const SYSTEM: u8 = 71;
/// It was not free within the time given (`EX_TEMPFAIL`).
pub(crate) const BUSY: u8 = 75;
/// The command is there and cannot be run, as a shell has it.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such command, as a shell has it.
pub(crate) const NOT_FOUND: u8 = 127;

/// The code for the end by a signal, as a shell has it.
fn by_signal(number: i32) -> u8 {
    u8::try_from(number.saturating_add(128)).unwrap_or(u8::MAX)
}

/// Why we end without success: what to say, and the code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// The signal of which we die in place of ending with the code, where the system lets us.
    pub(crate) signal: Option<i32>,
    /// Empty: nothing is to be said.
    message: String,
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, signal: None, message: message.into() }
    }

    /// As whoever sent us this signal wanted, or as the command has died of it.
    pub(crate) fn by_signal(number: i32) -> Self {
        Self { signal: Some(number), ..Self::silent(by_signal(number)) }
    }

    /// The one who started us knows why.
    pub(crate) fn silent(code: u8) -> Self {
        Self::new(code, "")
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn system(what: &str, error: &std::io::Error) -> Self {
        Self::new(SYSTEM, format!("{what}: {error}"))
    }

    /// The same, told after what was done before.
    pub(crate) fn after(self, done: fmt::Arguments<'_>) -> Self {
        Self { message: format!("{done}, and then: {}", self.message), ..self }
    }

    /// Says it on stderr.
    pub(crate) fn report(&self) {
        if !self.message.is_empty() {
            say(format_args!("{}", masked(&self.message)));
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(code_of(error.kind()), error.to_string())
    }
}

fn code_of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Config
        | ErrorKind::Name
        | ErrorKind::Unsupported
        | ErrorKind::Input
        | ErrorKind::ClaimIdReused
        | ErrorKind::Mismatch
        | ErrorKind::Value => USAGE,
        ErrorKind::Timeout
        | ErrorKind::IsClaimed
        | ErrorKind::MemberExists
        | ErrorKind::AlreadyJoined
        | ErrorKind::GroupExists
        | ErrorKind::GroupNotEmpty => BUSY,
        ErrorKind::Lost
        | ErrorKind::Closed
        | ErrorKind::NoSuchClaim
        | ErrorKind::NotClaimed
        | ErrorKind::NotClaimedBy => LOST,
        _ => UNAVAILABLE,
    }
}

/// The code to end with now; where a signal ends us, this does not return.
pub(crate) fn last_code(ended: Outcome<u8>) -> u8 {
    ended.unwrap_or_else(|failure| {
        if let Some(number) = failure.signal {
            started::die(number);
        }
        failure.code
    })
}

/// A line on stderr; waits for nobody to read it.
pub(crate) fn say(message: fmt::Arguments<'_>) {
    stderr::write(format!("coordination: {message}\n"));
}

/// Text on stdout. Whoever reads it may have seen enough, which is no failure, and the end.
pub(crate) fn print(text: &str) -> Outcome {
    if shown(text)? { Ok(()) } else { Err(Failure::silent(0)) }
}

/// The same for who has more to do than to print; false: nobody reads it any more.
pub(crate) fn shown(text: &str) -> Outcome<bool> {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        outcome => outcome.map(|()| true).map_err(|error| Failure::system("cannot write", &error)),
    }
}

/// For scripts: a line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Outcome<String> {
    serde_json::to_string(value)
        .map(|text| format!("{text}\n"))
        .map_err(|error| Failure::new(SYSTEM, error.to_string()))
}

/// Another's text for our terminal: what would move the cursor, or worse, is escaped.
pub(crate) fn printable(text: &str) -> String {
    let escaped = |c: char| match c.is_control() {
        true => c.escape_debug().to_string(),
        false => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// Who somebody is, for our terminal, with its label if it has one; empty: a program of another library.
pub(crate) fn who(member: &str, label: &str) -> String {
    match (member, label) {
        ("", _) => "another program".to_owned(),
        (member, "") => printable(member),
        (member, label) => format!("{} ({})", printable(member), printable(label)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_queues_have_codes() {
        for kind in [ErrorKind::NoSuchClaim, ErrorKind::NotClaimed, ErrorKind::NotClaimedBy] {
            assert_eq!(code_of(kind), LOST);
        }
        let others = [ErrorKind::IsClaimed, ErrorKind::ClaimIdReused].map(code_of);
        assert_eq!(others, [BUSY, USAGE]);
    }

    #[test]
    fn what_controls_a_terminal_is_escaped() {
        assert_eq!(printable("a \"b\" ü\x1b[2J\n"), "a \"b\" ü\\u{1b}[2J\\n");
    }
}
