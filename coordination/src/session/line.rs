//! The entries of a session that wait in the same queue: only the first two of them ask the store.
//!
//! As long as an older entry of a queue is there, an exclusive one has to wait, whoever owns the entries between the two. So if the
//! older one is of the same session, and waits as well, the younger one needs neither a watch nor a re-check: its turn cannot come
//! before the older one has learned of something. It *rests* until only one entry of the session waits before it. A thousand tasks
//! that want one lock thus cost the store what two of them do.
//!
//! Nobody rests for longer than those two wait, also if entries are removed of which this process was not told. Let everything be
//! gone that a resting entry has to wait for, then the entries before those two are gone, too: their notifications come, or their
//! re-checks find it. They look for their own entries, have their turns or find that they are lost, and leave the line in either
//! case. The next two do the same at once, and so on: who has rested while an entry of the line was found to be lost looks for its own entry
//! before it waits. Redis and PostgreSQL tell of an entry that goes only those whose entries they have, and believe what they have said of it
//! for as long as its lease lasts. So each two would otherwise wait for a re-check of theirs.
//!
//! A shared entry never rests: an older one that waits may be gone while the entry that this one waited for is shared, too, and stays.

use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::watch;

use crate::canary::{Canary, sings};
use crate::key::QueueKey;

/// How many entries of a session ask the store in each queue. The second one does so that its watch has begun when its turn is near:
/// where each holds the lock for a moment only, a watch that began later would delay it.
const ASKING: usize = 2;

/// The entries of a session that wait, by their queues.
#[derive(Default)]
pub(crate) struct Line(Mutex<HashMap<QueueKey, Waiting>>);

/// The entries of a session that wait in one queue.
#[derive(Default)]
struct Waiting {
    /// By their numbers, each with whether it asks the store.
    entries: BTreeMap<u64, watch::Sender<bool>>,
    /// How many were found to be lost.
    lost: u64,
}

/// An entry that waits in its queue, until this is dropped.
pub(crate) struct InLine<'a> {
    line: &'a Line,
    queue: &'a QueueKey,
    seq: u64,
    asks: watch::Receiver<bool>,
    /// How many of the line were lost when this entry's own place was last seen.
    lost: u64,
}

