//! Volumes shared out among pollers: each is polled by one, and few move when a poller comes or goes.
//!
//! `cargo run --example partition`, or with `COORDINATION_URL` naming another store.

use std::collections::BTreeMap;

use coordination::{Coordinator, Membership, Partitioner, Result};

const VOLUMES: u32 = 1_000;

struct Poller {
    name: &'static str,
    coordinator: Coordinator,
    membership: Membership,
    partitioner: Partitioner,
}

impl Poller {
    async fn start(url: &str, name: &'static str, weight: u32) -> Result<Self> {
        let coordinator = Coordinator::builder().member_id(name).connect(url).await?;
        let (membership, partitioner) =
            coordinator.group("example-pollers")?.join_partitioned(weight).await?;
        Ok(Self { name, coordinator, membership, partitioner })
    }

    /// Waits until it sees so many pollers.
    async fn sees(&mut self, pollers: usize) -> Result<()> {
        while self.partitioner.ring()?.weights().count() != pollers {
            self.partitioner.changed().await?;
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("COORDINATION_URL").unwrap_or_else(|_| "memory://partition".into());

    // In real life they are processes. The second one is twice as strong.
    let mut pollers =
        vec![Poller::start(&url, "one", 1).await?, Poller::start(&url, "two", 2).await?];
    let before = share_out("two pollers", &mut pollers).await?;

    pollers.push(Poller::start(&url, "three", 1).await?);
    let with_third = share_out("a third one", &mut pollers).await?;
    println!("  {} volumes moved, all of them to the third", moved(&before, &with_third));

    if let Some(third) = pollers.pop() {
        third.membership.leave().await?;
        third.coordinator.stop().await?;
    }
    let after = share_out("without the third", &mut pollers).await?;
    println!("  {} volumes are not where they were at first", moved(&before, &after));

    // For two copies of each, on different members; and where to go while one is being repaired.
    let partitioner = &pollers[0].partitioner;
    println!("copies of vol-7: {:?}", partitioner.members_for("vol-7", 2, &[])?);
    println!("without `two`: {:?}", partitioner.members_for("vol-7", 1, &["two"])?);

    for Poller { coordinator, membership, .. } in pollers {
        membership.leave().await?;
        coordinator.stop().await?;
    }
    Ok(())
}

/// Asks every poller which volumes are its own: each is exactly one's.
async fn share_out(what: &str, pollers: &mut [Poller]) -> Result<BTreeMap<u32, &'static str>> {
    let count = pollers.len();
    let mut owners = BTreeMap::new();
    for poller in pollers {
        poller.sees(count).await?;
        for volume in 0..VOLUMES {
            if poller.partitioner.is_mine(format!("vol-{volume}"))? {
                let other = owners.insert(volume, poller.name);
                assert_eq!(other, None, "two think that volume {volume} is theirs");
            }
        }
    }
    assert_eq!(owners.len() as u32, VOLUMES, "nobody has some volume");
    let mut shares = BTreeMap::new();
    owners.values().for_each(|owner| *shares.entry(owner).or_insert(0) += 1);
    println!("{what}: {shares:?}");
    Ok(owners)
}

fn moved(before: &BTreeMap<u32, &str>, after: &BTreeMap<u32, &str>) -> usize {
    before.iter().filter(|(volume, owner)| after.get(volume) != Some(owner)).count()
}
