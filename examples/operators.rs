//! What an operator asks: who has the lock, who waits, is the store well, take it from them.
//!
//! `cargo run --example operators`, or with `COORDINATION_URL` naming another store.

use std::time::Duration;

use coordination::{Coordinator, Lock, State};

#[tokio::main]
async fn main() -> coordination::Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://operators".into());

    // A service that hangs with the lock in its hands, and one that waits.
    let stuck = Coordinator::builder().member_id("stuck").connect(&url).await?;
    let waiter = Coordinator::builder().member_id("waiter").connect(&url).await?;
    let health = watch(&stuck);
    let guard = stuck.lock("vol-7")?.acquire(None).await?;
    let wanted = waiter.lock("vol-7")?;
    let waiting = tokio::spawn(async move { wanted.acquire(None).await });

    // The operator's own coordinator. It needs no part in the service.
    let operator = Coordinator::builder().member_id("operator").connect(&url).await?;
    let lock = operator.lock("vol-7")?;
    while lock.holders().await?.len() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    show("at first", &lock).await?;

    // Breaking frees the lock now. The stuck holder is told, and must not be trusted to listen: whatever
    // it still sends is refused only where its fencing token is checked (see the example `fenced`).
    match lock.break_lock().await? {
        Some(former) => println!("taken from {}, token {}", former.member, former.token),
        None => println!("nobody had it"),
    }
    println!("stuck is told: {}; it holds the lock: {}", guard.lost().await, guard.is_held());
    let successor = waiting.await.expect("the task does not panic")?;
    show("afterwards", &lock).await?;

    successor.release().await?;
    show("at last, free", &lock).await?;

    // The session of `stuck` went on all the time: breaking a lock ends that grant, nothing else.
    for coordinator in [operator, waiter, stuck] {
        coordinator.stop().await?;
    }
    health.await.expect("the task does not panic");
    Ok(())
}

/// Prints the state of a service's session, as it would go to its health check.
fn watch(coordinator: &Coordinator) -> tokio::task::JoinHandle<()> {
    let mut states = coordinator.state();
    let member = coordinator.member_id().to_owned();
    tokio::spawn(async move {
        println!("{member} is {:?}", states.current());
        while let Some(state) = states.changed().await {
            let advice = match state {
                State::Connected => "all is well",
                State::Suspended => {
                    "the store does not answer; locks are good until their deadline"
                }
                State::Lost(_) => "all locks are lost; a new session is being opened",
                _ => "over",
            };
            println!("{member} is {state:?}: {advice}");
        }
    })
}

async fn show(when: &str, lock: &Lock) -> coordination::Result<()> {
    println!("{when}, {}:", lock.name());
    for contender in lock.holders().await? {
        let does = if contender.holding { "holds" } else { "waits" };
        println!("  {:<8} {does}  token {}", contender.member, contender.token);
    }
    Ok(())
}
