//! Encodes a record in 64 bytes. Numbers are little-endian:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0 | format, [`FORMAT`] |
//! | 1 | which event |
//! | 2, 3 | small fields of the event |
//! | 4–7 | checksum of the other 60 bytes |
//! | 8–15, 16–23 | `at`, `attempt` |
//! | 24–27, 28–31 | `client`, `object` |
//! | 32–63 | large fields of the event: three of 8 bytes, two of 4 |
//!
//! [`decode`] accepts any bytes without a panic, and returns an error if the bytes are not a record. If [`decode`]
//! accepts some bytes, [`encode`] turns the record back into the same bytes.

use std::fmt;

use crate::record::{Answer, Event, Operation, Record, Why, Work};

/// Length of an encoded record in bytes.
pub const SIZE: usize = 64;

pub(crate) const FORMAT: u8 = 0xC1;

/// Why 64 bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The first byte is not the number of this format.
    Format,
    /// The checksum does not match the other bytes.
    Checksum,
    /// A field has a value that [`encode`] never writes there.
    Field,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Format => "not a record of this format",
            Self::Checksum => "the checksum does not fit",
            Self::Field => "a field has a value that it cannot have",
        })
    }
}

/// The fields of an event as numbers, before they are written as bytes or after they were read from bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Fields {
    tag: u8,
    small: [u8; 2],
    large: [u64; 3],
    short: [u32; 2],
}

/// Encodes a record.
pub fn encode(record: &Record) -> [u8; SIZE] {
    let fields = to_fields(&record.event);
    let mut bytes = [0; SIZE];
    bytes[0] = FORMAT;
    bytes[1] = fields.tag;
    bytes[2..4].copy_from_slice(&fields.small);
    bytes[8..16].copy_from_slice(&record.at.to_le_bytes());
    bytes[16..24].copy_from_slice(&record.attempt.to_le_bytes());
    bytes[24..28].copy_from_slice(&record.client.to_le_bytes());
    bytes[28..32].copy_from_slice(&record.object.to_le_bytes());
    for (place, field) in bytes[32..56].chunks_exact_mut(8).zip(fields.large) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    for (place, field) in bytes[56..].chunks_exact_mut(4).zip(fields.short) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    let sum = checksum(&bytes);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Decodes a record.
///
/// # Errors
///
/// [`Malformed`] if the bytes are not a record.
pub fn decode(bytes: &[u8; SIZE]) -> Result<Record, Malformed> {
    if bytes[0] != FORMAT {
        return Err(Malformed::Format);
    }
    if short(bytes, 4) != checksum(bytes) {
        return Err(Malformed::Checksum);
    }
    let fields = Fields {
        tag: bytes[1],
        small: [bytes[2], bytes[3]],
        large: [long(bytes, 32), long(bytes, 40), long(bytes, 48)],
        short: [short(bytes, 56), short(bytes, 60)],
    };
    let event = from_fields(fields).ok_or(Malformed::Field)?;
    // If [`encode`] would encode this event in other bytes, the bytes were written by another program or version, and
    // nobody here knows what they mean.
    if to_fields(&event) != fields {
        return Err(Malformed::Field);
    }
    Ok(Record {
        at: long(bytes, 8),
        attempt: long(bytes, 16),
        client: short(bytes, 24),
        object: short(bytes, 28),
        event,
    })
}

fn long(bytes: &[u8; SIZE], from: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[from..from + 8]);
    u64::from_le_bytes(field)
}

fn short(bytes: &[u8; SIZE], from: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[from..from + 4]);
    u32::from_le_bytes(field)
}

