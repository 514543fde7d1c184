//! A client that is a member of the group for a while.

use std::sync::Arc;
use std::time::Duration;

use coordination::simulation::{moment, nanos};
use coordination::{Error, ErrorKind, Membership, Presence, Result};
use rand::RngExt;

use super::{IDS, group};
use crate::stage::{Process, Stage, lock};

/// Joins, updates its capabilities, and leaves.
pub(super) async fn join(stage: &Arc<Stage>, process: &Arc<Process>) {
    let before = {
        let ledger = lock(&stage.ledgers.group);
        (stage.number(), ledger.highest(), ledger.removals())
    };
    let membership = match enter(stage, process, before.0).await {
        Ok(membership) => Arc::new(membership),
        Err(error) => return refused(stage, &error),
    };
    let (token, since) = (membership.incarnation(), moment());
    let joined = (&membership, since);
    lock(&stage.ledgers.group).joined(stage, process, joined, before);
    for _ in 0..stage.draw(|random| random.random_range(0..4)) {
        tokio::time::sleep(stage.up_to(stage.plan.hold)).await;
        // Once `join` or `update` has returned, every reader has to see the member with the capabilities of that call.
        super::read(stage, process).await;
        let number = stage.number();
        lock(&stage.ledgers.group).says(token, number, false);
        match membership.update(&(number, number)).await {
            Ok(()) => lock(&stage.ledgers.group).says(token, number, true),
            Err(error) => stage.failed("update", &error),
        }
    }
    lock(&stage.ledgers.group).leaves(token);
    let Some(membership) = Arc::into_inner(membership) else {
        return stage.broken(format!("somebody else has the membership {token}"));
    };
    if stage.draw(|random| random.random()) {
        return drop(membership);
    }
    match membership.leave().await {
        Ok(()) => lock(&stage.ledgers.group).has_left(token),
        Err(error) => stage.failed("leave", &error),
    }
}

async fn enter(stage: &Stage, process: &Process, says: u64) -> Result<Membership> {
    let group = group(process);
    let says = (says, says);
    match stage.draw(|random| random.random_range(0..8)) {
        0 => group.join(&says).await,
        1..4 => group.join_or_create(&says).await,
        _ => {
            let id = IDS[stage.draw(|random| random.random_range(0..IDS.len()))];
            group.join_as(id, &says).await
        }
    }
}

fn refused(stage: &Stage, error: &Error) {
    let may_be = matches!(
        error.kind(),
        ErrorKind::GroupMissing | ErrorKind::AlreadyJoined | ErrorKind::MemberExists
    );
    if !may_be {
        stage.failed("join", error);
    }
}

/// G3: checks that a membership which comes back after a loss has a larger incarnation than before.
pub(super) async fn rejoin(stage: &Arc<Stage>, process: &Arc<Process>) {
    let number = stage.number();
    let mut membership = match enter(stage, process, number).await {
        Ok(membership) => membership.rejoining(),
        Err(error) => return refused(stage, &error),
    };
    let Presence::Member(mut last) = membership.presence() else { return };
    let end = nanos() + 2 * stage.plan.ttl.as_nanos() as u64;
    while nanos() < end && !stage.is_over() {
        let length = stage.up_to(stage.plan.ttl / 2) + Duration::from_millis(1);
        if let Ok(changed) = tokio::time::timeout(length, membership.changed()).await {
            match changed {
                Some(Presence::Member(now)) if now < last => {
                    stage.broken(format!("G3: {membership:?} came back as {now} after {last}"));
                }
                Some(Presence::Member(now)) => {
                    stage.judges("G3 rejoined");
                    last = now;
                }
                Some(Presence::Ended(_)) | None => return,
                Some(_) => {}
            }
        } else if stage.draw(|random| random.random()) {
            let number = stage.number();
            if let Err(error) = membership.update(&(number, number)).await
                && error.kind() != ErrorKind::GroupMissing
            {
                stage.failed("update of a rejoining member", &error);
            }
        }
    }
    // If an earlier incarnation was lost, it may be listed until its lease is over, even after this leave. So the
    // ledger does not record this leave.
    if let Err(error) = membership.leave().await {
        stage.failed("leave of a rejoining member", &error);
    }
}
