//! Who is there: members that come, go, are lost and come back, as another process sees it.
//!
//! `cargo run --example group`, or with `COORDINATION_URL` naming another store.

use coordination::{Coordinator, ErrorKind, GroupEvent, GroupWatch, Presence};
use serde::{Deserialize, Serialize};

/// What a host says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Host {
    zone: String,
    free_gib: u64,
}

#[tokio::main]
async fn main() -> coordination::Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://group".into());

    // Three services. In real life they are three processes.
    let scheduler = Coordinator::builder().member_id("scheduler").connect(&url).await?;
    let one = Coordinator::builder().member_id("host-1").connect(&url).await?;
    let two = Coordinator::builder().member_id("host-2").connect(&url).await?;

    let hosts = scheduler.group("example-hosts")?;
    match hosts.create().await {
        Err(error) if error.kind() == ErrorKind::GroupExists => println!("the group was there"),
        outcome => outcome?,
    }
    let mut watch = hosts.watch().await?;
    println!("the scheduler sees {} hosts", watch.members().len());

    let host = Host { zone: "a".into(), free_gib: 500 };
    let first = one.group("example-hosts")?.join(&host).await?;
    tell(&mut watch).await?;
    // This one comes back by itself if its session is lost.
    let host = Host { zone: "b".into(), free_gib: 800 };
    let mut second = two.group("example-hosts")?.join(&host).await?.rejoining();
    tell(&mut watch).await?;

    first.update(&Host { zone: "a".into(), free_gib: 480 }).await?;
    tell(&mut watch).await?;

    // All members with what they say, in one read.
    let mut best = None;
    for member in hosts.members().await? {
        let host: Host = member.capabilities.parse()?;
        println!("  {} has {} GiB in zone {}", member.id, host.free_gib, host.zone);
        best = best.max(Some((host.free_gib, member.id)));
    }
    println!("the scheduler chooses {:?}", best.map(|(_, id)| id));

    // An operator takes a host out. A lost session looks the same to the others.
    hosts.remove("host-2").await?;
    tell(&mut watch).await?;
    tell(&mut watch).await?;
    while !matches!(second.presence(), Presence::Member(_)) {
        second.changed().await;
    }
    println!("host-2 knows that it is back: {:?}", second.presence());

    second.leave().await?;
    tell(&mut watch).await?;
    drop(first);
    tell(&mut watch).await?;
    hosts.delete().await?;
    tell(&mut watch).await?;

    for coordinator in [scheduler, one, two] {
        coordinator.stop().await?;
    }
    Ok(())
}

async fn tell(watch: &mut GroupWatch) -> coordination::Result<()> {
    match watch.next().await? {
        GroupEvent::Joined(member) => {
            println!("{} joined, incarnation {}", member.id, member.incarnation);
        }
        GroupEvent::Left(member) => {
            println!("{} left, incarnation {}", member.id, member.incarnation)
        }
        GroupEvent::Updated(member) => {
            println!("{} says {}", member.id, member.capabilities.as_json());
        }
        GroupEvent::Resync(members) => println!("after an outage there are {}", members.len()),
        GroupEvent::Deleted => println!("the group is gone"),
        _ => {}
    }
    Ok(())
}
