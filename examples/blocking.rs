//! Locks in a program without async code.
//!
//! `coordination::blocking` has the same calls; each blocks its thread until it is done. On a plain `fn`
//! the attribute `#[synchronized]` does the same. The session is kept alive by a thread of its own.
//!
//! `cargo run --example blocking`, or with `COORDINATION_URL` naming another store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use coordination::{blocking, synchronized};

/// A counter that loses updates when two threads count at once.
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// One thread at a time, also among those of other processes, if the store reaches them.
#[synchronized("counter-<id>", guard = guard, timeout = "5s")]
fn count(id: u64, who: usize) -> coordination::Result<()> {
    let read = COUNTER.load(Ordering::Relaxed);
    thread::sleep(Duration::from_millis(20));
    COUNTER.store(read + 1, Ordering::Relaxed);
    println!("  thread {who}: {read} -> {}, token {}", read + 1, guard.token());
    Ok(())
}

fn main() -> coordination::Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://".into());
    let coordinator = blocking::Coordinator::connect(&url)?;
    coordinator.install()?;

    // By hand.
    let lock = coordinator.lock("vol-7")?;
    let guard = lock.acquire(Some(Duration::from_secs(5)))?;
    println!("holding {} with token {}", guard.name(), guard.token());
    println!("a second time, without waiting: {:?}", lock.try_acquire()?);
    blocking::release(guard)?;

    // By attribute.
    println!("four threads count:");
    let threads: Vec<_> = (1..=4).map(|who| thread::spawn(move || count(7, who))).collect();
    for thread in threads {
        thread.join().expect("no thread panics")?;
    }
    println!("counted to {}", COUNTER.load(Ordering::Relaxed));

    coordinator.stop()
}
