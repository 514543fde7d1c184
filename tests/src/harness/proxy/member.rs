//! Finds out which member of an etcd cluster has made a connection. A header of the connection's first request names
//! the member.

use std::time::Duration;

use tokio::{net::TcpStream, time::sleep};

const HEADER: &str = "x-server-from:";
/// No request between members has headers that are longer than this number of bytes.
const FIRST: usize = 2_048;
/// How often to check whether the headers have arrived, with the pause `LOOK` between two checks. A member sends its
/// request at once. So if nothing has arrived after the last check, the connection is not from a member.
const LOOKS: u32 = 500;
const LOOK: Duration = Duration::from_millis(2);

/// The id of the member; `None` if the first request has no such header. The bytes are only peeked at, so the proxy can
/// still read and forward the request.
pub(super) async fn sender(stream: &TcpStream) -> Option<String> {
    let mut first = [0; FIRST];
    for _ in 0..LOOKS {
        let length = stream.peek(&mut first).await.ok()?;
        let head = String::from_utf8_lossy(&first[..length]);
        if length == 0 || length == FIRST || head.contains("\r\n\r\n") {
            return parse(&head);
        }
        sleep(LOOK).await;
    }
    None
}

fn parse(head: &str) -> Option<String> {
    let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(HEADER))?;
    Some(line.get(HEADER.len()..)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_names_the_sender() {
        let head = "POST /raft HTTP/1.1\r\nHost: x\r\nX-Server-From: 8211f1d0f64f3269\r\n\r\n";
        assert_eq!(parse(head), Some("8211f1d0f64f3269".to_owned()));
        assert_eq!(parse("GET /version HTTP/1.1\r\nHost: x\r\n\r\n"), None);
    }
}
