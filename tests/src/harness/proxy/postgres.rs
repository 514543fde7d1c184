//! PostgreSQL's protocol, without TLS. A request is everything that a client sends up to a `Sync`. Its answer is
//! everything that the server sends up to a `ReadyForQuery`. A notification counts as a message of its own.

use super::{
    Direction,
    frames::{Edge, Frame, Parser},
};

/// The length of a message's header: one byte for its type, and four for its length, which includes these four bytes.
const HEADER: usize = 5;

/// Finds requests or answers in one direction of a connection.
#[derive(Debug)]
pub(super) struct Postgres {
    direction: Direction,
    /// The part of the current message's header that has arrived so far. A client's first message has no type.
    header: Vec<u8>,
    /// How many bytes of the current message are still missing.
    rest: usize,
    /// Whether the login is over. Only the server's `ReadyForQuery` shows this, so the flag stays false in the
    /// direction to the server.
    is_open: bool,
    is_started: bool,
    /// The frame that has begun and not ended.
    frame: Option<Frame>,
    /// Whether the frame consists of one notification or notice, which the server may send between answers.
    is_lone: bool,
}

impl Postgres {
    pub(super) fn new(direction: Direction) -> Self {
        let is_started = direction == Direction::ToClient;
        Self {
            direction,
            header: Vec::new(),
            rest: 0,
            is_open: false,
            is_started,
            frame: None,
            is_lone: false,
        }
    }

    /// Processes one byte. Returns whether it is the last byte of a message.
    fn take(&mut self, byte: u8) -> bool {
        if self.rest > 0 {
            self.rest -= 1;
            return self.rest == 0;
        }
        self.header.push(byte);
        let type_length = usize::from(self.is_started);
        if self.header.len() < HEADER - 1 + type_length {
            return false;
        }
        let length = self.header.get(type_length..).and_then(<[u8]>::first_chunk::<4>);
        let length = length.map_or(4, |length| u32::from_be_bytes(*length));
        self.rest = (length as usize).saturating_sub(4);
        self.rest == 0
    }

    fn begins(&self, kind: u8) -> Frame {
        let is_request = self.direction == Direction::ToServer && matches!(kind, b'P' | b'Q');
        let is_answer = self.direction == Direction::ToClient && self.is_open;
        let is_request = is_request && self.is_started;
        Frame { stream: 0, is_request, is_message: is_request || is_answer }
    }

    /// Whether the message that has just ended also ends the frame.
    fn message_ends(&mut self) -> bool {
        let header = std::mem::take(&mut self.header);
        let kind = header.first().copied().unwrap_or_default();
        if !std::mem::replace(&mut self.is_started, true) {
            return true;
        }
        match (self.direction, kind) {
            // The messages Parse, Bind, Describe and Execute are parts of a request, which goes on up to Sync.
            (Direction::ToServer, kind) => !matches!(kind, b'P' | b'B' | b'D' | b'E'),
            (Direction::ToClient, b'Z') => {
                self.is_open = true;
                true
            }
            (Direction::ToClient, _) => !self.is_open || self.is_lone,
        }
    }
}

impl Parser for Postgres {
    fn parse(&mut self, chunk: &[u8]) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (index, byte) in chunk.iter().enumerate() {
            let frame = match self.frame {
                Some(frame) => frame,
                None => {
                    let frame = self.begins(*byte);
                    self.frame = Some(frame);
                    self.is_lone = matches!(byte, b'A' | b'N');
                    edges.push(Edge { frame, offset: index, end: false });
                    frame
                }
            };
            if self.take(*byte) && self.message_ends() {
                self.frame = None;
                edges.push(Edge { frame, offset: index + 1, end: true });
            }
        }
        edges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).expect("it is short").to_be_bytes();
        [&[kind], length.as_slice(), body].concat()
    }

    fn ends(direction: Direction, bytes: &[u8], size: usize) -> Vec<Frame> {
        let mut parser = Postgres::new(direction);
        let edges = bytes.chunks(size).flat_map(|chunk| parser.parse(chunk));
        edges.filter(|edge| edge.end).map(|edge| edge.frame).collect()
    }

    #[test]
    fn finds_requests_and_answers_however_they_are_split() {
        let mut asked = vec![0, 0, 0, 9, 0, 3, 0, 0, 0];
        for (kind, body) in
            [(b'p', "x"), (b'P', "a"), (b'B', ""), (b'E', "b"), (b'S', ""), (b'Q', "c")]
        {
            asked.extend(message(kind, body.as_bytes()));
        }
        let mut answered = Vec::new();
        for kind in [b'R', b'S', b'Z', b'1', b'D', b'A', b'Z', b'A', b'C', b'Z'] {
            answered.extend(message(kind, b"d"));
        }
        for size in 1..answered.len() {
            let requests = ends(Direction::ToServer, &asked, size);
            assert_eq!(requests.len(), 4, "chunks of {size}");
            assert_eq!(requests.iter().filter(|frame| frame.is_request).count(), 2);
            let answers = ends(Direction::ToClient, &answered, size);
            assert_eq!(answers.len(), 6, "chunks of {size}");
            assert_eq!(answers.iter().filter(|frame| frame.is_message).count(), 3);
        }
    }
}
