//! A work queue: claim and acknowledgement beside as many plain requests, with much in front, and with 100,000 items.
//!
//! One claim and one acknowledgement are two calls of two requests each: one that reads the head, and one that writes it
//! with a page of items.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use coordination::{ClaimId, ClaimOptions, Coordinator, NewItem, WorkQueue};

use crate::Outcome;
use crate::compare::{Comparison, compare, spread};
use crate::machine::resident;
use crate::record::{Measure, Side};
#[cfg(any(feature = "etcd", feature = "redis"))]
use crate::server::Store;

/// How many items stand in front, and how many wait in a large queue.
const IN_FRONT: usize = 20_000;
const MANY: usize = 100_000;
/// One less than a process may have of claims.
const HELD: usize = 999;
/// How many items are posted in one call.
const AT_ONCE: usize = 1_000;
/// How many bytes one writing request of a claim or an acknowledgement has, in a queue of short items.
const WRITTEN: usize = 10 * 1024;
/// How many claims and acknowledgements one figure is the median of.
const TIMES: usize = 200;
const LONG: Duration = Duration::from_secs(3 * 3_600);

/// The least that four requests cost the store: two that read little, and two that write [`WRITTEN`] bytes.
#[cfg(any(feature = "etcd", feature = "redis"))]
pub(crate) trait Plain: Store {
    async fn plain(address: &str) -> Outcome<impl Requests>;
}

pub(crate) trait Requests {
    async fn read(&mut self) -> Outcome;
    async fn write(&mut self, data: &str) -> Outcome;
}

/// A store as it is measured here.
struct Measured<'a> {
    name: &'a str,
    url: String,
    /// How many bytes of memory or of disk the store takes.
    size: &'a dyn Fn() -> Outcome<u64>,
    repeats: u32,
    /// How many live claims a claim is measured beside, at most.
    claims: usize,
}

impl Measured<'_> {
    fn measure<'a>(&'a self, measure: &'a str, unit: &'a str) -> Measure<'a> {
        Measure { store: self.name, part: "work", measure, unit, parameter: None }
    }
}

pub(crate) async fn memory() -> Outcome {
    struct Nothing;
    impl Requests for Nothing {
        async fn read(&mut self) -> Outcome {
            Ok(())
        }

        async fn write(&mut self, data: &str) -> Outcome {
            std::hint::black_box(data.to_owned());
            Ok(())
        }
    }
    let size = || resident(std::process::id());
    let store = Measured {
        name: "memory",
        url: "memory://bench".to_owned(),
        size: &size,
        repeats: 500,
        claims: MANY,
    };
    measure(&store, Nothing).await
}

pub(crate) async fn file() -> Outcome {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let path = directory.path().join("store");
    let size = || on_disk(&path);
    let store = Measured {
        name: "file",
        url: format!("file://{}", path.display()),
        size: &size,
        repeats: 200,
        claims: IN_FRONT,
    };
    measure(&store, File(directory.path().join("floor"))).await
}

/// A file that is locked for each request.
struct File(PathBuf);

impl File {
    fn open(&self) -> std::io::Result<std::fs::File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.0)
    }
}

impl Requests for File {
    async fn read(&mut self) -> Outcome {
        let file = self.open()?;
        file.lock_shared()?;
        file.read_at(&mut [0; 1024], 0)?;
        Ok(file.unlock()?)
    }

    async fn write(&mut self, data: &str) -> Outcome {
        let file = self.open()?;
        file.lock()?;
        file.write_all_at(data.as_bytes(), 0)?;
        Ok(file.unlock()?)
    }
}

#[cfg(any(feature = "etcd", feature = "redis"))]
pub(crate) async fn server<S: Plain>() -> Outcome {
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let server = S::start(data).await?;
    let process = server.pid().ok_or("no process")?;
    let size = || resident(process);
    let store = Measured {
        name: S::NAME,
        url: format!("{}://{}{}", S::NAME, server.address, S::OPTIONS),
        size: &size,
        repeats: 50,
        claims: IN_FRONT,
    };
    measure(&store, S::plain(&server.address).await?).await
}

