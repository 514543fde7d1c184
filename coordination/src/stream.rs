//! Watches as streams, for programs that combine streams: only with the feature `stream`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use serde::de::DeserializeOwned;

use crate::error::{ErrorKind, Result};
use crate::{
    ElectionEvent, GroupEvent, GroupWatch, Presence, RejoiningMembership, State, StateWatch, Terms,
    ValueEvent, ValueWatch,
};

impl Terms {
    /// The events as a stream, with the feature `stream`: what [`next`](Self::next) returns, one after the other.
    ///
    /// It ends after [`ErrorKind::Closed`], and after [`ErrorKind::Unsupported`], which a blocking call gets that would wait for
    /// itself. Dropping it ends the observing.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::ElectionEvent;
    /// use futures_util::StreamExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let election = coordinator.election("scheduler")?;
    /// let mut events = election.observe().into_stream();
    /// assert_eq!(events.next().await.transpose()?, Some(ElectionEvent::NoLeader));
    /// # Ok(()) }
    /// ```
    pub fn into_stream(self) -> impl Stream<Item = Result<ElectionEvent>> + Send + Unpin {
        Items::of(self, |mut terms| {
            Box::pin(async move {
                let event = terms.next().await;
                let goes_on = !is_final(&event);
                Some((event, goes_on.then_some(terms)))
            })
        })
    }
}

impl<T: DeserializeOwned + 'static> ValueWatch<T> {
    /// The events as a stream, with the feature `stream`: what [`next`](Self::next) returns, one after the other.
    ///
    /// It goes on after [`ErrorKind::Corrupt`], and ends after [`ErrorKind::Closed`], and after [`ErrorKind::Unsupported`], which a
    /// blocking call gets that would wait for itself. Dropping it ends the watch.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures_util::StreamExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let limit = coordinator.value::<u32>("limit")?;
    /// limit.set(&100).await?;
    ///
    /// // A value that nobody has written counts as zero.
    /// let limits = limit.watch().into_stream();
    /// let mut limits = limits.map(|event| Ok(event?.into_value().map_or(0, |now| now.value)));
    /// let first: coordination::Result<_> = limits.next().await.expect("it goes on");
    /// assert_eq!(first?, 100);
    /// # Ok(()) }
    /// ```
    pub fn into_stream(self) -> impl Stream<Item = Result<ValueEvent<T>>> + Send + Unpin {
        Items::of(self, |mut watch| {
            Box::pin(async move {
                let event = watch.next().await;
                let goes_on = !is_final(&event);
                Some((event, goes_on.then_some(watch)))
            })
        })
    }
}

impl GroupWatch {
    /// The events as a stream, with the feature `stream`: what [`next`](Self::next) returns, one after the other.
    ///
    /// It ends after [`GroupEvent::Deleted`] and [`ErrorKind::Closed`], and after [`ErrorKind::Unsupported`], which a blocking
    /// call gets that would wait for itself. Dropping it ends the watch. The snapshot is no part of it: take
    /// [`members`](Self::members) before.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures_util::StreamExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("backups")?;
    /// let watch = group.watch_or_create().await?;
    /// let mut members = watch.members();
    /// let mut events = watch.into_stream();
    ///
    /// let _membership = group.join("ssd").await?;
    /// members.apply(&events.next().await.expect("it goes on")?);
    /// assert_eq!(members.len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn into_stream(self) -> impl Stream<Item = Result<GroupEvent>> + Send + Unpin {
        Items::of(self, |mut watch| {
            Box::pin(async move {
                let event = watch.next().await;
                let goes_on = !is_final(&event) && !matches!(event, Ok(GroupEvent::Deleted));
                Some((event, goes_on.then_some(watch)))
            })
        })
    }
}

impl RejoiningMembership {
    /// The changes as a stream, with the feature `stream`: what [`changed`](Self::changed) returns, one after the other.
    ///
    /// It ends after [`Presence::Ended`]. Dropping it leaves the group.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::{ErrorKind, Presence};
    /// use futures_util::StreamExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("backups")?;
    /// let mut changes = group.join_or_create("ssd").await?.rejoining().into_stream();
    ///
    /// coordinator.stop().await?;
    /// let all: Vec<_> = changes.collect().await;
    /// assert_eq!(all.last(), Some(&Presence::Ended(ErrorKind::Closed)));
    /// # Ok(()) }
    /// ```
    pub fn into_stream(self) -> impl Stream<Item = Presence> + Send + Unpin {
        Items::of(self, |mut membership| {
            Box::pin(async move { Some((membership.changed().await?, Some(membership))) })
        })
    }
}

