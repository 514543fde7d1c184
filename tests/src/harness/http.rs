//! A client for the HTTP requests that the harness sends. It has no TLS and no keep-alive.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::bounds::ANSWER;

/// How long to wait for an answer. A paused server accepts connections, but never answers.
const TIMEOUT: Duration = Duration::from_millis(1_000);

/// Sends `GET path`, and returns the body of the answer if its status is 200.
pub(crate) fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    match exchange(address, ("GET", path), "", "", TIMEOUT)? {
        (200, body) => Ok(body),
        (status, _) => Err(io::Error::other(format!("status {status}"))),
    }
}

/// Sends a request, and returns the status and the body of the answer. `headers` are further headers, each with a line
/// break at its end.
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
    // The request is HTTP 1.0, so that the server does not send the body in chunks and closes the connection at its
    // end.
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
