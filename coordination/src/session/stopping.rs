//! The end of a coordinator in two steps: first nothing new is given out and what is held may be finished, then the session ends.

use std::sync::Arc;
use std::time::Duration;

use super::drain::{CutOff, Purpose};
use super::{Phase, Session};
use crate::backend::SessionId;
use crate::error::{Error, Result};

/// How often the stop looks whether what is held beside entries was lost by itself.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Session {
    /// Fails if nothing more is given out for this purpose.
    pub(crate) fn admit(&self, operation: &'static str, purpose: Purpose) -> Result<()> {
        self.drain.admit(operation, purpose)
    }

    /// Resolves with the error when nothing more is given out for this purpose.
    pub(crate) async fn refuses(&self, operation: &'static str, purpose: Purpose) -> Error {
        self.drain.refuses(operation, purpose).await
    }

    /// From here on nothing more is given out.
    pub(crate) fn refuse(&self) {
        self.drain.begin();
    }

    /// Waits until nothing more is given out, or until the session is closed for good.
    pub(crate) async fn stopping(&self) {
        let mut phase = self.phase.subscribe();
        tokio::select! {
            biased;
            _ = phase.wait_for(|phase| matches!(phase, Phase::Closed(_))) => {}
            () = self.drain.begun() => {}
        }
    }

    /// How many grants of this session somebody works under, and what else is held.
    pub(crate) fn count_held(&self) -> usize {
        let Some(lease) = self.lease_now() else { return 0 };
        lease.worked_under().len() + self.drain.beside().of(lease.id).count()
    }

    /// Waits until nothing is held that a stop waits for, or until the session is closed.
    pub(crate) async fn drained(&self) {
        let mut phase = self.phase.subscribe();
        let closed = phase.wait_for(|phase| matches!(phase, Phase::Closed(_)));
        tokio::select! {
            biased;
            _ = closed => {}
            () = self.nothing_held() => {}
        }
    }

    async fn nothing_held(&self) {
        loop {
            let ended = self.drain.ended.notified();
            tokio::pin!(ended);
            // Listens before it looks, so that an end between the two is not missed.
            ended.as_mut().enable();
            let lease = self.lease_now();
            if let Some(hold) = lease.as_ref().and_then(|lease| lease.any_work()) {
                hold.wait_over().await;
                continue;
            }
            let is_released = self.drain.is_released();
            match lease {
                Some(lease)
                    if !is_released || self.drain.beside().of(lease.id).next().is_some() =>
                {
                    tokio::select! {
                        biased;
                        () = ended => {}
                        _ = lease.ended() => {}
                        // Nobody is told that a claim's time is over.
                        () = tokio::time::sleep(LOOK_AGAIN) => {}
                    }
                }
                None if !is_released => ended.await,
                _ => return,
            }
        }
    }

    /// Notes what is held at the end: of entries, and of all else. `None`: the session was lost before, and all that was held.
    pub(super) fn note_cut_off(&self, of: SessionId, held: Option<Vec<CutOff>>) {
        let all = held.map(|mut held| {
            held.extend(self.drain.beside().of(of).cloned());
            held.sort_by_key(|held| held.token);
            held
        });
        let _ = self.drain.cut_off.set(all.unwrap_or_default());
    }

    /// What was held when the session was closed.
    pub(crate) fn cut_off(&self) -> Vec<CutOff> {
        self.drain.cut_off.get().cloned().unwrap_or_default()
    }

    /// Notes something that a stop waits for, as a release that the store has not confirmed; until what this returns is dropped.
    pub(crate) fn finishing(self: &Arc<Self>) -> Finishing {
        self.drain.finishes();
        Finishing(Arc::clone(self))
    }

    /// Notes something that is held beside entries, and ends with this session; until what it returns is dropped.
    ///
    /// `is_over` says whether it was lost by itself: nothing tells of that.
    pub(crate) fn hold_beside(
        self: &Arc<Self>,
        of: SessionId,
        held: CutOff,
        is_over: impl Fn() -> bool + Send + 'static,
    ) -> HeldBeside {
        let number = self.drain.beside().add(of, held, Box::new(is_over));
        HeldBeside { session: Arc::clone(self), number }
    }
}

