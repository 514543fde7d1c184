//! The wait for a command before, whose wrapper may be told only now that its lock was taken away: none where it has ended for
//! certain. See [`note`](crate::note).

use std::time::Duration;

use coordination::{Lock, SharedValue, Version};

use super::former::{Former, sleep_out};
use super::locks::{HeldLocks, Locks, patiently};
use crate::exit::{self, Failure, Outcome};
use crate::note::{Note, Noted};

/// How long a store has for each answer before the command starts.
const PATIENCE: Duration = Duration::from_secs(5);

/// What became of the attempt to write a note.
enum Attempt {
    Written(Option<Noted>),
    /// A command may still run of which there is this note, in this version.
    After(Version),
}

/// Notes a command for each of the locks, and waits for so long if one before may still run, or if it must. If one may still run, it waits
/// for the end of one whose lock was broken, too; `None`: it does not want to.
pub(super) async fn settle(
    locks: &Locks,
    held: &mut HeldLocks,
    length: Duration,
    must: bool,
    former: Option<&Former>,
) -> Outcome {
    let drafts = locks.each().iter().zip(held.tokens());
    let drafts = drafts.map(|(lock, token)| draft(lock, token, locks.shared()));
    let (mut left, mut noted) = (drafts.collect::<Outcome<Vec<_>>>()?, Vec::new());
    let (mut must, mut was_hasty) = (must, false);
    loop {
        let mut after = Vec::new();
        for (draft, waited_for) in left {
            match held.protect(draft.attempt(waited_for)).await?? {
                Attempt::Written(note) => noted.extend(note),
                Attempt::After(version) => after.push((draft, Some(version))),
            }
        }
        if after.is_empty() && !must {
            // If we did not wait, a command before may go on when ours has ended: then our note stays in place of its note.
            held.noted(if was_hasty { Vec::new() } else { noted });
            return Ok(());
        }
        was_hasty |= !after.is_empty() && former.is_none();
        must = false;
        let former = former.filter(|_| !after.is_empty());
        held.protect(sleep_out(length, former)).await??;
        left = after;
    }
}

fn draft(lock: &Lock, token: u64, shared: bool) -> Outcome<(Draft, Option<Version>)> {
    let note = if shared { Note::Shared } else { Note::Alone(token) };
    Ok((Draft { value: lock.command()?, token, note }, None))
}

/// A note that is to be written.
struct Draft {
    value: SharedValue<Note>,
    token: u64,
    note: Note,
}

impl Draft {
    /// Writes it where there is none, or in the place of the one that was waited for.
    async fn attempt(&self, waited_for: Option<Version>) -> Outcome<Attempt> {
        let mut expected = waited_for;
        loop {
            let write = async || self.value.compare_and_set(expected, &self.note).await;
            if let Some(version) = patiently(PATIENCE, write).await?? {
                return Ok(Attempt::Written(self.noted(version)));
            }
            let found = patiently(PATIENCE, async || self.value.read().await).await??;
            let Some(found) = found else {
                // Removed meanwhile: that one has ended.
                expected = None;
                continue;
            };
            return match (found.value, self.note) {
                // The answer to our own was lost.
                (now, note @ Note::Alone(_)) if now == note => {
                    Ok(Attempt::Written(self.noted(found.version)))
                }
                (Note::Shared, Note::Shared) => Ok(Attempt::Written(None)),
                (Note::Alone(token), _) if token > self.token => {
                    Err(Failure::new(exit::LOST, "the lock was lost before the command started"))
                }
                _ => Ok(Attempt::After(found.version)),
            };
        }
    }

    fn noted(&self, version: Version) -> Option<Noted> {
        (self.note != Note::Shared).then(|| Noted::new(self.value.clone(), version))
    }
}

#[cfg(test)]
mod tests {
    use coordination::{Coordinator, FencingToken};
    use tokio::time::{Instant, sleep};

    use super::super::former::tell_end;
    use super::*;
    use crate::broken::{self, Granted, Mark, Part};

    const LONG: Duration = Duration::from_secs(3600);
    /// How long one waits who follows, and the lease of one whose lock is broken.
    const SETTLING: Duration = Duration::from_secs(1);
    const LEASE: Duration = Duration::from_secs(60);

    async fn store(name: &str) -> Coordinator {
        Coordinator::connect(&format!("memory://settling-{name}")).await.expect("memory is there")
    }

