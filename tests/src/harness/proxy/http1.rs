//! Finds where HTTP/1.1 messages begin and end in a stream of bytes, however the stream is split into chunks.
//!
//! A frame is a whole message: a header and a body. Each message counts as an exchange of its own. A stream that is not
//! HTTP/1.1 without TLS has no frames.

use super::Direction;
use super::frames::{Edge, Frame, Parser};

/// The longest header that is accepted. If a header is longer, the stream is not HTTP/1.1.
const LONGEST_HEADER: usize = 64 * 1024;

/// Finds messages in one direction of one connection.
#[derive(Debug)]
pub(super) struct Http1 {
    state: State,
    direction: Direction,
    /// The part that has arrived so far of the header, or of the line with a chunk's length.
    line: Vec<u8>,
    messages: u32,
}

#[derive(Debug)]
enum State {
    Header,
    /// In the body. The number says how many of its bytes are still missing.
    Body(usize),
    /// In the line with the length of the next chunk.
    ChunkLength,
    /// In a chunk or the line break after it. The number says how many of their bytes are still missing, and the flag
    /// is true for the last chunk.
    Chunk(usize, bool),
    NotHttp1,
}

/// The length of the body, as the header gives it.
enum Length {
    Known(usize),
    Chunked,
}

impl Http1 {
    pub(super) fn new(direction: Direction) -> Self {
        Self { state: State::Header, direction, line: Vec::new(), messages: 0 }
    }

    fn frame(&self) -> Frame {
        let is_request = self.direction == Direction::ToServer;
        Frame { stream: self.messages, is_request, is_message: true }
    }

    /// Processes one byte of the chunk, at the offset `at`.
    fn take(&mut self, byte: u8, at: usize, edges: &mut Vec<Edge>) {
        match self.state {
            State::NotHttp1 => {}
            State::Header => {
                if self.line.is_empty() {
                    self.messages += 1;
                    edges.push(Edge { frame: self.frame(), offset: at, end: false });
                }
                self.line.push(byte);
                if self.line.ends_with(b"\r\n\r\n") {
                    match length(&self.line) {
                        Length::Known(left) => self.expect(State::Body(left), at, edges),
                        Length::Chunked => self.expect(State::ChunkLength, at, edges),
                    }
                } else if self.line.len() > LONGEST_HEADER {
                    self.state = State::NotHttp1;
                }
            }
            State::Body(left) => self.expect(State::Body(left - 1), at, edges),
            State::ChunkLength => {
                self.line.push(byte);
                if self.line.ends_with(b"\r\n") {
                    let text = String::from_utf8_lossy(&self.line);
                    let digits = text.split([';', '\r']).next().unwrap_or_default();
                    match usize::from_str_radix(digits.trim(), 16) {
                        Ok(length) => self.expect(State::Chunk(length + 2, length == 0), at, edges),
                        Err(_) => self.state = State::NotHttp1,
                    }
                }
            }
            State::Chunk(left, last) => self.expect(State::Chunk(left - 1, last), at, edges),
        }
    }

    fn expect(&mut self, next: State, at: usize, edges: &mut Vec<Edge>) {
        self.line.clear();
        self.state = match next {
            State::Body(0) | State::Chunk(0, true) => {
                edges.push(Edge { frame: self.frame(), offset: at + 1, end: true });
                State::Header
            }
            State::Chunk(0, false) => State::ChunkLength,
            next => next,
        };
    }
}

impl Parser for Http1 {
    fn parse(&mut self, chunk: &[u8]) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (at, byte) in chunk.iter().enumerate() {
            self.take(*byte, at, &mut edges);
        }
        edges
    }
}

fn length(header: &[u8]) -> Length {
    let header = String::from_utf8_lossy(header).to_lowercase();
    let value = |name: &str| header.lines().find_map(|line| line.strip_prefix(name));
    match value("transfer-encoding:") {
        Some(_) => Length::Chunked,
        None => {
            let length = value("content-length:").and_then(|length| length.trim().parse().ok());
            Length::Known(length.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONVERSATION: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue\
        HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n\
        HTTP/1.1 404 Not Found\r\n\r\n";

    #[test]
    fn messages_are_found_however_they_are_split() {
        for size in [1, 3, 7, 10_000] {
            let mut parser = Http1::new(Direction::ToClient);
            let mut found = Vec::new();
            for (nth, chunk) in CONVERSATION.chunks(size).enumerate() {
                let edges = parser.parse(chunk);
                found.extend(edges.iter().map(|edge| (edge.end, nth * size + edge.offset)));
            }
            let first = 38 + 4;
            let last = CONVERSATION.len();
            let second = last - 26;
            let expected = [(false, 0), (true, first), (false, first), (true, second)];
            assert_eq!(found[..4], expected, "{size}");
            assert_eq!(found[4..], [(false, second), (true, last)], "{size}");
        }
    }
}
