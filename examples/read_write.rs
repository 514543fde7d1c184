//! Several readers, or one writer, who goes on as a reader.
//!
//! `cargo run --example read_write`, or with `COORDINATION_URL` naming another store.

use std::time::Duration;

use coordination::{Coordinator, synchronized};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Beside other searches; never while the catalogue is rebuilt.
#[synchronized("catalogue", shared, coordinator = coordinator, timeout = "5s")]
async fn search(coordinator: Coordinator, reader: u32) -> coordination::Result<()> {
    println!("  reader {reader} begins");
    sleep(Duration::from_millis(40)).await;
    println!("  reader {reader} ends");
    Ok(())
}

#[tokio::main]
async fn main() -> coordination::Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://read-write".into());
    let coordinator = Coordinator::connect(&url).await?;
    let catalogue = coordinator.lock("catalogue")?;

    println!("three read at the same time:");
    let mut readers = JoinSet::new();
    for reader in 1..=3 {
        readers.spawn(search(coordinator.clone(), reader));
    }
    sleep(Duration::from_millis(20)).await;

    // Readers who come later wait behind the writer, or he might wait for ever.
    let writing = tokio::spawn({
        let catalogue = catalogue.clone();
        async move { catalogue.acquire(Some(Duration::from_secs(5))).await }
    });
    let guard = writing.await.expect("the task does not panic")?;
    println!("the writer has it alone, token {}", guard.token());
    for reader in 4..=5 {
        readers.spawn(search(coordinator.clone(), reader));
    }
    sleep(Duration::from_millis(20)).await;
    println!("waiting: {}", catalogue.holders().await?.iter().filter(|one| !one.holding).count());

    // Nobody else writes between the writing and the reading of what was written.
    let share = guard.downgrade().await?;
    println!("the writer reads on, token {}, and lets readers in:", share.token());
    while let Some(reader) = readers.join_next().await {
        reader.expect("the task does not panic")?;
    }
    println!("nobody writes meanwhile: {:?}", catalogue.try_acquire().await?.is_none());
    share.release().await?;
    coordinator.stop().await
}
