//! Three ways to wait for others: a barrier, a double barrier and a latch.
//!
//! `cargo run --example barrier`, or with `COORDINATION_URL` naming another store.

use std::time::Duration;

use coordination::{Coordinator, Error, Result};

const WORKERS: u32 = 3;

/// Loads, says so, waits until work may begin, and works in phases with the others.
async fn work(number: u32, coordinator: Coordinator) -> Result<()> {
    tokio::time::sleep(Duration::from_millis(50) * number).await;
    println!("worker {number} is ready");
    coordinator.latch("ready", WORKERS)?.count_down().await?;

    coordinator.barrier("maintenance")?.wait(None).await?;
    let phases = coordinator.double_barrier("phase", WORKERS)?;
    for phase in 1..=2 {
        let inside = phases.enter(None).await?;
        println!("worker {number} works in phase {phase}");
        tokio::time::sleep(Duration::from_millis(50) * number).await;
        // Nobody begins the next phase before all have finished this one.
        inside.leave(None).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://barriers".into());
    let operator = Coordinator::connect(&url).await?;
    let ready = operator.latch("ready", WORKERS)?;
    ready.reset().await?;
    let maintenance = operator.barrier("maintenance")?;
    maintenance.close().await?;

    let mut workers = Vec::new();
    for number in 1..=WORKERS {
        workers.push(tokio::spawn(work(number, Coordinator::connect(&url).await?)));
    }
    ready.wait(None).await?;
    println!("all are ready, and wait for the end of the maintenance");
    maintenance.open().await?;
    for worker in workers {
        worker.await.expect("no panic")?;
    }
    println!("all have finished");
    operator.stop().await?;
    Ok::<_, Error>(())
}
