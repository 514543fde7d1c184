//! Finds where ZooKeeper's requests and answers begin and end in a stream of bytes, however the stream is split into
//! chunks.
//!
//! Each request and answer begins with its length. The first one in each direction opens the session. A ping has the
//! number -2 and does not count as a message. Four-letter commands, such as `ruok`, and TLS have no frames.

use super::Direction;
use super::frames::{Edge, Frame, Parser};

/// How many bytes a frame's length and its request number have.
const HEADER: usize = 8;
/// No request is this long. If a connection begins with a greater number, the number is not a length, but the first
/// bytes of a four-letter command or of TLS.
const TOO_LONG: u32 = 64 * 1024 * 1024;
const PING: i32 = -2;

/// Finds frames in one direction of one connection.
#[derive(Debug)]
pub(super) struct Zookeeper {
    direction: Direction,
    header: Vec<u8>,
    state: State,
    /// Whether the frame that opens the session has begun.
    is_open: bool,
}

#[derive(Debug)]
enum State {
    Header,
    /// In a frame. The number says how many of its bytes are still missing.
    Rest(Frame, usize),
    Unknown,
}

impl Zookeeper {
    pub(super) fn new(direction: Direction) -> Self {
        let header = Vec::with_capacity(HEADER);
        Self { direction, header, state: State::Header, is_open: false }
    }

    /// Processes those first bytes of `rest` that belong to the current state, and returns their number. `rest` begins
    /// `at` bytes into the chunk.
    fn step(&mut self, rest: &[u8], at: usize, edges: &mut Vec<Edge>) -> usize {
        match self.state {
            State::Unknown => rest.len(),
            State::Header => self.take_header(rest, at, edges),
            State::Rest(frame, left) => {
                let taken = left.min(rest.len());
                self.expect_rest(frame, left - taken, at + taken, edges);
                taken
            }
        }
    }

    fn take_header(&mut self, rest: &[u8], at: usize, edges: &mut Vec<Edge>) -> usize {
        let before = self.header.len();
        let taken = rest.len().min(HEADER - before);
        self.header.extend_from_slice(&rest[..taken]);
        let Some((length, number)) = self.header.split_first_chunk::<4>() else { return taken };
        let length = u32::from_be_bytes(*length);
        if !(4..TOO_LONG).contains(&length) {
            self.state = State::Unknown;
            return taken;
        }
        let Some(number) = number.first_chunk::<4>() else { return taken };
        let number = i32::from_be_bytes(*number);
        self.header.clear();
        let is_message = self.is_open && number != PING;
        self.is_open = true;
        let is_request = is_message && self.direction == Direction::ToServer;
        let frame = Frame { stream: 0, is_request, is_message };
        edges.push(Edge { frame, offset: if before == 0 { at } else { 0 }, end: false });
        self.expect_rest(frame, length as usize - 4, at + taken, edges);
        taken
    }

    fn expect_rest(&mut self, frame: Frame, left: usize, at: usize, edges: &mut Vec<Edge>) {
        if left > 0 {
            self.state = State::Rest(frame, left);
            return;
        }
        edges.push(Edge { frame, offset: at, end: true });
        self.state = State::Header;
    }
}

impl Parser for Zookeeper {
    fn parse(&mut self, chunk: &[u8]) -> Vec<Edge> {
        let mut edges = Vec::new();
        let mut at = 0;
        while at < chunk.len() {
            at += self.step(&chunk[at..], at, &mut edges);
        }
        edges
    }
}

/// The request that resumes a session. `answer` is the server's answer to the connect request of the session, and names
/// the session.
pub(super) fn resume(answer: &[u8]) -> Option<Vec<u8>> {
    // The answer has these fields: length and protocol; lease; session; the password with its length.
    let (lease, session) = (answer.get(8..12)?, answer.get(12..40)?);
    let last_seen = [0; 8];
    let request = [&[0; 4], &last_seen[..], lease, session, &[0]].concat();
    let length = u32::try_from(request.len()).ok()?;
    Some([&length.to_be_bytes(), &request[..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: i32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(4 + body.len()).expect("it is short");
        [&length.to_be_bytes()[..], &number.to_be_bytes(), body].concat()
    }

    #[test]
    fn finds_requests_however_they_are_split() {
        let stream =
            [frame(0, b"hello"), frame(PING, b""), frame(1, b"create"), frame(2, b"")].concat();
        for size in 1..=stream.len() {
            let mut parser = Zookeeper::new(Direction::ToServer);
            let edges: Vec<_> = stream.chunks(size).flat_map(|chunk| parser.parse(chunk)).collect();
            let ends: Vec<_> =
                edges.iter().filter(|edge| edge.end).map(|edge| edge.frame).collect();
            assert_eq!(
                ends.iter().map(|frame| frame.is_request).collect::<Vec<_>>(),
                [false, false, true, true]
            );
            assert_eq!(edges.len(), 8);
        }
        let mut parser = Zookeeper::new(Direction::ToServer);
        let whole = parser.parse(&stream);
        assert_eq!(
            whole.iter().map(|edge| edge.offset).collect::<Vec<_>>(),
            [0, 13, 13, 21, 21, 35, 35, 43]
        );
    }

    #[test]
    fn other_protocols_have_no_frames() {
        for bytes in [&b"mntr"[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\0\0\0\x02ab"] {
            assert_eq!(Zookeeper::new(Direction::ToServer).parse(bytes), []);
        }
    }
}
