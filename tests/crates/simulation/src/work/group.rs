//! A group. The run compares what members know of themselves with what other clients read.

mod ledger;
mod member;
mod watcher;

use std::sync::Arc;

use coordination::simulation::moment;
use coordination::{ErrorKind, Group};
use rand::RngExt;

pub(crate) use self::ledger::Ledger;
pub(crate) use self::watcher::follow;
use super::{becomes, within};
use crate::stage::{Process, Stage, lock};

/// The member ids, so few that clients of several processes want the same ones.
const IDS: [&str; 3] = ["disk-0", "disk-1", "disk-2"];

fn group(process: &Process) -> Group {
    process.coordinator.group("group").expect("the name is one")
}

/// Performs one random action with the group.
pub(crate) async fn act(stage: &Arc<Stage>, process: &Arc<Process>) {
    match stage.draw(|random| random.random_range(0..40)) {
        0..18 => member::join(stage, process).await,
        18..21 => member::rejoin(stage, process).await,
        21..35 => read(stage, process).await,
        35 => create(stage, process).await,
        36..38 => delete(stage, process).await,
        38 => names(stage, process).await,
        _ => remove(stage, process).await,
    }
}

/// G1 and G4: reads the list of members once, and checks the list.
async fn read(stage: &Stage, process: &Process) {
    let (call, left) = (moment(), lock(&stage.ledgers.group).left());
    let claims = lock(&stage.ledgers.group).said();
    match group(process).members().await {
        Ok(members) => {
            let ledger = lock(&stage.ledgers.group);
            ledger.judge_listed(stage, &members, &claims);
            if let Some(member) = members.iter().find(|member| left.contains(&member.incarnation)) {
                stage.broken(format!("G1: {member:?} had left by {call} ns"));
            }
        }
        Err(error) if error.kind() == ErrorKind::GroupMissing => {
            lock(&stage.ledgers.group).judge_missing(stage, call);
        }
        Err(error) => stage.failed("members", &error),
    }
}

async fn create(stage: &Stage, process: &Process) {
    let call = moment();
    match group(process).create().await {
        // This call has created the group. So the group did not exist at some moment of the call, and had no member
        // then.
        Ok(()) => lock(&stage.ledgers.group).judge_missing(stage, call),
        Err(error) if error.kind() == ErrorKind::GroupExists => {}
        Err(error) => stage.failed("create", &error),
    }
}

async fn delete(stage: &Stage, process: &Process) {
    let call = moment();
    match group(process).delete().await {
        Ok(()) => lock(&stage.ledgers.group).judge_missing(stage, call),
        Err(error)
            if matches!(error.kind(), ErrorKind::GroupMissing | ErrorKind::GroupNotEmpty) => {}
        Err(error) => stage.failed("delete", &error),
    }
}

async fn names(stage: &Stage, process: &Process) {
    let call = moment();
    match process.coordinator.groups().await {
        Ok(names) if names.iter().all(|name| name != "group") => {
            lock(&stage.ledgers.group).judge_missing(stage, call);
        }
        Ok(_) => {}
        Err(error) => stage.failed("groups", &error),
    }
}

/// Removes a member by its id, as an operator does.
async fn remove(stage: &Stage, process: &Process) {
    let id = IDS[stage.draw(|random| random.random_range(0..IDS.len()))];
    // The removal is entered in the ledger before the call, because it may happen even if the call fails.
    lock(&stage.ledgers.group).removes(id);
    if let Err(error) = group(process).remove(id).await {
        let is_out = matches!(error.kind(), ErrorKind::GroupMissing | ErrorKind::NotJoined);
        if !is_out {
            stage.failed("remove", &error);
        }
    }
    lock(&stage.ledgers.group).removed(id);
}

/// G2: checks after the run that every watch reaches the last state.
pub(crate) async fn conclude(stage: &Arc<Stage>) {
    let Some(process) = stage.processes().first().cloned() else { return };
    let group = group(&process);
    let joining = group.clone();
    let joined = within(&process, async move { joining.join_or_create("the last").await }).await;
    let membership = match joined {
        Ok(membership) => membership,
        Err(error) => return stage.broken(format!("L5: after healing: {error}")),
    };
    let wrong = becomes(stage, async || {
        let reading = group.clone();
        let truth = within(&process, async move { reading.members().await }).await;
        let Ok(truth) = truth else { return Some(format!("members: {truth:?}")) };
        if truth.get(membership.member_id()).is_none() {
            return Some(format!("{truth:?} without {membership:?}"));
        }
        let ledger = lock(&stage.ledgers.group);
        let processes = stage.processes();
        let behind = processes.iter().find(|process| ledger.seen(process.number) != Some(&truth));
        behind.map(|process| {
            let seen = ledger.seen(process.number);
            format!("{truth:?}, and process {} sees {seen:?}", process.number)
        })
    });
    if let Some(wrong) = wrong.await {
        stage.broken(format!("G2: {wrong}"));
    }
    if let Err(error) = within(&process, membership.leave()).await {
        stage.broken(format!("G1: leaving after healing: {error}"));
    }
}
