//! A store that processes share: what each has to say for itself.

use std::process::Child;
#[cfg(feature = "_network")]
use std::process::{Command, Stdio};
use std::time::Duration;

use coordination::{Coordinator, Lock, LockGuard};
use tempfile::TempDir;

use crate::Outcome;

/// A store, the least that a lock asks of it, and its best lock besides ours.
pub(crate) trait Store {
    /// The scheme of its URLs, and its name here.
    const NAME: &'static str;
    /// What stands in its URLs before the address.
    const USER: &'static str = "";
    /// What its URLs end with.
    const OPTIONS: &'static str = "";
    /// What [`rival`](Self::rival) is.
    const RIVAL: &'static str;
    /// Who else uses [`rival`](Self::rival), if anybody does.
    #[cfg(feature = "_network")]
    const PEER: Option<&'static str> = None;
    /// What is wanted: how many times the floor, and how many changes of the owner.
    const WANTED: (&'static str, &'static str);
    /// How many locks one timed run takes: some hundredths of a second of them.
    const REPEATS: u32;
    /// By when the lock of a process that was killed is another's, in seconds: L1 in `docs/guarantees.md`, with the default lease.
    const FREE_AFTER: f64;

    /// The URL of the server at this address.
    fn url(address: &str) -> String {
        format!("{}://{}{address}{}", Self::NAME, Self::USER, Self::OPTIONS)
    }

    /// Starts a server on a free loopback port, with its data in this directory; answers once it serves.
    async fn start(data: TempDir) -> Outcome<Server>;

    /// How many requests the server has served so far; `None`: it does not tell.
    #[cfg(feature = "_network")]
    fn served(_address: &str) -> Outcome<Option<u64>> {
        Ok(None)
    }

    /// A lock of this name and the fewest requests, through the client crate that we use.
    async fn floor(address: &str, name: &str) -> Outcome<impl Locking>;

    /// The best lock of this store that waits without polling and is fair, through the same crate.
    async fn rival(address: &str) -> Outcome<impl Locking>;
}

/// A lock that is taken and given back.
pub(crate) trait Locking {
    async fn acquire(&mut self) -> Outcome;
    async fn release(&mut self) -> Outcome;
}

pub(crate) async fn cycle(lock: &mut impl Locking) -> Outcome {
    lock.acquire().await?;
    lock.release().await
}

/// A server process, ended with this value; or a directory, which has none.
pub(crate) struct Server {
    child: Option<Child>,
    /// `host:port`, where it serves clients; or the path.
    pub(crate) address: String,
    _data: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Server {
    /// A store that is only a directory.
    pub(crate) fn directory(data: TempDir) -> Self {
        Self { child: None, address: data.path().display().to_string(), _data: data }
    }

    /// Starts this command, whose data are in this directory.
    #[cfg(feature = "_network")]
    pub(crate) fn spawn(command: &mut Command, address: String, data: TempDir) -> Outcome<Self> {
        let program = command.get_program().to_owned();
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child =
            child.map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        Ok(Self { child: Some(child), address, _data: data })
    }

    /// The server's process, if there is one.
    #[cfg(feature = "_network")]
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Waits until it serves.
    #[cfg(feature = "_network")]
    pub(crate) async fn ready(self, mut is_ready: impl AsyncFnMut(&str) -> bool) -> Outcome<Self> {
        for _ in 0..400 {
            if is_ready(&self.address).await {
                return Ok(self);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(format!("the server at {} did not get ready within 20 s", self.address).into())
    }
}

/// What the server at this address says to a line of text, until it closes the connection.
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
pub(crate) fn said(address: &str, line: &str) -> Outcome<String> {
    let mut socket = std::net::TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    std::io::Write::write_all(&mut socket, line.as_bytes())?;
    Ok(std::io::read_to_string(socket)?)
}

/// The number that is the last word of what a command prints.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn number_from(command: &mut Command) -> Outcome<u64> {
    let text = String::from_utf8(command.output()?.stdout)?;
    Ok(text.split_whitespace().next_back().ok_or("no number")?.parse()?)
}

/// A loopback address that nobody uses.
#[cfg(feature = "_network")]
pub(crate) fn free_address() -> Outcome<String> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// Ours.
pub(crate) struct Ours {
    lock: Lock,
    held: Option<LockGuard>,
}

impl Ours {
    pub(crate) fn new(coordinator: &Coordinator, name: &str) -> Outcome<Self> {
        Ok(Self { lock: coordinator.lock(name)?, held: None })
    }
}

impl Locking for Ours {
    async fn acquire(&mut self) -> Outcome {
        self.held = Some(self.lock.acquire(Some(Duration::from_secs(30))).await?);
        Ok(())
    }

    async fn release(&mut self) -> Outcome {
        match self.held.take() {
            Some(guard) => Ok(guard.release().await?),
            None => Err("released, and not held".into()),
        }
    }
}
