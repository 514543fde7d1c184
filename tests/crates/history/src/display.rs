//! `Display` of records and reports.

use std::fmt;

use crate::record::{Event, NEVER, NO_SLOT, Record};
use crate::report::Report;

/// A duration in nanoseconds. It is printed in milliseconds below one second, and in seconds from one second on.
pub(crate) struct Span(pub(crate) u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            NEVER => f.write_str("never"),
            short if short < 1_000_000_000 => {
                write!(f, "{}.{:06} ms", short / 1_000_000, short % 1_000_000)
            }
            long => write!(f, "{}.{:03} s", long / 1_000_000_000, long / 1_000_000 % 1000),
        }
    }
}

/// A moment in nanoseconds. It is printed in seconds with nine decimals.
struct Moment(u64);

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            NEVER => f.write_str("never"),
            at => write!(f, "{}.{:09}", at / 1_000_000_000, at % 1_000_000_000),
        }
    }
}

/// Shows a record in one line, for example `12.000345678 client 3 attempt 7 object 1: granted, token 5`.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, client, attempt, object, event } = *self;
        write!(f, "{:>20} client {client}", Moment(at).to_string())?;
        if attempt != 0 {
            write!(f, " attempt {attempt}")?;
        }
        if object != 0 {
            write!(f, " object {object}")?;
        }
        write!(f, ": {event}")
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Call { shared, timeout } => {
                f.write_str(if shared { "acquire, shared" } else { "acquire" })?;
                match timeout {
                    0 => f.write_str(", a try"),
                    NEVER => Ok(()),
                    timeout => write!(f, ", timeout {}", Span(timeout)),
                }
            }
            Self::Granted { token, slot: NO_SLOT } => write!(f, "granted, token {token}"),
            Self::Granted { token, slot } => write!(f, "granted, token {token}, slot {slot}"),
            Self::Refused { why } => write!(f, "refused: {why:?}"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Probe { before, held } => {
                let said = if held { "held" } else { "not held" };
                write!(f, "{said}, asked after {}", Moment(before))
            }
            Self::Lost { deadline } => write!(f, "lost, deadline {}", Moment(deadline)),
            Self::Downgraded => f.write_str("downgrade to a share"),
            Self::ReleaseCall => f.write_str("release"),
            Self::ReleaseReturn { outcome: 0 } => f.write_str("released"),
            Self::ReleaseReturn { outcome: 1 } => f.write_str("release: already lost"),
            Self::ReleaseReturn { .. } => f.write_str("release: unknown"),
            Self::Write { token, value, accepted } => {
                let said = if accepted { "applied" } else { "refused" };
                write!(f, "write of {value} under token {token} {said}")
            }
            Self::Final { values } => write!(f, "{values} values at the end"),
            Self::Kept { value } => write!(f, "value {value} at the end"),
            Self::Crash => f.write_str("killed"),
            Self::Paused => f.write_str("paused"),
            Self::Resumed => f.write_str("resumed"),
            Self::Fault { kind } => write!(f, "fault {kind} begins"),
            Self::FaultEnd { kind } => write!(f, "fault {kind} ends"),
            Self::Healed => f.write_str("healed"),
            Self::Remains { entries } => write!(f, "{entries} entries remain"),
            Self::Operation { call, what, answer } => {
                write!(f, "{what:?} since {}: {answer:?}", Moment(call))
            }
            Self::Work { call, item, token, what } => {
                write!(f, "item {item}, token {token}: {what:?}, called at {}", Moment(call))
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "records     {} over {}", self.records, Span(self.span))?;
        write!(f, "attempts    {}: {} granted", self.attempts, self.grants)?;
        for (why, count) in &self.refused {
            write!(f, ", {count} {why:?}")?;
        }
        writeln!(f, ", {} cancelled, {} unanswered", self.cancelled, self.unanswered)?;
        writeln!(f, "grants      {} released, {} lost", self.released, self.lost)?;
        writeln!(f, "is_held     {} true, {} false", self.held, self.not_held)?;
        writeln!(f, "writes      {} applied, {} refused", self.writes, self.stale_writes)?;
        writeln!(f, "operations  {}", self.operations)?;
        writeln!(
            f,
            "work        {} claims with {} items, {} acknowledged",
            self.claims, self.handed_out, self.acked
        )?;
        writeln!(f, "at the end  entries of {} objects counted", self.counted)?;
        writeln!(f, "clients     {} killed, {} times paused", self.crashes, self.pauses)?;
        writeln!(f, "faults      {}", self.faults.values().sum::<u64>())?;
        for (name, count) in &self.faults {
            writeln!(f, "  {name:<24} {count}")?;
        }
        writeln!(
            f,
            "not judged  {} grants excused, {} searches given up, {} misfits",
            self.excused, self.undecided, self.misfits
        )?;
        writeln!(f, "violations  {}", self.broken.values().sum::<u64>())?;
        for (rule, count) in &self.broken {
            writeln!(f, "  {rule:?} {count}")?;
        }
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        Ok(())
    }
}
