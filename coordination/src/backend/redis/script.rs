//! The scripts, and how they are called.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Value};

use crate::backend::SessionId;
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

const PRELUDE: &str = include_str!("scripts/prelude.lua");

/// The scripts. Each is atomic: the server runs nothing else between a script's commands.
#[derive(Clone, Copy, Debug)]
pub(super) enum Script {
    Greet,
    Open,
    Renew,
    Close,
    Enter,
    Update,
    Leave,
    Position,
    Look,
    Read,
    Write,
    Names,
    Queues,
    Settle,
    Records,
}

/// The texts of the scripts, in the order of [`Script`].
static TEXTS: LazyLock<[Text; 15]> = LazyLock::new(|| {
    [
        ("", include_str!("scripts/greet.lua")),
        ("", include_str!("scripts/open.lua")),
        ("", include_str!("scripts/renew.lua")),
        ("", include_str!("scripts/close.lua")),
        (include_str!("scripts/enter_fast.lua"), include_str!("scripts/enter.lua")),
        ("", include_str!("scripts/update.lua")),
        (include_str!("scripts/leave_fast.lua"), include_str!("scripts/leave.lua")),
        ("", include_str!("scripts/position.lua")),
        ("", include_str!("scripts/look.lua")),
        ("", include_str!("scripts/read.lua")),
        ("", include_str!("scripts/write.lua")),
        ("", include_str!("scripts/names.lua")),
        ("", include_str!("scripts/queues.lua")),
        ("", include_str!("scripts/settle.lua")),
        ("", include_str!("scripts/records.lua")),
    ]
    .map(|(fast, body)| Text::new(fast, body))
});

struct Text {
    code: String,
    hash: String,
}

impl Text {
    /// `fast` is put before the prelude, and answers the usual calls without it: defining the prelude's functions takes longer than
    /// all else.
    fn new(fast: &str, body: &str) -> Self {
        let code = format!("{fast}\n{PRELUDE}\n{body}");
        let hash = redis::Script::new(&code).get_hash().to_owned();
        Self { code, hash }
    }
}

/// A script with its arguments. It may be sent more than once.
pub(super) struct Call {
    pub(super) operation: &'static str,
    script: Script,
    session: Option<SessionId>,
    arguments: Vec<Vec<u8>>,
    quarantine: Option<String>,
}

impl Call {
    pub(super) fn new(operation: &'static str, script: Script) -> Self {
        Self { operation, script, session: None, arguments: Vec::new(), quarantine: None }
    }

    /// The script as a bit, for a set of scripts.
    pub(super) fn bit(&self) -> u16 {
        1 << self.script as u16
    }

    /// Whether the call opens a session. Such a call has the name of this host's clock as a further argument.
    pub(super) fn opens(&self) -> bool {
        matches!(self.script, Script::Open)
    }

    /// Whether the answer begins with the time at the server, or with an entry's number, which is at least that time.
    pub(super) fn tells_time(&self) -> bool {
        matches!(self.script, Script::Enter | Script::Renew)
    }

    pub(super) fn is_heartbeat(&self) -> bool {
        matches!(self.script, Script::Renew)
    }

    /// Whether the call's answer may be very large.
    pub(super) fn is_listing(&self) -> bool {
        matches!(self.script, Script::Read | Script::Names | Script::Queues)
    }

    /// Makes this a call of the session. The server rejects it (`stale`) if it arrives on a connection older than the one that this
    /// session uses now.
    pub(super) fn of(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }

    pub(super) fn with(mut self, argument: impl Into<Vec<u8>>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(super) fn with_number(self, number: u64) -> Self {
        self.with(number.to_string())
    }

    /// Makes this a call that is refused until the server has forgotten nothing for this long; `None`: for the longest lease.
    pub(super) fn quarantined(mut self, length: Option<Duration>) -> Self {
        let micros = |length: Duration| length.as_micros().to_string();
        self.quarantine = Some(length.map(micros).unwrap_or_default());
        self
    }

    /// The length of quarantine that the call asks for, as it is sent.
    pub(super) fn quarantine(&self) -> Option<&str> {
        self.quarantine.as_deref()
    }

    /// The command, with the script's hash or, `in_full`, its text. `record` is the name of the record that the client knows,
    /// `reach` for how long at least the server has forgotten nothing, and `newest` the newest time that was told under the record.
    ///
    /// `nowhere`: in a cluster, the name of a key that never exists. While keys move to another node, a node refuses a call that
    /// names two keys of which it has only one. If the call named one key, the node would run the script, and stop it half-way at
    /// the first key that has moved already.
    pub(super) fn command(
        &self,
        clock: &str,
        nowhere: Option<&str>,
        (record, reach, newest): (&str, Duration, u64),
        epoch: u64,
        in_full: bool,
    ) -> Cmd {
        let text = TEXTS.get(self.script as usize);
        let mut command = Cmd::new();
        match (text, in_full) {
            (Some(text), true) => command.arg("EVAL").arg(&text.code),
            (Some(text), false) => command.arg("EVALSHA").arg(&text.hash),
            (None, _) => command.arg("PING"),
        };
        match nowhere {
            Some(nowhere) => command.arg(2).arg(clock).arg(nowhere),
            None => command.arg(1).arg(clock),
        };
        command.arg(record).arg(format!("{} {newest}", reach.as_micros()));
        if let Some(session) = self.session {
            command.arg(session.to_string()).arg(epoch);
        }
        for argument in &self.arguments {
            command.arg(argument);
        }
        if let Some(length) = &self.quarantine {
            command.arg(length);
        }
        command
    }
}

/// A script's answer: a status, and values that depend on the script.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: String,
    rest: std::vec::IntoIter<Value>,
}

impl Answer {
    pub(super) fn read(value: Value) -> Result<Self> {
        let Value::Array(words) = value else { return Err(corrupt()) };
        let mut rest = words.into_iter();
        let Some(Value::BulkString(status)) = rest.next() else { return Err(corrupt()) };
        Ok(Self { status: text_of(status)?, rest })
    }

    pub(super) fn is_ok(&self) -> bool {
        self.status == "ok"
    }

    /// The next value as text. The error is `Corrupt` if there is none.
    pub(super) fn text(&mut self) -> Result<String> {
        self.optional_text()?.ok_or_else(corrupt)
    }

    /// The next value as text; `None`: there is none.
    pub(super) fn optional_text(&mut self) -> Result<Option<String>> {
        self.bytes()?.map(text_of).transpose()
    }

    /// The next value as bytes; `None`: there is none.
    pub(super) fn bytes(&mut self) -> Result<Option<Vec<u8>>> {
        match self.rest.next() {
            None | Some(Value::Nil) => Ok(None),
            Some(Value::BulkString(bytes)) => Ok(Some(bytes)),
            Some(_) => Err(corrupt()),
        }
    }

    pub(super) fn number(&mut self) -> Result<i64> {
        match self.rest.next() {
            Some(Value::Int(number)) => Ok(number),
            _ => Err(corrupt()),
        }
    }

    /// The next value as a number that is not negative.
    pub(super) fn natural(&mut self) -> Result<u64> {
        u64::try_from(self.number()?).map_err(|_| corrupt())
    }

    /// The next value as a number, without going on to the one after it; `None`: it is not a number.
    pub(super) fn next_number(&self) -> Option<u64> {
        match self.rest.as_slice().first() {
            Some(Value::Int(number)) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.rest.as_slice().is_empty()
    }
}

fn text_of(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| corrupt())
}

/// A queue's name in keys, channels and messages. It has no blank, which separates the parts of a message.
pub(super) fn queue_path(queue: &QueueKey) -> String {
    format!("{}/{}", queue.kind(), queue.encoded())
}

pub(super) fn corrupt() -> Error {
    Error::new(ErrorKind::Corrupt, "read", "the server's answer is not what our scripts answer")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::backend::redis::rights;

    /// The commands whose names follow `before` in a script's text.
    fn commands<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
        let named = text.split(before).skip(1);
        named.filter_map(|rest| rest.split('\'').next()).collect()
    }

    #[test]
    fn whoever_connects_tries_each_command_that_a_script_calls() {
        let tried = commands(rights::SCRIPT, "may('");
        let called: BTreeSet<_> = TEXTS
            .iter()
            .flat_map(|text| {
                let sure = commands(&text.code, "redis.call('");
                sure.into_iter().chain(commands(&text.code, "redis.pcall('"))
            })
            .collect();
        let missing: Vec<_> = called.difference(&tried).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
