//! The resource that the locks protect: registers outside the store. Each register has one half that checks tokens, and
//! one half that does not.
//!
//! A holder reads a register, waits, and writes the number that it has read plus one. The *fenced* half refuses a token
//! that is smaller than one it has seen before, so it cannot lose an update. The *bare* half accepts every write. If a
//! holder was paused, and lost the lock meanwhile, its late write overwrites the updates of later holders in the bare
//! half. These lost updates show that the faults are hard enough.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use coordination_history::{Event, Record, Writer, now};

use super::{delay::lock, nanos};

/// The kinds of requests to the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Reads the fenced number. From then on, smaller tokens are refused.
    Read,
    /// Sets the fenced number to `value`, if the token is not smaller than one that was seen before.
    Write,
    /// Reads the bare number. Here `value` says in how many nanoseconds the client is going to write the number.
    BareRead,
    /// Sets the bare number to `value`, whatever the token is.
    BareWrite,
}

/// A request. It is sent as 40 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) ask: Ask,
    pub(super) register: u32,
    pub(super) client: u32,
    pub(super) attempt: u64,
    pub(super) token: u64,
    pub(super) value: u64,
}

pub(super) const REQUEST: usize = 40;
/// The length of an answer: eight bytes that say whether the request was carried out, and eight for the number.
pub(super) const ANSWER: usize = 16;

impl Request {
    pub(super) fn encode(self) -> [u8; REQUEST] {
        let ask = match self.ask {
            Ask::Read => 0,
            Ask::Write => 1,
            Ask::BareRead => 2,
            Ask::BareWrite => 3,
        };
        let whose = u64::from(self.register) << 32 | u64::from(self.client);
        let mut bytes = [0; REQUEST];
        for (place, word) in
            bytes.chunks_mut(8).zip([ask, whose, self.attempt, self.token, self.value])
        {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: [u8; REQUEST]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        let ask = match word(0) {
            0 => Ask::Read,
            1 => Ask::Write,
            2 => Ask::BareRead,
            _ => Ask::BareWrite,
        };
        let (register, client) = ((word(1) >> 32) as u32, word(1) as u32);
        Self { ask, register, client, attempt: word(2), token: word(3), value: word(4) }
    }
}

#[derive(Debug, Default)]
struct Register {
    highest: u64,
    fenced: u64,
    fenced_writes: u64,
    bare: u64,
    bare_writes: u64,
    /// The client that has read the bare number and has not written it yet, and when it is going to write it.
    reader: Option<(u32, u64)>,
}

/// All registers. They serve clients, and record decisions about fenced writes in a history.
#[derive(Debug, Default)]
pub(super) struct Resource {
    registers: Mutex<BTreeMap<u32, Register>>,
    history: Mutex<Option<Arc<Writer>>>,
}

/// Counts over all registers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) fenced_writes: u64,
    pub(super) fenced_lost: u64,
    pub(super) bare_writes: u64,
    pub(super) bare_lost: u64,
}

