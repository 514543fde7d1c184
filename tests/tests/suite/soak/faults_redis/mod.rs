//! The fault matrix on `redis://`: a test for each row, or the reason why there is none.
//!
//! Leases are of two seconds and heartbeats 300 ms apart, unless a row needs others.

mod clock;
mod connecting;
mod operator;
mod persistence;
mod replicas;

use std::sync::Arc;
use std::time::Duration;

use coordination_tests::checks::{Backend, with_option};
use coordination_tests::faults::{Site, matrix};
use coordination_tests::harness::Redis;
use coordination_tests::harness::redis::RedisOptions;

use crate::WORKER;

coordination_tests::fault_rows!(all server Redis);

/// Longer than anything that a row waits for.
const LONG: Duration = Duration::from_secs(30);

/// Rows without a test here, and why.
const NOT_APPLICABLE: &[(u32, &str)] = &[
    (35, "there is no lock file; F-23 deletes the entry"),
    (36, "its memory is its space: F-26"),
    (37, "there is no directory; a user without the permission is in F-48"),
    (38, "there is no file system"),
    (40, "needs `fork`: the check of C9, which runs on every backend"),
];

#[test]
fn every_row_has_a_test_or_a_reason() {
    let sources = [
        include_str!("clock.rs"),
        include_str!("connecting.rs"),
        include_str!("operator.rs"),
        include_str!("persistence.rs"),
        include_str!("replicas.rs"),
    ];
    matrix::assert_complete(Backend::Redis, &sources, NOT_APPLICABLE);
}

/// Such a server, and the site there; with this option of the URL, if it is not empty.
fn site(options: RedisOptions, option: &str) -> (Arc<Redis>, Site) {
    let redis = Arc::new(options.start());
    let site = Site::on(Arc::clone(&redis) as Arc<_>, WORKER);
    let url = if option.is_empty() { site.url.clone() } else { with_option(&site.url, option) };
    (redis, with_url(site, url))
}

/// The same store by another URL.
fn with_url(site: Site, url: String) -> Site {
    let mut site = site;
    site.url = url;
    site
}
