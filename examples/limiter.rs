//! A nightly job that five hosts start at once: one runs, one stands by, the others go home.
//!
//! The one that runs is broken off half-way, and the one on standby takes over.
//!
//! `cargo run --example limiter`, or with `COORDINATION_URL` naming another store.

use std::time::Duration;

use coordination::{Admission, Coordinator, Patience, Standing};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> coordination::Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://limiter".into());
    let mut hosts = Vec::new();
    for host in 1..=5 {
        let name = format!("host-{host}");
        let coordinator = Coordinator::builder().member_id(&name).connect(&url).await?;
        hosts.push(tokio::spawn(nightly(name, coordinator)));
        sleep(Duration::from_millis(50)).await;
    }
    for host in hosts {
        host.await.expect("a host does not panic")?;
    }
    Ok(())
}

async fn nightly(host: String, coordinator: Coordinator) -> coordination::Result<()> {
    let limiter = coordinator.limiter("nightly")?.standby(1).patience(Patience::Forever);
    let told = |standing| {
        if standing == Standing::Standby {
            println!("{host} stands by");
        }
    };
    match limiter.enter_telling(told).await? {
        Admission::Working(slot) => {
            println!("{host} works, token {}", slot.token());
            sleep(Duration::from_millis(500)).await;
            if host == "host-1" {
                println!("{host} is broken off");
                return coordinator.stop().await;
            }
            println!("{host} is done");
            slot.release().await?;
        }
        Admission::Refused(refusal) => println!("{host} goes home: {refusal:?}"),
    }
    coordinator.stop().await
}
