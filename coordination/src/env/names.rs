//! The addresses that a host's name has.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread;

use tokio::sync::oneshot;

/// The addresses of a host, in the order in which they are to be tried; at least one.
///
/// The system is asked on a thread of its own, and not on one of the runtime's threads for blocking work, for two reasons. Those
/// threads stay for a while, and a forked child that drops its copy of the runtime would wait for them, which it does not have. And
/// if no thread can be started, the runtime panics.
pub(crate) async fn addresses(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (answer, answered) = oneshot::channel();
    let name = name.to_owned();
    let ask = move || {
        // The sending fails if the caller has given up, and then nobody needs the answer.
        let _ = answer.send(look_up(&name, port));
    };
    thread::Builder::new().name("coordination-names".into()).spawn(ask)?;
    answered.await.map_err(|_| io::Error::other("the lookup has ended"))?
}

/// Does what [`addresses`] does, but on the caller's thread.
pub(crate) fn look_up(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    #[cfg(coordination_internals)]
    let of_test = test::addresses(name, port);
    #[cfg(not(coordination_internals))]
    let of_test: Option<io::Result<Vec<_>>> = None;
    let found: Vec<_> = match of_test {
        Some(found) => found?,
        None => (name, port).to_socket_addrs()?.collect(),
    };
    match found.is_empty() {
        true => Err(io::Error::other(format!("failed to lookup address: {NONE}"))),
        false => Ok(found),
    }
}

const NONE: &str = "the host has none";
/// In which words systems say that there is no such name, or that it has no address: glibc, musl and FreeBSD, macOS, OpenBSD.
#[cfg(feature = "zookeeper")]
const SAY_NONE: [&str; 7] = [
    NONE,
    "Name or service not known",
    "No address associated with hostname",
    "Name does not resolve",
    "Name has no usable address",
    "nodename nor servname provided, or not known",
    "no address associated with name",
];
/// The same by its number on Windows: `WSAHOST_NOT_FOUND` and `WSANO_DATA`.
#[cfg(feature = "zookeeper")]
const NUMBERS: [i32; 2] = [11_001, 11_004];

/// Whether a look-up has failed because a name server says that the name has no address, and not because no name server answers. The
/// standard library has only the system's words for that.
#[cfg(feature = "zookeeper")]
pub(crate) fn has_none(error: &io::Error) -> bool {
    let said = error.to_string();
    let is_number = cfg!(windows) && error.raw_os_error().is_some_and(|of| NUMBERS.contains(&of));
    is_number || SAY_NONE.iter().any(|none| said.contains(none))
}

/// Names that tests make, for which no name server is needed.
#[cfg(coordination_internals)]
mod test {
    use std::net::SocketAddr;
    use std::time::Duration;
    use std::{env, fs, io, thread};

    /// How often the file of a name is read for which the name server is silent.
    const PAUSE: Duration = Duration::from_millis(10);

    /// The addresses of a name that ends with `.test`, as no name on any network does. A file of that name has one address in each
    /// line, or says that the name server is `away`, so that the look-up fails, or that it is `silent`, so that the look-up goes on for
    /// as long as the file says so. It is in the folder `coordination-names` in the directory for temporary files, and is read each
    /// time.
    pub(super) fn addresses(name: &str, port: u16) -> Option<io::Result<Vec<SocketAddr>>> {
        let is_test = name.strip_suffix(".test").is_some_and(|name| !name.contains('/'));
        let file = is_test.then(|| env::temp_dir().join("coordination-names").join(name))?;
        let mut lines = fs::read_to_string(&file).ok()?;
        while lines == "silent" {
            thread::sleep(PAUSE);
            lines = fs::read_to_string(&file).unwrap_or_default();
        }
        if lines == "away" {
            return Some(Err(io::Error::other("failed to lookup address: try again")));
        }
        let addresses = lines.lines().flat_map(str::parse);
        Some(Ok(addresses.map(|address| SocketAddr::new(address, port)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_is_its_own_and_a_name_is_looked_up() {
        let of = async |name: &str| addresses(name, 7).await;
        assert_eq!(of("::1").await.expect("it is one"), ["[::1]:7".parse().expect("it is one")]);
        let local = of("localhost").await.expect("each machine has it");
        assert!(local.iter().all(|address| address.ip().is_loopback()), "{local:?}");
        let unknown = of("host.invalid").await.expect_err("nobody has that name");
        assert!(unknown.to_string().contains("lookup"), "{unknown}");
    }
}
