//! How long to wait for a lock, and what an error tells.
//!
//! `acquire(None)` waits for ever, `acquire(Some(d))` fails after `d`, and `try_acquire()` does not
//! wait: a lock that is taken is an answer, `None`, and no error.
//!
//! `cargo run --example timeouts`, or with `COORDINATION_URL` naming another store.

use std::time::{Duration, Instant};

use coordination::{Coordinator, ErrorKind, Lock};

#[tokio::main]
async fn main() -> coordination::Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://timeouts".into());

    // Two services. In real life they are two processes.
    let first = Coordinator::builder().member_id("first").connect(&url).await?;
    let second = Coordinator::builder().member_id("second").connect(&url).await?;
    let (held, wanted) = (first.lock("vol-7")?, second.lock("vol-7")?);

    println!("free:   try_acquire gives a guard: {}", wanted.try_acquire().await?.is_some());

    let guard = held.acquire(None).await?;
    println!("taken:  try_acquire gives a guard: {}", wanted.try_acquire().await?.is_some());
    wait(&wanted, Duration::from_millis(300)).await?;
    // Zero asks once, but says so by an error: for callers that pass a timeout on.
    wait(&wanted, Duration::ZERO).await?;

    // While somebody waits, everybody can see it. Who gives up leaves no trace.
    let patient = tokio::spawn(async move { wanted.acquire(Some(Duration::from_secs(5))).await });
    while held.holders().await?.len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    show(&held).await?;

    guard.release().await?;
    let guard = patient.await.expect("the task does not panic")?;
    println!("after the release:");
    show(&held).await?;
    guard.release().await?;

    // What can never work is told at once, and in words.
    for name in ["", &"x".repeat(2000)] {
        if let Err(error) = first.lock(name) {
            println!("{:?}, worth a retry: {}: {error}", error.kind(), error.is_transient());
        }
    }
    first.stop().await?;
    if let Err(error) = held.acquire(None).await {
        println!("{:?}, worth a retry: {}: {error}", error.kind(), error.is_transient());
    }
    second.stop().await
}

/// Waits for a lock that will not come.
async fn wait(lock: &Lock, timeout: Duration) -> coordination::Result<()> {
    let start = Instant::now();
    match lock.acquire(Some(timeout)).await {
        Ok(guard) => guard.release().await,
        Err(error) if error.kind() == ErrorKind::Timeout => {
            println!("{:?} after {} ms: {error}", error.kind(), start.elapsed().as_millis());
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Who has the lock and who waits for it, in order.
async fn show(lock: &Lock) -> coordination::Result<()> {
    for contender in lock.holders().await? {
        let does = if contender.holding { "holds" } else { "waits for" };
        println!("  {} {does} {}, token {}", contender.member, lock.name(), contender.token);
    }
    Ok(())
}
