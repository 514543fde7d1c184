//! Boot and stop: connect the global coordinator, use a lock, stop.
//!
//! `cargo run --example boot`, or with `COORDINATION_URL` naming another store.

use std::time::Duration;

use coordination::{Coordinator, synchronized};

/// Anywhere in the program: the lock is named after the argument.
#[synchronized("vol-<id>", guard = guard, timeout = "5s")]
async fn resize(id: u32, gib: u64) -> coordination::Result<()> {
    println!("resizing volume {id} to {gib} GiB, holding {} ({})", guard.name(), guard.token());
    Ok(())
}

#[tokio::main]
async fn main() -> coordination::Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://".into());

    // At process boot, once. Short: `Coordinator::connect(&url).await?.install()?`.
    let coordinator = Coordinator::builder().prefix("boot-").connect(&url).await?;
    coordinator.install()?;
    let can = coordinator.characteristics();
    println!("connected as {}", coordinator.member_id());
    println!("locks reach {:?} and live as long as the {:?}", can.scope, can.liveness);

    resize(7, 20).await?;

    // The same by hand.
    let lock = Coordinator::global()?.lock("vol-7")?;
    let guard = lock.acquire(Some(Duration::from_secs(5))).await?;
    match guard.remaining() {
        Some(time) => println!("holding {}, without another heartbeat for {time:?}", guard.name()),
        None => println!("holding {}, until this process releases it or ends", guard.name()),
    }
    guard.release().await?;

    // At shutdown: everything held is freed at once.
    coordinator.stop().await
}
