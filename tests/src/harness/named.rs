//! Names with several addresses, some of which are silent: nothing comes back from there, and nobody is told.
//!
//! The library looks up a name that ends with `.test` in a file, if there is one (`coordination/src/env/names.rs`). An address
//! is silent where a socket listens whose queue is full: the kernel drops what asks for a connection, as a network does that
//! leads nowhere.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};

/// More connections than the queue of a listening socket takes that is to take none.
const FULL: usize = 4;

/// A name of servers at 127.0.0.1, whose first addresses are silent. It is gone on drop.
#[derive(Debug)]
pub struct Named {
    file: PathBuf,
    name: String,
    /// The addresses that it begins with.
    first: Vec<Ipv4Addr>,
    /// What listens at the silent addresses, and what fills its queues.
    _silent: Vec<OwnedFd>,
}

impl Named {
    /// A name with so many silent addresses, at each of these ports.
    ///
    /// # Panics
    ///
    /// When the file cannot be written, or something listens there.
    pub fn new(silent: u32, ports: &[u16]) -> Self {
        let dead: Vec<_> = (0..silent).map(|_| unused()).collect();
        let at =
            |address: &Ipv4Addr| ports.iter().map(|port| (*address, *port)).collect::<Vec<_>>();
        let sockets = dead.iter().flat_map(at).flat_map(|at| silence(SocketAddr::from(at)));
        let (directory, name) = (env::temp_dir().join("coordination-names"), name());
        fs::create_dir_all(&directory).expect("the directory for temporary files is there");
        let _silent = sockets.collect();
        let first = [&dead[..], &[Ipv4Addr::LOCALHOST]].concat();
        let named = Self { file: directory.join(&name), name, first, _silent };
        named.come_back();
        named
    }

    /// It is not found any more.
    ///
    /// # Panics
    ///
    /// When the file cannot be written; likewise below.
    pub fn vanish(&self) {
        self.set(&[]);
    }

    /// It has the addresses again that it had at first.
    pub fn come_back(&self) {
        self.set(&self.first);
    }

    /// From now on it has these addresses.
    ///
    /// # Panics
    ///
    /// When the file cannot be written.
    pub fn set(&self, addresses: &[Ipv4Addr]) {
        let lines: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        fs::write(&self.file, lines.join("\n")).expect("the file is ours");
    }

    /// An authority of addresses with the name in their place.
    pub fn authority(&self, of_addresses: &str) -> String {
        of_addresses.replace("127.0.0.1", &self.name)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

fn name() -> String {
    format!("n{}-{}.test", std::process::id(), next())
}

/// An address of this host's that nobody uses.
fn unused() -> Ipv4Addr {
    let [_, high, middle, low] = next().to_be_bytes();
    Ipv4Addr::new(127, 77 + high, middle, low)
}

fn next() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(1);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Nothing that is sent there is answered for as long as these sockets are.
fn silence(address: SocketAddr) -> Vec<OwnedFd> {
    let socket = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).expect("a socket")
    };
    let listening = socket();
    bind(&listening, &address).expect("nobody has the address");
    listen(&listening, 0).expect("it is bound");
    let fills = (0..FULL).map(|_| {
        let filling = socket();
        let begun = connect(&filling, &address);
        assert!(matches!(begun, Ok(()) | Err(Errno::INPROGRESS)), "{begun:?}");
        filling
    });
    let fills: Vec<_> = fills.collect();
    fills.into_iter().chain([listening]).collect()
}
