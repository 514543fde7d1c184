//! The end of an instance, in order: nothing new, then nothing renewed, then nothing at all.

use std::sync::Arc;
use std::time::Duration;

use coordination::Coordinator;
use tokio::sync::mpsc;

use crate::holds::{Covered, Hold};
use crate::service::{Phase, Shared};

/// How long the last phase waits for calls under way. The store may be away, and then none of them comes to an end.
const CALLS: Duration = Duration::from_secs(10);
/// How often it is looked whether something is left.
const LOOK: Duration = Duration::from_millis(50);

/// Waits for the next word to stop. Who drops a sender says nothing more by that.
pub(crate) async fn told(stops: &mut mpsc::Receiver<()>) {
    if stops.recv().await.is_none() {
        std::future::pending().await
    }
}

/// Stops in order: nothing is freed under a client that was told that it holds, and nothing is left half done.
pub(crate) async fn drain(service: &Shared, stops: &mut mpsc::Receiver<()>) {
    service.phase.send_replace(Phase::Draining);
    let until = tokio::time::sleep(service.settings.drain);
    tokio::select! {
        biased;
        () = told(stops) => return,
        () = async { none_under_way(service).await; none_left(service).await } => {}
        () = until => {}
    }
    service.phase.send_replace(Phase::Ending);
    let calls = tokio::time::timeout(CALLS, none_under_way(service));
    tokio::select! {
        biased;
        () = told(stops) => {}
        () = async { drop(calls.await); none_left(service).await } => {}
    }
}