    /// Locks that are held, and how long it took until a command could start.
    async fn taken(
        coordinator: &Coordinator,
        names: &[&str],
        shared: bool,
    ) -> (HeldLocks, Duration) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let locks = Locks::new(&names, shared, "", coordinator).expect("names");
        let held = locks.acquire(None).await.expect("memory answers");
        let mut held = held.expect("nobody is in the way");
        let former = former(coordinator, &locks, &held);
        let begun = Instant::now();
        settled(&locks, &mut held, LONG, false, Some(&former)).await;
        (held, begun.elapsed())
    }

    async fn settled(
        locks: &Locks,
        held: &mut HeldLocks,
        length: Duration,
        must: bool,
        former: Option<&Former>,
    ) {
        let settled = settle(locks, held, length, must, former).await;
        settled.map_err(|failure| failure.code).expect("held");
    }

    fn former(coordinator: &Coordinator, locks: &Locks, held: &HeldLocks) -> Former {
        let former = Former::new(coordinator, granted(locks, held), Part::All, None, true);
        former.map_err(|failure| failure.code).expect("a name")
    }

    fn granted(locks: &Locks, held: &HeldLocks) -> Vec<Granted> {
        let each = locks.each().iter().zip(held.tokens());
        let granted = |(lock, token): (&Lock, u64)| {
            Granted::new("lock", lock.name(), FencingToken::new(token).expect("not zero"))
        };
        each.map(granted).collect()
    }

    /// One who holds `x`, and whose lock is broken as by `break`, and one who follows: both with what they hold.
    async fn broken_and_next(
        store: &Coordinator,
    ) -> ((HeldLocks, Vec<Granted>), (Locks, HeldLocks)) {
        let locks = Locks::new(&["x".to_owned()], false, "", store).expect("a name");
        let (lost, _) = taken(store, &["x"], false).await;
        let before = granted(&locks, &lost);
        let marks = broken::marks(store).expect("a name");
        for granted in &before {
            let mark = Mark::new(granted.clone(), Part::All, "operator", LEASE);
            broken::mark(&marks, &mark).await.expect("memory answers");
        }
        store.lock("x").expect("a name").break_lock().await.expect("memory answers");
        let next = locks.acquire(None).await.expect("memory answers").expect("it is free");
        ((lost, before), (locks, next))
    }

    async fn is_marked(store: &Coordinator) -> bool {
        let marks = broken::marks(store).expect("a name");
        !broken::read(&marks).await.expect("memory answers").is_empty()
    }

    async fn ends_well(mut held: HeldLocks) {
        held.command_has_ended().await;
        held.release().await.expect("memory answers");
    }

    async fn note(coordinator: &Coordinator, name: &str) -> Option<Note> {
        let value = coordinator.lock(name).expect("a name").command().expect("a name");
        value.read().await.expect("memory answers").map(|note| note.value)
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_command_that_has_ended_well_nobody_waits() {
        let store = store("well").await;
        for _ in 0..3 {
            let (held, waited) = taken(&store, &["x"], false).await;
            assert!(waited < LONG, "{waited:?}");
            assert!(matches!(note(&store, "x").await, Some(Note::Alone(_))), "it may run");
            ends_well(held).await;
            assert_eq!(note(&store, "x").await, None, "nothing is left");
        }
    }

    /// Whatever the reason: killed, broken, lost, or the store did not answer in the end. The note is that of whom it was.
    #[tokio::test(start_paused = true)]
    async fn after_any_other_end_the_next_one_waits_once() {
        let store = store("otherwise").await;
        for names in [&["x"][..], &["x", "y"], &["x", "z", "y"]] {
            let (held, _) = taken(&store, &["x"], false).await;
            // It is granted to the next one, and nobody has told that the command has ended.
            held.release().await.expect("memory answers");
            let (held, waited) = taken(&store, names, false).await;
            assert!(waited >= LONG, "{waited:?}");
            ends_well(held).await;
            let (held, waited) = taken(&store, names, false).await;
            assert!(waited < LONG, "{waited:?}");
            ends_well(held).await;
        }
    }

    /// Nobody has told it, and it can tell nobody.
    #[tokio::test(start_paused = true)]
    async fn after_a_break_the_next_one_waits_for_the_lease_and_only_once() {
        let store = store("lease").await;
        let ((_lost, _), (locks, mut next)) = broken_and_next(&store).await;
        let (former, begun) = (former(&store, &locks, &next), Instant::now());
        settled(&locks, &mut next, SETTLING, false, Some(&former)).await;
        let waited = begun.elapsed();
        assert!(waited >= LEASE && waited < 2 * LEASE, "{waited:?}");
        assert!(!is_marked(&store).await, "it is of no use any more");
        // It is killed: of that the next one knows as before.
        next.release().await.expect("memory answers");
        let mut next = locks.acquire(None).await.expect("memory answers").expect("it is free");
        let (former, begun) = (self::former(&store, &locks, &next), Instant::now());
        settled(&locks, &mut next, SETTLING, false, Some(&former)).await;
        let waited = begun.elapsed();
        assert!(waited >= SETTLING && waited < LEASE, "{waited:?}");
    }

    /// The wrapper is told of its loss later, and ends its command.
    #[tokio::test(start_paused = true)]
    async fn after_a_break_the_next_one_starts_when_the_command_before_has_ended() {
        let store = store("ended").await;
        let ((mut lost, before), (locks, mut next)) = broken_and_next(&store).await;
        let former = former(&store, &locks, &next);
        let (begun, after) = (Instant::now(), LEASE / 4);
        let end = async {
            sleep(after).await;
            lost.command_has_ended().await;
            tell_end(&store, &before).await;
        };
        tokio::join!(settled(&locks, &mut next, SETTLING, false, Some(&former)), end);
        let waited = begun.elapsed();
        assert!(waited >= after && waited < LEASE / 2, "{waited:?}");
        assert!(!is_marked(&store).await);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_break_one_who_does_not_want_to_wait_leaves_that_to_those_who_follow() {
        let store = store("hasty").await;
        let ((_lost, _), (locks, mut next)) = broken_and_next(&store).await;
        let begun = Instant::now();
        settled(&locks, &mut next, Duration::ZERO, true, None).await;
        assert!(begun.elapsed() < LEASE, "{:?}", begun.elapsed());
        ends_well(next).await;
        let mut next = locks.acquire(None).await.expect("memory answers").expect("it is free");
        let (former, begun) = (former(&store, &locks, &next), Instant::now());
        settled(&locks, &mut next, SETTLING, false, Some(&former)).await;
        assert!(begun.elapsed() >= LEASE, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_break_of_another_lock_is_not_waited_for() {
        let store = store("another").await;
        let marks = broken::marks(&store).expect("a name");
        let token = FencingToken::new(7).expect("not zero");
        for (recipe, name) in [("lock", "y"), ("election", "x")] {
            let granted = Granted::new(recipe, name, token);
            let mark = Mark::new(granted, Part::All, "operator", LEASE);
            broken::mark(&marks, &mark).await.expect("memory answers");
        }
        let locks = Locks::new(&["x".to_owned()], false, "", &store).expect("a name");
        let held = locks.acquire(None).await.expect("memory answers").expect("it is free");
        let (former, begun) = (former(&store, &locks, &held), Instant::now());
        former.wait().await.map_err(|failure| failure.code).expect("memory answers");
        assert!(begun.elapsed() < LEASE, "{:?}", begun.elapsed());
        assert!(is_marked(&store).await, "they are others'");
    }

    /// Its end is told late: that is no word about the next one's command.
    #[tokio::test(start_paused = true)]
    async fn one_who_has_lost_the_lock_removes_nobody_elses_note() {
        let store = store("late").await;
        let (mut lost, _) = taken(&store, &["x"], false).await;
        store.lock("x").expect("a name").break_lock().await.expect("memory answers");
        let (held, waited) = taken(&store, &["x"], false).await;
        assert!(waited >= LONG, "{waited:?}");
        let noted = note(&store, "x").await;
        lost.command_has_ended().await;
        assert_eq!(note(&store, "x").await, noted);
        ends_well(held).await;
    }

    /// One who was about to note his command when he lost the lock, and notes it when the next one has come.
    #[tokio::test(start_paused = true)]
    async fn one_who_comes_too_late_with_his_note_does_not_start() {
        let store = store("too-late").await;
        let locks = Locks::new(&["x".to_owned()], false, "", &store).expect("a name");
        let late = locks.acquire(None).await.expect("memory answers").expect("it is free");
        let token = late.tokens()[0];
        store.lock("x").expect("a name").break_lock().await.expect("memory answers");
        let (held, _) = taken(&store, &["x"], false).await;
        let draft = draft(&locks.each()[0], token, false)
            .map_err(|failure| failure.code)
            .expect("a name")
            .0;
        let failure = draft.attempt(None).await.err().expect("it is another's");
        assert_eq!(failure.code, exit::LOST);
        ends_well(held).await;
        // And where there is no other any more, the next one waits.
        assert!(matches!(draft.attempt(None).await, Ok(Attempt::Written(Some(_)))));
        let (held, waited) = taken(&store, &["x"], false).await;
        assert!(waited >= LONG, "{waited:?}");
        ends_well(held).await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_shares_waits_for_nobody_who_shares_and_who_is_alone_for_all() {
        let store = store("shares").await;
        let (one, waited) = taken(&store, &["x"], true).await;
        assert!(waited < LONG, "{waited:?}");
        let (other, waited) = taken(&store, &["x"], true).await;
        assert!(waited < LONG, "{waited:?}");
        ends_well(one).await;
        ends_well(other).await;
        let (alone, waited) = taken(&store, &["x"], false).await;
        assert!(waited >= LONG, "{waited:?}");
        alone.release().await.expect("memory answers");
        let (shares, waited) = taken(&store, &["x"], true).await;
        assert!(waited >= LONG, "{waited:?}");
        ends_well(shares).await;
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_asks_for_it_waits_in_any_case() {
        let store = store("must").await;
        let locks = Locks::new(&["x".to_owned()], false, "", &store).expect("a name");
        let mut held = locks.acquire(None).await.expect("memory answers").expect("it is free");
        let begun = Instant::now();
        let former = former(&store, &locks, &held);
        settled(&locks, &mut held, LONG, true, Some(&former)).await;
        assert!(begun.elapsed() >= LONG);
        assert!(matches!(note(&store, "x").await, Some(Note::Alone(_))));
    }
}
