//! G2: applies the events of a watch to a list of members. The list has to stay equal to the list that the watch itself
//! reports.

use std::sync::Arc;
use std::time::Duration;

use coordination::{ErrorKind, GroupEvent, GroupWatch, Member, Members};

use super::group;
use crate::stage::{Process, Stage, lock};

/// Watches the group for as long as the process lives. Begins a new watch whenever the group was deleted.
pub(crate) async fn follow(stage: Arc<Stage>, process: Arc<Process>) {
    let group = group(&process);
    loop {
        match group.watch().await {
            Ok(watch) => replay(&stage, process.number, watch).await,
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) if error.kind() == ErrorKind::GroupMissing => {}
            Err(error) => stage.failed("watch", &error),
        }
        lock(&stage.ledgers.group).sees(process.number, None);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Checks the events of one watch, until the group is deleted.
async fn replay(stage: &Stage, process: u32, mut watch: GroupWatch) {
    let mut members = watch.members();
    loop {
        lock(&stage.ledgers.group).sees(process, Some(members.clone()));
        let event = match watch.next().await {
            Ok(event) => event,
            Err(error) => return stage.failed("watch", &error),
        };
        stage.judges(match event {
            GroupEvent::Resync(_) => "G2 resync",
            GroupEvent::Deleted => "G2 deleted",
            _ => "G2",
        });
        if let Some(wrong) = unfit(&members, &event) {
            stage.broken(format!("G2: {wrong}: {event:?} after {members:?}"));
        }
        members.apply(&event);
        if members != watch.members() {
            stage.broken(format!("G2: {event:?} led to {members:?}, not {:?}", watch.members()));
        }
        if event == GroupEvent::Deleted {
            return;
        }
    }
}

/// Why an event cannot follow on the events before it; `None` if it can.
fn unfit(members: &Members, event: &GroupEvent) -> Option<&'static str> {
    let has = |member: &Member| members.get(&member.id).map(|member| member.incarnation);
    match event {
        GroupEvent::Joined(member) if has(member).is_some() => Some("it is there already"),
        GroupEvent::Left(member) if has(member) != Some(member.incarnation) => {
            Some("it is not there")
        }
        GroupEvent::Updated(member) if has(member) != Some(member.incarnation) => {
            Some("it is not there")
        }
        GroupEvent::Deleted if !members.is_empty() => Some("somebody is still there"),
        _ => None,
    }
}
