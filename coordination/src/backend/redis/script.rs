//! The Lua scripts, and how the commands that call them are built and their answers are read.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Value};

use crate::backend::SessionId;
pub(super) use crate::backend::Source;
use crate::error::{Error, ErrorKind, Result};
use crate::key::QueueKey;

const PRELUDE: &str = include_str!("scripts/prelude.lua");

/// The scripts, one for each step of the protocol. Each is atomic: the server runs no other command between a script's commands.
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

/// The texts of the scripts, in the order of the variants of [`Script`], whose values are used as indexes.
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
    /// `fast` is placed before the prelude, and returns from the script in the usual cases. So the prelude's functions, whose
    /// definition takes most of the time of a call, are not defined then.
    fn new(fast: &str, body: &str) -> Self {
        let code = format!("{fast}\n{PRELUDE}\n{body}");
        let hash = redis::Script::new(&code).get_hash().to_owned();
        Self { code, hash }
    }
}

/// A script with its arguments. The same call may be sent more than once, if it has to be repeated.
pub(super) struct Call {
    pub(super) operation: &'static str,
    script: Script,
    session: Option<SessionId>,
    arguments: Vec<Vec<u8>>,
    quarantine: Option<String>,
    /// Who alone is to carry out the call; `None`: any server.
    seen: Option<Source>,
}

impl Call {
    pub(super) fn new(operation: &'static str, script: Script) -> Self {
        let (session, arguments, quarantine, seen) = (None, Vec::new(), None, None);
        Self { operation, script, session, arguments, quarantine, seen }
    }

    /// A number in which one bit is set, a different one for each script: for the set of scripts that were sent in full
    /// (`Connection::sent`).
    pub(super) fn bit(&self) -> u16 {
        1 << self.script as u16
    }

    /// Whether the call opens a session. If so, the connection adds the name of this host's clock, and a time by that clock, as
    /// further arguments.
    pub(super) fn opens(&self) -> bool {
        matches!(self.script, Script::Open)
    }

    /// Whether the first number in the answer is a time that the client has to remember: the time of the namespace's clock, or the
    /// number of a new entry, which is at least that time.
    pub(super) fn tells_time(&self) -> bool {
        matches!(self.script, Script::Enter | Script::Renew)
    }

    pub(super) fn is_heartbeat(&self) -> bool {
        matches!(self.script, Script::Renew)
    }

    /// Whether the call's answer may be very large. Such calls are made on the connection for listings.
    pub(super) fn is_listing(&self) -> bool {
        matches!(self.script, Script::Read | Script::Names | Script::Queues)
    }

    /// Makes this a call of the session: the session's id and the connection's epoch are sent with it. The server rejects the call
    /// (`stale`) if it has already carried out a call of the session that came on a newer connection.
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

    /// Makes this a call that is subject to quarantine, because it may grant a lock: the server refuses it until it has certainly
    /// forgotten nothing for this long. `None`: for as long as the longest lease that it may have forgotten.
    pub(super) fn quarantined(mut self, length: Option<Duration>) -> Self {
        let micros = |length: Duration| length.as_micros().to_string();
        self.quarantine = Some(length.map(micros).unwrap_or_default());
        self
    }

    /// The length of quarantine that the call asks for, in microseconds as text, as it is sent; empty: the longest lease. `None`:
    /// the call is not subject to quarantine.
    pub(super) fn quarantine(&self) -> Option<&str> {
        self.quarantine.as_deref()
    }

    /// Makes this a call that only this source is to carry out, because it was decided by an answer of that. `None`: any server.
    pub(super) fn only_at(mut self, seen: Option<Source>) -> Self {
        self.seen = seen;
        self
    }

    /// Whether this source is to carry out the call.
    pub(super) fn is_for(&self, source: Source) -> bool {
        self.seen.is_none_or(|seen| seen == source)
    }