impl StateWatch {
    /// The changes as a stream, with the feature `stream`: what [`changed`](Self::changed) returns, one after the other.
    ///
    /// It ends after [`State::Closed`].
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::State;
    /// use futures_util::StreamExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let changes = coordinator.state().into_stream();
    /// coordinator.stop().await?;
    /// assert_eq!(changes.collect::<Vec<_>>().await, [State::Closed]);
    /// # Ok(()) }
    /// ```
    pub fn into_stream(self) -> impl Stream<Item = State> + Send + Unpin {
        Items::of(self, |mut watch| {
            Box::pin(async move { Some((watch.changed().await?, Some(watch))) })
        })
    }
}

/// Whether a watch returns nothing but this error from now on.
fn is_final<T>(outcome: &Result<T>) -> bool {
    let kind = outcome.as_ref().err().map(|error| error.kind());
    matches!(kind, Some(ErrorKind::Closed | ErrorKind::GroupMissing | ErrorKind::Unsupported))
}

/// The next item of a watch, and the watch unless that was the last item; `None`: there are no more.
type Next<W, T> = Pin<Box<dyn Future<Output = Option<(T, Option<W>)>> + Send>>;

/// The items of a watch.
struct Items<W, T> {
    step: fn(W) -> Next<W, T>,
    /// `None`: there are no more.
    next: Option<Next<W, T>>,
}

impl<W, T> Items<W, T> {
    fn of(watch: W, step: fn(W) -> Next<W, T>) -> Self {
        Self { step, next: Some(step(watch)) }
    }
}

