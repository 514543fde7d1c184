//! A directory, beside what `flock(1)` does, and beside processes that pass a datagram on.

use std::fs::{File as Opened, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coordination::Coordinator;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::thread::sched_setaffinity;
use tempfile::TempDir;

use crate::compare::{Comparison, compare};
use crate::contention::{self, PROCESSES};
use crate::machine::stay_in_one_place;
use crate::record::Measure;
use crate::server::{Locking, Server, Store, cycle};
use crate::{Outcome, Wanted, killed, peers};

/// How many holders are killed, one after the other.
const KILLED: usize = 20;

pub(crate) struct File;

impl Store for File {
    const NAME: &'static str = "file";
    const RIVAL: &'static str =
        "a ring of processes that pass a datagram on, with two steps on a file under flock";
    const WANTED: (&'static str, &'static str) = ("at most 3 wanted", "at least 0.5 wanted");
    const REPEATS: u32 = 20_000;
    const FREE_AFTER: f64 = 0.05;

    fn url(address: &str) -> String {
        format!("file://{address}/locks")
    }

    async fn start(data: TempDir) -> Outcome<Server> {
        Ok(Server::directory(data))
    }

    async fn floor(address: &str, name: &str) -> Outcome<impl Locking> {
        Ok(Flock { path: Path::new(address).join(name), held: None })
    }

    async fn rival(address: &str) -> Outcome<impl Locking> {
        Ring::join(Path::new(address))
    }
}

/// Everything that is measured, or what is wanted of that.
pub(crate) async fn all(wanted: &Wanted) -> Outcome {
    let start = async || File::start(tempfile::tempdir()?).await;
    if wanted.part(File::NAME, "uncontended") {
        let default = "on a thread of its own (the default)";
        uncontended(&start().await?, false, default, "file, acquire + release").await?;
        let current = "on the caller's runtime";
        let title = format!("file, acquire + release, {current}");
        uncontended(&start().await?, true, current, &title).await?;
    }
    if wanted.part(File::NAME, "contended") {
        contention::contended::<File>(&start().await?)?;
    }
    if wanted.part(File::NAME, "apart") {
        contention::apart::<File>(&start().await?)?;
    }
    if wanted.part(File::NAME, "killed") {
        killed::one_by_one::<File>(&start().await?, KILLED).await?;
    }
    Ok(())
}

/// The floor: open, lock, unlock, close.
async fn uncontended(directory: &Server, current: bool, how: &str, title: &str) -> Outcome {
    let everywhere = stay_in_one_place()?;
    let builder = Coordinator::builder().heartbeat_on_current_runtime(current);
    let coordinator = builder.connect(&File::url(&directory.address)).await?;
    let lock = coordinator.lock("vol-7")?;
    let mut floor = File::floor(&directory.address, "floor").await?;
    let mut peers = match current {
        true => peers::programs(File::NAME, &directory.address).await?,
        false => Vec::new(),
    };
    let what = Comparison {
        measure: Measure {
            store: File::NAME,
            part: "uncontended",
            measure: &format!("{how}, one CPU"),
            unit: "µs",
            parameter: None,
        },
        title,
        wanted: File::WANTED.0,
        repeats: File::REPEATS,
    };
    let ours = async || {
        lock.acquire(Some(Duration::from_secs(10))).await?.release().await?;
        Ok(())
    };
    compare(&what, ours, async || cycle(&mut floor).await, &mut peers).await?;
    coordinator.stop().await?;
    Ok(sched_setaffinity(None, &everywhere)?)
}

/// A file that is opened and locked.
struct Flock {
    path: PathBuf,
    held: Option<OwnedFd>,
}

impl Locking for Flock {
    async fn acquire(&mut self) -> Outcome {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = open(&self.path, flags, Mode::RUSR | Mode::WUSR)?;
        flock(&file, FlockOperation::LockExclusive)?;
        self.held = Some(file);
        Ok(())
    }

    async fn release(&mut self) -> Outcome {
        let file = self.held.take().ok_or("released, and not held")?;
        Ok(flock(&file, FlockOperation::Unlock)?)
    }
}

/// A process in a ring that passes a datagram on: fair, and no lock, as nobody gets it again from one that dies. With a step on a
/// file under `flock` when it comes and when it goes, as any queue in a file has, so that it shows what waking the next one costs.
struct Ring {
    socket: UnixDatagram,
    own: PathBuf,
    next: PathBuf,
    file: Opened,
    has_it: bool,
}

impl Ring {
    /// Takes the first free place. Whoever has the first one has the datagram.
    fn join(directory: &Path) -> Outcome<Self> {
        let place = |number: usize| directory.join(format!("ring-{number}"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        for number in 0..PROCESSES {
            match UnixDatagram::bind(place(number)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                bound => {
                    let socket = bound?;
                    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
                    let next = place((number + 1) % PROCESSES);
                    let file = options.open(directory.join("steps"))?;
                    let has_it = number == 0;
                    return Ok(Self { socket, own: place(number), next, file, has_it });
                }
            }
        }
        Err("the ring is full".into())
    }

    fn step(&self) -> io::Result<()> {
        self.file.lock()?;
        let mut bytes = [0; 8];
        // The file is empty at first.
        self.file.read_at(&mut bytes, 0)?;
        let count = u64::from_le_bytes(bytes) + 1;
        self.file.write_all_at(&count.to_le_bytes(), 0)?;
        self.file.unlock()
    }

    fn receive(&mut self) -> io::Result<()> {
        self.socket.recv(&mut [0; 1])?;
        self.has_it = true;
        Ok(())
    }

    fn pass_on(&mut self) -> io::Result<()> {
        self.has_it = false;
        self.socket.send_to(&[0], &self.next).map(drop)
    }
}

impl Locking for Ring {
    async fn acquire(&mut self) -> Outcome {
        if !self.has_it {
            self.receive()?;
        }
        Ok(self.step()?)
    }

    async fn release(&mut self) -> Outcome {
        self.step()?;
        Ok(self.pass_on()?)
    }
}

impl Drop for Ring {
    /// Goes on passing it on, until the others have had it for the last time.
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(1);
        let _ = self.socket.set_read_timeout(Some(Duration::from_millis(50)));
        while Instant::now() < end {
            if self.has_it || self.receive().is_ok() {
                // The next one may have gone.
                let _ = self.pass_on();
            }
        }
        let _ = std::fs::remove_file(&self.own);
    }
}
