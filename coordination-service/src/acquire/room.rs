//! How much may be held. What is counted is names: of several locks that are acquired together, each counts.

use std::time::Duration;

use crate::problem::{Code, Problem};
use crate::service::Shared;
use crate::wanted::Wanted;

/// An error, unless there is room for what is wanted.
pub(super) fn check(service: &Shared, wanted: &Wanted) -> Result<(), Problem> {
    let (all, own) = service.holds.count(&wanted.client);
    let (most, most_of_one) = service.settings.limits.holds;
    let (more, wait) = (wanted.part_count(), Duration::from_secs(5));
    // Its own limit first: what others hold is no reason for whoever would be refused in any case.
    if own + more > most_of_one {
        return Err(Problem::new(Code::TooMany, "this caller holds too much").retry_after(wait));
    }
    if all + more > most {
        return Err(Problem::new(Code::Overloaded, "too much is held").retry_after(wait));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acquire::{Undelivered, acquire, tests};
    use crate::delivery::Deliver;
    use crate::keys::{self, Asked};
    use crate::settings::{Cover, Limits, Settings};
    use crate::wanted::What;

    /// So many locks at once, whose names begin with this.
    fn several(begin: &str, count: usize) -> Wanted {
        let names: Vec<_> = (0..count).map(|number| format!("{begin}-{number:04}")).collect();
        let name = names.first().cloned().unwrap_or_default();
        Wanted { what: What::Locks { names, shared: false }, name, ..tests::wanted(0) }
    }

    fn code(answer: Result<Undelivered, Problem>) -> Result<(), Code> {
        answer.map(drop).map_err(|problem| problem.code)
    }

    /// Names are what takes room, here and at the store: 32 locks that were acquired together count as 32.
    #[tokio::test]
    async fn each_of_several_locks_counts() {
        for (holds, code_of_more) in [((64, 64), Code::TooMany), ((64, 100), Code::Overloaded)] {
            let limits = Limits { holds, ..Limits::default() };
            let settings = Settings { limits, ..Settings::default() };
            let (service, _other) = tests::instance_with(settings, Cover::Any).await;
            let mut held = Vec::new();
            for begin in ["a", "b"] {
                held.push(acquire(&service, several(begin, 32), None).await.expect("room for 64"));
            }
            assert_eq!(service.holds.count("me"), (64, 64));
            let more = acquire(&service, several("c", 32), None).await;
            assert_eq!(code(more), Err(code_of_more));
            let one = acquire(&service, tests::wanted(0), None).await;
            assert_eq!(code(one), Err(code_of_more));
            held.pop();
            let more = acquire(&service, several("c", 33), None).await;
            assert_eq!(code(more), Err(code_of_more), "there is room for 32");
            assert_eq!(code(acquire(&service, several("c", 32), None).await), Ok(()));
        }
    }

    /// Whoever waits for several locks may have all but one of them already.
    #[tokio::test]
    async fn each_of_several_locks_counts_while_it_is_waited_for() {
        let limits = Limits { waits: (64, 64), ..Limits::default() };
        let settings = Settings { limits, ..Settings::default() };
        let (service, other) = tests::instance_with(settings, Cover::Any).await;
        let _held = other.lock("z").expect("a name").acquire(None).await.expect("it is free");
        let wait = Duration::from_secs(60);
        let waiting = tokio::spawn({
            let service = std::sync::Arc::clone(&service);
            let mut wanted = Wanted { wait, ..several("a", 63) };
            if let What::Locks { names, .. } = &mut wanted.what {
                names.push("z".to_owned());
            }
            async move { acquire(&service, wanted, None).await.map(drop) }
        });
        let begin = async {
            while service.waits.count() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(wait, begin).await.expect("it begins to wait");
        assert_eq!(service.waits.count(), 64);
        let other_name = Wanted { name: "y".to_owned(), ..tests::wanted(0) };
        assert_eq!(code(acquire(&service, other_name, None).await), Err(Code::TooMany));
        waiting.abort();
    }

    /// A caller that never holds more than one set of locks leaves what has ended, which is bounded by names, too.
    #[tokio::test]
    async fn what_has_ended_is_bounded_by_its_names() {
        let (service, _other) = tests::instance(Cover::Any).await;
        let mut ended = Vec::new();
        for number in 0..24 {
            let many = several(&number.to_string(), 100);
            let mut granted = acquire(&service, many, None).await.expect("they are free");
            let hold = granted.hold().expect("it is here").clone();
            granted.deliver();
            drop(service.holds.give_up(&hold, crate::holds::End::Released).await);
            ended.push(std::sync::Arc::downgrade(&hold));
        }
        let remembered = || ended.iter().filter(|hold| hold.strong_count() > 0).count();
        let few = async {
            while remembered() > 20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let within = tokio::time::timeout(Duration::from_secs(30), few).await;
        assert!(within.is_ok(), "{} are remembered", remembered());
        assert!(remembered() >= 19, "{} are remembered", remembered());
    }

    /// A request that is sent again goes on at the place of the first one, and is no further wait.
    #[tokio::test]
    async fn who_asks_again_takes_no_further_place() {
        let limits = Limits { waits: (1, 1), ..Limits::default() };
        let settings = Settings { limits, ..Settings::default() };
        let (service, other) = tests::instance_with(settings, Cover::Any).await;
        let held = other.lock("x").expect("a name").acquire(None).await.expect("it is free");
        let begin = || service.keys.begin("me", "k", keys::content(&["x"]), Duration::ZERO);
        let Asked::New(ticket) = begin() else { panic!("nobody has asked before") };
        let mut first = std::pin::pin!(acquire(&service, tests::wanted(60_000), Some(ticket)));
        let waits = tokio::time::timeout(Duration::from_millis(50), first.as_mut()).await;
        assert!(waits.is_err(), "it waits");
        let Asked::Waiting(mut second) = begin() else { panic!("the first one waits") };
        assert_eq!(code(first.await), Err(Code::Superseded));
        assert_eq!(service.waits.count(), 1);
        drop(held);
        let granted = second
            .answer(Duration::from_secs(3_600))
            .await
            .expect("it waits for good")
            .expect("it is free");
        let handle = granted.hold().expect("it is here").handle.clone();
        assert!(matches!(begin(), Asked::Granted(of) if of == handle));
    }
}
