//! Finds out which member of an etcd cluster has made a connection: a header of its first request names it.

use std::time::Duration;

use tokio::{net::TcpStream, time::sleep};

const HEADER: &str = "x-server-from:";
/// All headers of a request between members fit into this number of bytes.
const FIRST: usize = 2_048;
/// How often to look for the headers. A member sends its request at once, so a connection that is silent for longer is
/// not from a member.
const LOOKS: u32 = 500;
const LOOK: Duration = Duration::from_millis(2);

/// The id of the member; `None` if the first request has no such header. Only peeks, so the request can still be read.
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
