//! How long a lock takes, beside the least that the store itself asks for it.
//!
//! `cargo bench -p coordination --bench lock`, and with `--features etcd` the same for etcd, for which it
//! starts a server of its own from the `etcd` binary.
//!
//! What is compared runs in turn within one process, pinned to one CPU, on current-thread runtimes, and
//! what counts is the ratio: absolute times change from machine to machine and from minute to minute.
//! Contention runs in processes of its own, on all CPUs, and counts changes of the owner.

use std::error::Error;
use std::future::Future;
use std::time::{Duration, Instant};

use coordination::{Coordinator, Lock};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const ROUNDS: usize = 15;

fn main() -> Outcome {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    #[cfg(feature = "etcd")]
    if let [worker, endpoint, kind, seconds, record] = arguments.as_slice()
        && worker == "contend"
    {
        return runtime.block_on(etcd::contend(endpoint, kind, seconds.parse()?, record));
    }
    let wanted =
        |name: &str| arguments.is_empty() || arguments.iter().any(|word| name.starts_with(word));
    if wanted("file") {
        let everywhere = stay_in_one_place()?;
        runtime.block_on(file::uncontended())?;
        sched_setaffinity(None, &everywhere)?;
    }
    #[cfg(feature = "etcd")]
    if wanted("etcd") {
        runtime.block_on(etcd::all())?;
    }
    Ok(())
}

/// Puts this thread, and all that it starts, on one CPU; answers where it was allowed before.
fn stay_in_one_place() -> Outcome<CpuSet> {
    let all = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).ok_or("no CPU")?);
    sched_setaffinity(None, &one)?;
    Ok(all)
}

/// Times `ours` and `floor` in turn and prints the median ratio of the pairs.
async fn compare<A, B>(
    title: &str,
    repeats: u32,
    wanted: &str,
    mut ours: impl FnMut() -> A,
    mut floor: impl FnMut() -> B,
) -> Outcome
where
    A: Future<Output = Outcome>,
    B: Future<Output = Outcome>,
{
    let (mut ratios, mut own, mut least) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (a, b) = (timed(repeats, &mut ours).await?, timed(repeats, &mut floor).await?);
        // The first pair warms up.
        if round > 0 {
            ratios.push(a / b);
            own.push(a);
            least.push(b);
        }
    }
    let (ratio, low, high) = spread(&mut ratios);
    println!(
        "{title}: {ratio:.2} × the floor ({low:.2} to {high:.2}; {wanted}) — {:.1} µs beside {:.1} µs",
        spread(&mut own).0,
        spread(&mut least).0
    );
    Ok(())
}

/// Microseconds per repeat.
async fn timed<F: Future<Output = Outcome>>(
    repeats: u32,
    work: &mut impl FnMut() -> F,
) -> Outcome<f64> {
    let start = Instant::now();
    for _ in 0..repeats {
        work().await?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(repeats))
}

/// Median, least and greatest.
fn spread(figures: &mut [f64]) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    (figures[figures.len() / 2], figures[0], figures[figures.len() - 1])
}

async fn cycle(lock: &Lock) -> Outcome {
    lock.acquire(Some(Duration::from_secs(10))).await?.release().await?;
    Ok(())
}

mod file {
    use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

    use super::*;

    /// The floor is what `flock(1)` does: open, lock, unlock, close.
    pub(super) async fn uncontended() -> Outcome {
        let directory = tempfile::tempdir()?;
        let url = format!("file://{}/locks", directory.path().display());
        let coordinator = Coordinator::connect(&url).await?;
        let lock = coordinator.lock("vol-7")?;
        let path = directory.path().join("floor");
        let floor = || async {
            let file = open(
                &path,
                OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC,
                Mode::RUSR | Mode::WUSR,
            )?;
            flock(&file, FlockOperation::LockExclusive)?;
            flock(&file, FlockOperation::Unlock)?;
            Ok(())
        };
        compare("file, acquire + release", 20_000, "at most 3 wanted", || cycle(&lock), floor)
            .await?;
        Ok(coordinator.stop().await?)
    }
}

#[cfg(feature = "etcd")]
mod etcd {
    use std::fs::OpenOptions;
    use std::net::TcpListener;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use etcd_client::{Client, Compare, CompareOp, LockOptions, PutOptions, Txn, TxnOp};

    use super::*;

    const PROCESSES: usize = 8;
    const SECONDS: u64 = 5;

