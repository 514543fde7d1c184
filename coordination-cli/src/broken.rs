//! Marks of what `break` has taken away: its former holder may go on.
//!
//! A holder that hangs, or that the store does not reach, is not told that its grant was taken away, and its command runs until its
//! lease ends. So `break` marks the grant at the store before it takes it away. Whoever is granted the same afterwards finds the mark,
//! and waits before it starts its own command, until
//!
//! * the mark is gone: a wrapper that was told of its loss removes its mark when its command has ended, or
//! * the lease of the former holder is over, counted by the clock of who waits from the moment at which it found the mark. Then it
//!   removes the mark.
//!
//! All marks of a namespace are one value, which is deleted with the last mark, and read only where a command before may still run, or
//! where everybody waits in any case (`run/settling.rs`, `run/mod.rs`).
//!
//! Hosts' wall clocks are compared for one purpose: nobody waits for a mark that is older than its lease by far more than clocks differ.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coordination::{Coordinator, ErrorKind, FencingToken, SharedValue};
use serde::{Deserialize, Serialize};

type Result<T, E = coordination::Error> = std::result::Result<T, E>;

pub(crate) type Marks = SharedValue<Vec<Mark>>;

/// How long a command is waited for on one host: there is no lease that would end the command of a wrapper that stands still.
pub(crate) const STANDS_STILL: Duration = Duration::from_secs(5);
/// The longest time that a mark keeps anybody waiting, whatever it says: others can write to the store, too.
const LONGEST: Duration = Duration::from_secs(3_600);
/// By how much the hosts' wall clocks may differ.
const CLOCKS: Duration = Duration::from_secs(600);
/// How many marks are kept, and ([`MOST_BYTES`]) how long they are together: a store takes a value of 256 KiB.
const MOST: usize = 500;
const MOST_BYTES: usize = 128 * 1024;

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Granted {
    recipe: String,
    /// With the coordinator's prefix.
    name: String,
    token: u64,
}

impl Granted {
    pub(crate) fn new(recipe: &str, name: &str, token: FencingToken) -> Self {
        Self { recipe: recipe.to_owned(), name: name.to_owned(), token: token.value() }
    }

    pub(crate) fn recipe(&self) -> &str {
        &self.recipe
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Whether it is another grant of the same.
    fn is_beside(&self, other: &Self) -> bool {
        (&self.recipe, &self.name) == (&other.recipe, &other.name) && self.token != other.token
    }
}

/// How much a grant has of a lock, semaphore, singleton or election.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    /// All of it, or nobody knows.
    All,
    /// A lock, with others who share it.
    Shared,
    /// These of the slots.
    Slots(Vec<u32>),
}

impl Part {
    /// Whether both may be held at once.
    fn is_apart_from(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Shared, Self::Shared) => true,
            (Self::Slots(some), Self::Slots(others)) => {
                !some.iter().any(|slot| others.contains(slot))
            }
            _ => false,
        }
    }
}

/// A grant that was taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) granted: Granted,
    part: Part,
    /// Who took it away. Where two try at once, one of them does, and the other one is not to remove that one's mark.
    by: String,
    /// When it was marked, in seconds since 1970, by the clock of who took it away.
    at: u64,
    /// How long its holder may go on, in milliseconds.
    lease_ms: u64,
}

impl Mark {
    /// Of a grant that is about to be taken away by this member, and whose holder may go on for so long.
    pub(crate) fn new(granted: Granted, part: Part, by: &str, lease: Duration) -> Self {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        Self { granted, part, by: by.to_owned(), at: now(), lease_ms }
    }

    /// Whether no command may run under this other grant while that of the former holder goes on.
    pub(crate) fn keeps_out(&self, ours: &Granted, part: &Part) -> bool {
        self.granted.is_beside(ours) && !self.part.is_apart_from(part)
    }

    /// In bytes, as it is stored.
    fn length(&self) -> usize {
        serde_json::to_string(self).map_or(0, |text| text.len())
    }

    /// How long whoever finds it now, and has this lease itself, waits for it: the former holder may have had other settings than
    /// who took it away. Zero: it is long over.
    pub(crate) fn wait(&self, now: u64, lease: Option<Duration>) -> Duration {
        let marked = Duration::from_millis(self.lease_ms);
        let wait = marked.max(lease.unwrap_or_default()).min(LONGEST);
        let end = self.at.saturating_add((wait + CLOCKS).as_secs());
        if now > end { Duration::ZERO } else { wait }
    }
}

/// In seconds since 1970, by this host's clock.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

pub(crate) fn marks(coordinator: &Coordinator) -> Result<Marks> {
    coordinator.broken()
}

