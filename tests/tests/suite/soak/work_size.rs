//! What a claim and its acknowledgement take with 20,000 items in front, beside live claims, and in a queue of 100,000 items, on
//! each store that processes can share. A table of it is in `target/work`.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use coordination::{ClaimId, ClaimOptions, Coordinator, NewItem, Result, WorkQueue};
use coordination_tests::checks::Backend;
use coordination_tests::faults::Site;
use coordination_tests::harness::on_threads;
use tokio::time::sleep;

use crate::WORKER;

/// How many items stand in front, and how many wait in a large queue.
const IN_FRONT: usize = 20_000;
const MANY: usize = 100_000;
/// How many live claims of one item each there are, and in how many of the 256 buckets: so a bucket has as many as otherwise of 48,000.
const CLAIMS: usize = 3_000;
const BUCKETS: usize = 16;
/// How many items are posted in one call.
const AT_ONCE: usize = 1_000;
/// How many claims and acknowledgements a figure is the median of.
const TIMES: usize = 100;
/// What is in front makes a claim longer by less than this factor.
const FACTOR: f64 = 1.5;
const LONG: Duration = Duration::from_secs(3 * 3_600);
/// How long the items live that are to be dead.
const SHORT: Duration = Duration::from_secs(20);

/// The queues that are compared, and what was measured.
struct Measured {
    coordinator: Coordinator,
    /// A queue with nothing in front.
    plain: WorkQueue,
    table: String,
    /// What was too slow.
    slow: Vec<String>,
}

pub(super) fn c8_what_is_in_front_costs_a_claim_little(backend: Backend) {
    let site = Site::start(backend, 1, WORKER);
    let (table, slow) = on_threads(measure(&site)).expect("the store is there");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/work");
    std::fs::create_dir_all(&directory).expect("the build directory is writable");
    let path = directory.join(format!("{}-size.tsv", backend.name()));
    std::fs::write(path, &table).expect("the build directory is writable");
    println!("{}:\n{table}", backend.name());
    assert!(slow.is_empty(), "{slow:?}");
}

async fn measure(site: &Site) -> Result<(String, Vec<String>)> {
    let coordinator = Coordinator::connect(&site.url).await?;
    let plain = coordinator.queue("plain")?;
    post(&plain, 12 * TIMES, &NewItem::new("a short job").ttl(LONG)).await?;
    let (table, slow) = Default::default();
    let mut measured = Measured { coordinator, plain, table, slow };
    for what in ["claimed", "delayed", "dead"] {
        measured.in_front(what).await?;
    }
    measured.beside_claims().await?;
    measured.many(site).await?;
    measured.coordinator.stop().await?;
    Ok((measured.table, measured.slow))
}

impl Measured {
    async fn in_front(&mut self, what: &str) -> Result<()> {
        let queue = self.coordinator.queue(what)?;
        let item = NewItem::new("a short job").ttl(LONG);
        match what {
            "claimed" => {
                post(&queue, IN_FRONT, &item).await?;
                let options = ClaimOptions::default().limit(AT_ONCE).ttl(LONG);
                while queue.claim_as(ClaimId::random(), options.clone()).await?.is_some() {}
            }
            "delayed" => post(&queue, IN_FRONT, &item.delay(Duration::from_secs(900))).await?,
            _ => {
                post(&queue, IN_FRONT, &item.ttl(SHORT)).await?;
                while queue.stats().await?.total() > 0 {
                    sleep(SHORT / 50).await;
                }
            }
        }
        post(&queue, 2 * TIMES, &NewItem::new("a short job").ttl(LONG)).await?;
        self.compare(&format!("20,000 {what}"), &queue).await?;
        queue.delete_queue().await
    }

    async fn beside_claims(&mut self) -> Result<()> {
        let queue = self.coordinator.queue("claims")?;
        post(&queue, CLAIMS + 2 * TIMES, &NewItem::new("a short job").ttl(LONG)).await?;
        let one = ClaimOptions::default().limit(1).ttl(LONG);
        for number in 0..CLAIMS {
            queue.claim_as(in_bucket(number % BUCKETS), one.clone()).await?.expect("it is ready");
        }
        self.compare(&format!("{CLAIMS} live claims"), &queue).await?;
        queue.delete_queue().await
    }

    /// Compares a claim and its acknowledgement in this queue and in the plain one, in turn.
    async fn compare(&mut self, what: &str, queue: &WorkQueue) -> Result<()> {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for time in 0..=TIMES {
            let (plain, found) = (claim_and_ack(&self.plain).await?, claim_and_ack(queue).await?);
            // The first ones are not counted: they read what is read once.
            if time > 0 {
                without.push(plain);
                with.push(found);
            }
        }
        let (with, without) = (median(with), median(without));
        let factor = with.as_secs_f64() / without.as_secs_f64();
        let _ = writeln!(self.table, "{what}\t{with:.1?}\t{without:.1?}\t{factor:.2}");
        if factor >= FACTOR {
            self.slow.push(format!("{what}: {factor:.2}"));
        }
        Ok(())
    }

    async fn many(&mut self, site: &Site) -> Result<()> {
        let (queue, before) = (self.coordinator.queue("many")?, resident(site));
        let (item, begun) = (NewItem::new("a short job").ttl(LONG), Instant::now());
        post(&queue, MANY, &item).await?;
        let posted = begun.elapsed();
        let (mut posts, mut claims) = (Vec::new(), Vec::new());
        for _ in 0..TIMES {
            let begun = Instant::now();
            queue.post(std::slice::from_ref(&item)).await?;
            posts.push(begun.elapsed());
            claims.push(claim_and_ack(&queue).await?);
        }
        let (post, claim) = (median(posts), median(claims));
        let mib = resident(site).saturating_sub(before) / 1_024;
        let _ = writeln!(
            self.table,
            "100,000 waiting\tposted in {posted:.1?}\ta post {post:.1?}\tclaim and ack {claim:.1?}\tthe server {mib} MiB more"
        );
        queue.delete_queue().await
    }
}

/// A name whose last byte, the bucket, is this.
fn in_bucket(bucket: usize) -> ClaimId {
    let name = format!("{}{bucket:02x}", &ClaimId::random().to_string()[..30]);
    name.parse().unwrap_or_else(|never| match never {})
}

async fn post(queue: &WorkQueue, count: usize, item: &NewItem) -> Result<()> {
    let items = vec![item.clone(); AT_ONCE];
    for first in (0..count).step_by(AT_ONCE) {
        queue.post(&items[..AT_ONCE.min(count - first)]).await?;
    }
    Ok(())
}

async fn claim_and_ack(queue: &WorkQueue) -> Result<Duration> {
    let begun = Instant::now();
    let claim = queue.claim(ClaimOptions::default().limit(1)).await?.expect("items are ready");
    assert_eq!(claim.ack_all().await?, 1);
    Ok(begun.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The resident memory of the server, in KiB; zero: there is no server.
fn resident(site: &Site) -> u64 {
    if !site.has_server() {
        return 0;
    }
    let path = format!("/proc/{}/status", site.server().node(0).id());
    let status = std::fs::read_to_string(path).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.expect("Linux says it")
}

coordination_tests::each_store!(alone processes c8_what_is_in_front_costs_a_claim_little);