impl<W, T> Stream for Items<W, T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let (item, watch) = ready!(next.as_mut().poll(context)).unzip();
        self.next = watch.flatten().map(self.step);
        Poll::Ready(item)
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use std::time::Duration;

    use futures_util::{FutureExt, StreamExt};
    use tokio::time::timeout;

    use super::*;
    use crate::Coordinator;

    const LONG: Duration = Duration::from_secs(10);

    async fn next<S: Stream + Unpin>(stream: &mut S) -> S::Item {
        let item = timeout(LONG, stream.next()).await.expect("there is an item");
        item.expect("the stream goes on")
    }

    /// All that still comes. The stream has ended then, and stays so.
    async fn rest<S: Stream + Unpin>(mut stream: S) -> Vec<S::Item> {
        let rest = timeout(LONG, stream.by_ref().collect()).await.expect("it ends");
        assert!(stream.next().await.is_none(), "it has ended");
        rest
    }

    /// The kind of the error with which a stream ends, after which nothing follows.
    async fn end<T>(stream: impl Stream<Item = Result<T>> + Unpin) -> Option<ErrorKind> {
        let mut errors = rest(stream).await.into_iter().filter_map(Result::err);
        let error = errors.next().expect("the last item is an error");
        assert!(errors.next().is_none(), "it is told once");
        Some(error.kind())
    }

    #[tokio::test]
    async fn a_stream_of_terms_has_every_leader_and_ends_after_a_stop() -> Result<()> {
        let coordinator = Coordinator::connect("memory://stream-terms").await?;
        let election = coordinator.election("boss")?;
        let mut events = election.observe().into_stream();
        assert_eq!(next(&mut events).await?, ElectionEvent::NoLeader);
        let leadership = election.campaign("one", None).await?;
        let term = next(&mut events).await?.into_term();
        assert_eq!(term.map(|term| term.term), Some(leadership.term()));
        leadership.resign().await?;
        assert_eq!(next(&mut events).await?, ElectionEvent::NoLeader);
        coordinator.stop().await?;
        assert_eq!(end(events).await, Some(ErrorKind::Closed));
        Ok(())
    }

    #[tokio::test]
    async fn a_stream_of_values_goes_on_after_one_that_cannot_be_read() -> Result<()> {
        let coordinator = Coordinator::connect("memory://stream-values").await?;
        let (number, text) = (coordinator.value::<u32>("a")?, coordinator.value::<String>("a")?);
        let mut events = number.watch().into_stream();
        assert_eq!(next(&mut events).await?, ValueEvent::NoValue);
        text.set(&"no number".to_owned()).await?;
        let told = next(&mut events).await.map_err(|error| error.kind());
        assert_eq!(told, Err(ErrorKind::Corrupt));
        number.set(&7).await?;
        let told = next(&mut events).await?.into_value();
        assert_eq!(told.map(|now| now.value), Some(7));
        coordinator.stop().await?;
        assert_eq!(end(events).await, Some(ErrorKind::Closed));
        Ok(())
    }

    #[tokio::test]
    async fn a_stream_of_a_group_ends_with_the_group_or_after_a_stop() -> Result<()> {
        let coordinator = Coordinator::connect("memory://stream-group").await?;
        let group = coordinator.group("hosts")?;
        let mut events = group.watch_or_create().await?.into_stream();
        let membership = group.join(&()).await?;
        assert!(matches!(next(&mut events).await?, GroupEvent::Joined(_)));
        membership.leave().await?;
        assert!(matches!(next(&mut events).await?, GroupEvent::Left(_)));
        group.delete().await?;
        let last: Vec<_> = rest(events).await.into_iter().collect::<Result<_>>()?;
        assert_eq!(last, [GroupEvent::Deleted]);

        let events = group.watch_or_create().await?.into_stream();
        coordinator.stop().await?;
        assert_eq!(end(events).await, Some(ErrorKind::Closed));
        Ok(())
    }

    #[tokio::test]
    async fn a_stream_of_a_membership_tells_that_it_comes_back_and_ends() -> Result<()> {
        let coordinator = Coordinator::connect("memory://stream-membership").await?;
        let group = coordinator.group("hosts")?;
        let mut changes = group.join_or_create(&()).await?.rejoining().into_stream();
        group.remove(coordinator.member_id()).await?;
        while !matches!(next(&mut changes).await, Presence::Member(_)) {}
        coordinator.stop().await?;
        assert_eq!(rest(changes).await.last(), Some(&Presence::Ended(ErrorKind::Closed)));
        Ok(())
    }

    #[tokio::test]
    async fn a_stream_of_states_ends_after_closed() -> Result<()> {
        let coordinator = Coordinator::connect("memory://stream-states").await?;
        let changes = coordinator.state().into_stream();
        coordinator.stop().await?;
        assert_eq!(rest(changes).await, [State::Closed]);
        Ok(())
    }

    /// The session is open until the stream is dropped, in the middle of waiting for an item, and no longer.
    async fn assert_dropping_ends(coordinator: Coordinator, mut stream: impl Stream + Unpin) {
        let mut state = coordinator.state();
        drop(coordinator);
        while timeout(LONG / 100, stream.next()).await.is_ok() {}
        assert_eq!(state.changed().now_or_never(), None, "the stream keeps the session open");
        drop(stream);
        let changed = timeout(LONG, state.changed()).await.expect("nothing else keeps it open");
        assert_eq!(changed, Some(State::Closed));
    }

    #[tokio::test]
    async fn a_dropped_stream_keeps_nothing_open() -> Result<()> {
        let connect = || Coordinator::connect("memory://stream-dropped");
        // Keeps the store, which is there as long as somebody is connected.
        let watching = connect().await?;
        let coordinator = connect().await?;
        let terms = coordinator.election("boss")?.observe().into_stream();
        assert_dropping_ends(coordinator, terms).await;
        let coordinator = connect().await?;
        let values = coordinator.value::<u32>("limit")?.watch().into_stream();
        assert_dropping_ends(coordinator, values).await;
        let coordinator = connect().await?;
        let events = coordinator.group("hosts")?.watch_or_create().await?.into_stream();
        assert_dropping_ends(coordinator, events).await;
        let coordinator = connect().await?;
        let membership = coordinator.group("hosts")?.join(&()).await?.rejoining();
        assert_dropping_ends(coordinator, membership.into_stream()).await;

        let members = watching.group("hosts")?.members().await?;
        assert!(members.is_empty(), "dropping a membership's stream leaves the group: {members:?}");
        Ok(())
    }
}
