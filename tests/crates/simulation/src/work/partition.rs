//! Keys that are distributed over the members of a group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coordination::simulation::nanos;
use coordination::{ErrorKind, Group, HashRing, Partitioner};
use rand::RngExt;

use super::{becomes, within};
use crate::stage::{Process, Stage, lock};

const PARTITIONS: u32 = 4;

/// For each process, its partitioner, which says which member of the group has which key.
#[derive(Default)]
pub(crate) struct Ledger {
    partitioners: BTreeMap<u32, Partitioner>,
}

fn group(process: &Process) -> Group {
    process.coordinator.group("shards").expect("the name is one")
}

/// Creates the process's partitioner, which lives as long as the process.
pub(crate) async fn follow(stage: Arc<Stage>, process: Arc<Process>) {
    loop {
        match group(&process).partitioner(PARTITIONS).await {
            Ok(partitioner) => {
                lock(&stage.ledgers.partition).partitioners.insert(process.number, partitioner);
                return;
            }
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) if error.kind() == ErrorKind::GroupMissing => {}
            Err(error) => stage.failed("partitioner", &error),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Joins the group with a random weight, and leaves after a while.
pub(crate) async fn act(stage: &Arc<Stage>, process: &Arc<Process>) {
    let (weight, called) = (stage.draw(|random| random.random_range(0..4)), nanos());
    let (membership, mut partitioner) = match group(process).join_partitioned(weight).await {
        Ok(joined) => joined,
        Err(error) => {
            let is_there =
                matches!(error.kind(), ErrorKind::AlreadyJoined | ErrorKind::MemberExists);
            // The group is missing only if the store has lost its data.
            let is_missing = error.kind() == ErrorKind::GroupMissing && !stage.has_all_data();
            if !is_there && !is_missing {
                stage.failed("join", &error);
            }
            return;
        }
    };
    if let Ok(ring) = partitioner.ring() {
        stage.judges("HR1");
        let has = ring.weight(membership.member_id());
        if has.is_none() && membership.is_held() && stage.is_sound(called) {
            stage.broken(format!("HR1: {membership:?} is not on its own {ring:?}"));
        }
    }
    let length = stage.up_to(stage.plan.hold);
    let _ = tokio::time::timeout(length, partitioner.changed()).await;
    if let Err(error) = membership.leave().await {
        stage.failed("leave", &error);
    }
}

/// HR1: checks after the run that all processes that see the same members assign every key to the same member.
pub(crate) async fn conclude(stage: &Arc<Stage>) {
    if !stage.has_all_data() {
        // The group was lost with the store's data. The partitioners still follow the lost group, so they would never
        // see the members that join now.
        return;
    }
    let processes = stage.processes();
    let mut memberships = Vec::new();
    for (process, weight) in processes.iter().zip(1..) {
        let group = group(process);
        match within(process, async move { group.join_partitioned(weight).await }).await {
            Ok((membership, _)) => memberships.push((process, membership)),
            Err(error) => return stage.broken(format!("L5: joining after healing: {error}")),
        }
    }
    let mut ring = HashRing::with_partitions(PARTITIONS);
    for ((_, membership), weight) in memberships.iter().zip(1..) {
        ring.add(membership.member_id(), weight);
    }
    let wrong = becomes(stage, async || {
        let ledger = lock(&stage.ledgers.partition);
        processes.iter().find_map(|process| {
            let Some(partitioner) = ledger.partitioners.get(&process.number) else {
                return Some(format!("process {} has no partitioner", process.number));
            };
            (0..20).find_map(|number| {
                let key = format!("key-{number}");
                let (owner, placed) = (ring.node(&key), partitioner.members_for(&key, 1, &[]));
                let agrees =
                    placed.as_ref().is_ok_and(|it| it.first().map(String::as_str) == owner);
                (!agrees).then(|| format!("{key}: {owner:?}, by {} {placed:?}", process.number))
            })
        })
    });
    if let Some(wrong) = wrong.await {
        stage.broken(format!("HR1: {wrong}"));
    }
    for (process, membership) in memberships {
        if let Err(error) = within(process, membership.leave()).await {
            stage.broken(format!("G1: leaving after healing: {error}"));
        }
    }
}
