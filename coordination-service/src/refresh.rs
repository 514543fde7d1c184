//! Keeps the mirror up to date while somebody looks at it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use coordination::{Coordinator, ErrorKind};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::kind::Kind;
use crate::look;
use crate::service::Service;

/// How often the names in use are listed.
const ROUND: Duration = Duration::from_secs(1);
/// The most names that are read again in a round though nothing is known to have changed. All recipes share them.
const READS: usize = 200;
/// The most bytes of what candidates or members say of themselves, in a row: each change of one is told with the whole row, to all who
/// follow it.
const SAID: usize = 64 * 1024;
/// How long changes of our own holds are collected.
const COALESCE: Duration = Duration::from_millis(50);

/// Keeps the rows up to date for as long as the service runs.
pub(crate) async fn run(service: Arc<Service>) {
    let mut rounds = Rounds::default();
    loop {
        if service.mirror.watchers() == 0 {
            // Nothing that a round reads from now on is to be found by who looks next.
            rounds = Rounds::default();
            if !service.mirror.watched().await {
                return;
            }
            // What was read when somebody looked last is old.
            Kind::ALL.into_iter().for_each(|kind| service.mirror.clear(kind));
            drop(service.holds.take_touched());
        }
        if let Ok(coordinator) = service.coordinator() {
            rounds.begin(&service, &coordinator);
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

/// Reads what this instance has changed, each recipe for itself. What the store is slow to tell of is left to the rounds.
async fn touched(service: &Arc<Service>) {
    let Ok(coordinator) = service.coordinator() else { return };
    let mut names = BTreeMap::<Kind, Vec<String>>::new();
    for (kind, name) in service.holds.take_touched() {
        names.entry(kind).or_default().push(name);
    }
    let mut looks = JoinSet::new();
    for (kind, names) in names.into_iter().filter(|(kind, _)| service.mirror.shows(*kind)) {
        let (service, coordinator) = (Arc::clone(service), coordinator.clone());
        looks.spawn(async move {
            for name in names {
                while let Ok(false) = touch(&service, &coordinator, kind, &name).await {}
            }
        });
    }
    let all = async { while looks.join_next().await.is_some() {} };
    drop(tokio::time::timeout(ROUND, all).await);
}

/// Reads a name of which something is known to have changed. False: its row was put there by a round meanwhile, perhaps from before that.
async fn touch(
    service: &Service,
    coordinator: &Coordinator,
    kind: Kind,
    name: &str,
) -> coordination::Result<bool> {
    let since = service.mirror.last();
    let entries = entries(service, coordinator, kind, name).await?;
    Ok(service.mirror.put_since(since, kind, name, &entries))
}

/// The rounds of each recipe that somebody looks at. One that the store is slow to tell of, or does not tell of, has none of the others wait for
/// it.
#[derive(Default)]
struct Rounds {
    /// Of each recipe; locked while a round of it is under way.
    cursors: BTreeMap<Kind, Arc<Mutex<Cursor>>>,
    under_way: JoinSet<()>,
}

/// How far the rounds of a recipe are.
#[derive(Default)]
struct Cursor {
    /// The name that was read last.
    last: String,
    /// Those that could not be read.
    failed: BTreeSet<String>,
    /// Those of which the store did not tell in time: a round ends with such a name, as the store may be away, so they are read last.
    slow: BTreeSet<String>,
}

impl Cursor {
    /// What is read of these names: those that have no row or could not be read, and of the others as many as may be, one round after
    /// the other. Those that are slow come last.
    fn next(
        &mut self,
        names: &BTreeSet<String>,
        known: &BTreeSet<String>,
        reads: usize,
    ) -> Vec<String> {
        self.failed.retain(|name| names.contains(name));
        self.slow.retain(|name| names.contains(name));
        let (old, first): (Vec<_>, Vec<_>) =
            names.iter().partition(|name| known.contains(*name) && !self.failed.contains(*name));
        let start = old.partition_point(|name| **name <= self.last);
        let again = old.iter().cycle().skip(start).take(reads.min(old.len())).copied();
        let mut next: Vec<_> = first.into_iter().chain(again).cloned().collect();
        if let Some(last) = next.last() {
            self.last.clone_from(last);
        }
        next.sort_by_key(|name| self.slow.contains(name));
        next
    }
}

impl Rounds {
    /// Begins a round of each recipe that somebody looks at, unless the last one is under way still.
    fn begin(&mut self, service: &Arc<Service>, coordinator: &Coordinator) {
        while self.under_way.try_join_next().is_some() {}
        let number = service.mirror.begin_round();
        let (shown, others) =
            Kind::ALL.into_iter().partition::<Vec<_>, _>(|kind| service.mirror.shows(*kind));
        others.into_iter().for_each(|kind| service.mirror.clear(kind));
        let counts: Vec<_> = shown.iter().map(|kind| service.mirror.row_count(*kind)).collect();
        let all = counts.iter().sum();
        for (kind, count) in shown.into_iter().zip(counts) {
            let cursor = Arc::clone(self.cursors.entry(kind).or_default());
            let Ok(mut cursor) = cursor.try_lock_owned() else { continue };
            let (service, coordinator) = (Arc::clone(service), coordinator.clone());
            let reads = share(count, all);
            self.under_way.spawn(async move {
                match round_of(&service, &coordinator, kind, &mut cursor, reads).await {
                    Ok(()) => service.mirror.completed(number, &[kind]),
                    Err(error) => failed(&service, number, kind, &error),
                }
            });
        }
    }
}

/// How many names of a recipe are read again in a round, which has so many of all: each row is as old as those of other recipes.
fn share(names: usize, of_all: usize) -> usize {
    (READS * names).div_ceil(of_all.max(1))
}

/// That the store is away is told as such. What else keeps a recipe from being read is told once.
fn failed(service: &Service, round: u64, kind: Kind, error: &coordination::Error) {
    let recipe = kind.text();
    tracing::debug!(recipe, %error, "the rows could not be read");
    if error.kind() == ErrorKind::Unavailable {
        service.mirror.over(round, &[kind]);
    } else if service.mirror.failed(round, kind) {
        tracing::warn!(recipe, %error, "not all that is held of a recipe can be read and shown");
    }
}

/// Lists the names and reads those whose turn it is. A name that cannot be read keeps no other one from being read.
async fn round_of(
    service: &Service,
    coordinator: &Coordinator,
    kind: Kind,
    cursor: &mut Cursor,
    reads: usize,
) -> coordination::Result<()> {
    let (since, before) = (service.mirror.last(), service.mirror.names(kind));
    let names: BTreeSet<_> = coordinator.in_use(kind.recipe()).await?.into_iter().collect();
    for name in before.difference(&names) {
        service.mirror.put_since(since, kind, name, &[]);
    }
    let mut unread = Ok(());
    for name in cursor.next(&names, &service.mirror.names(kind), reads) {
        let read = read(service, coordinator, kind, &name).await;
        cursor.slow.remove(&name);
        match read {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                cursor.slow.insert(name);
                return Err(error);
            }
            Err(error) => {
                cursor.failed.insert(name);
                unread = Err(error);
            }
            Ok(()) => {
                cursor.failed.remove(&name);
            }
        }
    }
    unread
}

async fn read(
    service: &Service,
    coordinator: &Coordinator,
    kind: Kind,
    name: &str,
) -> coordination::Result<()> {
    let since = service.mirror.last();
    let entries = entries(service, coordinator, kind, name).await?;
    if !service.mirror.has(kind, name, &entries) {
        service.mirror.put_since(since, kind, name, &entries);
    }
    Ok(())
}

/// None of a group that was deleted meanwhile.
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
        // Beside the slots that each has it is told of how many they are.
        Ok(mut entries)
            if matches!(kind, Kind::Semaphore | Kind::Limiter) && !entries.is_empty() =>
        {
            if let Some(of) = look::stored(coordinator, kind, name).await? {
                entries.iter_mut().for_each(|entry| entry["of"] = of.into());
            }
            Ok(entries)
        }
        Err(error) if error.kind() == ErrorKind::GroupMissing => Ok(Vec::new()),
        entries => entries,
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

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

    /// A row of a semaphore or a limiter says of how many its slots are, and is another one when that was changed.
    #[tokio::test]
    async fn a_row_says_of_how_many_slots_it_tells() {
        let (service, other) = instance(Cover::Any).await;
        let mut semaphore = other.semaphore("x", 3).expect("a name");
        let _permit = semaphore.acquire(None).await.expect("it is free");
        let limiter = other.limiter("x").expect("a name").slots(2);
        let _slot = limiter.enter().await.expect("memory answers");
        let coordinator = service.coordinator().expect("it is connected");
        for (kind, of) in [(Kind::Semaphore, 3), (Kind::Limiter, 2)] {
            let row = entries(&service, &coordinator, kind, "x").await.expect("memory answers");
            assert_eq!((row.len(), &row[0]["of"]), (1, &of.into()), "{kind:?}");
        }
        read(&service, &coordinator, Kind::Semaphore, "x").await.expect("memory answers");
        let before = service.mirror.last();
        semaphore.resize(5).await.expect("memory answers");
        read(&service, &coordinator, Kind::Semaphore, "x").await.expect("memory answers");
        assert!(service.mirror.last() > before, "it is told");
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

    /// Its client has gone when the store knows of the share, and who looks is told of it all the same.
    #[tokio::test]
    async fn a_share_is_told_though_its_client_has_gone() {
        let (service, other) = instance(Cover::Any).await;
        let mut granted = acquire(&service, wanted(0), None).await.expect("it is free");
        let hold = granted.hold().expect("it is here").clone();
        granted.deliver();
        drop(service.holds.take_touched());
        {
            let mut sharing = pin!(service.holds.share(&hold));
            let polled = poll_fn(|context| Poll::Ready(sharing.as_mut().poll(context)));
            assert!(polled.await.is_pending(), "the store is asked");
        }
        let told = async {
            while service.holds.take_touched().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(15 * ROUND, told).await.expect("it is told");
        let share = other.lock("x").expect("a name").try_acquire_shared().await;
        assert!(share.expect("memory answers").is_some(), "not before the store knows of it");
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
        // Nor is who looks at all of them kept waiting.
        let fresh = service.mirror.fresh(&Kind::ALL);
        tokio::time::timeout(15 * ROUND, fresh).await.expect("it is known what is not read");
        assert_eq!(service.mirror.unread(&Kind::ALL), locks);
    }

    /// As long as a name cannot be read its recipe is not taken for one of which all was read, however many names it has.
    #[test]
    fn a_name_that_could_not_be_read_is_read_in_each_round() {
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (names, known): (BTreeSet<_>, BTreeSet<_>) =
            (of(&["a", "b", "c", "new"]), of(&["a", "b", "c", "gone"]));
        let mut cursor = Cursor { failed: of(&["b", "gone"]), ..Cursor::default() };
        for last in ["a", "c", "a"] {
            assert_eq!(cursor.next(&names, &known, 1), ["b", "new", last]);
        }
        assert_eq!(cursor.next(&names, &known, 9), ["b", "new", "c", "a"]);
        cursor.failed.clear();
        assert_eq!(cursor.next(&names, &names, 2), ["b", "c"]);
    }

    /// Whoever looks at all recipes, as the page does, sees of a thousand locks what is at most five seconds old.
    #[test]
    fn of_a_thousand_names_each_is_read_again_within_five_rounds() {
        for counts in [[1_000, 0, 0, 0, 0], [996, 1, 1, 1, 1], [500, 499, 1, 0, 0], [200; 5]] {
            let all: usize = counts.iter().sum();
            let reads = counts.map(|count| share(count, all));
            assert!(reads.iter().sum::<usize>() <= READS + counts.len(), "{reads:?}");
            for (count, reads) in counts.into_iter().zip(reads) {
                assert!(count <= 5 * reads, "{reads} of {count} in a round");
            }
        }
        assert!(share(150, 180) >= 150, "few names are read in each round");
        assert_eq!(share(0, 0), 0);
    }

    /// A name of which the store never tells in time, as its queue is too long, keeps no other one from being read.
    #[test]
    fn names_that_are_slow_are_read_last() {
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (names, known): (BTreeSet<_>, BTreeSet<_>) =
            (of(&["a", "b", "c", "new"]), of(&["a", "b", "c"]));
        let mut cursor = Cursor { slow: of(&["b", "gone", "new"]), ..Cursor::default() };
        for _ in 0..2 {
            assert_eq!(cursor.next(&names, &known, 9), ["a", "c", "new", "b"]);
        }
        assert_eq!(cursor.slow, of(&["b", "new"]), "what is gone is forgotten");
    }

    /// While the store takes long to tell of one recipe, the others have their rounds.
    #[tokio::test]
    async fn a_recipe_that_is_slow_holds_up_no_other_one() {
        let (service, other) = instance(Cover::Any).await;
        let election = other.election("x").expect("a name");
        let _leads = election.campaign(&(), None).await.expect("nobody else is there");
        let kinds = [Kind::Lock, Kind::Election];
        let _watching = service.mirror.watching(1, &kinds).expect("nobody else looks");
        let mut rounds = Rounds::default();
        let slow = rounds.cursors.entry(Kind::Lock).or_default();
        let slow = Arc::clone(slow).try_lock_owned().expect("no round was begun");
        let coordinator = service.coordinator().expect("it is connected");
        for _ in 0..2 {
            let fresh = service.mirror.fresh(&[Kind::Election]);
            let (fresh, ()) = tokio::join!(tokio::time::timeout(15 * ROUND, fresh), async {
                rounds.begin(&service, &coordinator);
            });
            fresh.expect("it was read");
        }
        assert!(service.mirror.age(&[Kind::Lock]).is_none());
        drop(slow);
        rounds.begin(&service, &coordinator);
        service.mirror.fresh(&[Kind::Lock]).await;
    }
}
