//! Keeps the mirror up to date while somebody looks at it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use coordination::{Coordinator, ErrorKind};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::kind::Kind;
use crate::look;
use crate::service::Service;

/// How often the names in use are listed.
const ROUND: Duration = Duration::from_secs(1);
/// The most names that are read again in a round though nothing is known to have changed.
const READS: usize = 200;
/// The most bytes of what candidates or members say of themselves, in a row: each change of one is told with the whole row, to all who
/// follow it.
const SAID: usize = 64 * 1024;
/// How long changes of our own holds are collected.
const COALESCE: Duration = Duration::from_millis(50);

/// Keeps the rows up to date for as long as the service runs.
pub(crate) async fn run(service: Arc<Service>) {
    let mut cursors = BTreeMap::new();
    loop {
        if service.mirror.watchers() == 0 {
            if !service.mirror.watched().await {
                return;
            }
            // What was read when somebody looked last is old.
            Kind::ALL.into_iter().for_each(|kind| service.mirror.clear(kind));
            drop(service.holds.take_touched());
        }
        if let Ok(coordinator) = service.coordinator() {
            round(&service, &coordinator, &mut cursors).await;
        }
        let end = Instant::now() + ROUND;
        let mut pause = COALESCE;
        // A service that is always busy has rounds, too: what was touched is looked at first, however late it is.
        while service.mirror.watchers() > 0
            && Instant::now() < end
            && tokio::time::timeout_at(end, service.holds.touch.notified()).await.is_ok()
        {
            tokio::time::sleep(pause).await;
            let begun = Instant::now();
            touched(&service).await;
            // One thread serves all: what is long to look at leaves half of the time to others.
            pause = COALESCE.max(begun.elapsed());
        }
    }
}

/// Reads what this instance has changed.
async fn touched(service: &Service) {
    let touched = service.holds.take_touched();
    let Ok(coordinator) = service.coordinator() else { return };
    for (kind, name) in touched.into_iter().filter(|(kind, _)| service.mirror.shows(*kind)) {
        if let Ok(entries) = entries(service, &coordinator, kind, &name).await {
            service.mirror.put(kind, &name, &entries);
        }
    }
}

/// One round of each recipe that somebody looks at, all at the same time: one that the store is slow to tell of, or does not
/// tell of, has none of the others wait for it.
async fn round(
    service: &Arc<Service>,
    coordinator: &Coordinator,
    cursors: &mut BTreeMap<Kind, String>,
) {
    let number = service.mirror.begin_round();
    let (shown, others) =
        Kind::ALL.into_iter().partition::<Vec<_>, _>(|kind| service.mirror.shows(*kind));
    others.into_iter().for_each(|kind| service.mirror.clear(kind));
    let reads = READS / shown.len().max(1);
    let mut rounds = JoinSet::new();
    for kind in shown {
        let (service, coordinator) = (Arc::clone(service), coordinator.clone());
        let mut cursor = cursors.remove(&kind).unwrap_or_default();
        rounds.spawn(async move {
            match round_of(&service, &coordinator, kind, &mut cursor, reads).await {
                Ok(()) => service.mirror.completed(number, &[kind]),
                Err(error) => {
                    tracing::debug!(kind = kind.text(), %error, "the rows could not be read");
                }
            }
            (kind, cursor)
        });
    }
    while let Some(ended) = rounds.join_next().await {
        cursors.extend(ended.ok());
    }
}

/// Lists the names, reads those that are new, and of the others as many as may be, one round after the other.
async fn round_of(
    service: &Service,
    coordinator: &Coordinator,
    kind: Kind,
    cursor: &mut String,
    reads: usize,
) -> coordination::Result<()> {
    let names: BTreeSet<_> = coordinator.in_use(kind.recipe()).await?.into_iter().collect();
    let known = service.mirror.names(kind);
    for name in known.difference(&names) {
        service.mirror.put(kind, name, &[]);
    }
    for name in names.difference(&known) {
        read(service, coordinator, kind, name).await?;
    }
    let old: Vec<_> = known.intersection(&names).collect();
    let start = old.partition_point(|name| name.as_str() <= cursor.as_str());
    for name in old.iter().cycle().skip(start).take(reads.min(old.len())) {
        read(service, coordinator, kind, name).await?;
        cursor.clone_from(name);
    }
    Ok(())
}

async fn read(
    service: &Service,
    coordinator: &Coordinator,
    kind: Kind,
    name: &str,
) -> coordination::Result<()> {
    let entries = entries(service, coordinator, kind, name).await?;
    if !service.mirror.has(kind, name, &entries) {
        service.mirror.put(kind, name, &entries);
    }
    Ok(())
}

