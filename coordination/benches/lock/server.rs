//! A store with a server: what each has to say for itself, and what is measured of all.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use coordination::{Coordinator, Lock, LockGuard};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tempfile::TempDir;

use crate::Outcome;
use crate::compare::{compare, only, stay_in_one_place};
use crate::contention;

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
    /// What is wanted: how many times the floor, and how many changes of the owner.
    const WANTED: (&'static str, &'static str);
    /// How many locks one timed run takes: some hundredths of a second of them.
    const REPEATS: u32;

    /// The URL of the server at this address.
    fn url(address: &str) -> String {
        format!("{}://{}{address}{}", Self::NAME, Self::USER, Self::OPTIONS)
    }

    /// Starts a server on a free loopback port, with its data in this directory; answers once it serves.
    async fn start(data: TempDir) -> Outcome<Server>;

    /// A lock of the fewest requests, through the client crate that we use.
    async fn floor(address: &str) -> Outcome<impl Locking>;

    /// The best lock of this store that waits without polling and is fair, through the same crate.
    async fn rival(address: &str) -> Outcome<impl Locking>;
}

/// A lock that is taken and given back.
pub(crate) trait Locking {
    async fn acquire(&mut self) -> Outcome;
    async fn release(&mut self) -> Outcome;
}

/// A server process, ended with this value.
pub(crate) struct Server {
    child: Child,
    /// `host:port`, where it serves clients.
    pub(crate) address: String,
    _data: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts this command, whose data are in this directory.
    pub(crate) fn spawn(command: &mut Command, address: String, data: TempDir) -> Outcome<Self> {
        let program = command.get_program().to_owned();
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child =
            child.map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        Ok(Self { child, address, _data: data })
    }

    /// The server's process.
    #[cfg(any(feature = "etcd", feature = "redis"))]
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it serves.
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

/// A loopback address that nobody uses.
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

/// Where the server is.
#[derive(Clone, Copy)]
enum Place {
    /// On our CPU, its data in memory: what we add shows most.
    Here,
    /// On a CPU of its own, its data on a disk: what a service has.
    There,
}

impl Place {
    fn shown(self) -> &'static str {
        match self {
            Self::Here => "one CPU, data in memory",
            Self::There => "a CPU each, data on disk",
        }
    }

    /// Starts the server there; its process stays where the thread is that starts it.
    async fn start<S: Store>(self, allowed: &CpuSet) -> Outcome<Server> {
        let own = sched_getaffinity(None)?;
        let memory = Path::new("/dev/shm");
        let data = match self {
            Self::Here if memory.is_dir() => tempfile::tempdir_in(memory)?,
            _ => tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?,
        };
        if let Self::There = self {
            // Another than that of `stay_in_one_place`, if there are two.
            let last = (0..CpuSet::MAX_CPU).rfind(|cpu| allowed.is_set(*cpu)).ok_or("no CPU")?;
            sched_setaffinity(None, &only(last))?;
        }
        let server = S::start(data).await;
        sched_setaffinity(None, &own)?;
        server
    }
}

/// Everything that is measured of a store.
pub(crate) async fn all<S: Store>() -> Outcome {
    for place in [Place::Here, Place::There] {
        let everywhere = stay_in_one_place()?;
        let server = place.start::<S>(&everywhere).await?;
        uncontended::<S>(&server, place, true, "on the caller's runtime", S::WANTED.0).await?;
        let why = "the price of heartbeats that nothing blocks";
        uncontended::<S>(&server, place, false, "on a thread of its own (the default)", why)
            .await?;
        drop(server);
        sched_setaffinity(None, &everywhere)?;
    }
    let server = Place::Here.start::<S>(&sched_getaffinity(None)?).await?;
    contention::contended::<S>(&server)
}

async fn uncontended<S: Store>(
    server: &Server,
    place: Place,
    current: bool,
    how: &str,
    wanted: &str,
) -> Outcome {
    let builder = Coordinator::builder().heartbeat_on_current_runtime(current);
    let coordinator = builder.connect(&S::url(&server.address)).await?;
    let mut ours = Ours::new(&coordinator, "vol-7")?;
    let mut floor = S::floor(&server.address).await?;
    let title = format!("{}, acquire + release, {how}, {}", S::NAME, place.shown());
    let ours = async || cycle(&mut ours).await;
    compare(&title, S::REPEATS, wanted, ours, async || cycle(&mut floor).await).await?;
    Ok(coordinator.stop().await?)
}

async fn cycle(lock: &mut impl Locking) -> Outcome {
    lock.acquire().await?;
    lock.release().await
}
