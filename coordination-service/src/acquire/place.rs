//! A place in a queue: who waits at it, and for how long it is kept for whoever comes back.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::auth::Principal;
use crate::problem::{Code, Problem};

/// Shortly before the end of a wait it is looked how many are ahead, so that the answer can say so.
const LOOK_BEFORE_END: Duration = Duration::from_millis(500);
/// Who waits for less is not told: whoever polls would have the store read the queue each time.
const SHORTEST_TOLD: Duration = Duration::from_millis(500);

/// Of many who poll at the same time, so many have the store read the queue. The others are told what was seen there last.
static LOOKS: Semaphore = Semaphore::const_new(16);

/// A place. Of requests that were sent again, the last one waits at it.
pub(crate) struct Place<T> {
    state: Mutex<State<T>>,
    /// Told when somebody comes or goes.
    changed: Notify,
    /// That of the library's wait,
    queue: coordination::Place,
    /// while this is so.
    is_asking: AtomicBool,
    /// Afterwards: whether a promise to somebody else is known to be in the way.
    is_promised: AtomicBool,
    /// The fence of our grant for which that is looked at.
    granted: AtomicU64,
}

struct State<T> {
    /// The number of the request that came last.
    last: u64,
    /// By whose right that waits, and the place is kept.
    who: Option<Arc<Principal>>,
    /// Where it is told the answer, if it waits.
    answer: Option<oneshot::Sender<Result<T, Problem>>>,
    /// For how long the place is kept when it goes.
    keep: Duration,
    /// Until when the place is kept, if nobody waits.
    until: Instant,
    /// Whether one try is under way for whoever waits.
    is_trying: bool,
    /// Why the wait has failed, for who comes back, and what is dropped before that.
    failed: Option<(Problem, Box<dyn Send>)>,
    is_over: bool,
}

/// Who waits at a place. Its drop leaves that, and the place is kept for as long as was asked for.
pub(crate) struct Waiter<T> {
    place: Arc<Place<T>>,
    number: u64,
    received: oneshot::Receiver<Result<T, Problem>>,
    /// How long it wants to wait in all, of which a part may have passed before it came here, if it wants to be told how many are ahead.
    wait: Duration,
    /// How many were ahead shortly before the end of its time.
    ahead: Option<usize>,
}