impl Line {
    /// Notes that the entry with this number waits.
    pub(crate) fn join<'a>(&'a self, queue: &'a QueueKey, seq: u64) -> InLine<'a> {
        let mut queues = self.queues();
        let waiting = queues.entry(queue.clone()).or_default();
        let asks = waiting.entries.entry(seq).or_insert_with(|| watch::Sender::new(false));
        let (asks, lost) = (asks.subscribe(), waiting.lost);
        choose(waiting);
        InLine { line: self, queue, seq, asks, lost }
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<QueueKey, Waiting>> {
        // No user code runs under this mutex, so what it guards is consistent even if it is poisoned.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl InLine<'_> {
    /// Waits for what `begin` waits for, which asks the store. If this entry may rest, that is begun only when few of the session wait
    /// before it. It is dropped again if entries before it turn up later, because the answers to their requests have come later.
    ///
    /// `None`: other entries of the line were lost while this one rested, and it has to look for its own place first.
    pub(crate) async fn ask<T, C>(&mut self, may_rest: bool, begin: impl Fn() -> C) -> Option<T>
    where
        C: Future<Output = T>,
    {
        if !may_rest {
            return Some(begin().await);
        }
        loop {
            self.until(true).await;
            let lost = self.line.queues().get(self.queue).map_or(self.lost, |waiting| waiting.lost);
            if std::mem::replace(&mut self.lost, lost) != lost {
                return None;
            }
            tokio::select! {
                biased;
                outcome = begin() => return Some(outcome),
                () = self.until(false) => {}
            }
        }
    }

    /// Notes that this entry was lost, though its session lives: so may be those that rest behind it.
    pub(crate) fn lost(&self) {
        if let Some(waiting) = self.line.queues().get_mut(self.queue) {
            waiting.lost += 1;
        }
    }

    /// Resolves when this entry asks the store, or when it does not.
    async fn until(&mut self, asks: bool) {
        let is_told_no_more = self.asks.wait_for(|now| *now == asks).await.is_err();
        if is_told_no_more && !asks {
            // What was begun goes on, because nothing would tell when to begin again.
            pending().await
        }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        if sings(Canary::NextInLineNotTold) {
            return;
        }
        let mut queues = self.line.queues();
        let Some(waiting) = queues.get_mut(self.queue) else { return };
        waiting.entries.remove(&self.seq);
        if waiting.entries.is_empty() {
            queues.remove(self.queue);
        } else {
            choose(waiting);
        }
    }
}

/// Tells the first entries that they ask the store. It is called after each change, so of those behind them only the next one may
/// have asked before.
fn choose(waiting: &Waiting) {
    for (place, asks) in waiting.entries.values().take(ASKING + 1).enumerate() {
        let is_among_them = place < ASKING;
        asks.send_if_modified(|asks| std::mem::replace(asks, is_among_them) != is_among_them);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str) -> QueueKey {
        QueueKey::new("lock", name, 10).expect("a valid name")
    }

    fn asking(all: &[&InLine<'_>]) -> Vec<u64> {
        all.iter().filter(|one| *one.asks.borrow()).map(|one| one.seq).collect()
    }

    #[test]
    fn the_first_two_of_each_queue_ask() {
        let (line, a, b) = (Line::default(), queue("a"), queue("b"));
        let [first, second, third, fourth] = [1, 2, 3, 4].map(|seq| line.join(&a, seq));
        let other = line.join(&b, 5);
        assert_eq!(asking(&[&first, &second, &third, &fourth, &other]), [1, 2, 5]);
        drop(second);
        assert_eq!(asking(&[&first, &third, &fourth]), [1, 3]);
        drop(fourth);
        drop(first);
        assert_eq!(asking(&[&third]), [3]);
        drop((third, other));
        assert!(line.queues().is_empty(), "nothing is kept of what nobody waits for");
    }

    /// The answers to requests may come in another order than the entries have in their queue.
    #[test]
    fn who_comes_late_asks_in_place_of_those_behind_it() {
        let (line, a) = (Line::default(), queue("a"));
        let all = [7, 5, 9, 3, 1].map(|seq| line.join(&a, seq));
        assert_eq!(asking(&all.each_ref()), [3, 1]);
    }

    #[tokio::test]
    async fn who_rests_begins_when_few_are_before_it_and_stops_when_there_are_more() {
        let (line, a) = (Line::default(), queue("a"));
        let [second, third] = [2, 3].map(|seq| line.join(&a, seq));
        let mut fourth = line.join(&a, 4);
        let (begun, mut tells) = tokio::sync::mpsc::unbounded_channel();
        let ask = fourth.ask(true, || {
            begun.send(()).expect("somebody listens");
            pending::<()>()
        });
        tokio::pin!(ask);
        let mut step = async || {
            tokio::select! {
                biased;
                _ = &mut ask => panic!("what it waits for never comes"),
                () = tokio::task::yield_now() => {}
            }
        };
        step().await;
        assert!(tells.try_recv().is_err(), "two of the session wait before it");
        drop(third);
        step().await;
        assert!(tells.try_recv().is_ok());
        let first = line.join(&a, 1);
        step().await;
        drop(first);
        step().await;
        assert!(tells.try_recv().is_ok(), "it has begun anew");
        assert!(tells.try_recv().is_err());
        drop(second);
    }

    #[tokio::test]
    async fn who_may_not_rest_asks_at_once() {
        let (line, a) = (Line::default(), queue("a"));
        let _before = [1, 2].map(|seq| line.join(&a, seq));
        assert_eq!(line.join(&a, 3).ask(false, || async { 7 }).await, Some(7));
    }

    /// What it knows of the entry before it may be as old as its own.
    #[tokio::test]
    async fn who_has_rested_while_a_place_was_lost_looks_for_its_own_first() {
        let (line, a) = (Line::default(), queue("a"));
        let [first, second] = [1, 2].map(|seq| line.join(&a, seq));
        let mut third = line.join(&a, 3);
        first.lost();
        drop((first, second));
        let mut looks = async || {
            tokio::select! {
                biased;
                outcome = third.ask(true, pending::<()>) => outcome.is_none(),
                () = tokio::task::yield_now() => false,
            }
        };
        assert!(looks().await, "its own may be lost as well");
        assert!(!looks().await, "it has looked");
    }
}