impl Resource {
    /// Creates the registers, and serves them at this Unix socket for as long as this process lives.
    pub(super) fn serve(socket: &Path) -> io::Result<Arc<Self>> {
        let resource = Arc::new(Self::default());
        let listener = UnixListener::bind(socket)?;
        let served = Arc::clone(&resource);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let resource = Arc::clone(&served);
                thread::spawn(move || resource.answer(stream));
            }
        });
        Ok(resource)
    }

    /// From now on, records decisions about fenced writes in this history. If `writer` is `None`, they are not
    /// recorded.
    pub(super) fn record_to(&self, writer: Option<Arc<Writer>>) {
        *lock(&self.history) = writer;
    }

    /// The counts over all registers.
    pub(super) fn tally(&self) -> Tally {
        let registers = lock(&self.registers);
        registers.values().fold(Tally::default(), |sum, register| Tally {
            fenced_writes: sum.fenced_writes + register.fenced_writes,
            fenced_lost: sum.fenced_lost + register.fenced_writes - register.fenced,
            bare_writes: sum.bare_writes + register.bare_writes,
            bare_lost: sum.bare_lost + register.bare_writes.saturating_sub(register.bare),
        })
    }

    /// Clients that have read a bare number and are going to write it, but not before `for_long` is over. If such a
    /// client is paused now, an update is likely to be lost.
    pub(super) fn readers(&self, for_long: Duration) -> Vec<u32> {
        let from = now() + nanos(for_long);
        let registers = lock(&self.registers);
        let readers = registers.values().filter_map(|register| register.reader);
        readers.filter(|(_, until)| *until > from).map(|(client, _)| client).collect()
    }

    /// Serves one connection until the client closes it.
    fn answer(&self, mut stream: UnixStream) {
        let mut bytes = [0; REQUEST];
        while stream.read_exact(&mut bytes).is_ok() {
            let (done, value) = self.carry_out(Request::decode(bytes));
            let mut answer = [0; ANSWER];
            answer[..8].copy_from_slice(&u64::from(done).to_le_bytes());
            answer[8..].copy_from_slice(&value.to_le_bytes());
            if stream.write_all(&answer).is_err() {
                return;
            }
        }
    }

    fn carry_out(&self, request: Request) -> (bool, u64) {
        let mut registers = lock(&self.registers);
        let register = registers.entry(request.register).or_default();
        let is_fresh = request.token >= register.highest;
        match request.ask {
            Ask::Read => {
                register.highest = register.highest.max(request.token);
                (is_fresh, register.fenced)
            }
            Ask::Write => {
                if is_fresh {
                    register.highest = request.token;
                    register.fenced = request.value;
                    register.fenced_writes += 1;
                }
                // This is recorded while the registers are locked, so that the records are in the order of the
                // decisions.
                self.record(request, is_fresh);
                (is_fresh, register.fenced)
            }
            Ask::BareRead => {
                register.reader = Some((request.client, now() + request.value));
                (true, register.bare)
            }
            Ask::BareWrite => {
                register.reader = register.reader.filter(|(reader, _)| *reader != request.client);
                register.bare = request.value;
                register.bare_writes += 1;
                (true, register.bare)
            }
        }
    }

    fn record(&self, request: Request, accepted: bool) {
        if let Some(history) = &*lock(&self.history) {
            let event = Event::Write { token: request.token, value: request.value, accepted };
            let Request { client, attempt, register: object, .. } = request;
            history
                .append(&Record { at: now(), client, attempt, object, event })
                .expect("the history is writable");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(resource: &Resource, ask: Ask, token: u64, value: u64) -> (bool, u64) {
        let request = Request { ask, register: 100, client: 7, attempt: 1, token, value };
        resource.carry_out(Request::decode(request.encode()))
    }

    #[test]
    fn an_old_holder_overwrites_the_bare_number_only() {
        let resource = Resource::default();
        let (old, new) = (3, 4);
        assert_eq!(ask(&resource, Ask::Read, old, 0), (true, 0));
        assert_eq!(ask(&resource, Ask::BareRead, old, 1_000_000_000), (true, 0));
        assert_eq!(resource.readers(Duration::from_millis(100)), [7]);
        assert_eq!(resource.readers(Duration::from_secs(2)), [0; 0]);
        for _ in 0..2 {
            let (_, fenced) = ask(&resource, Ask::Read, new, 0);
            let (_, bare) = ask(&resource, Ask::BareRead, new, 0);
            assert!(ask(&resource, Ask::Write, new, fenced + 1).0);
            ask(&resource, Ask::BareWrite, new, bare + 1);
        }
        assert_eq!(ask(&resource, Ask::Write, old, 1), (false, 2));
        assert_eq!(ask(&resource, Ask::BareWrite, old, 1), (true, 1));
        let tally = resource.tally();
        assert_eq!((tally.fenced_writes, tally.fenced_lost), (2, 0));
        assert_eq!((tally.bare_writes, tally.bare_lost), (3, 2));
    }
}
