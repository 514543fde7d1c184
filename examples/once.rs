//! A job that three services could do, and that one does in every period.
//!
//! `cargo run --example once`, or with `COORDINATION_URL` naming another store.

use std::time::Duration;

use coordination::{Coordinator, OncePer, Result};

/// Once a night, in real life.
const PERIOD: Duration = Duration::from_millis(500);

/// Asks in every period, and does the job where it gets the claim.
async fn service(number: u32, job: OncePer) -> Result<()> {
    for period in 0..3 {
        if let Some(claim) = job.try_claim().await? {
            if period == 1 {
                println!("service {number} has claim {} and cannot do it", claim.token());
                claim.give_back().await?;
            } else {
                println!("service {number} does the job, claim {}", claim.token());
            }
        }
        tokio::time::sleep(job.due().await?.max(PERIOD / 5)).await;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://once".into());
    let mut services = Vec::new();
    for number in 1..=3 {
        let coordinator = Coordinator::connect(&url).await?;
        services.push(tokio::spawn(service(number, coordinator.once_per("report", PERIOD)?)));
    }
    for service in services {
        service.await.expect("no panic")?;
    }

    // Once in every full hour, by the clock, whoever comes first.
    let coordinator = Coordinator::connect(&url).await?;
    let hourly = coordinator.once_per("hourly", Duration::from_secs(3_600))?.aligned();
    println!("this hour's job is ours: {}", hourly.try_claim().await?.is_some());
    println!("the next can be claimed in {:.0?}", hourly.due().await?);
    coordinator.stop().await
}
