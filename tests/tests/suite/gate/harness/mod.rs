//! Tests of the harness itself: the faults that it causes must be the faults that they claim to be.

mod etcd;
mod http2;
mod processes;
mod proxy;

use std::time::Duration;

use coordination_tests::harness::{Scratch, eventually, ports::free_port};

const SECOND: Duration = Duration::from_secs(1);
/// Long enough for anything on this machine to happen, and short enough that a test can wait this long to see that
/// nothing happens.
const MOMENT: Duration = Duration::from_millis(150);

#[test]
fn ports_are_not_given_twice() {
    let mut ports: Vec<_> = (0..200).map(|_| free_port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 200);
}

#[test]
fn a_scratch_directory_goes_with_its_handle() {
    let scratch = Scratch::new("test");
    let path = scratch.path().to_owned();
    std::fs::write(scratch.join("file"), "x").expect("writable");
    drop(scratch);
    assert!(!path.exists());
}

#[tokio::test(start_paused = true)]
async fn eventually_tells_how_long_it_took() {
    let start = tokio::time::Instant::now();
    let took = eventually(10 * SECOND, || start.elapsed() >= SECOND).await;
    assert!(took >= SECOND && took < 2 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "harness/mod.rs")]
async fn eventually_blames_the_caller() {
    eventually(SECOND, || false).await;
}
