//! The fault matrix on `redis://`: a test for each row, or the reason why there is none.
//!
//! Leases are two seconds and heartbeats 300 ms, unless a row needs others.

mod clock;
mod cluster;
mod connecting;
mod full;
mod leases;
mod limits;
mod log;
mod many;
mod operator;
mod partition;
mod persistence;
mod replicas;
mod updates;

use std::sync::Arc;
use std::time::{Duration, Instant};

use coordination_tests::checks::Backend;
use coordination_tests::faults::{Process, Site, matrix};
use coordination_tests::harness::Redis;
use coordination_tests::harness::redis::RedisOptions;
use coordination_tests::must_hold;

use crate::WORKER;

coordination_tests::fault_rows!(all server Redis);

/// The timeout of waits; longer than any row should take.
const LONG: Duration = Duration::from_secs(30);
/// The key with the namespace's record. In a cluster, all keys of the namespace are in the slot of this key.
const CLOCK: &str = "{coordination}:clock";

/// Asserts that `other` is granted the lock "x" once the quarantine is over, and only after the holder, which is cut
/// off, has lost it.
fn granted_once_lost(holder: &Process, token: u64, other: &Process) {
    let asked = Instant::now();
    let new = other.acquire_within("x", LONG).expect("the quarantine ends");
    println!("redis: granted after {:?}", asked.elapsed());
    must_hold!(new.token > token, "{} after {token}", new.token);
    let old = holder.not_held(LONG);
    assert!(old.last_true_ns < new.t_ns, "held by two");
}

/// Keeps a node busy until its main thread has used this much processor time.
fn work(redis: &Redis, node: usize, length: Duration) {
    let worked = || {
        let info = redis.try_ask(node, &["INFO", "cpu"]).expect("it answers").text()?;
        let time = info.lines().find_map(|line| line.strip_prefix("used_cpu_user_main_thread:"))?;
        time.trim().parse().map(Duration::from_secs_f64).ok()
    };
    while worked().expect("it tells its time") < length {
        let busy = "for i = 1, 4000000 do local x = i end";
        redis.try_ask(node, &["EVAL", busy, "0"]).expect("it answers");
    }
}

/// The rows of the fault matrix for which this folder has no test, and the reason.
const NOT_APPLICABLE: &[(u32, &str)] = &[
    (35, "there is no lock file; F-23 deletes the entry"),
    (37, "there is no directory; a user without the permission is in F-48"),
    (38, "there is no file system"),
    (40, "needs `fork`: the check of C9, which runs on every backend"),
];

#[test]
fn every_row_has_a_test_or_a_reason() {
    let sources = [
        include_str!("clock.rs"),
        include_str!("cluster.rs"),
        include_str!("connecting.rs"),
        include_str!("full.rs"),
        include_str!("leases.rs"),
        include_str!("limits.rs"),
        include_str!("log.rs"),
        include_str!("many.rs"),
        include_str!("operator.rs"),
        include_str!("partition.rs"),
        include_str!("persistence.rs"),
        include_str!("replicas.rs"),
        include_str!("updates.rs"),
    ];
    matrix::assert_complete(Backend::Redis, &sources, NOT_APPLICABLE);
}

/// A server with these options, and a site whose clients use it.
fn site(options: RedisOptions) -> (Arc<Redis>, Site) {
    let redis = Arc::new(options.start());
    let site = Site::on(Arc::clone(&redis) as Arc<_>, WORKER);
    (redis, site)
}

/// A copy of the site whose URL asks for a quarantine of this length; an empty text stands for the default length.
fn quarantined(site: &Site, quarantine: &str) -> Site {
    let option = match quarantine {
        "" => String::new(),
        _ => format!("quarantine={quarantine}"),
    };
    with_url(site.clone(), site.url.replace("quarantine=off", &option))
}

/// A copy of the site with this URL.
fn with_url(site: Site, url: String) -> Site {
    let mut site = site;
    site.url = url;
    site
}