/// See [`Session::hold_beside`].
pub(crate) struct HeldBeside {
    session: Arc<Session>,
    number: u64,
}

/// See [`Session::finishing`].
pub(crate) struct Finishing(Arc<Session>);

impl Drop for Finishing {
    fn drop(&mut self) {
        self.0.drain.has_finished(|| self.0.is_own_process());
    }
}

impl Drop for HeldBeside {
    fn drop(&mut self) {
        // In a forked child a thread of the parent may have locked the mutex for ever.
        if self.session.is_own_process() {
            self.session.drain.beside().remove(self.number);
            self.session.drain.ended();
        }
    }
}

#[cfg(all(test, coordination_internals, feature = "memory"))]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    use tokio::runtime::Runtime;
    use tokio::time::{Instant, sleep};

    use crate::simulation::{Clocks, Link, Run, Traits, World};
    use crate::{ClaimOptions, Config, Coordinator, Effect, ErrorKind, Lock, LossReason, NewItem};

    const TTL: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3_600);

    fn world(seed: u64) -> World {
        World::new(seed, Traits::SERVER)
    }

    fn config() -> Config {
        Config { ttl: Some(TTL), ..Config::default() }
    }

    fn lock(coordinator: &Coordinator, name: &str) -> Lock {
        coordinator.lock(name).expect("a good name")
    }

    /// Whatever is on its way when the stop begins, requests or replies: nobody who was given a lock has lost it.
    #[tokio::test(start_paused = true)]
    async fn whoever_was_let_in_is_waited_for() {
        for seed in 0..60 {
            let _run = Run::begin(seed);
            let client = world(seed).client(Clocks::default());
            let coordinator = client.connect(config()).await.expect("the store is there");
            let busy: Vec<_> = (0..3)
                .map(|nth| {
                    let lock = lock(&coordinator, ["a", "b", "b"][nth]);
                    client.spawn(async move {
                        loop {
                            let guard = match lock.acquire(None).await {
                                Ok(guard) => guard,
                                Err(error) => return error,
                            };
                            sleep(Duration::from_millis(3)).await;
                            assert!(guard.is_held());
                            guard.release().await.expect("it is confirmed");
                        }
                    })
                })
                .collect();
            sleep(Duration::from_millis(seed)).await;
            let stopped = coordinator.stop_within(HOUR).await;
            assert!(stopped.cut_off.is_empty(), "{seed}: {:?}", stopped.cut_off);
            stopped.confirmed.expect("the store is there");
            for busy in busy {
                let refused = busy.await.expect("no panic");
                assert_eq!(refused.kind(), ErrorKind::Closed, "{seed}: {refused}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_has_all_the_time_given_and_no_more() {
        let _run = Run::begin(1);
        let world = world(1);
        let (one, other) = (world.client(Clocks::default()), world.client(Clocks::default()));
        let coordinator = one.connect(config()).await.expect("the store is there");
        let theirs = other.connect(config()).await.expect("the store is there");
        let guard = lock(&coordinator, "a").acquire(None).await.expect("free");
        let begun = Instant::now();
        let look = async {
            sleep(HOUR - TTL).await;
            assert!(guard.is_held(), "heartbeats go on");
        };
        let (stopped, ()) = tokio::join!(coordinator.stop_within(HOUR), look);
        assert!(begun.elapsed() >= HOUR && begun.elapsed() <= HOUR + 2 * TTL);
        assert_eq!((stopped.cut_off.len(), stopped.cut_off[0].token), (1, guard.token()));
        stopped.confirmed.expect("the store is there");
        let next = lock(&theirs, "a").acquire(Some(TTL)).await.expect("it is free");
        assert!(next.token() > guard.token() && !guard.is_held());
    }

    /// What the store has taken away is not waited for.
    #[tokio::test(start_paused = true)]
    async fn a_session_that_is_lost_meanwhile_ends_the_wait() {
        let _run = Run::begin(1);
        let client = world(1).client(Clocks::default());
        let coordinator = client.connect(config()).await.expect("the store is there");
        let guard = lock(&coordinator, "a").acquire(None).await.expect("free");
        client.set_link(Link { replies_cut: true, ..Link::default() });
        let begun = Instant::now();
        let stopped = coordinator.stop_within(HOUR).await;
        assert!(begun.elapsed() <= 4 * TTL, "{:?}", begun.elapsed());
        assert!(!guard.is_held() && stopped.cut_off.is_empty());
        let error = stopped.confirmed.expect_err("nothing is heard");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }

    /// The runtime of the session ends while the stop waits, and the session with it.
    #[test]
    fn x1_a_stop_that_ends_with_its_runtime_is_in_doubt() {
        let [of_session, of_caller] = [(); 2].map(|()| Runtime::new().expect("a runtime"));
        let connecting = Coordinator::connect("memory://stop-ended");
        let coordinator = of_session.block_on(connecting).expect("it is in memory");
        let _held = of_session.block_on(lock(&coordinator, "a").acquire(None)).expect("free");
        let stopped = of_caller.block_on(async {
            let mut stopping = pin!(coordinator.stop_within(HOUR));
            let begun = poll_fn(|context| Poll::Ready(stopping.as_mut().poll(context)));
            assert!(begun.await.is_pending(), "it waits for the lock");
            of_session.shutdown_background();
            stopping.await
        });
        let error = stopped.confirmed.expect_err("nobody has confirmed it");
        assert_eq!(error.loss_reason(), Some(LossReason::RuntimeEnded));
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
    }

    /// Nobody is told when the time of a claim is over.
    #[tokio::test(start_paused = true)]
    async fn a_claim_whose_time_is_over_is_not_waited_for() {
        let _run = Run::begin(1);
        let client = world(1).client(Clocks::default());
        let coordinator = client.connect(config()).await.expect("the store is there");
        let jobs = coordinator.queue("jobs").expect("a good name");
        jobs.post(&[NewItem::new("a"), NewItem::new("b")]).await.expect("the store is there");
        let options = ClaimOptions::default().limit(1);
        let over = jobs.claim(options.clone().ttl(TTL)).await.expect("the store is there");
        assert!(over.is_some());
        sleep(2 * TTL).await;
        assert_eq!(coordinator.held(), 0);
        // One more, whose time is over while the stop waits.
        let last = jobs.claim(options.ttl(3 * TTL)).await.expect("the store is there");
        assert_eq!(coordinator.held(), 1);
        let begun = Instant::now();
        let stopped = coordinator.stop_within(HOUR).await;
        assert!(begun.elapsed() < 10 * TTL, "{:?}", begun.elapsed());
        assert_eq!(stopped.cut_off, []);
        drop((over, last));
    }

    /// Whatever is on its way when the stop begins: nobody got the item, and that it was nearly claimed does not count.
    #[tokio::test(start_paused = true)]
    async fn a_claim_that_a_stop_refuses_is_taken_back() {
        for seed in 0..60 {
            let _run = Run::begin(seed);
            let world = world(seed);
            let (one, other) = (world.client(Clocks::default()), world.client(Clocks::default()));
            let coordinator = one.connect(config()).await.expect("the store is there");
            let theirs = other.connect(config()).await.expect("the store is there");
            let jobs = coordinator.queue("jobs").expect("a good name");
            let dead = coordinator.queue("dead").expect("a good name");
            jobs.set_dead_letters(1, &dead, None).await.expect("the store is there");
            jobs.post(&[NewItem::new("a")]).await.expect("the store is there");
            let claiming = one.spawn(async move { jobs.claim(ClaimOptions::default()).await });
            sleep(Duration::from_millis(seed / 2)).await;
            let stopping = coordinator.stop_within(HOUR);
            let given = async {
                let claimed = claiming.await.expect("no panic");
                claimed.ok().flatten().is_some()
            };
            let (_, was_given) = tokio::join!(stopping, given);
            if !was_given {
                let jobs = theirs.queue("jobs").expect("a good name");
                let claim = jobs.claim(ClaimOptions::default()).await.expect("the store is there");
                assert!(claim.is_some(), "{seed}: an item that nobody got is a dead letter");
            }
        }
    }
}