impl<T> Place<T> {
    /// One at which nobody waits yet.
    pub(crate) fn new() -> Arc<Self> {
        let (keep, until) = (Duration::ZERO, Instant::now());
        let state = State {
            last: 0,
            who: None,
            answer: None,
            keep,
            until,
            is_trying: false,
            failed: None,
            is_over: false,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            queue: coordination::Place::new(),
            is_asking: AtomicBool::default(),
            is_promised: AtomicBool::default(),
            granted: AtomicU64::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more request waits at it, in the stead of the one before, if that waits still. `None`: the place is given up, or its wait
    /// has ended.
    pub(crate) fn wait_at(self: &Arc<Self>, keep: Duration) -> Option<Waiter<T>> {
        let (answer, received) = oneshot::channel();
        let mut state = self.state();
        if state.is_over {
            return None;
        }
        state.last += 1;
        state.keep = keep;
        let number = state.last;
        if let Some((problem, until_told)) = state.failed.take() {
            // It is told at once, also to who does not want to wait.
            state.is_over = true;
            drop(state);
            self.changed.notify_one();
            drop(until_told);
            drop(answer.send(Err(problem)));
            return Some(Waiter::new(self, number, received));
        }
        let before = state.answer.replace(answer);
        drop(state);
        self.changed.notify_one();
        if let Some(before) = before {
            let why = "a later request with the same key waits in its place";
            drop(before.send(Err(Problem::new(Code::Superseded, why))));
        }
        Some(Waiter::new(self, number, received))
    }

    /// Waits until nobody waits at it, and it is not kept any more, or until it is taken away.
    pub(crate) async fn given_up(&self) {
        loop {
            let until = {
                let mut state = self.state();
                // It was taken away: whoever comes back is told so, or was told.
                if state.is_over || state.failed.is_some() {
                    return;
                }
                let until = state.answer.is_none().then_some(state.until);
                if until.is_some_and(|until| until <= Instant::now()) {
                    state.is_over = true;
                    return;
                }
                until
            };
            let kept = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = kept => {}
            }
        }
    }

    /// Waits until it is over, or is not kept any more.
    pub(crate) async fn over(&self) {
        loop {
            let until = {
                let mut state = self.state();
                if state.is_over || state.until <= Instant::now() {
                    state.is_over = true;
                    return;
                }
                state.until
            };
            drop(timeout_at(until, self.changed.notified()).await);
        }
    }

    /// Asks the library for what is waited for, and notes what it waits for meanwhile.
    pub(crate) async fn asking<F: Future>(&self, asked: F) -> F::Output {
        self.is_asking.store(true, Ordering::SeqCst);
        let answer = self.queue.of(asked).await;
        self.is_promised.store(false, Ordering::SeqCst);
        self.is_asking.store(false, Ordering::SeqCst);
        answer
    }

    /// Whether the library waits there with the entry of this fence.
    pub(crate) fn has_entry(&self, fence: u64) -> bool {
        self.queue.token().is_some_and(|token| token.value() == fence)
    }

    /// An administrator takes it away: whoever waits is told, or who comes back while it is [kept](Self::over). False: it is over already.
    pub(crate) fn take_away(&self) -> bool {
        let mut state = self.state();
        if state.is_over || state.failed.is_some() {
            return false;
        }
        let why = "an administrator has taken the place in the queue away";
        let problem = Problem::new(Code::Broken, why);
        let Some(answer) = state.answer.take() else {
            let until_told: Box<dyn Send> = Box::new(());
            state.failed = Some((problem, until_told));
            drop(state);
            self.changed.notify_one();
            return true;
        };
        // What is granted at this moment is not kept for anybody either.
        (state.is_over, state.keep, state.until) = (true, Duration::ZERO, Instant::now());
        drop(state);
        self.changed.notify_one();
        drop(answer.send(Err(problem)));
        true
    }

    /// By whose right it is waited at, or kept, once that is known.
    pub(crate) fn who(&self) -> Option<Arc<Principal>> {
        self.state().who.clone()
    }

    /// Where it is noted whether a promise to somebody else is in the way of our grant of this fence.
    pub(crate) fn is_promised(&self, fence: u64) -> &AtomicBool {
        self.is_promised.store(false, Ordering::SeqCst);
        self.granted.store(fence, Ordering::SeqCst);
        &self.is_promised
    }

    /// Whether our grant of this fence waits for the end of a promise to somebody else.
    pub(crate) fn is_sitting_out(&self, fence: u64) -> bool {
        self.is_promised.load(Ordering::SeqCst) && self.granted.load(Ordering::SeqCst) == fence
    }

    /// How many were ahead when the library has looked last, if it waited for so long that it has looked before the end.
    pub(crate) fn ahead(&self, wait: Duration) -> Option<usize> {
        self.queue.ahead().filter(|_| wait >= SHORTEST_TOLD)
    }

    /// One try begins: whoever does not want to wait waits for its outcome all the same.
    pub(crate) fn begin_to_try(&self) {
        self.state().is_trying = true;
    }

    /// For how long what was granted is kept for whoever waits, or for whoever comes back.
    pub(crate) fn kept_for(&self) -> Duration {
        let state = self.state();
        match state.answer {
            Some(_) => state.keep,
            // What is granted as it is taken away is kept for nobody.
            None if state.failed.is_some() => Duration::ZERO,
            None => state.until.saturating_duration_since(Instant::now()),
        }
    }

    /// The one try is over: tells whoever waits for how long its place is kept, and goes on.
    pub(crate) fn put_off(&self, told: impl FnOnce(Duration) -> Problem) {
        let mut state = self.state();
        state.is_trying = false;
        state.until = Instant::now() + state.keep;
        let (answer, keep) = (state.answer.take(), state.keep);
        drop(state);
        self.changed.notify_one();
        if let Some(answer) = answer {
            drop(answer.send(Err(told(keep))));
        }
    }

    /// The wait has failed: tells whoever waits, or who comes back while it is [kept](Self::over). `until_told` is
    /// dropped before that.
    pub(crate) fn fail(&self, problem: Problem, until_told: impl Send + 'static) {
        let mut state = self.state();
        let Some(answer) = state.answer.take() else {
            let until_told: Box<dyn Send> = Box::new(until_told);
            state.failed = Some((problem, until_told));
            return;
        };
        state.is_over = true;
        drop(state);
        drop(until_told);
        drop(answer.send(Err(problem)));
    }

    /// The end of the wait: tells whoever waits. If nobody does, the answer is dropped.
    pub(crate) fn end(&self, outcome: Result<T, Problem>) {
        let mut state = self.state();
        state.is_over = true;
        let answer = state.answer.take();
        drop(state);
        if let Some(answer) = answer {
            drop(answer.send(outcome));
        }
    }
}

/// Ends the wait of a place when it is dropped: if whoever does it fails, who waits is told.
pub(crate) struct EndsWithIt<T>(pub(crate) Arc<Place<T>>);

impl<T> Drop for EndsWithIt<T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_over = true;
        let answer = state.answer.take();
        drop(state);
        drop(answer);
    }
}

impl<T> Waiter<T> {
    fn new(
        place: &Arc<Place<T>>,
        number: u64,
        received: oneshot::Receiver<Result<T, Problem>>,
    ) -> Self {
        Self { place: Arc::clone(place), number, received, wait: Duration::ZERO, ahead: None }
    }

