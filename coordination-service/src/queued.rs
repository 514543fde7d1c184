//! Who waits at this instance, and for what: an administrator takes a place away from its client. In the queue alone the library would take
//! another one for it, at the end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::acquire::place::Place;
use crate::acquire::undelivered::Undelivered;
use crate::kind::Kind;

/// The recipe and the name of what is waited for.
type Of = (Kind, String);
type Waiting = Arc<Place<Undelivered>>;

/// The places of this instance.
#[derive(Default)]
pub(crate) struct Queued(Mutex<HashMap<Of, Vec<Waiting>>>);

/// A place that can be taken away; not any more when this is dropped.
pub(crate) struct Listed {
    queued: Arc<Queued>,
    all: Vec<Of>,
    place: Waiting,
}

impl Queued {
    fn table(&self) -> MutexGuard<'_, HashMap<Of, Vec<Waiting>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more place, at which all of these are waited for.
    pub(crate) fn list(self: &Arc<Self>, all: Vec<Of>, place: &Waiting) -> Listed {
        let mut table = self.table();
        for of in &all {
            table.entry(of.clone()).or_default().push(Arc::clone(place));
        }
        Listed { queued: Arc::clone(self), all, place: Arc::clone(place) }
    }

    /// Whether one of ours keeps this grant of a lock from everybody, itself too, until a promise to somebody else is over.
    pub(crate) fn is_sitting_out(&self, kind: Kind, name: &str, fence: u64) -> bool {
        let table = self.table();
        let places = table.get(&(kind, name.to_owned()));
        places.is_some_and(|places| places.iter().any(|place| place.is_sitting_out(fence)))
    }

    /// Takes away the place whose entry in the queue has this fence, and tells its client. False: none of ours has.
    pub(crate) fn take_away(&self, kind: Kind, name: &str, fence: u64) -> bool {
        let places = self.table().get(&(kind, name.to_owned())).cloned().unwrap_or_default();
        let place = places.into_iter().find(|place| place.has_entry(fence));
        place.is_some_and(|place| place.take_away())
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut table = self.queued.table();
        for of in &self.all {
            if let Some(places) = table.get_mut(of) {
                places.retain(|place| !Arc::ptr_eq(place, &self.place));
                if places.is_empty() {
                    table.remove(of);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::acquire::acquire;
    use crate::acquire::tests::{instance, wanted};
    use crate::problem::Code;
    use crate::settings::Cover;

    /// Whose place is taken away is told so and leaves the queue; who waits behind it goes on.
    #[tokio::test]
    async fn a_place_that_is_taken_away_is_its_clients_no_more() {
        let (service, other) = instance(Cover::Any).await;
        let lock = other.lock("x").expect("a name");
        let held = lock.acquire(None).await.expect("it is free");
        let queue = async |count: usize| {
            let reached = async {
                loop {
                    let queue = lock.holders().await.expect("memory answers");
                    if queue.len() == count {
                        return queue;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), reached).await.expect("as many")
        };
        let mut asked = Vec::new();
        for count in [2, 3] {
            let service = Arc::clone(&service);
            asked.push(tokio::spawn(async move {
                let told = acquire(&service, wanted(60_000), None).await;
                told.map(drop).map_err(|problem| problem.code)
            }));
            queue(count).await;
        }
        let fence = queue(3).await[1].token.value();
        // It is listed before the store is asked, and knows its entry a moment later.
        let taken = async {
            while !service.queued.take_away(Kind::Lock, "x", fence) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), taken).await.expect("it is ours");
        assert!(!service.queued.take_away(Kind::Lock, "x", fence), "it is over");
        assert!(!service.queued.take_away(Kind::Lock, "x", held.token().value()));
        let second = asked.pop().expect("there are two");
        let first = asked.pop().expect("there is one more").await.expect("it does not panic");
        assert_eq!(first, Err(Code::Broken));
        queue(2).await;
        held.release().await.expect("memory answers");
        assert_eq!(second.await.expect("it does not panic"), Ok(()));
        queue(0).await;
        let is_empty = async {
            while !service.queued.table().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), is_empty).await.expect("none is left");
    }
}
