//! One lock or several, which a command holds all at once or not at all.

use std::time::{Duration, Instant};

use coordination::{
    Contender, Coordinator, Error, ErrorKind, Grant, Lock, LockGuard, LossReason, MultiGuard,
    MultiLock,
};

use crate::broken::STANDS_STILL;
use crate::exit::{self, Failure, Outcome};
use crate::note::Noted;

type Result<T, E = Error> = std::result::Result<T, E>;

/// From one question to the next where the store did not answer the first.
const AGAIN: Duration = Duration::from_millis(100);

/// Locks that are to be held, all alone or all shared.
pub(super) struct Locks {
    all: MultiLock,
    /// The same, each once, in the order of their names: that in which they are acquired.
    each: Vec<Lock>,
    /// Which of them was asked for first, second and so on.
    asked: Vec<usize>,
    shared: bool,
}

/// Locks that are held.
pub(crate) struct HeldLocks {
    guard: MultiGuard,
    asked: Vec<usize>,
    /// On one host: held until the command has ended, though a lock may be broken before.
    aftermaths: Vec<LockGuard>,
    /// On servers: what tells those who follow that the command may still run.
    notes: Vec<Noted>,
}

impl Locks {
    pub(super) fn new(
        names: &[String],
        shared: bool,
        label: &str,
        coordinator: &Coordinator,
    ) -> Result<Self> {
        let asked: Vec<_> =
            names.iter().map(|name| coordinator.lock(name)).collect::<Result<_>>()?;
        let all = coordinator.locks(names)?.label(label)?;
        let place = |lock: &Lock| all.names().position(|name| name == lock.name());
        let places = asked.iter().map(|lock| place(lock).unwrap_or_default()).collect();
        let mut each = asked;
        each.sort_by(|one, other| one.name().cmp(other.name()));
        each.dedup_by(|one, other| one.name() == other.name());
        Ok(Self { all, each, asked: places, shared })
    }

    pub(super) fn shared(&self) -> bool {
        self.shared
    }

    pub(super) fn each(&self) -> &[Lock] {
        &self.each
    }

    /// The one that was asked for first.
    pub(super) fn first(&self) -> &Lock {
        &self.each[self.asked.first().copied().unwrap_or_default()]
    }

    pub(super) fn shown(&self) -> String {
        let names: Vec<_> = self.each.iter().map(|lock| format!("{:?}", lock.name())).collect();
        format!("lock{} {}", if names.len() > 1 { "s" } else { "" }, names.join(", "))
    }

    /// `None`: not all were free at once, which was to be.
    pub(super) async fn acquire(&self, wait: Option<Duration>) -> Result<Option<HeldLocks>> {
        let guard = match (wait, self.shared) {
            (Some(Duration::ZERO), false) => self.all.try_acquire().await?,
            (Some(Duration::ZERO), true) => self.all.try_acquire_shared().await?,
            (_, false) => Some(self.all.acquire(wait).await?),
            (_, true) => Some(self.all.acquire_shared(wait).await?),
        };
        let (asked, aftermaths, notes) = (self.asked.clone(), Vec::new(), Vec::new());
        Ok(guard.map(|guard| HeldLocks { guard, asked, aftermaths, notes }))
    }

    /// Who holds the lock that we wait for, and who waits for it: the first one that we do not hold ourselves.
    pub(super) async fn contenders(&self, us: Option<&str>) -> Result<Vec<Contender>> {
        let mut contenders = Vec::new();
        for lock in &self.each {
            contenders = lock.holders().await?;
            let mut holders = contenders.iter().filter(|who| who.holding).peekable();
            if holders.peek().is_some() && holders.all(|who| Some(who.member.as_str()) != us) {
                break;
            }
        }
        Ok(contenders)
    }

    /// Waits until the commands have ended whose locks were broken, but not for one that cannot be ended: a wrapper is told within half a
    /// second, if it does not stand still. A store that refuses or does
    /// not answer for a moment is asked again; without its word the command does not run.
    pub(super) async fn follow(&self, held: &mut HeldLocks) -> Outcome {
        self.follow_for(held, STANDS_STILL).await
    }

    /// The same, but for this time at most of each lock, which the store has as well for each answer.
    async fn follow_for(&self, held: &mut HeldLocks, limit: Duration) -> Outcome {
        for lock in &self.each {
            let ended = held.guard.protect(self.ended(lock, limit)).await??;
            held.aftermaths.extend(ended);
        }
        Ok(())
    }

    /// `None`: somebody has not ended in time.
    async fn ended(&self, lock: &Lock, limit: Duration) -> Outcome<Option<LockGuard>> {
        let before = lock.aftermath()?;
        let is_in_the_way = |who: &Contender| !(self.shared && who.shared);
        let ended = async || match self.shared {
            false => before.acquire(Some(limit)).await,
            true => before.acquire_shared(Some(limit)).await,
        };
        // Those whom we wait for. Whoever comes later does not stand still for all we know.
        let there = patiently(limit, async || before.holders().await).await??;
        let mut outcome = patiently(limit, &ended).await?;
        if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout) {
            // They stand still; nobody is to wait for them again.
            for who in there.into_iter().filter(is_in_the_way) {
                patiently(limit, async || before.break_grant(who.token).await).await??;
            }
            outcome = patiently(limit, &ended).await?;
        }
        match outcome {
            Err(error) if error.kind() == ErrorKind::Timeout => Ok(None),
            outcome => Ok(Some(outcome?)),
        }
    }
}

impl HeldLocks {
    /// In the order in which they were asked for; one that was asked for twice is there twice.
    pub(super) fn grants(&self) -> Vec<&Grant> {
        let guards = self.guard.guards();
        self.asked.iter().filter_map(|place| guards.get(*place).map(|guard| &**guard)).collect()
    }

