//! Where HTTP/2 frames begin and end in a stream of bytes, however it is split.
//!
//! Only frame headers are read (nine bytes: length, type, flags, stream); header blocks are not
//! decoded. Anything that is not HTTP/2 without TLS has no frames.

use super::{Direction, Unit};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADER: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    kind: u8,
    length: usize,
    pub(super) stream: u32,
    opens_stream: bool,
}

impl Frame {
    /// Whether the frame counts as one `unit`.
    pub(super) fn is(self, unit: Unit) -> bool {
        match unit {
            Unit::Bytes => false,
            Unit::Frames => true,
            Unit::Requests => self.opens_stream,
            Unit::Messages => self.kind == DATA && self.length > 0,
        }
    }
}

/// The edge of a frame within a chunk of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) frame: Frame,
    /// Where the frame begins, or has ended, in the chunk; zero when it began in an earlier one.
    pub(super) offset: usize,
    /// Whether this is the frame's end.
    pub(super) end: bool,
}

/// Finds frames in one direction of one connection.
#[derive(Debug)]
pub(super) struct Parser {
    state: State,
    direction: Direction,
    header: Vec<u8>,
    /// The first frame of either side is SETTINGS; the server's has no preface before it.
    has_settings: bool,
    last_stream: u32,
}

#[derive(Debug)]
enum State {
    /// This many bytes of the preface were seen.
    Preface(usize),
    Header,
    /// This many bytes of the payload are to come.
    Payload(Frame, usize),
    NotHttp2,
}

impl Parser {
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

    /// The edges of frames in the next `chunk` of the stream, in order.
    pub(super) fn parse(&mut self, chunk: &[u8]) -> Vec<Edge> {
        let mut edges = Vec::new();
        let mut at = 0;
        while at < chunk.len() {
            at += self.step(&chunk[at..], at, &mut edges);
        }
        edges
    }

    /// Takes what it can from `rest`, which begins `at` bytes into the chunk; returns how much.
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
        let frame = self.frame();
        self.header.clear();
        self.has_settings |= frame.kind == SETTINGS;
        if !self.has_settings {
            self.state = State::NotHttp2;
            return taken;
        }
        edges.push(Edge { frame, offset: if before == 0 { at } else { 0 }, end: false });
        self.expect_payload(frame, frame.length, at + taken, edges);
        taken
    }

    /// The frame whose header has come whole.
    fn frame(&mut self) -> Frame {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        let kind = self.header[3];
        let stream = number(&self.header[5..]) & 0x7fff_ffff;
        // A later HEADERS of a stream that is open carries trailers.
        let opens_stream =
            kind == HEADERS && self.direction == Direction::ToServer && stream > self.last_stream;
        if opens_stream {
            self.last_stream = stream;
        }
        Frame { kind, length: number(&self.header[..3]) as usize, stream, opens_stream }
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
