//! Commands about groups. The process keeps all memberships and watches until it ends.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use coordination::{Group, GroupEvent, GroupWatch, Membership};
use coordination_tests::harness::log::now_ns;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Arguments, Client, failed};

/// How many tasks of the command `join_many` join at the same time.
const LANES: usize = 4;

static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Kept {
    memberships: HashMap<String, Membership>,
    watches: Vec<GroupWatch>,
}

pub(crate) async fn join(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let (coordinator, group) = (client.coordinator()?, group(client, arguments)?);
    let member = arguments.optional("member").unwrap_or(coordinator.member_id());
    let membership = group.join_as(member, &arguments.0["capabilities"]).await.map_err(failed)?;
    let incarnation = membership.incarnation();
    kept().memberships.insert(member.to_owned(), membership);
    Ok(json!({ "incarnation": incarnation, "t_ns": now_ns() }))
}

pub(crate) async fn create(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    group(client, arguments)?.create().await.map_err(failed)?;
    Ok(json!({}))
}

/// Joins as the members `<prefix>-0`, `<prefix>-1` and so on, `LANES` of them at the same time.
pub(crate) async fn join_many(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let (group, prefix) = (group(client, arguments)?, arguments.text("prefix")?);
    let (count, begun) = (arguments.count("n")?, Instant::now());
    let mut tasks = JoinSet::new();
    for lane in 0..LANES {
        let (group, prefix) = (group.clone(), prefix.to_owned());
        tasks.spawn(async move {
            for number in (lane..count).step_by(LANES) {
                let member = format!("{prefix}-{number}");
                let membership = group.join_as(&member, &()).await.map_err(failed)?;
                kept().memberships.insert(member, membership);
            }
            Ok(())
        });
    }
    tasks.join_all().await.into_iter().collect::<Result<(), Value>>()?;
    Ok(json!({ "ms": begun.elapsed().as_millis() as u64 }))
}

/// Starts `n` watches, in addition to those that there are.
pub(crate) async fn watch_many(client: &Client, arguments: Arguments<'_>) -> Result<Value, Value> {
    let group = group(client, arguments)?;
    let begun = Instant::now();
    for _ in 0..arguments.count("n")? {
        let watch = group.watch().await.map_err(failed)?;
        kept().watches.push(watch);
    }
    Ok(json!({ "ms": begun.elapsed().as_millis() as u64 }))
}

/// Waits until every watch has reported that this member joined. The result has the time of the last report.
pub(crate) async fn await_member(arguments: Arguments<'_>) -> Result<Value, Value> {
    let member: std::sync::Arc<str> = arguments.text("member")?.into();
    let watches = std::mem::take(&mut kept().watches);
    let mut tasks = JoinSet::new();
    for mut watch in watches {
        let member = member.clone();
        tasks.spawn(async move {
            let mut events = 0_u64;
            loop {
                events += 1;
                match watch.next().await {
                    Ok(GroupEvent::Joined(joined)) if joined.id == member => {
                        return Ok((watch, now_ns(), events));
                    }
                    Ok(_) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
        });
    }
    let (mut last_ns, mut told, mut all) = (0, 0, 0);
    for outcome in tasks.join_all().await {
        let (watch, at_ns, events) = outcome?;
        kept().watches.push(watch);
        (last_ns, told, all) = (at_ns.max(last_ns), told + 1, all + events);
    }
    Ok(json!({ "told": told, "events": all, "t_ns": last_ns }))
}

fn group(client: &Client, arguments: Arguments<'_>) -> Result<Group, Value> {
    client.coordinator()?.group(arguments.text("group")?).map_err(failed)
}

fn kept() -> MutexGuard<'static, Kept> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}