/// Waits until all that had begun is over; what was granted by then is a hold. Whatever begins counts before it looks at the phase:
/// so it is refused, or waited for here.
async fn none_under_way(service: &Shared) {
    while !service.under_way.is_over() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until there is no hold that would be freed too early by our end. Nothing is renewed by then, so all leases end.
async fn none_left(service: &Shared) {
    let is_in_the_way = |hold: &Arc<Hold>| match hold.covered {
        Covered::All => true,
        // A promise stays at the store, but Rust programs and the command read none: a lease that the store covers ends before we do.
        Covered::Http => {
            let lease = hold.lease().zip(service.cover.longest());
            lease.is_some_and(|(lease, cover)| lease <= cover)
        }
        // It ends with us whenever that is.
        Covered::Nobody => false,
    };
    loop {
        let live = service.holds.live();
        let in_the_way = match service.phase() {
            Phase::Ending => live.iter().any(is_in_the_way),
            _ => !live.is_empty() || !service.holds.undeleted.is_empty(),
        };
        if !in_the_way && !service.holds.is_releasing() {
            return;
        }
        let mut changes = live.first().map(|hold| hold.changes());
        let changed = async {
            match &mut changes {
                Some(changes) => drop(changes.changed().await),
                None => std::future::pending().await,
            }
        };
        // One of them tells of its own changes only; the others are looked at by and by.
        drop(tokio::time::timeout(LOOK, changed).await);
    }
}

/// Ends the session.
pub(crate) async fn end(coordinator: &Coordinator) {
    if let Err(error) = coordinator.stop().await {
        tracing::warn!(%error, "the store has not confirmed our end");
    }
}

#[cfg(test)]
mod tests {
    use coordination::{ClaimOptions, NewItem};

    use super::*;
    use crate::acquire::acquire;
    use crate::acquire::tests::{instance, instance_with, wanted};
    use crate::delivery::Deliver;
    use crate::problem::Code;
    use crate::settings::{Cover, Settings};
    use crate::v1::holds::renewed;
    use crate::wanted::Wanted;
    use crate::zaqar::tests::hang_up;

    /// H10: what has begun is waited for, and nothing begins any more.
    #[tokio::test]
    async fn h10_a_stop_waits_for_what_has_begun() {
        let (service, _other) = instance(Cover::Any).await;
        let begun = service.begin().expect("it serves");
        let draining = tokio::spawn({
            let service = Arc::clone(&service);
            async move {
                let (_second, mut stops) = mpsc::channel(1);
                drain(&service, &mut stops).await;
            }
        });
        let mut phases = service.phase.subscribe();
        phases.wait_for(|phase| *phase >= Phase::Draining).await.expect("it is there");
        let refused = service.begin().map(drop).map_err(|problem| problem.code);
        assert_eq!(refused, Err(Code::Draining));
        tokio::time::sleep(4 * LOOK).await;
        assert!(!draining.is_finished(), "something has begun that is not over");
        drop(begun);
        draining.await.expect("it does not panic");
    }

    /// Who drops its sender does not say for a second time that the service is to stop, which would end it at once.
    #[tokio::test]
    async fn a_sender_that_is_dropped_ends_nothing() {
        let (service, _other) = instance(Cover::Any).await;
        let begun = service.begin().expect("it serves");
        let (sender, mut stops) = mpsc::channel(1);
        drop(sender);
        let drained = tokio::time::timeout(4 * LOOK, drain(&service, &mut stops)).await;
        assert!(drained.is_err(), "something has begun that is not over");
        drop(begun);
    }

    /// H10: a lock of rdlm's API that the store keeps from everybody is not freed under its client for those who read no promises.
    #[tokio::test]
    async fn h10_a_stop_waits_for_what_the_store_covers_beside_a_promise() {
        let cover = Duration::from_secs(100);
        for (lease, is_covered) in [(cover / 2, true), (2 * cover, false)] {
            let settings = Settings { drain: Duration::ZERO, ..Settings::default() };
            let (service, _other) = instance_with(settings, Cover::Lease(cover)).await;
            let (name, relies_on_lease) = ("rdlm/x".to_owned(), true);
            let wanted = Wanted { name, lease, relies_on_lease, ..wanted(0) };
            let mut granted = acquire(&service, wanted, None).await.expect("it is free");
            assert_eq!(granted.hold().expect("it is here").covered, Covered::Http);
            granted.deliver();
            let (_second, mut stops) = mpsc::channel(1);
            let patience = if is_covered { 4 * LOOK } else { Duration::from_secs(60) };
            let drained = tokio::time::timeout(patience, drain(&service, &mut stops)).await;
            assert_eq!(drained.is_err(), is_covered, "a lease of {lease:?}");
        }
    }

    /// H10: a lease that the store covers is not made longer than that when a stop waits for its end.
    #[tokio::test]
    async fn h10_a_longer_lease_does_not_begin_while_ending() {
        let (service, _other) = instance(Cover::Lease(Duration::from_secs(100))).await;
        let (name, relies_on_lease) = ("rdlm/x".to_owned(), true);
        let wanted = Wanted { name, relies_on_lease, ..wanted(0) };
        let lease = wanted.lease;
        let mut granted = acquire(&service, wanted, None).await.expect("it is free");
        let hold = Arc::clone(granted.hold().expect("it is here"));
        granted.deliver();
        let hanging = hold.promises[0].hang().await;
        let renewing = tokio::spawn({
            let (service, hold) = (Arc::clone(&service), Arc::clone(&hold));
            async move { renewed(&service, &hold, Some(Duration::from_secs(300))).await }
        });
        tokio::time::sleep(LOOK).await;
        service.phase.send_replace(Phase::Ending);
        drop(hanging);
        let now = renewing.await.expect("no panic").map_err(|problem| problem.code);
        assert_eq!((now.map(|now| now.lease), hold.lease()), (Ok(lease), Some(lease)));
    }

    /// H10: a claim whose client has hung up is taken back before the session ends.
    #[tokio::test]
    async fn h10_a_stop_waits_for_a_claim_that_nobody_receives() {
        let (service, other) = instance(Cover::Any).await;
        let queue = other.queue("zaqar/p/q").expect("a name");
        queue.post(&[NewItem::new("1")]).await.expect("posted");
        hang_up(&service, "q").await;
        let (_second, mut stops) = mpsc::channel(1);
        drain(&service, &mut stops).await;
        assert!(service.under_way.is_over(), "the claim is neither delivered nor taken back");
        end(&service.coordinator().expect("it is connected")).await;
        let claimed = queue.claim(ClaimOptions::default()).await.expect("memory answers");
        assert_eq!(claimed.expect("it is free").items()[0].claims(), 1);
    }
}
