//! Ten workers share an interface that takes five calls in 0.8 s, and no more than twelve in two seconds.
//!
//! `cargo run --example rate_limiter`, or with `COORDINATION_URL` naming another store.

use std::time::{Duration, Instant};

use coordination::{Attempt, Coordinator, ErrorKind, RateLimiter, Result};

fn limiter(coordinator: &Coordinator) -> Result<RateLimiter> {
    // All users of the name have to say the same.
    coordinator.rate_limiter("api", 5, Duration::from_millis(800))?.and(12, Duration::from_secs(2))
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://rates".into());
    let start = Instant::now();
    let mut workers = Vec::new();
    // Two services. In real life they are processes.
    let services = [Coordinator::connect(&url).await?, Coordinator::connect(&url).await?];
    for number in 0..10 {
        let limiter = limiter(&services[number % 2])?;
        workers.push(tokio::spawn(async move {
            for call in 1..=2 {
                let permit = limiter.acquire(1, None).await?;
                let now = start.elapsed();
                println!("{now:>6.1?}: worker {number}, call {call}, slot {:.3?}", permit.slot());
            }
            Ok::<_, coordination::Error>(())
        }));
    }
    for worker in workers {
        worker.await.expect("no panic")?;
    }

    // Who does not want to wait asks, and is told when to come again.
    let limiter = limiter(&services[0])?;
    while let Attempt::Granted(_) = limiter.try_acquire(1).await? {}
    if let Attempt::Denied { retry_after } = limiter.try_acquire(1).await? {
        println!("no permit now; again in {retry_after:.1?}");
        tokio::time::sleep(retry_after).await;
        println!("granted: {}", limiter.try_acquire(1).await?.granted().is_some());
    }

    // A wait that would be too long is refused at once, and takes nothing.
    let refused = limiter.acquire(5, Some(Duration::from_millis(10))).await;
    if let Err(error) = refused {
        assert_eq!(error.kind(), ErrorKind::Timeout);
        println!("refused: {error}");
    }
    for service in services {
        service.stop().await?;
    }
    Ok(())
}
