//! A configuration value that everybody follows, and a counter that everybody adds to.
//!
//! `cargo run --example values`, or with `COORDINATION_URL` naming another store.

use coordination::{Coordinator, Result, SharedValue, ValueEvent};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Limits {
    uploads: u32,
    paused: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://values".into());
    let operator = Coordinator::connect(&url).await?;
    let service = Coordinator::connect(&url).await?;

    // A service follows its configuration.
    let following = tokio::spawn(follow(service.value("limits")?));

    let limits = operator.value::<Limits>("limits")?;
    let version = limits.set(&Limits { uploads: 100, paused: false }).await?;
    println!("set, version {version}");

    // Two operators change the same version: one is faster, the other is told so.
    let (ours, theirs) = (limits.clone(), service.value::<Limits>("limits")?);
    let (one, other) = tokio::join!(
        ours.compare_and_set(Some(version), &Limits { uploads: 200, paused: false }),
        theirs.compare_and_set(Some(version), &Limits { uploads: 50, paused: false }),
    );
    println!("the one wrote: {}, the other wrote: {}", one?.is_some(), other?.is_some());

    // Where a change is to be made whatever came before, it is done over until nobody comes in between.
    let change = |limits: Option<Limits>| {
        let uploads = limits.map_or(100, |limits| limits.uploads);
        Limits { uploads, paused: true }
    };
    println!("paused: {:?}", limits.update(change).await?.value);
    following.await.expect("the task does not panic")?;
    limits.delete().await?;

    // A counter: each addition counts once, and each answer comes once.
    let mut adding = tokio::task::JoinSet::new();
    for client in [&operator, &service] {
        let tickets = client.counter("tickets")?;
        adding.spawn(async move {
            for _ in 0..5 {
                println!("  ticket {}", tickets.add(1).await?);
            }
            Ok(())
        });
    }
    adding.join_all().await.into_iter().collect::<Result<()>>()?;
    let tickets = operator.counter("tickets")?;
    println!("{} tickets in all", tickets.read().await?);
    // On a store that stays, the next run begins with zero again.
    tickets.add(-tickets.read().await?).await?;
    operator.stop().await?;
    service.stop().await
}

async fn follow(limits: SharedValue<Limits>) -> Result<()> {
    let mut events = limits.watch();
    loop {
        match events.next().await? {
            ValueEvent::Value(now) => {
                println!("  told: version {}: {:?}", now.version, now.value);
                if now.value.paused {
                    return Ok(());
                }
            }
            ValueEvent::NoValue => println!("  told: there is none"),
        }
    }
}
