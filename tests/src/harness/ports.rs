//! Free loopback ports, one owner each.
//!
//! A server under test is killed and started again on the same port, so the port must stay reserved while nobody
//! listens on it. Binding port 0 does not reserve: once the socket is closed, the kernel gives the same port to the
//! next caller, or to an outgoing connection. So ports are taken from below the kernel's ephemeral range, and each is
//! reserved by a locked file until this process ends. Test processes that run at the same time (cargo-nextest)
//! therefore never share a port.

use std::{
    fs::{self, File},
    hash::{BuildHasher, RandomState},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

/// Lowest port handed out; well-known server defaults (2379, 6379, 8500…) are below it.
const LOWEST: u16 = 12_000;

/// The reservations of this process: each file is locked until the process ends.
static RESERVED: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A loopback port nobody listens on, reserved for this process.
///
/// # Panics
///
/// When no port can be found.
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

/// Takes the port for this process, unless a living process (this one included) has it.
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

/// Whether nobody listens on the port. This connects instead of binding: if another thread starts a process at this
/// moment, the process has copies of all sockets until its program begins, so a port that was bound for a test would
/// stay taken until then.
fn is_free(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err()
}

/// First port of the range from which the kernel picks the ports of outgoing connections.
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
