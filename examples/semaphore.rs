//! Six uploads, two at a time, and a backup that needs the array for itself.
//!
//! `cargo run --example semaphore`, or with `COORDINATION_URL` naming another store.

use std::time::Duration;

use coordination::{Coordinator, ErrorKind};

#[tokio::main]
async fn main() -> coordination::Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://semaphore".into());
    let coordinator = Coordinator::connect(&url).await?;
    let array = coordinator.semaphore("array", 2)?;

    let mut uploads = Vec::new();
    for upload in 1..=6 {
        let array = array.clone();
        uploads.push(tokio::spawn(async move {
            let permit = array.acquire(Some(Duration::from_secs(10))).await?;
            println!("upload {upload} runs in slot {}, token {}", permit.slot(), permit.token());
            tokio::time::sleep(Duration::from_millis(200)).await;
            permit.release().await
        }));
    }

    tokio::time::sleep(Duration::from_millis(100)).await;
    for holder in array.holders().await? {
        match holder.slots.as_slice() {
            [] => println!("  {} waits, token {}", holder.member, holder.token),
            slots => println!("  {} has {slots:?}, token {}", holder.member, holder.token),
        }
    }

    // It asked last, so it is served when all uploads are done, and nobody comes in between.
    let backup = array.acquire_many(2, None).await?;
    println!("the backup has all slots: {:?}", backup.slots());
    assert!(array.try_acquire().await?.is_none());
    backup.release().await?;
    for upload in uploads {
        upload.await.expect("an upload does not panic")?;
    }

    // Another version of the program, with another number in its configuration.
    match coordinator.semaphore("array", 3)?.acquire(None).await {
        Err(error) if error.kind() == ErrorKind::Mismatch => println!("{error}"),
        other => println!("unexpected: {other:?}"),
    }
    coordinator.stop().await
}
