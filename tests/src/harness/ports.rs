//! Free loopback ports, each of which has one owner.
//!
//! A server under test is killed and started again on the same port. So the port has to stay reserved while nobody
//! listens on it. Binding port 0 does not reserve a port: once the socket is closed, the kernel gives the same port to
//! the next caller, or to an outgoing connection.
//!
//! So ports are taken from below the range that the kernel uses for outgoing connections (the ephemeral range). Each
//! port is reserved by a locked file until this process ends. So test processes that run at the same time
//! (cargo-nextest) never share a port.

use std::{
    fs::{self, File},
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

/// The lowest port that is given out. The well-known ports of servers (2379, 6379, 8500…) are below it.
const LOWEST: u16 = 12_000;

/// The reservations of this process: one file per port, which stays locked until the process ends.
static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Returns a loopback port on which nobody listens, and reserves it for this process.
///
/// # Panics
///
/// If no port can be found.
pub fn free_port() -> u16 {
    let range = LOWEST..ephemeral_start();
    let size = range.end.saturating_sub(range.start).max(1);
    (0..1_000)
        .map(|_| range.start + random_below(size))
        .find(|port| reserve(*port) && is_free(*port))
        .expect("one of a thousand random ports should be free")
}

/// The loopback address of a [`free_port`].
pub fn free_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}

/// Reserves the port for this process. Returns false if a living process, possibly this one, has reserved it already.
fn reserve(port: u16) -> bool {
    let directory = directory();
    fs::create_dir_all(&directory).expect("the temporary directory is writable");
    let file = File::create(directory.join(port.to_string())).expect("a lock file can be created");
    let taken = file.try_lock().is_ok();
    if taken {
        RESERVED.lock().unwrap_or_else(PoisonError::into_inner).push(file);
    }
    taken
}

fn directory() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    std::env::temp_dir().join(format!("coordination-test-ports-{user}"))
}

/// Whether nobody listens on the port. This connects to the port, and does not bind it for the test. If a port is bound
/// while another thread starts a process, the new process has a copy of the bound socket until its program begins. So
/// the port would stay taken for that time.
fn is_free(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err()
}

/// The first port of the range from which the kernel takes the ports of outgoing connections.
fn ephemeral_start() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .filter(|start| *start > LOWEST + 1_000)
        .unwrap_or(32_768)
}

fn random_below(limit: u16) -> u16 {
    let random = RandomState::new().hash_one(std::process::id());
    u16::try_from(random % u64::from(limit)).expect("a remainder is below its divisor")
}
