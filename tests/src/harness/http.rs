//! A client for the HTTP requests of the harness, without TLS and without keep-alive.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::bounds::ANSWER;

/// Ends the wait for an answer from a paused server, which accepts connections but never answers.
const TIMEOUT: Duration = Duration::from_millis(1_000);

/// The body of a `200 OK` answer to `GET path`.
pub(crate) fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    match exchange(address, ("GET", path), "", "", TIMEOUT)? {
        (200, body) => Ok(body),
        (status, _) => Err(io::Error::other(format!("status {status}"))),
    }
}

/// The status and the body of an answer with any status. Each further header in `headers` ends with a line break.
pub(crate) fn request(
    address: SocketAddr,
    (method, path): (&str, &str),
    headers: &str,
    body: &str,
) -> io::Result<(u16, String)> {
    exchange(address, (method, path), headers, body, ANSWER)
}

fn exchange(
    address: SocketAddr,
    (method, path): (&str, &str),
    headers: &str,
    body: &str,
    limit: Duration,
) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let length = body.len();
    // HTTP 1.0, so that the body is not chunked and ends with the connection.
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| io::Error::other("the answer has no header"))?;
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| io::Error::other("the answer has no status"))?, body.to_owned()))
}
