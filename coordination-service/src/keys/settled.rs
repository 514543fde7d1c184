//! Requests that are settled by one answer, such as an addition to a counter, or the claim of a job: a repetition gets the same answer.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;

use super::{Content, Entry, Key, Keys, State, Table};
use crate::problem::{Code, Problem};

/// So many answers are remembered, and so many of each principal.
const REMEMBERED: (usize, usize) = (10_000, 1_000);

/// An answer, as soon as it is known. Of which type it is follows from the content of the request.
pub(super) type Answer = watch::Receiver<Option<Result<Arc<dyn Any + Send + Sync>, Problem>>>;

/// The keys whose answers are remembered.
#[derive(Default)]
pub(super) struct Settled {
    /// Of each principal, with the numbers of their requests, the oldest first.
    of: HashMap<String, VecDeque<(u64, String)>>,
    count: usize,
}

impl Settled {
    /// One more; which one is forgotten for it.
    fn add(&mut self, (client, key): Key, number: u64) -> Option<(Key, u64)> {
        self.count += 1;
        let own = self.of.entry(client.clone()).or_default();
        own.push_back((number, key));
        let own = own.len();
        let oldest = match (own > REMEMBERED.1, self.count > REMEMBERED.0) {
            (true, _) => client,
            (false, true) => self.oldest()?,
            (false, false) => return None,
        };
        let of = self.of.get_mut(&oldest)?;
        let (number, key) = of.pop_front()?;
        if of.is_empty() {
            self.of.remove(&oldest);
        }
        self.count -= 1;
        Some(((oldest, key), number))
    }

    /// Whose answer is the oldest.
    fn oldest(&self) -> Option<String> {
        let first = self.of.iter().filter_map(|(client, of)| Some((of.front()?.0, client)));
        first.min().map(|(_, client)| client.clone())
    }
}

impl Keys {
    /// The answer to a request with this key: the first one is carried out, by a task of its own, and all others are answered as it is.
    /// If it is known to have had no effect, the key means nothing any more.
    ///
    /// # Errors
    ///
    /// [`Code::KeyReused`], and those of the request.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the request goes on.
    pub(crate) async fn settled<T: Any + Clone + Send + Sync>(
        self: &Arc<Self>,
        client: &str,
        key: &str,
        content: Content,
        work: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        let mut answer = self.answer(&(client.to_owned(), key.to_owned()), content, work)?;
        let failed = |_| Problem::new(Code::Internal, "the request ended without an answer");
        let known = answer.wait_for(Option::is_some).await.map_err(failed)?;
        let none = || Problem::new(Code::Internal, "there is no answer");
        let answer = known.clone().ok_or_else(none)??;
        answer.downcast_ref().cloned().ok_or_else(none)
    }

