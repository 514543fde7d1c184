//! Frames: the parts into which a protocol divides a stream of bytes. This module has what all protocols share.

use super::{
    Direction, Unit,
    http1::Http1,
    http2::Http2,
    mysql::Mysql,
    postgres::Postgres,
    resp::Resp,
    zookeeper::{self, Zookeeper},
};

/// The protocol that client and server speak. For each protocol, a file next to this one finds the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 without TLS.
    Http1,
    /// HTTP/2 without TLS, and gRPC in it.
    Http2,
    /// The protocol of MySQL and MariaDB, without TLS.
    Mysql,
    /// PostgreSQL's protocol, without TLS.
    Postgres,
    /// Redis' protocol, version 2 or 3.
    Resp,
    /// ZooKeeper's protocol, without TLS.
    Zookeeper,
}

impl Protocol {
    pub(super) fn parser(self, direction: Direction) -> Box<dyn Parser> {
        match self {
            Self::Http1 => Box::new(Http1::new(direction)),
            Self::Http2 => Box::new(Http2::new(direction)),
            Self::Mysql => Box::new(Mysql::new(direction)),
            Self::Postgres => Box::new(Postgres::new(direction)),
            Self::Resp => Box::new(Resp::new(direction)),
            Self::Zookeeper => Box::new(Zookeeper::new(direction)),
        }
    }

    /// The request that resumes a session on a new connection. `greeting` is the server's first answer, which named the
    /// session. `None` if the protocol has no sessions that move to the client's newest connection.
    pub(super) fn resume(self, greeting: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Zookeeper => zookeeper::resume(greeting),
            Self::Http1 | Self::Http2 | Self::Mysql | Self::Postgres | Self::Resp => None,
        }
    }
}

/// Finds the frames in one direction of one connection, however its bytes are split into chunks.
pub(super) trait Parser: Send {
    /// Returns where frames begin and end in the next `chunk` of the stream, in order.
    fn parse(&mut self, chunk: &[u8]) -> Vec<Edge>;
}

/// The smallest part into which the protocol divides a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// The number of the exchange to which the frame belongs: a request and its answer. It tells exchanges apart if a
    /// connection has several at a time.
    pub(super) stream: u32,
    pub(super) is_request: bool,
    pub(super) is_message: bool,
}

impl Frame {
    /// Whether this frame is counted by a cut that counts in this unit.
    pub(super) fn is(self, unit: Unit) -> bool {
        match unit {
            Unit::Bytes => false,
            Unit::Frames => true,
            Unit::Requests => self.is_request,
            Unit::Messages => self.is_message,
        }
    }
}

/// The beginning or the end of a frame within a chunk of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) frame: Frame,
    /// Where in the chunk the frame begins or has ended. Zero if the frame began in an earlier chunk.
    pub(super) offset: usize,
    /// True for the end of the frame, false for its beginning.
    pub(super) end: bool,
}
