//! Which process a connection comes from, as Linux tells in `/proc`.

use std::{collections::BTreeSet, fs};

/// The local ports of the process's TCP connections to this port of loopback.
///
/// Empty when the process has ended.
pub(super) fn ports_of(process: u32, remote: u16) -> BTreeSet<u16> {
    let sockets = sockets_of(process);
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let rows = table.lines().skip(1).filter_map(parse);
    rows.filter(|row| row.remote == remote && sockets.contains(&row.socket))
        .map(|row| row.local)
        .collect()
}

/// The inodes of its sockets.
fn sockets_of(process: u32) -> BTreeSet<u64> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd"));
    let links = descriptors.into_iter().flatten().flatten();
    let links = links.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    links.filter_map(|link| socket(link.to_str()?)).collect()
}

fn socket(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// A row of `/proc/net/tcp`.
#[derive(Debug, PartialEq)]
struct Row {
    local: u16,
    remote: u16,
    socket: u64,
}

fn parse(row: &str) -> Option<Row> {
    let mut words = row.split_whitespace().skip(1);
    let mut port = || u16::from_str_radix(words.next()?.split_once(':')?.1, 16).ok();
    let (local, remote) = (port()?, port()?);
    Some(Row { local, remote, socket: words.nth(6)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn rows_are_parsed() {
        let row = "   0: 0100007F:1F90 0100007F:0016 01 00000000:00000000 00:00000000 00000000     0 \
                   0 41235 1 0000000000000000 100 0 0 10 0";
        assert_eq!(parse(row), Some(Row { local: 8080, remote: 22, socket: 41_235 }));
        assert_eq!(parse("  sl  local_address rem_address   st"), None);
    }

    #[test]
    fn a_connection_of_this_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let stream = TcpStream::connect(address).expect("it listens");
        let port = stream.local_addr().expect("it is connected").port();
        assert!(ports_of(std::process::id(), address.port()).contains(&port));
        drop(stream);
        assert!(!ports_of(std::process::id(), address.port()).contains(&port));
    }
}
