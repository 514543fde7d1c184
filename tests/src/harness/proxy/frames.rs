//! What a stream of bytes is made of, in whatever protocol.

use super::{
    Direction, Unit,
    http1::Http1,
    http2::Http2,
    mysql::Mysql,
    postgres::Postgres,
    resp::Resp,
    zookeeper::{self, Zookeeper},
};

/// What client and server speak: each has a file beside this one, which finds its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 without TLS.
    Http1,
    /// HTTP/2 without TLS, and gRPC in it.
    Http2,
    /// That of MySQL and MariaDB, without TLS.
    Mysql,
    /// PostgreSQL's, without TLS.
    Postgres,
    /// Redis' protocol, version 2 or 3.
    Resp,
    /// ZooKeeper's own, without TLS.
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

    /// What to send on a new connection to go on with the session that a server has greeted so, where servers take a
    /// session's requests from its newest connection only.
    pub(super) fn resume(self, greeting: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Zookeeper => zookeeper::resume(greeting),
            Self::Http1 | Self::Http2 | Self::Mysql | Self::Postgres | Self::Resp => None,
        }
    }
}

/// Finds frames in one direction of one connection, however its bytes are split into chunks.
pub(super) trait Parser: Send {
    /// The edges of frames in the next `chunk` of the stream, in order.
    fn parse(&mut self, chunk: &[u8]) -> Vec<Edge>;
}

/// The smallest part of a conversation that the protocol knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Which of the conversations on one connection it is of.
    pub(super) stream: u32,
    pub(super) is_request: bool,
    pub(super) is_message: bool,
}

impl Frame {
    /// Whether the frame counts as one `unit`.
    pub(super) fn is(self, unit: Unit) -> bool {
        match unit {
            Unit::Bytes => false,
            Unit::Frames => true,
            Unit::Requests => self.is_request,
            Unit::Messages => self.is_message,
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