/// Reads the marks; what is none of ours there is ignored.
pub(crate) async fn read(marks: &Marks) -> Result<Vec<Mark>> {
    match marks.read().await {
        Ok(found) => Ok(found.map(|found| found.value).unwrap_or_default()),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Adds a mark.
pub(crate) async fn mark(marks: &Marks, mark: &Mark) -> Result<()> {
    let now = now();
    let add = |before: Option<Vec<Mark>>| with(before.unwrap_or_default(), mark.clone(), now);
    match marks.update(add).await {
        // What nobody can read is of no use to anybody.
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            marks.set(&vec![mark.clone()]).await.map(drop)
        }
        marked => marked.map(drop),
    }
}

/// Removes these marks, and no others, whoever else changes them meanwhile.
pub(crate) async fn unmark(marks: &Marks, is_meant: impl Fn(&Mark) -> bool) -> Result<()> {
    loop {
        let Some(found) = marks.read().await? else { return Ok(()) };
        let kept: Vec<_> = found.value.iter().filter(|mark| !is_meant(mark)).cloned().collect();
        if kept.len() == found.value.len() {
            return Ok(());
        }
        let is_done = match kept.is_empty() {
            true => marks.compare_and_delete(found.version).await?,
            false => marks.compare_and_set(Some(found.version), &kept).await?.is_some(),
        };
        if is_done {
            return Ok(());
        }
    }
}

/// Those that may still matter, the newest at the end.
fn with(mut all: Vec<Mark>, mark: Mark, now: u64) -> Vec<Mark> {
    all.retain(|old| !old.wait(now, None).is_zero() && *old != mark);
    all.push(mark);
    all.drain(..all.len().saturating_sub(MOST));
    let mut bytes = all.iter().map(Mark::length).sum::<usize>();
    while all.len() > 1 && bytes > MOST_BYTES {
        bytes -= all.remove(0).length();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn granted(name: &str, token: u64) -> Granted {
        Granted::new("lock", name, FencingToken::new(token).expect("not zero"))
    }

    fn marked(name: &str, token: u64) -> Mark {
        Mark::new(granted(name, token), Part::All, "operator", SECOND)
    }

    async fn store(name: &str) -> Marks {
        let coordinator = Coordinator::connect(&format!("memory://broken-{name}")).await;
        marks(&coordinator.expect("memory is there")).expect("a short name")
    }

    #[test]
    fn a_mark_is_waited_for_as_long_as_the_longer_lease_and_not_when_it_is_old() {
        let mark = Mark { at: 1_000, lease_ms: 10_000, ..marked("x", 7) };
        assert_eq!(mark.wait(1_000, None), 10 * SECOND);
        assert_eq!(mark.wait(1_000, Some(SECOND)), 10 * SECOND);
        assert_eq!(mark.wait(1_000, Some(30 * SECOND)), 30 * SECOND);
        // Hosts' clocks differ, into both directions.
        assert_eq!(mark.wait(1_300, None), 10 * SECOND);
        assert_eq!(mark.wait(700, None), 10 * SECOND);
        assert_eq!(mark.wait(1_611, None), Duration::ZERO);
        let endless = Mark { at: u64::MAX, lease_ms: u64::MAX, ..mark };
        assert_eq!(endless.wait(1_000, Some(Duration::MAX)), LONGEST);
    }

    #[test]
    fn marks_are_bounded_and_those_that_are_over_go() {
        let new = |name: &str, token| Mark { at: 1_000, ..marked(name, token) };
        let all = (1..=600).fold(Vec::new(), |all, token| with(all, new("x", token), 1_000));
        assert_eq!(all.len(), MOST);
        assert_eq!(all.last().map(|mark| mark.granted.token()), Some(600), "the newest stays");
        let later = Mark { at: 9_000, ..new("y", 1) };
        assert_eq!(with(all, later.clone(), 9_000), [later]);
        let long = "x".repeat(MOST_BYTES / 2 + 1);
        let all =
            [1, 2].into_iter().fold(Vec::new(), |all, token| with(all, new(&long, token), 1_000));
        assert_eq!(all, [new(&long, 2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_removes_a_mark_leaves_others_and_in_the_end_nothing() -> Result<()> {
        let marks = store("removes").await;
        let (one, other) = (marked("x", 1), marked("x", 2));
        for new in [&one, &other] {
            mark(&marks, new).await?;
        }
        unmark(&marks, |mark| *mark == one).await?;
        assert_eq!(read(&marks).await?, std::slice::from_ref(&other));
        unmark(&marks, |mark| *mark == one).await?;
        unmark(&marks, |mark| *mark == other).await?;
        assert!(marks.read().await?.is_none(), "the value is gone");
        unmark(&marks, |_| true).await
    }

    /// Only one of them has taken it away, and whoever follows waits by that one's mark.
    #[tokio::test(start_paused = true)]
    async fn of_two_who_take_the_same_away_each_removes_its_own_mark() -> Result<()> {
        let marks = store("two").await;
        let one = marked("x", 1);
        let other = Mark { by: "another".to_owned(), ..one.clone() };
        for new in [&one, &other] {
            mark(&marks, new).await?;
        }
        assert_eq!(read(&marks).await?, [one.clone(), other.clone()]);
        unmark(&marks, |mark| *mark == other).await?;
        assert_eq!(read(&marks).await?, [one]);
        Ok(())
    }

    #[test]
    fn who_may_hold_it_beside_the_former_holder_does_not_wait_for_that_one() {
        let keeps_out = |before: &Part, ours: &Part| {
            let mark = Mark { part: before.clone(), ..marked("x", 1) };
            assert!(
                !mark.keeps_out(&granted("x", 1), ours) && !mark.keeps_out(&granted("y", 2), ours)
            );
            mark.keeps_out(&granted("x", 2), ours)
        };
        let slots = |slots: &[u32]| Part::Slots(slots.to_vec());
        for part in [Part::Shared, slots(&[3])] {
            assert!(keeps_out(&Part::All, &part) && keeps_out(&part, &Part::All));
        }
        assert!(!keeps_out(&Part::Shared, &Part::Shared));
        assert!(keeps_out(&slots(&[0, 3]), &slots(&[3])));
        assert!(!keeps_out(&slots(&[0, 2]), &slots(&[3])));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_mark_is_ignored_and_makes_room_for_one() -> Result<()> {
        let coordinator = Coordinator::connect("memory://broken-foreign").await?;
        let (marks, foreign) = (marks(&coordinator)?, coordinator.broken::<serde_json::Value>()?);
        for text in [serde_json::json!(7), serde_json::json!([{ "granted": "x" }])] {
            foreign.set(&text).await?;
            assert!(read(&marks).await?.is_empty());
            let new = marked("x", 1);
            mark(&marks, &new).await?;
            assert_eq!(read(&marks).await?, [new]);
        }
        Ok(())
    }
}