    /// It waits by this one's right, and who may come back after it does.
    pub(crate) fn is_of(&self, who: &Arc<Principal>) {
        let mut state = self.place.state();
        if state.last == self.number {
            state.who = Some(Arc::clone(who));
        }
    }

    /// It wants to be told how many are ahead when its time is over. It waits for so long in all, though less of that may be left.
    pub(crate) fn wants(&mut self, wait: Duration) {
        self.wait = wait;
    }

    /// Whether somebody else is known to be in the way, and not the store.
    pub(crate) fn is_blocked(&self) -> bool {
        match self.place.is_asking.load(Ordering::SeqCst) {
            true => self.place.queue.is_blocked(),
            false => self.place.is_promised.load(Ordering::SeqCst),
        }
    }

    /// How many were ahead shortly before the end of its time, if that was long enough to look.
    pub(crate) fn ahead(&self) -> Option<usize> {
        self.ahead
    }

    /// Whether one try is under way.
    pub(crate) fn is_trying(&self) -> bool {
        self.place.state().is_trying
    }

    /// The answer; `None`: it has not come within this time, and the place is left.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub(crate) async fn answer(&mut self, within: Duration) -> Option<Result<T, Problem>> {
        let failed = |_| Err(Problem::new(Code::Internal, "the wait ended without an answer"));
        let (queue, wait) = (self.place.queue.clone(), self.wait);
        let (received, ahead) = (&mut self.received, &mut self.ahead);
        let received = async {
            tokio::select! {
                biased;
                answer = received => answer,
                never = look_before_end(&queue, (within, wait), ahead) => match never {},
            }
        };
        match timeout(within, received).await {
            Ok(answer) => return Some(answer.unwrap_or_else(failed)),
            Err(_) if self.leave() => return None,
            // Else what is told at this moment would be told to nobody.
            Err(_) => {}
        }
        let received = &mut self.received;
        Some(received.await.unwrap_or_else(failed))
    }

    /// Leaves the place; false: the answer is on its way.
    fn leave(&self) -> bool {
        let mut state = self.place.state();
        if state.last != self.number || state.answer.take().is_none() {
            return false;
        }
        state.until = Instant::now() + state.keep;
        drop(state);
        self.place.changed.notify_one();
        true
    }
}

/// Looks shortly before the end of a wait, of which so much is left, how many are ahead, and never returns.
async fn look_before_end(
    queue: &coordination::Place,
    (left, wait): (Duration, Duration),
    ahead: &mut Option<usize>,
) -> Infallible {
    if wait >= SHORTEST_TOLD {
        sleep(left.saturating_sub(LOOK_BEFORE_END.min(wait / 4))).await;
        *ahead = match LOOKS.try_acquire() {
            // Boxed, so that it takes no room while the others wait.
            Ok(_one) => Box::pin(queue.look()).await.ok().flatten(),
            Err(_) => queue.ahead(),
        };
    }
    pending().await
}

