//! A client of HTTP/2 that sends what no library would, frame by frame, without TLS.

use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::tests::LONG;

/// What a client says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// Of data and headers; of settings and pings it means that they were received.
const END: u8 = 1;
const WHOLE_HEAD: u8 = 4;
/// The setting of the window that a stream begins with.
const INITIAL_WINDOW: u8 = 4;

/// What the service said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The head of the answer on this stream.
    Head(u32),
    /// Some of its text, and whether it ends with that.
    Text(u32, Vec<u8>, bool),
    Reset(u32),
    GoAway,
    /// It has ended the connection.
    Nothing,
}

/// A connection, as its client has it.
pub(super) struct Client(UnixStream);

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame");
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// What a connection begins with; streams may send so many bytes.
pub(super) fn beginning(window: u32) -> Vec<u8> {
    let mut setting = vec![0, INITIAL_WINDOW];
    setting.extend(window.to_be_bytes());
    [PREFACE, &frame(SETTINGS, 0, 0, &setting)[..]].concat()
}

/// A request of these headers, besides its method and its path.
pub(super) fn request(
    stream: u32,
    asked: (&str, &str),
    headers: &[(&str, &str)],
    body: &str,
) -> Vec<u8> {
    let own = [(":method", asked.0), (":scheme", "https"), (":path", asked.1)];
    let mut block = Vec::new();
    for (name, value) in own.iter().chain(headers) {
        // As it is, with a name of its own, and kept by nobody.
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).expect("a short text"));
            block.extend(text.as_bytes());
        }
    }
    let end = if body.is_empty() { END } else { 0 };
    let mut bytes = frame(HEADERS, WHOLE_HEAD | end, stream, &block);
    if !body.is_empty() {
        bytes.extend(frame(DATA, END, stream, body.as_bytes()));
    }
    bytes
}

/// A request whose body does not come to its end.
pub(super) fn endless(stream: u32, asked: (&str, &str)) -> Vec<u8> {
    let body = "{";
    let mut bytes = request(stream, asked, &[(":authority", "localhost")], body);
    let data = frame(DATA, 0, stream, body.as_bytes());
    bytes.truncate(bytes.len() - data.len());
    bytes.extend(data);
    bytes
}

/// A request of these headers with so many bytes of a body that does not come to its end.
pub(super) fn filling(
    stream: u32,
    asked: (&str, &str),
    headers: &[(&str, &str)],
    bytes: usize,
) -> Vec<u8> {
    let body = "{";
    let mut sent = request(stream, asked, headers, body);
    sent.truncate(sent.len() - frame(DATA, 0, stream, body.as_bytes()).len());
    // As much as a frame may have.
    for some in vec![b' '; bytes].chunks(16 * 1024) {
        sent.extend(frame(DATA, 0, stream, some));
    }
    sent
}

/// A request to localhost whose body is in one frame, and the end of it in another one.
pub(super) fn in_parts(stream: u32, asked: (&str, &str), body: &str) -> Vec<u8> {
    let mut bytes = request(stream, asked, &[(":authority", "localhost")], body);
    let data = frame(DATA, 0, stream, body.as_bytes());
    bytes.truncate(bytes.len() - data.len());
    bytes.extend(data);
    bytes.extend(frame(DATA, END, stream, &[]));
    bytes
}

pub(super) fn reset(stream: u32) -> Vec<u8> {
    // The code of a client that has lost interest.
    frame(RESET, 0, stream, &[0, 0, 0, 8])
}

impl Client {
    /// Connects, and says this.
    pub(super) async fn saying(path: &Path, bytes: &[u8]) -> Self {
        let mut client = Self(UnixStream::connect(path).await.expect("somebody listens"));
        client.say(bytes).await;
        client
    }

    /// Connects. Streams may send so many bytes.
    pub(super) async fn open(path: &Path, window: u32) -> Self {
        Self::saying(path, &beginning(window)).await
    }

    pub(super) async fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("it is taken");
    }

    /// The same, if the service has not ended the connection.
    pub(super) async fn try_say(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes).await;
    }

    /// Sends a request to localhost.
    pub(super) async fn ask(&mut self, stream: u32, method: &str, path: &str, body: &str) {
        self.say(&request(stream, (method, path), &[(":authority", "localhost")], body)).await;
    }

    /// Lets so many bytes more be sent on a stream.
    pub(super) async fn allow(&mut self, stream: u32, more: u32) {
        self.say(&frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes())).await;
    }

    /// So many bytes of whatever the service says, or fewer, if it ends the connection.
    pub(super) async fn bytes(&mut self, count: usize) -> usize {
        let (mut bytes, mut read) = (vec![0; count], 0);
        while read < count {
            match self.0.read(&mut bytes[read..]).await {
                Ok(0) | Err(_) => break,
                Ok(more) => read += more,
            }
        }
        read
    }

    /// What the service says next, apart from what is only about the connection: that is answered.
    pub(super) async fn hear(&mut self) -> Said {
        let heard = tokio::time::timeout(LONG, self.heard()).await;
        heard.expect("it says something")
    }

    async fn heard(&mut self) -> Said {
        loop {
            let mut head = [0; 9];
            if self.0.read_exact(&mut head).await.is_err() {
                return Said::Nothing;
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let mut payload = vec![0; usize::try_from(length).expect("a short frame")];
            if self.0.read_exact(&mut payload).await.is_err() {
                return Said::Nothing;
            }
            match kind {
                HEADERS => return Said::Head(stream),
                DATA => return Said::Text(stream, payload, flags & END != 0),
                RESET => return Said::Reset(stream),
                GO_AWAY => return Said::GoAway,
                // Whoever has ended the connection meanwhile need not hear it.
                SETTINGS if flags & END == 0 => {
                    let _ = self.0.write_all(&frame(SETTINGS, END, 0, &[])).await;
                }
                PING if flags & END == 0 => {
                    let _ = self.0.write_all(&frame(PING, END, 0, &payload)).await;
                }
                _ => {}
            }
        }
    }

    /// The text of the answer on this stream, to its end. Nothing else is said meanwhile.
    pub(super) async fn answer(&mut self, stream: u32) -> String {
        let mut text = Vec::new();
        loop {
            match self.hear().await {
                Said::Head(of) if of == stream => {}
                Said::Text(of, more, is_end) if of == stream => {
                    text.extend(more);
                    if is_end {
                        return String::from_utf8(text).expect("a text");
                    }
                }
                said => panic!("{said:?} instead of an answer on stream {stream}"),
            }
        }
    }

    /// Waits until the service has ended the connection.
    pub(super) async fn end(&mut self) {
        while self.hear().await != Said::Nothing {}
    }
}
