//! Finds where HTTP/2 frames begin and end in a stream of bytes, however the stream is split into chunks.
//!
//! Only the headers of frames are read (nine bytes: length, type, flags, stream). Header blocks, in which HTTP/2
//! compresses the headers of requests, are not decoded. A stream that is not HTTP/2 without TLS has no frames.

use super::Direction;
use super::frames::{Edge, Frame, Parser};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADER: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

/// Finds frames in one direction of one connection.
#[derive(Debug)]
pub(super) struct Http2 {
    state: State,
    direction: Direction,
    header: Vec<u8>,
    /// Whether the first frame has been seen. On both sides it has to be SETTINGS, which shows that the stream is
    /// HTTP/2; the server sends no preface that would show it.
    has_settings: bool,
    last_stream: u32,
}

/// The content of a frame's header.
struct Head {
    kind: u8,
    length: usize,
    stream: u32,
}

#[derive(Debug)]
enum State {
    /// In the preface. The number says how many of its bytes have arrived.
    Preface(usize),
    Header,
    /// In a frame's payload. The number says how many of its bytes are still missing.
    Payload(Frame, usize),
    NotHttp2,
}

impl Http2 {
    pub(super) fn new(direction: Direction) -> Self {
        Self {
            state: match direction {
                Direction::ToServer => State::Preface(0),
                Direction::ToClient => State::Header,
            },
            direction,
            header: Vec::with_capacity(HEADER),
            has_settings: false,
            last_stream: 0,
        }
    }

    /// Processes those first bytes of `rest` that belong to the current state, and returns their number. `rest` begins
    /// `at` bytes into the chunk.
    fn step(&mut self, rest: &[u8], at: usize, edges: &mut Vec<Edge>) -> usize {
        match self.state {
            State::NotHttp2 => rest.len(),
            State::Preface(seen) => self.take_preface(seen, rest),
            State::Header => self.take_header(rest, at, edges),
            State::Payload(frame, left) => {
                let taken = left.min(rest.len());
                self.expect_payload(frame, left - taken, at + taken, edges);
                taken
            }
        }
    }

    fn take_preface(&mut self, seen: usize, rest: &[u8]) -> usize {
        let taken = rest.len().min(PREFACE.len() - seen);
        self.state = match seen + taken {
            _ if rest[..taken] != PREFACE[seen..seen + taken] => State::NotHttp2,
            seen if seen == PREFACE.len() => State::Header,
            seen => State::Preface(seen),
        };
        taken
    }

    fn take_header(&mut self, rest: &[u8], at: usize, edges: &mut Vec<Edge>) -> usize {
        let before = self.header.len();
        let taken = rest.len().min(HEADER - before);
        self.header.extend_from_slice(&rest[..taken]);
        if self.header.len() < HEADER {
            return taken;
        }
        let head = self.head();
        self.header.clear();
        self.has_settings |= head.kind == SETTINGS;
        if !self.has_settings {
            self.state = State::NotHttp2;
            return taken;
        }
        let frame = self.frame(&head);
        edges.push(Edge { frame, offset: if before == 0 { at } else { 0 }, end: false });
        self.expect_payload(frame, head.length, at + taken, edges);
        taken
    }

    /// Decodes the header of a frame. All bytes of it have arrived.
    fn head(&self) -> Head {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        let length = number(&self.header[..3]) as usize;
        Head { kind: self.header[3], length, stream: number(&self.header[5..]) & 0x7fff_ffff }
    }

    fn frame(&mut self, head: &Head) -> Frame {
        let Head { kind, length, stream } = *head;
        // If a HEADERS frame belongs to a stream that is open already, it has the trailers of that stream and begins no
        // request.
        let is_request =
            kind == HEADERS && self.direction == Direction::ToServer && stream > self.last_stream;
        if is_request {
            self.last_stream = stream;
        }
        Frame { stream, is_request, is_message: kind == DATA && length > 0 }
    }

    fn expect_payload(&mut self, frame: Frame, left: usize, at: usize, edges: &mut Vec<Edge>) {
        if left > 0 {
            self.state = State::Payload(frame, left);
            return;
        }
        edges.push(Edge { frame, offset: at, end: true });
        self.state = State::Header;
    }
}

impl Parser for Http2 {
    fn parse(&mut self, chunk: &[u8]) -> Vec<Edge> {
        let mut edges = Vec::new();
        let mut at = 0;
        while at < chunk.len() {
            at += self.step(&chunk[at..], at, &mut edges);
        }
        edges
    }
}
