//! Transfers between accounts: both are locked or none, in any order, without a deadlock.
//!
//! `cargo run --example several_locks`, or with `COORDINATION_URL` naming another store.

use std::sync::Mutex;
use std::time::Duration;

use coordination::{Coordinator, ErrorKind, synchronized};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// What a bank has, without any locks of its own.
static ACCOUNTS: Mutex<[i64; 3]> = Mutex::new([100, 100, 100]);

fn balance(account: usize) -> i64 {
    ACCOUNTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[account]
}

fn set_balance(account: usize, balance: i64) {
    ACCOUNTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[account] = balance;
}

/// Reads both, thinks, and writes both: it would lose money if another came in between.
#[synchronized("account-<from>", "account-<to>", coordinator = coordinator, timeout = "10s")]
async fn transfer(
    coordinator: Coordinator,
    from: usize,
    to: usize,
    amount: i64,
) -> coordination::Result<()> {
    let (payer, payee) = (balance(from), balance(to));
    sleep(Duration::from_millis(2)).await;
    set_balance(from, payer - amount);
    set_balance(to, payee + amount);
    Ok(())
}

#[tokio::main]
async fn main() -> coordination::Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://several-locks".into());
    let coordinator = Coordinator::connect(&url).await?;

    // In all directions at once: 0 to 1, 1 to 2, 2 to 0, and back.
    let mut transfers = JoinSet::new();
    for round in 0..10 {
        for from in 0..3 {
            let to = (from + 1 + round % 2) % 3;
            transfers.spawn(transfer(coordinator.clone(), from, to, 5));
        }
    }
    while let Some(done) = transfers.join_next().await {
        done.expect("the task does not panic")?;
    }
    let balances = [0, 1, 2].map(balance);
    println!("30 transfers, balances {balances:?}, in all {}", balances.iter().sum::<i64>());
    assert_eq!(balances.iter().sum::<i64>(), 300, "money was lost");

    // By hand: all or none.
    let all = coordinator.locks(["account-2", "account-0", "account-1"])?;
    let one = coordinator.lock("account-1")?.acquire(None).await?;
    println!("one is taken, so none is: {:?}", all.try_acquire().await?.is_none());
    let late = all.acquire(Some(Duration::from_millis(100))).await;
    match late {
        Err(error) if error.kind() == ErrorKind::Timeout => println!("in time, too: {error}"),
        other => println!("unexpected: {other:?}"),
    }
    one.release().await?;
    let guard = all.acquire(Some(Duration::from_secs(5))).await?;
    for guard in guard.guards() {
        println!("  {} has the token {}", guard.name(), guard.token());
    }
    guard.release().await?;
    coordinator.stop().await
}
