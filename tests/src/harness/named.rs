//! Host names that have several addresses, some of which are silent: a client that connects to a silent address gets no
//! answer at all, not even a refusal.
//!
//! If a name ends with `.test`, and a file of that name exists, the library takes the name's addresses from the file
//! (`coordination/src/env/names.rs`). An address is made silent by a listening socket whose queue is full. The kernel
//! then drops each request for a connection, as a network does if no host has the address.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};

/// How many connections are made to a silent address. They fill the queue of the listening socket, so that it accepts
/// no more.
const FULL: usize = 4;

/// A host name whose last address is 127.0.0.1, and whose other addresses are silent. The name is removed on drop.
#[derive(Debug)]
pub struct Named {
    file: PathBuf,
    name: String,
    /// The addresses that the name has at first.
    first: Vec<Ipv4Addr>,
    /// The sockets that listen at the silent addresses, and the connections that fill the queues of these sockets.
    _silent: Vec<OwnedFd>,
}

impl Named {
    /// Makes a host name with `silent` silent addresses, followed by 127.0.0.1. The addresses are silent at each of
    /// these ports.
    ///
    /// # Panics
    ///
    /// If the file cannot be written, or if an address is in use already.
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

    /// Makes lookups of the name say from now on that it has no address.
    ///
    /// # Panics
    ///
    /// If the file cannot be written.
    pub fn vanish(&self) {
        self.set(&[]);
    }

    /// Makes lookups of the name fail from now on, as where no name server answers.
    ///
    /// # Panics
    ///
    /// If the file cannot be written.
    pub fn lose_name_server(&self) {
        fs::write(&self.file, "away").expect("the file is ours");
    }

    /// Gives the name its first addresses again.
    pub fn come_back(&self) {
        self.set(&self.first);
    }

    /// Gives the name these addresses.
    ///
    /// # Panics
    ///
    /// When the file cannot be written.
    pub fn set(&self, addresses: &[Ipv4Addr]) {
        let lines: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        fs::write(&self.file, lines.join("\n")).expect("the file is ours");
    }

    /// Turns an authority of addresses, such as `127.0.0.1:1,127.0.0.1:2`, into one that has the name instead of
    /// 127.0.0.1.
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

/// A loopback address that no other test uses.
fn unused() -> Ipv4Addr {
    let [_, high, middle, low] = next().to_be_bytes();
    Ipv4Addr::new(127, 77 + high, middle, low)
}

fn next() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(1);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Listens at this address, and fills the queue. Attempts to connect get no answer until the returned sockets are
/// closed.
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