async fn measure(store: &Measured<'_>, plain: impl Requests) -> Outcome {
    let coordinator = Coordinator::connect(&store.url).await?;
    throughput(store, &coordinator, plain).await?;
    in_front(store, &coordinator).await?;
    beside_claims(store, &coordinator).await?;
    many(store, &coordinator).await?;
    Ok(coordinator.stop().await?)
}

/// A claim of one item and its acknowledgement, in a queue that has a few thousand items.
async fn throughput(
    store: &Measured<'_>,
    coordinator: &Coordinator,
    mut plain: impl Requests,
) -> Outcome {
    let queue = coordinator.queue("throughput")?;
    // Enough for all rounds.
    let items = 20 * store.repeats as usize;
    post(&queue, items, &NewItem::new("a short job")).await?;
    let data = "x".repeat(WRITTEN);
    let ours = async || claim_and_ack(&queue).await;
    let floor = async || {
        for _ in 0..2 {
            plain.read().await?;
            plain.write(&data).await?;
        }
        Ok(())
    };
    let measure = "claim + ack beside two reads and two writes of 10 KiB";
    let what = Comparison {
        measure: store.measure(measure, "µs"),
        title: &format!("{}, {measure}", store.name),
        wanted: "no target",
        repeats: store.repeats,
    };
    compare(&what, ours, floor, &mut []).await?;
    Ok(queue.delete_queue().await?)
}