    /// A server on a free loopback port, ended with this value.
    struct Server {
        child: Child,
        endpoint: String,
        _data: tempfile::TempDir,
    }

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    impl Server {
        async fn start() -> Outcome<Self> {
            let memory = Path::new("/dev/shm");
            let data =
                if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
            let [client, peer] = [free_address()?, free_address()?];
            let child = Command::new("etcd")
                .arg("--data-dir")
                .arg(data.path().join("data"))
                .args(["--log-level", "error", "--logger", "zap", "--name", "bench"])
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &format!("bench={peer}")])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|error| format!("cannot start etcd (Debian: etcd-server): {error}"))?;
            let server = Self { child, endpoint: client, _data: data };
            for _ in 0..200 {
                if let Ok(mut client) = Client::connect([&server.endpoint], None).await
                    && client.get("ready", None).await.is_ok()
                {
                    return Ok(server);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err("etcd did not get ready within 10 s".into())
        }

        fn url(&self) -> String {
            self.endpoint.replace("http", "etcd")
        }
    }

    fn free_address() -> Outcome<String> {
        Ok(format!("http://{}", TcpListener::bind("127.0.0.1:0")?.local_addr()?))
    }

    pub(super) async fn all() -> Outcome {
        let everywhere = stay_in_one_place()?;
        let server = Server::start().await?;
        let title = "etcd, acquire + release, on the caller's runtime";
        uncontended(&server, true, title, "at most 1.25 wanted").await?;
        let title = "etcd, acquire + release, on a thread of its own (the default)";
        uncontended(&server, false, title, "the price of heartbeats that nothing blocks").await?;
        drop(server);
        sched_setaffinity(None, &everywhere)?;
        let server = Server::start().await?;
        contended(&server, "ours", "at least 400 wanted")?;
        contended(&server, "etcd's lock service", "through the same client crate")
    }

    /// The floor is a lock of one transaction and one delete, under a standing lease.
    async fn uncontended(server: &Server, current: bool, title: &str, wanted: &str) -> Outcome {
        let builder = Coordinator::builder().heartbeat_on_current_runtime(current);
        let coordinator = builder.connect(&server.url()).await?;
        let lock = coordinator.lock("vol-7")?;
        let client = Client::connect([&server.endpoint], None).await?;
        let lease = client.lease_client().grant(60, None).await?.id();
        let floor = || {
            let mut client = client.clone();
            async move {
                let put = TxnOp::put("floor", "owner", Some(PutOptions::new().with_lease(lease)));
                let free = Compare::create_revision("floor", CompareOp::Equal, 0);
                let take = Txn::new().when([free]).and_then([put, TxnOp::get("floor", None)]);
                if !client.txn(take.or_else([TxnOp::get("floor", None)])).await?.succeeded() {
                    return Err("the floor's lock is taken".into());
                }
                client.delete("floor", None).await?;
                Ok(())
            }
        };
        compare(title, 200, wanted, || cycle(&lock), floor).await?;
        Ok(coordinator.stop().await?)
    }

    /// Processes that want one lock all the time; what counts is how often its owner changes.
    fn contended(server: &Server, kind: &str, wanted: &str) -> Outcome {
        let record = tempfile::NamedTempFile::new()?;
        record.as_file().set_len(8 * (2 + PROCESSES as u64))?;
        let workers: Vec<_> = (1..=PROCESSES)
            .map(|worker| {
                Command::new(std::env::current_exe()?)
                    .args(["contend", &server.endpoint, kind, &SECONDS.to_string()])
                    .arg(format!("{}:{worker}", record.path().display()))
                    .spawn()
            })
            .collect::<Result<_, _>>()?;
        for mut worker in workers {
            if !worker.wait()?.success() {
                return Err("a worker failed".into());
            }
        }
        let shares: Vec<_> = (2..2 + PROCESSES)
            .map(|slot| number(record.as_file(), slot))
            .collect::<Result<_, _>>()?;
        let (least, greatest) =
            (shares.iter().min().unwrap_or(&0), shares.iter().max().unwrap_or(&0));
        println!(
            "etcd, {PROCESSES} processes on one lock, {kind}: {} owner changes a second of {} grants ({wanted}), shares {least} to {greatest}",
            number(record.as_file(), 1)? / SECONDS,
            shares.iter().sum::<u64>() / SECONDS,
        );
        Ok(())
    }

    /// One of the processes: under the lock it notes in `record` whether the owner changed.
    pub(super) async fn contend(endpoint: &str, kind: &str, seconds: u64, record: &str) -> Outcome {
        let (path, worker) = record.rsplit_once(':').ok_or("no worker number")?;
        let worker: usize = worker.parse()?;
        let record = OpenOptions::new().read(true).write(true).open(path)?;
        let mut taker = Taker::new(endpoint, kind).await?;
        // All are connected by then.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            let held = taker.acquire().await?;
            if number(&record, 0)? != worker as u64 {
                add(&record, 1)?;
                record.write_at(&(worker as u64).to_le_bytes(), 0)?;
            }
            add(&record, 1 + worker)?;
            taker.release(held).await?;
        }
        Ok(())
    }

    enum Taker {
        Ours(Lock),
        Service(Box<Client>, i64),
    }

    enum Held {
        Ours(coordination::LockGuard),
        Service(Vec<u8>),
    }

    impl Taker {
        async fn new(endpoint: &str, kind: &str) -> Outcome<Self> {
            if kind == "ours" {
                let coordinator = Coordinator::connect(&endpoint.replace("http", "etcd")).await?;
                return Ok(Self::Ours(coordinator.lock("contended")?));
            }
            let client = Client::connect([endpoint], None).await?;
            let lease = client.lease_client().grant(60, None).await?.id();
            Ok(Self::Service(Box::new(client), lease))
        }

        async fn acquire(&mut self) -> Outcome<Held> {
            Ok(match self {
                Self::Ours(lock) => Held::Ours(lock.acquire(None).await?),
                Self::Service(client, lease) => {
                    let options = LockOptions::new().with_lease(*lease);
                    Held::Service(
                        client.lock("contended-service", Some(options)).await?.key().to_vec(),
                    )
                }
            })
        }

        async fn release(&mut self, held: Held) -> Outcome {
            match (self, held) {
                (_, Held::Ours(guard)) => guard.release().await?,
                (Self::Service(client, _), Held::Service(key)) => {
                    client.unlock(key).await?;
                }
                (Self::Ours(_), Held::Service(_)) => return Err("mixed up".into()),
            }
            Ok(())
        }
    }

    fn number(record: &std::fs::File, slot: usize) -> std::io::Result<u64> {
        let mut bytes = [0; 8];
        record.read_exact_at(&mut bytes, 8 * slot as u64)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn add(record: &std::fs::File, slot: usize) -> std::io::Result<()> {
        let number = number(record, slot)? + 1;
        record.write_all_at(&number.to_le_bytes(), 8 * slot as u64)
    }
}