/// None of a group that was deleted meanwhile, and of what nobody can read: neither is to keep the others from being shown.
async fn entries(
    service: &Service,
    coordinator: &Coordinator,
    kind: Kind,
    name: &str,
) -> coordination::Result<Vec<Value>> {
    match look::entries(service, coordinator, kind, name, SAID).await {
        // Of thousands of candidates only one says what others go by.
        Ok(mut entries) if kind == Kind::Election => {
            let waits = |entry: &&mut Value| entry["state"] == "waiting";
            for entry in entries.iter_mut().filter(waits).filter_map(Value::as_object_mut) {
                entry.remove("value");
            }
            Ok(entries)
        }
        Err(error) if matches!(error.kind(), ErrorKind::GroupMissing | ErrorKind::Corrupt) => {
            Ok(Vec::new())
        }
        entries => entries,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acquire::acquire;
    use crate::acquire::tests::{Disk, instance, wanted};
    use crate::delivery::Deliver;
    use crate::settings::Cover;

    /// A row of an election has the value of its leader, and not that of each candidate.
    #[tokio::test]
    async fn only_the_leader_says_something() {
        let (service, other) = instance(Cover::Any).await;
        let election = other.election("x").expect("a name");
        let _leads = election.campaign(&"of the leader", None).await.expect("nobody else is there");
        let waiting = election.campaign(&"of a candidate", None);
        let reading = async {
            while election.candidates().await.expect("memory answers").len() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let coordinator = service.coordinator().expect("it is connected");
            entries(&service, &coordinator, Kind::Election, "x").await.expect("memory answers")
        };
        let entries = tokio::select! {
            biased;
            _ = waiting => panic!("the first one leads"),
            entries = reading => entries,
        };
        assert_eq!(entries[0]["value"], "of the leader");
        assert_eq!((&entries[1]["state"], entries[1].get("value")), (&"waiting".into(), None));
    }

    /// A row of a group has all its members, and of what they say of themselves a part.
    #[tokio::test]
    async fn a_row_of_a_group_has_a_bound() {
        let (service, other) = instance(Cover::Any).await;
        let group = other.group("x").expect("a name");
        let said = "x".repeat(4_000);
        let mut members = Vec::new();
        group.create().await.expect("there is none");
        for number in 0..40 {
            let joined = group.join_as(number.to_string(), &said).await;
            members.push(joined.expect("memory answers"));
        }
        let coordinator = service.coordinator().expect("it is connected");
        let row = entries(&service, &coordinator, Kind::Group, "x").await.expect("memory answers");
        assert_eq!((row.len(), &row[0]["capabilities"]), (40, &said.into()));
        assert_eq!((&row[39]["capabilities"], &row[39]["truncated"]), (&Value::Null, &true.into()));
        let bytes = Value::from(row).to_string().len();
        assert!((SAID / 2..SAID + 40 * 200).contains(&bytes), "{bytes}");
    }

    /// Of locks of other processes nothing is told: they are only found by a round.
    #[tokio::test]
    async fn a_busy_service_looks_at_what_others_hold() {
        let (service, other) = instance(Cover::Any).await;
        let _watching = service.mirror.watching(1, &[Kind::Lock]).expect("nobody else looks");
        let mut granted = acquire(&service, wanted(0), None).await.expect("it is free");
        let hold = granted.hold().expect("it is here").clone();
        granted.deliver();
        tokio::spawn(run(Arc::clone(&service)));
        let holds = Arc::clone(&service.holds);
        let renewing = tokio::spawn(async move {
            while holds.renew(&hold, None).is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        let appears = async |name: &str| {
            let appears = async {
                while !service.mirror.names(Kind::Lock).contains(name) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(15 * ROUND, appears).await.is_ok()
        };
        assert!(appears("x").await);
        let _held = other.lock("y").expect("a name").acquire(None).await.expect("it is free");
        assert!(appears("y").await, "no round");
        assert!(!renewing.is_finished());
    }

    /// A file that is out of reach keeps the names of all locks from being listed, and nothing else from being shown.
    #[tokio::test]
    async fn a_recipe_that_cannot_be_read_holds_up_no_other_one() {
        let disk = Disk::new();
        let (service, other) = disk.instance().await;
        let election = other.election("x").expect("a name");
        let _leads = election.campaign(&(), None).await.expect("nobody else is there");
        let out_of_reach = disk.0.join("x/coordination/queues/lock.y");
        std::os::unix::fs::symlink(&out_of_reach, &out_of_reach).expect("there is room");
        assert!(other.in_use(Kind::Lock.recipe()).await.is_err());
        let _watching = service.mirror.watching(1, &Kind::ALL).expect("nobody else looks");
        tokio::spawn(run(Arc::clone(&service)));
        let fresh = service.mirror.fresh(&[Kind::Election, Kind::Group]);
        tokio::time::timeout(15 * ROUND, fresh).await.expect("they were read");
        assert!(service.mirror.names(Kind::Election).contains("x"));
        let (locks, elections) = ([Kind::Lock], [Kind::Election]);
        assert!(service.mirror.age(&locks).is_none() && service.mirror.age(&elections).is_some());
    }
}