/// A claim and its acknowledgement, with 20,000 items in front that are claimed, delayed or dead.
async fn in_front(store: &Measured<'_>, coordinator: &Coordinator) -> Outcome {
    let plain = coordinator.queue("plain")?;
    post(&plain, 20 * TIMES, &NewItem::new("a short job")).await?;
    for what in ["claimed", "delayed", "dead"] {
        let queue = coordinator.queue(what)?;
        let item = NewItem::new("a short job").ttl(LONG);
        match what {
            "claimed" => {
                post(&queue, IN_FRONT, &item).await?;
                let options = ClaimOptions::default().limit(AT_ONCE).ttl(LONG);
                while queue.claim_as(ClaimId::random(), options.clone()).await?.is_some() {}
            }
            "delayed" => post(&queue, IN_FRONT, &item.delay(Duration::from_secs(900))).await?,
            _ => {
                let ttl = Duration::from_secs(60);
                post(&queue, IN_FRONT, &NewItem::new("a short job").ttl(ttl)).await?;
                let begun = Instant::now();
                while queue.stats().await?.total() > 0 {
                    if begun.elapsed() > 2 * ttl {
                        return Err("the items do not die".into());
                    }
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
        }
        post(&queue, 20 * TIMES, &NewItem::new("a short job")).await?;
        beside(store, &format!("20,000 {what} items"), &queue, &plain).await?;
        queue.delete_queue().await?;
    }
    Ok(plain.delete_queue().await?)
}

/// A claim and its acknowledgement, beside live claims of one item each; and by a process that has as many as one may have.
async fn beside_claims(store: &Measured<'_>, coordinator: &Coordinator) -> Outcome {
    let (plain, queue) = (coordinator.queue("plain")?, coordinator.queue("claims")?);
    post(&plain, 20 * TIMES, &NewItem::new("a short job").ttl(LONG)).await?;
    let item = NewItem::new("a short job").ttl(LONG);
    post(&queue, store.claims + 20 * TIMES, &item).await?;
    let one = ClaimOptions::default().limit(1).ttl(LONG);
    let mut there = 0;
    for count in [1_000, 10_000, 20_000, 100_000].into_iter().filter(|it| *it <= store.claims) {
        for _ in there..count {
            queue.claim_as(ClaimId::random(), one.clone()).await?.ok_or("nothing is ready")?;
        }
        there = count;
        beside(store, &format!("{count} live claims"), &queue, &plain).await?;
    }
    queue.delete_queue().await?;
    post(&queue, HELD + 20 * TIMES, &item).await?;
    let mut held = Vec::new();
    while held.len() < HELD {
        held.push(queue.claim(one.clone()).await?.ok_or("nothing is ready")?);
    }
    beside(store, &format!("{HELD} claims of this process"), &queue, &plain).await?;
    drop(held);
    queue.delete_queue().await?;
    Ok(plain.delete_queue().await?)
}

/// Compares a claim and its acknowledgement in two queues.
async fn beside(store: &Measured<'_>, what: &str, queue: &WorkQueue, plain: &WorkQueue) -> Outcome {
    // The first claims are not counted: they read what is read once.
    for queue in [plain, queue] {
        claim_and_ack(queue).await?;
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        without.push(timed(claim_and_ack(plain)).await?);
        with.push(timed(claim_and_ack(queue)).await?);
    }
    let title = format!("claim + ack beside {what}");
    let measure = store.measure(&title, "µs");
    measure.values(Side::Ours, None, &with)?;
    measure.values(Side::Floor, None, &without)?;
    let (with, without) = (spread(&mut with).0, spread(&mut without).0);
    println!(
        "{}, {title}: {:.2} × as long (less than 1.5 wanted) — {with:.0} µs beside {without:.0} µs",
        store.name,
        with / without
    );
    Ok(())
}

/// A queue of 100,000 items that wait.
async fn many(store: &Measured<'_>, coordinator: &Coordinator) -> Outcome {
    let this = std::process::id();
    let (queue, before, own) = (coordinator.queue("many")?, (store.size)()?, resident(this)?);
    let begun = Instant::now();
    post(&queue, MANY, &NewItem::new("a short job")).await?;
    let posted = begun.elapsed();
    let (mut posts, mut claims) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let one = [NewItem::new("a short job")];
        posts.push(timed(async { Ok(queue.post(&one).await.map(drop)?) }).await?);
        claims.push(timed(claim_and_ack(&queue)).await?);
    }
    store.measure("a post beside 100,000 items", "µs").values(Side::Ours, None, &posts)?;
    store.measure("claim + ack beside 100,000 items", "µs").values(Side::Ours, None, &claims)?;
    let mib = |bytes: u64| bytes as f64 / 1024.0 / 1024.0;
    println!(
        "{}, 100,000 items: posted in {:.1} s by 1,000; then a post {:.0} µs, claim + ack {:.0} µs; the store \
         {:+.1} MiB, this process {:+.1} MiB",
        store.name,
        posted.as_secs_f64(),
        spread(&mut posts).0,
        spread(&mut claims).0,
        mib((store.size)()?) - mib(before),
        mib(resident(this)?) - mib(own),
    );
    Ok(queue.delete_queue().await?)
}

async fn post(queue: &WorkQueue, count: usize, item: &NewItem) -> Outcome {
    let items = vec![item.clone(); AT_ONCE];
    for first in (0..count).step_by(AT_ONCE) {
        queue.post(&items[..AT_ONCE.min(count - first)]).await?;
    }
    Ok(())
}

async fn claim_and_ack(queue: &WorkQueue) -> Outcome {
    let claim = queue.claim(ClaimOptions::default().limit(1)).await?;
    match claim.ok_or("nothing is ready")?.ack_all().await? {
        1 => Ok(()),
        _ => Err("the item was gone".into()),
    }
}

/// Microseconds.
async fn timed(work: impl Future<Output = Outcome>) -> Outcome<f64> {
    let begun = Instant::now();
    work.await?;
    Ok(begun.elapsed().as_secs_f64() * 1e6)
}

/// How many bytes a directory has on the disk.
fn on_disk(directory: &Path) -> Outcome<u64> {
    let output = Command::new("du").args(["-s", "-B1"]).arg(directory).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().next().ok_or("no figure")?.parse()?)
}