    /// In the order of names.
    pub(super) fn tokens(&self) -> Vec<u64> {
        self.guard.guards().iter().map(|guard| guard.token().value()).collect()
    }

    pub(super) fn is_shared(&self) -> bool {
        self.guard.guards().iter().all(LockGuard::is_shared)
    }

    /// The command is noted at the store.
    pub(super) fn noted(&mut self, notes: Vec<Noted>) {
        self.notes = notes;
    }

    /// No command runs under it any more, for certain: whoever follows need not wait.
    pub(super) async fn command_has_ended(&mut self) {
        for note in std::mem::take(&mut self.notes) {
            note.remove().await;
        }
    }

    pub(super) fn is_kept(&self) -> bool {
        self.guard.is_held() || self.aftermaths.iter().any(|guard| guard.is_held())
    }

    pub(super) async fn lost(&self) -> LossReason {
        self.guard.lost().await
    }

    pub(super) async fn protect<F: Future>(&self, work: F) -> Result<F::Output> {
        self.guard.protect(work).await
    }

    pub(super) async fn release(self) -> Result<()> {
        // First, so that the next one need not wait for them.
        drop(self.aftermaths);
        self.guard.release().await
    }
}

/// What the store answers, which is asked again for so long if it refuses, or cannot answer.
pub(super) async fn patiently<T>(
    limit: Duration,
    asked: impl AsyncFn() -> Result<T>,
) -> Outcome<Result<T>> {
    let until = Instant::now() + limit;
    let answer = async {
        loop {
            match asked().await {
                Err(error) if may_pass(&error) && Instant::now() < until => {
                    tokio::time::sleep(AGAIN).await;
                }
                answer => return answer,
            }
        }
    };
    // A call that was begun in time may take as long again.
    let silence = "the store does not say whether a command still runs whose lock was broken";
    let silent = |_| Failure::new(exit::UNAVAILABLE, silence);
    tokio::time::timeout(2 * limit + AGAIN, answer).await.map_err(silent)
}

fn may_pass(error: &Error) -> bool {
    use ErrorKind::{Closed, Collision, Corrupt, Lost, Timeout};
    !matches!(error.kind(), Closed | Collision | Corrupt | Lost | Timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None of them may keep another one waiting, and the next one finds who is followed by whom.
    #[tokio::test]
    async fn of_several_who_stand_still_each_is_waited_for_together() {
        let coordinator = Coordinator::connect("memory://").await.expect("memory is there");
        let lock = coordinator.lock("x").expect("a name");
        let before = lock.aftermath().expect("a name");
        let mut still = Vec::new();
        for _ in 0..3 {
            still.push(before.acquire_shared(None).await.expect("they share"));
        }
        for shared in [false, true] {
            let locks = Locks::new(&["x".to_owned()], shared, "", &coordinator).expect("a name");
            let held = locks.acquire(None).await.expect("memory answers");
            let mut held = held.expect("it is free");
            locks.follow_for(&mut held, Duration::from_millis(50)).await.expect("it is held");
            assert_eq!(held.aftermaths.len(), 1, "whoever follows waits for nobody");
        }
    }

    /// A store in a directory, with a lock `x` that is held, and whose aftermath's file is out of reach.
    async fn out_of_reach(
        shared: bool,
    ) -> (tempfile::TempDir, [std::path::PathBuf; 2], Locks, HeldLocks) {
        let directory = tempfile::tempdir().expect("there is room");
        let url = format!("file://{}/x", directory.path().display());
        let coordinator = Coordinator::connect(&url).await.expect("it is there");
        let lock = coordinator.lock("x").expect("a name");
        let before = lock.aftermath().expect("a name").acquire(None).await.expect("it is free");
        before.release().await.expect("it is there");
        let queues = directory.path().join("x/coordination/queues");
        let files = std::fs::read_dir(queues).expect("it is there");
        let mut paths = files.map(|file| file.expect("it is there").path());
        let is_meant = |path: &std::path::PathBuf| path.to_string_lossy().contains("aftermath");
        let path = paths.find(is_meant).expect("it was written");
        let taken = directory.path().join("taken");
        let locks = Locks::new(&["x".to_owned()], shared, "", &coordinator).expect("a name");
        let held = locks.acquire(None).await.expect("it is there").expect("it is free");
        std::fs::rename(&path, &taken).expect("there is room");
        std::fs::create_dir(&path).expect("there is room");
        (directory, [path, taken], locks, held)
    }

    /// The lock is ours, and the store cannot be read for a moment.
    #[tokio::test]
    async fn who_follows_asks_again_when_the_store_cannot_be_read_for_a_moment() {
        for shared in [false, true] {
            let (_directory, [path, taken], locks, mut held) = out_of_reach(shared).await;
            let mended = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                std::fs::remove_dir(&path).expect("it is empty");
                std::fs::rename(&taken, &path).expect("there is room");
            };
            let following = locks.follow_for(&mut held, Duration::from_secs(10));
            let (followed, ()) = tokio::join!(following, mended);
            followed.expect("it is there again");
            assert_eq!(held.aftermaths.len(), 1, "whoever comes next waits for nobody");
        }
    }

    /// Nobody knows then whether another command still runs.
    #[tokio::test]
    async fn who_follows_does_not_run_when_the_store_cannot_be_read() {
        let (_directory, _, locks, mut held) = out_of_reach(false).await;
        let begun = Instant::now();
        let limit = Duration::from_millis(200);
        let failure = locks.follow_for(&mut held, limit).await.expect_err("it is out of reach");
        assert_eq!(failure.code, exit::UNAVAILABLE);
        assert!(begun.elapsed() < 100 * limit, "after {:?}", begun.elapsed());
    }
}