    /// The command that calls the script, by the script's text if `in_full`, otherwise by its hash. Each call also sends what the
    /// client knows of the namespace: `record` is the name of the server's record; the server has forgotten nothing within the last
    /// `reach`; and `newest` is the newest time in an answer under this record.
    ///
    /// In a cluster, `nowhere` is the name of a key that never exists, and the call names it besides `clock`. While the keys are
    /// being moved to another node, a node refuses a call that names two keys if it has only one of them. If the call named `clock`
    /// only, the node would run the script, and stop it half-way at the first key that has moved already.
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

/// A script's answer: a status such as `ok` or `stale`, and then values that depend on the script. The methods below read the
/// values one after the other.
///
/// Usually an answer is a list. The short forms of scripts return just a number, which means `ok` and that number, or just the
/// status: the server takes as long for a list as for a command.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: String,
    /// Who gave the answer. [`Connection::run`](super::connection::Connection::run) sets this.
    pub(super) source: Source,
    rest: std::vec::IntoIter<Value>,
}

impl Answer {
    pub(super) fn read(value: Value) -> Result<Self> {
        let words = match value {
            Value::Array(words) => words,
            Value::Int(_) => vec![Value::BulkString(b"ok".to_vec()), value],
            status => vec![status],
        };
        let mut rest = words.into_iter();
        let Some(Value::BulkString(status)) = rest.next() else { return Err(corrupt()) };
        Ok(Self { status: text_of(status)?, source: Source::default(), rest })
    }

    /// Stands for the answer to a call that was not sent, because it [is not for](Call::is_for) the source in use: the same as if the
    /// server had refused a write because of its version.
    pub(super) fn not_sent() -> Self {
        let rest = Vec::new().into_iter();
        Self { status: "other".to_owned(), source: Source::default(), rest }
    }

    pub(super) fn is_ok(&self) -> bool {
        self.status == "ok"
    }

    /// Reads the next value as text. The error is `Corrupt` if there is no value, or it is not text.
    pub(super) fn text(&mut self) -> Result<String> {
        self.optional_text()?.ok_or_else(corrupt)
    }

    /// Reads the next value as text; `None`: there is no value, or it is nil.
    pub(super) fn optional_text(&mut self) -> Result<Option<String>> {
        self.bytes()?.map(text_of).transpose()
    }

    /// Reads the next value as bytes; `None`: there is no value, or it is nil.
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

    /// Reads the next value as a number. The error is `Corrupt` if it is negative or no number.
    pub(super) fn natural(&mut self) -> Result<u64> {
        u64::try_from(self.number()?).map_err(|_| corrupt())
    }

    /// The next value as a number; the value stays the next one to be read. `None`: it is negative, or no number.
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

/// A queue's name as it is used in keys, channels and messages. It contains no blank, because blanks separate the parts of a
/// message.
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

    /// The names of the commands that a script's text calls: each follows the text `before`, such as `call('`, which is also the end
    /// of `redis.call('` and `redis.pcall('`.
    fn commands<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
        let named = text.split(before).skip(1);
        named.filter_map(|rest| rest.split('\'').next()).collect()
    }

    #[test]
    fn just_a_number_or_just_a_status_is_an_answer_too() {
        let read = |value| Answer::read(value).expect("a script answers so");
        let mut number = read(Value::Int(7));
        assert!(number.is_ok() && number.next_number() == Some(7));
        assert_eq!((number.natural().ok(), number.is_at_end()), (Some(7), true));
        let status = read(Value::BulkString(b"ok".to_vec()));
        assert!(status.is_ok() && status.is_at_end());
        assert!(Answer::read(Value::Nil).is_err());
    }

    #[test]
    fn whoever_connects_tries_each_command_that_a_script_calls() {
        let tried = commands(rights::SCRIPT, "may('");
        let called: BTreeSet<_> =
            TEXTS.iter().flat_map(|text| commands(&text.code, "call('")).collect();
        let missing: Vec<_> = called.difference(&tried).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