    /// Where the answer will be.
    fn answer<T: Any + Clone + Send + Sync>(
        self: &Arc<Self>,
        key: &Key,
        content: Content,
        work: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<Answer, Problem> {
        let mut table = self.table();
        match table.entries.get(key) {
            Some(Entry { content: known, state: State::Settled(answer), .. })
                if *known == content =>
            {
                return Ok(answer.clone());
            }
            Some(_) => {
                let why = "this key stands for a request of another name or with other fields";
                return Err(Problem::new(Code::KeyReused, why));
            }
            None => {}
        }
        table.last += 1;
        let number = table.last;
        let (tell, answer) = watch::channel(None);
        let state = State::Settled(answer.clone());
        table.entries.insert(key.clone(), Entry { number, content, state });
        drop(table);
        let (keys, key) = (Arc::clone(self), key.clone());
        tokio::spawn(async move {
            // A panic is no answer, and may have come after the work was done.
            let failed = |_| Err(Problem::new(Code::InDoubt, "the service failed meanwhile"));
            let answer = tokio::spawn(work).await.unwrap_or_else(failed);
            // Before it is told: whoever knows the answer finds the key as it stays.
            keys.table().settle(key, number, answer.as_ref().err());
            tell.send_replace(Some(answer.map(|answer| Arc::new(answer) as _)));
        });
        Ok(answer)
    }
}

impl Table {
    fn settle(&mut self, key: Key, number: u64, failure: Option<&Problem>) {
        // A lost answer is one too: with another try it might count twice.
        let is_settled = failure.is_none_or(|problem| problem.code == Code::InDoubt);
        if !is_settled {
            self.remove(&key, number);
        } else if let Some((oldest, number)) = self.settled.add(key, number) {
            self.remove(&oldest, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::super::content;
    use super::*;

    /// Counts how often it was carried out.
    async fn add(
        keys: &Arc<Keys>,
        client: &str,
        key: &str,
        of: &Arc<AtomicI64>,
    ) -> Result<i64, Code> {
        let of = Arc::clone(of);
        let work = async move { Ok(of.fetch_add(1, Ordering::SeqCst) + 1) };
        let answer = keys.settled(client, key, content(&["n"]), work).await;
        answer.map_err(|problem| problem.code)
    }

    async fn fail(keys: &Arc<Keys>, key: &str, code: Code) -> Result<i64, Code> {
        let work = async move { Err(Problem::new(code, "it failed")) };
        let answer = keys.settled("me", key, content(&["n"]), work).await;
        answer.map_err(|problem| problem.code)
    }

    #[tokio::test]
    async fn a_repetition_is_answered_as_the_first_one() {
        let (keys, count) = (Arc::new(Keys::default()), Arc::new(AtomicI64::new(0)));
        assert_eq!(add(&keys, "me", "k", &count).await, Ok(1));
        assert_eq!(add(&keys, "me", "k", &count).await, Ok(1));
        assert_eq!(add(&keys, "you", "k", &count).await, Ok(2));
        let other = keys.settled("me", "k", content(&["m"]), async { Ok(9) }).await;
        assert_eq!(other.map_err(|problem| problem.code), Err(Code::KeyReused));
        let reused = keys.begin("me", "k", content(&["x"]), Duration::ZERO);
        assert!(matches!(reused, super::super::Asked::Reused));
        // What had no effect is asked anew, and what may have had one is not.
        assert_eq!(fail(&keys, "away", Code::StoreAway).await, Err(Code::StoreAway));
        assert_eq!(add(&keys, "me", "away", &count).await, Ok(3));
        assert_eq!(fail(&keys, "doubt", Code::InDoubt).await, Err(Code::InDoubt));
        assert_eq!(add(&keys, "me", "doubt", &count).await, Err(Code::InDoubt));
        assert_eq!(count.load(Ordering::SeqCst), 3);
    }

    /// Whoever repeats a request while it is carried out, or has gone meanwhile, does not have it carried out twice.
    #[tokio::test]
    async fn a_request_under_way_is_waited_for() {
        let (keys, count) = (Arc::new(Keys::default()), Arc::new(AtomicI64::new(0)));
        let (begin, begun) = oneshot::channel::<()>();
        let of = Arc::clone(&count);
        let work = async move {
            let _ = begun.await;
            Ok(of.fetch_add(1, Ordering::SeqCst) + 1)
        };
        // Its client is gone at once.
        drop(keys.answer(&("me".to_owned(), "k".to_owned()), content(&["n"]), work));
        let repeated = tokio::spawn({
            let (keys, count) = (Arc::clone(&keys), Arc::clone(&count));
            async move { add(&keys, "me", "k", &count).await }
        });
        tokio::task::yield_now().await;
        begin.send(()).expect("it waits");
        assert_eq!(repeated.await.expect("no panic"), Ok(1));
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_request_that_fails_half_way_is_not_carried_out_again() {
        let (keys, count) = (Arc::new(Keys::default()), Arc::new(AtomicI64::new(0)));
        let work = async { panic!("on purpose") };
        let failed = keys.settled::<i64>("me", "k", content(&["n"]), work).await;
        assert_eq!(failed.map_err(|problem| problem.code), Err(Code::InDoubt));
        assert_eq!(add(&keys, "me", "k", &count).await, Err(Code::InDoubt));
        assert_eq!(count.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn so_many_answers_are_remembered() {
        let (keys, count) = (Arc::new(Keys::default()), Arc::new(AtomicI64::new(0)));
        for number in 0..REMEMBERED.1 + 10 {
            assert!(add(&keys, "me", &number.to_string(), &count).await.is_ok());
        }
        assert_eq!(keys.table().entries.len(), REMEMBERED.1);
        for number in 0..REMEMBERED.0 {
            let client = (number % 20).to_string();
            assert!(add(&keys, &client, &number.to_string(), &count).await.is_ok());
        }
        assert_eq!(keys.table().entries.len(), REMEMBERED.0);
        let has = |client: &str, key: &str| {
            keys.table().entries.contains_key(&(client.to_owned(), key.to_owned()))
        };
        assert!(!has("me", "1009") && has("0", "0"), "the oldest are forgotten");
        assert_eq!(keys.table().settled.of.len(), 20);
    }
}
