//! What a lock alone cannot prevent, and how the fencing token does.
//!
//! A holder that is paused (a long garbage collection, a suspended virtual machine, a request that hangs
//! in the network) may write after its lock went to somebody else. No lock service can stop a
//! write that is on its way; the resource can, if each write carries the token of its grant.
//!
//! `cargo run --example fenced`, or with `COORDINATION_URL` naming another store.

use std::sync::Mutex;
use std::time::Duration;

use coordination::{Coordinator, Fence, FencingToken, Stale};

/// A disk that refuses writes of those whose time is over.
#[derive(Default)]
struct Disk {
    fence: Fence,
    content: Mutex<&'static str>,
}

impl Disk {
    fn write(&self, token: FencingToken, content: &'static str) -> Result<(), Stale> {
        // Check and write are one step: the content is locked while the token is compared.
        let mut current = self.content.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.fence.check(token)?;
        *current = content;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> coordination::Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://fenced".into());
    let disk = Disk::default();

    // Two services. In real life they are two processes.
    let slow = Coordinator::builder().member_id("slow").connect(&url).await?;
    let next = Coordinator::builder().member_id("next").connect(&url).await?;

    let guard = slow.lock("vol-7")?.acquire(None).await?;
    let token = guard.token();
    println!("slow has the lock, token {token}");
    report("slow", disk.write(token, "from slow"));

    // `slow` does not notice anything from here on: it stands still before its next write. The lock
    // goes on all the same; here an operator takes it away, elsewhere the lease runs out.
    next.lock("vol-7")?.break_lock().await?;
    let successor = next.lock("vol-7")?.acquire(None).await?;
    println!("next has the lock, token {}", successor.token());
    report("next", disk.write(successor.token(), "from next"));

    // `slow` wakes up, and its write arrives.
    report("slow", disk.write(token, "from slow, too late"));
    println!("the disk has {:?}", disk.content.lock().unwrap_or_else(|p| p.into_inner()));

    // It can also learn of the loss, and stop what it does: both come as fast as the store allows,
    // but never before the loss. So they save work; the token saves data.
    println!("slow is told: {}", guard.lost().await);
    let work = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        println!("never printed: the lock is lost, so the work is dropped");
    };
    if let Err(error) = guard.protect(work).await {
        println!("slow stops: {error}");
    }

    successor.release().await?;
    slow.stop().await?;
    next.stop().await
}

fn report(who: &str, written: Result<(), Stale>) {
    match written {
        Ok(()) => println!("  {who} writes"),
        Err(stale) => println!("  {who} is refused: {stale}"),
    }
}
