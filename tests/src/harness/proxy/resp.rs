//! Redis' protocol. Each command and each answer is one message.

use super::{
    Direction,
    frames::{Edge, Frame, Parser},
};

/// Finds values in one direction of a connection.
#[derive(Debug)]
pub(super) struct Resp {
    frame: Frame,
    /// Whether some bytes of a value have arrived and others are still missing.
    is_inside: bool,
    /// The part of the current line that has arrived so far. Such a line gives the type and the length of a value.
    line: Vec<u8>,
    /// How many bytes of the current string are still missing, including its line break.
    rest: usize,
    /// For each nested list that has not arrived completely, how many of its elements are still missing.
    missing: Vec<usize>,
}

impl Resp {
    pub(super) fn new(direction: Direction) -> Self {
        let is_request = direction == Direction::ToServer;
        Self {
            frame: Frame { stream: 0, is_request, is_message: true },
            is_inside: false,
            line: Vec::new(),
            rest: 0,
            missing: Vec::new(),
        }
    }

    /// Processes one byte. Returns whether it is the last byte of a complete value.
    fn take(&mut self, byte: u8) -> bool {
        if self.rest > 0 {
            self.rest -= 1;
            return self.rest == 0 && self.part_ends();
        }
        if byte != b'\n' {
            self.line.push(byte);
            return false;
        }
        let line = std::mem::take(&mut self.line);
        let count = String::from_utf8_lossy(line.get(1..).unwrap_or_default()).trim().parse().ok();
        match (line.first(), count) {
            (Some(b'$' | b'=' | b'!'), Some(length)) => {
                let length: usize = length;
                self.rest = length + 2;
                false
            }
            (Some(b'*' | b'~' | b'>'), Some(parts)) if parts > 0 => {
                self.missing.push(parts);
                false
            }
            (Some(b'%'), Some(pairs)) if pairs > 0 => {
                self.missing.push(2 * pairs);
                false
            }
            _ => self.part_ends(),
        }
    }

    fn part_ends(&mut self) -> bool {
        while let Some(missing) = self.missing.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return false;
            }
            self.missing.pop();
        }
        true
    }
}

impl Parser for Resp {
    fn parse(&mut self, chunk: &[u8]) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (index, byte) in chunk.iter().enumerate() {
            if !self.is_inside {
                self.is_inside = true;
                edges.push(Edge { frame: self.frame, offset: index, end: false });
            }
            if self.take(*byte) {
                self.is_inside = false;
                edges.push(Edge { frame: self.frame, offset: index + 1, end: true });
            }
        }
        edges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_values_however_they_are_split() {
        let bytes = b"*2\r\n$4\r\nPI\r\n\r\n:1\r\n+OK\r\n%1\r\n$1\r\na\r\n*0\r\n_\r\n$-1\r\n>2\r\n+a\r\n*1\r\n:1\r\n";
        for size in 1..bytes.len() {
            let mut parser = Resp::new(Direction::ToServer);
            let edges = bytes.chunks(size).flat_map(|chunk| parser.parse(chunk));
            assert_eq!(edges.filter(|edge| edge.end).count(), 6, "chunks of {size}");
        }
    }
}
