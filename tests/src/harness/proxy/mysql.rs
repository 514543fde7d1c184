//! The protocol of MySQL and MariaDB, without TLS. It consists of packets, each with a length and a number. If a packet
//! from a client has number zero, it is a request. If a packet from the server has number one, it begins the answer.

use super::{
    Direction,
    frames::{Edge, Frame, Parser},
};

/// The length of a packet's header: three bytes for the packet's length, and one for its number.
const HEADER: usize = 4;

/// Finds requests or answers in one direction of a connection.
#[derive(Debug)]
pub(super) struct Mysql {
    direction: Direction,
    /// The part of the current packet's header that has arrived so far.
    header: Vec<u8>,
    /// How many bytes of the current packet are still missing.
    rest: usize,
}

impl Mysql {
    pub(super) fn new(direction: Direction) -> Self {
        Self { direction, header: Vec::new(), rest: 0 }
    }

    fn frame(&self) -> Frame {
        let number = self.header.get(HEADER - 1).copied().unwrap_or_default();
        let is_request = self.direction == Direction::ToServer && number == 0;
        let is_answer = self.direction == Direction::ToClient && number == 1;
        Frame { stream: 0, is_request, is_message: is_request || is_answer }
    }
}

impl Parser for Mysql {
    fn parse(&mut self, chunk: &[u8]) -> Vec<Edge> {
        let mut edges = Vec::new();
        let mut begin = 0;
        for (index, byte) in chunk.iter().enumerate() {
            if self.header.len() == HEADER {
                self.rest -= 1;
            } else {
                if self.header.is_empty() {
                    begin = index;
                }
                self.header.push(*byte);
                if self.header.len() < HEADER {
                    continue;
                }
                let length = self.header.first_chunk::<3>().copied().unwrap_or_default();
                self.rest = u32::from_le_bytes([length[0], length[1], length[2], 0]) as usize;
                edges.push(Edge { frame: self.frame(), offset: begin, end: false });
            }
            if self.rest == 0 {
                edges.push(Edge { frame: self.frame(), offset: index + 1, end: true });
                self.header.clear();
                begin = index + 1;
            }
        }
        // If the chunk ends within a header, no beginning is reported here: the next chunk reports it at offset zero.
        edges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).expect("it is short").to_le_bytes();
        [&length[..3], &[number], body].concat()
    }

    fn ends(direction: Direction, bytes: &[u8], size: usize) -> Vec<Frame> {
        let mut parser = Mysql::new(direction);
        let edges = bytes.chunks(size).flat_map(|chunk| parser.parse(chunk));
        edges.filter(|edge| edge.end).map(|edge| edge.frame).collect()
    }

    #[test]
    fn finds_requests_and_answers_however_they_are_split() {
        let asked = [packet(1, b"login"), packet(0, b"\x03SELECT"), packet(0, b"")].concat();
        let answered =
            [packet(0, b"greeting"), packet(2, b"ok"), packet(1, b"1"), packet(2, b"row")].concat();
        for size in 1..answered.len() {
            let requests = ends(Direction::ToServer, &asked, size);
            assert_eq!(requests.len(), 3, "chunks of {size}");
            assert_eq!(requests.iter().filter(|frame| frame.is_request).count(), 2);
            let answers = ends(Direction::ToClient, &answered, size);
            assert_eq!(answers.len(), 4, "chunks of {size}");
            assert_eq!(answers.iter().filter(|frame| frame.is_message).count(), 1);
        }
    }
}