/// The FNV-1a hash of the record, 32 bits wide, without the four bytes that hold the checksum. If a single byte of the
/// record changes, the hash always changes.
pub(crate) fn checksum(bytes: &[u8; SIZE]) -> u32 {
    let summed = bytes[..4].iter().chain(&bytes[8..]);
    summed.fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn to_fields(event: &Event) -> Fields {
    let plain = |tag| Fields { tag, ..Fields::default() };
    let one = |tag, field| Fields { tag, large: [field, 0, 0], ..Fields::default() };
    match *event {
        Event::Call { shared, timeout } => {
            Fields { small: [u8::from(shared), 0], ..one(1, timeout) }
        }
        Event::Granted { token, slot } => Fields { short: [slot, 0], ..one(2, token) },
        Event::Refused { why } => Fields { small: [why as u8, 0], ..plain(3) },
        Event::Cancelled => plain(4),
        Event::Probe { before, held } => Fields { small: [u8::from(held), 0], ..one(5, before) },
        Event::Lost { deadline } => one(6, deadline),
        Event::ReleaseCall => plain(7),
        Event::ReleaseReturn { outcome } => Fields { small: [outcome, 0], ..plain(8) },
        Event::Write { token, value, accepted } => {
            Fields { small: [u8::from(accepted), 0], large: [token, value, 0], ..plain(9) }
        }
        Event::Final { values } => one(10, values),
        Event::Kept { value } => one(11, value),
        Event::Crash => plain(12),
        Event::Paused => plain(13),
        Event::Resumed => plain(14),
        Event::Fault { kind } => Fields { short: [kind, 0], ..plain(15) },
        Event::FaultEnd { kind } => Fields { short: [kind, 0], ..plain(16) },
        Event::Healed => plain(17),
        Event::Remains { entries } => one(18, entries),
        Event::Downgraded => plain(20),
        Event::Work { call, item, token, what } => Fields {
            tag: 21,
            small: [what as u8, 0],
            large: [call, item, token],
            ..Fields::default()
        },
        Event::Operation { call, what, answer } => {
            let (asked, of, with) = from_operation(what);
            let (answered, number, value) = from_answer(answer);
            Fields {
                tag: 19,
                small: [asked, answered],
                large: [call, of, number],
                short: [with, value],
            }
        }
    }
}

fn from_fields(fields: Fields) -> Option<Event> {
    let Fields { tag, small: [first, second], large: [a, b, c], short: [x, y] } = fields;
    Some(match tag {
        1 => Event::Call { shared: first == 1, timeout: a },
        2 => Event::Granted { token: a, slot: x },
        3 => Event::Refused { why: to_why(first)? },
        4 => Event::Cancelled,
        5 => Event::Probe { before: a, held: first == 1 },
        6 => Event::Lost { deadline: a },
        7 => Event::ReleaseCall,
        8 => Event::ReleaseReturn { outcome: first },
        9 => Event::Write { token: a, value: b, accepted: first == 1 },
        10 => Event::Final { values: a },
        11 => Event::Kept { value: a },
        12 => Event::Crash,
        13 => Event::Paused,
        14 => Event::Resumed,
        15 => Event::Fault { kind: x },
        16 => Event::FaultEnd { kind: x },
        17 => Event::Healed,
        18 => Event::Remains { entries: a },
        19 => Event::Operation {
            call: a,
            what: to_operation(first, b, x)?,
            answer: to_answer(second, c, y)?,
        },
        20 => Event::Downgraded,
        21 => {
            let what = *Work::ALL.get(usize::from(first))?;
            Event::Work { call: a, item: b, token: c, what }
        }
        _ => return None,
    })
}

fn to_why(tag: u8) -> Option<Why> {
    let all = [Why::NotFree, Why::Unavailable, Why::Lost, Why::Closed, Why::Other];
    all.get(usize::from(tag)).copied()
}

fn from_operation(what: Operation) -> (u8, u64, u32) {
    match what {
        Operation::Read => (1, 0, 0),
        Operation::Set { value } => (2, 0, value),
        Operation::CompareAndSet { expected, value } => (3, expected, value),
        Operation::Delete => (4, 0, 0),
        Operation::CompareAndDelete { expected } => (5, expected, 0),
        Operation::Add { by } => (6, by.cast_unsigned(), 0),
        Operation::Count => (7, 0, 0),
        Operation::Leader => (8, 0, 0),
    }
}

fn to_operation(tag: u8, of: u64, with: u32) -> Option<Operation> {
    Some(match tag {
        1 => Operation::Read,
        2 => Operation::Set { value: with },
        3 => Operation::CompareAndSet { expected: of, value: with },
        4 => Operation::Delete,
        5 => Operation::CompareAndDelete { expected: of },
        6 => Operation::Add { by: of.cast_signed() },
        7 => Operation::Count,
        8 => Operation::Leader,
        _ => return None,
    })
}

fn from_answer(answer: Answer) -> (u8, u64, u32) {
    match answer {
        Answer::Unknown => (1, 0, 0),
        Answer::NotDone => (2, 0, 0),
        Answer::Absent => (3, 0, 0),
        Answer::Value { version, value } => (4, version, value),
        Answer::Written { version } => (5, version, 0),
        Answer::Mismatch => (6, 0, 0),
        Answer::Deleted => (7, 0, 0),
        Answer::Number(number) => (8, number.cast_unsigned(), 0),
        Answer::Leader { token } => (9, token, 0),
        Answer::Nobody => (10, 0, 0),
    }
}

fn to_answer(tag: u8, number: u64, value: u32) -> Option<Answer> {
    Some(match tag {
        1 => Answer::Unknown,
        2 => Answer::NotDone,
        3 => Answer::Absent,
        4 => Answer::Value { version: number, value },
        5 => Answer::Written { version: number },
        6 => Answer::Mismatch,
        7 => Answer::Deleted,
        8 => Answer::Number(number.cast_signed()),
        9 => Answer::Leader { token: number },
        10 => Answer::Nobody,
        _ => return None,
    })
}