impl<T> Drop for Waiter<T> {
    fn drop(&mut self) {
        let mut state = self.place.state();
        // Another one may wait in its stead.
        if state.last == self.number {
            state.answer = None;
            state.until = Instant::now() + state.keep;
        }
        drop(state);
        self.place.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Duration = Duration::from_secs(3_600);

    /// Whether it is given up at this moment.
    async fn is_given_up(place: &Place<u32>) -> bool {
        timeout(Duration::from_millis(50), place.given_up()).await.is_ok()
    }

    fn code(answer: Option<Result<u32, Problem>>) -> Option<Result<u32, Code>> {
        answer.map(|answer| answer.map_err(|problem| problem.code))
    }

    #[tokio::test]
    async fn what_the_store_keeps_waiting_is_told_from_what_others_do() {
        let place = Place::<u32>::new();
        let waiter = place.wait_at(KEPT).expect("it is new");
        let other =
            coordination::Coordinator::connect("memory://place").await.expect("it is there");
        let lock = other.lock("x").expect("a name");
        let held = lock.acquire(None).await.expect("it is free");
        place.asking(async { assert!(!waiter.is_blocked(), "the store") }).await;
        assert!(!waiter.is_blocked(), "the store has not told of promises");
        place.is_promised(7).store(true, Ordering::SeqCst);
        assert!(place.is_sitting_out(7) && !place.is_sitting_out(8));
        assert!(waiter.is_blocked(), "promises");
        let is_blocked = async {
            while !waiter.is_blocked() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(held);
        };
        let (granted, ()) = tokio::join!(place.asking(lock.acquire(None)), is_blocked);
        assert!(granted.is_ok() && !waiter.is_blocked(), "promises are read anew");
    }

    #[tokio::test]
    async fn a_place_is_kept_for_who_comes_back() {
        let place = Place::<u32>::new();
        let mut first = place.wait_at(KEPT).expect("it is new");
        assert_eq!(code(first.answer(Duration::ZERO).await), None);
        drop(first);
        assert!(!is_given_up(&place).await);
        let mut second = place.wait_at(KEPT).expect("it is kept");
        let mut third = place.wait_at(Duration::ZERO).expect("it is kept");
        assert_eq!(code(second.answer(KEPT).await), Some(Err(Code::Superseded)));
        // Who was told so leaves no place.
        drop(second);
        place.put_off(|keep| Problem::new(Code::Busy, format!("not yet, and kept for {keep:?}")));
        assert_eq!(code(third.answer(KEPT).await), Some(Err(Code::Busy)));
        let mut fourth = place.wait_at(KEPT).expect("nobody has looked whether it is over");
        place.end(Ok(7));
        assert_eq!(code(fourth.answer(KEPT).await), Some(Ok(7)));
        assert!(place.wait_at(KEPT).is_none(), "it has ended");
        // So does the wait of whoever fails.
        let place = Place::<u32>::new();
        let mut waiter = place.wait_at(KEPT).expect("it is new");
        drop(EndsWithIt(Arc::clone(&place)));
        assert_eq!(code(waiter.answer(KEPT).await), Some(Err(Code::Internal)));
        assert!(place.wait_at(KEPT).is_none());
    }

    /// Also to who does not want to wait, and once.
    #[tokio::test]
    async fn a_failure_is_told_to_who_comes_back() {
        let place = Place::<u32>::new();
        drop(place.wait_at(KEPT).expect("it is new"));
        place.fail(Problem::new(Code::Replaced, "somebody came later"), ());
        let mut late = place.wait_at(KEPT).expect("it is kept");
        assert_eq!(code(late.answer(Duration::ZERO).await), Some(Err(Code::Replaced)));
        place.over().await;
        assert!(place.wait_at(KEPT).is_none(), "it has ended");
        // And to who waits.
        let place = Place::<u32>::new();
        let mut waiter = place.wait_at(KEPT).expect("it is new");
        place.fail(Problem::new(Code::StoreAway, "it is away"), ());
        assert_eq!(code(waiter.answer(KEPT).await), Some(Err(Code::StoreAway)));
        // If nobody comes in time it is over.
        let place = Place::<u32>::new();
        drop(place.wait_at(Duration::from_millis(20)).expect("it is new"));
        place.fail(Problem::new(Code::StoreAway, "it is away"), ());
        place.over().await;
        assert!(place.wait_at(KEPT).is_none(), "it has ended");
    }

    /// Whoever comes back to a place that was taken away meanwhile would begin anew, and nobody could have it go.
    #[tokio::test]
    async fn who_comes_back_is_told_that_its_place_was_taken_away() {
        let place = Place::<u32>::new();
        drop(place.wait_at(KEPT).expect("it is new"));
        assert!(place.take_away() && !place.take_away());
        assert!(is_given_up(&place).await, "the queue is left at once");
        let mut late = place.wait_at(KEPT).expect("it is kept");
        assert_eq!(code(late.answer(Duration::ZERO).await), Some(Err(Code::Broken)));
        place.over().await;
        assert!(is_given_up(&place).await && place.wait_at(KEPT).is_none(), "it has ended");
    }

    /// Whoever was told that its place is kept would come back to find that it is gone, and not why.
    #[tokio::test]
    async fn what_is_told_when_the_time_is_over_is_told() {
        let place = Place::<u32>::new();
        let mut waiter = place.wait_at(KEPT).expect("it is new");
        let answer = place.state().answer.take().expect("it waits");
        let told = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(answer.send(Err(Problem::new(Code::Replaced, "somebody came later"))));
        };
        let (late, ()) = tokio::join!(waiter.answer(Duration::ZERO), told);
        assert_eq!(code(late), Some(Err(Code::Replaced)));
    }

    #[tokio::test]
    async fn a_place_is_given_up_when_its_time_is_over() {
        let place = Place::<u32>::new();
        let waiter = place.wait_at(Duration::ZERO).expect("it is new");
        assert!(!is_given_up(&place).await, "somebody waits");
        drop(waiter);
        assert!(is_given_up(&place).await);
        assert!(place.wait_at(KEPT).is_none());
        // Whoever comes meanwhile has it.
        let place = Place::<u32>::new();
        let brief = Duration::from_millis(20);
        drop(place.wait_at(brief).expect("it is new"));
        assert!(place.kept_for() <= brief);
        let waiter = place.wait_at(KEPT).expect("it is kept");
        assert_eq!(place.kept_for(), KEPT);
        tokio::time::sleep(brief).await;
        assert!(!is_given_up(&place).await);
        drop(waiter);
    }
}
