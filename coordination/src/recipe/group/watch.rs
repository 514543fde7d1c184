//! Events of a group: the differences between successive views of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::members::{GroupEvent, Member, Members, present};
use super::{Group, LONGEST_JOIN, missing};
use crate::backend::{Entry, Listing};
use crate::error::{Effect, Result};
use crate::recipe::engine::queue::Queue;
use crate::session::{Sight, View, Views};

/// Follows the members of a group. Made by [`Group::watch`] and [`Group::watch_or_create`].
///
/// Replaying the events over the first snapshot gives the last snapshot. A watch reports the difference between one read of the
/// store and the next. The changes of one such difference are reported in an order that may differ from watcher to watcher: first
/// updates and joins, then leaves, so that a rolling replacement never looks as if nobody were there. Only if a member comes back
/// under the same id, its leave is reported before its join. A member that joins and leaves between two reads may not be seen at
/// all. Dropping the watch ends it.
///
/// When the group is deleted, all members are reported as left, then [`Deleted`](GroupEvent::Deleted), even
/// if a group of the same name has been created since. The same is reported when the store has lost the group, because it lost
/// all its data, or the data of the last moments before a fail-over.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
/// use coordination::{Coordinator, GroupEvent};
///
/// let coordinator = Coordinator::connect("memory://").await?;
/// let group = coordinator.group("backups")?;
/// let one = group.join_or_create("ssd").await?;
///
/// let mut watch = group.watch().await?;
/// assert_eq!(watch.members().len(), 1);
/// one.leave().await?;
/// group.delete().await?;
/// assert!(matches!(watch.next().await?, GroupEvent::Left(_)));
/// assert_eq!(watch.next().await?, GroupEvent::Deleted);
/// # Ok(()) }
/// ```
pub struct GroupWatch {
    queue: Queue,
    /// The views of the group's queue; `None` once the group was deleted.
    views: Option<Views>,
    changes: Changes,
}

impl Group {
    /// Follows the members: a snapshot, then joins, leaves and updates, in order.
    ///
    /// The snapshot, [`GroupWatch::members`], is what this process knows at that time; later changes come as
    /// events. All watchers of one group in a process share one read for each change.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::GroupMissing`](crate::ErrorKind::GroupMissing): the group does not exist.
    /// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable): the store did not answer two requests,
    ///   each of which waits as long as [`join`](Self::join).
    /// * [`ErrorKind::Closed`](crate::ErrorKind::Closed): the coordinator was stopped, or the runtime on which its session lives
    ///   has ended.
    /// * Those of a store that refuses.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind.
    ///
    /// # Examples
    ///
    /// ```
    /// use coordination::GroupEvent;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("backups")?;
    /// group.create().await?;
    /// let mut watch = group.watch().await?;
    /// assert!(watch.members().is_empty());
    ///
    /// let membership = group.join("ssd").await?;
    /// let GroupEvent::Joined(member) = watch.next().await? else { panic!("nobody else is there") };
    /// assert_eq!(member.incarnation, membership.incarnation());
    /// assert!(watch.try_next()?.is_none());
    /// # Ok(()) }
    /// ```
    pub async fn watch(&self) -> Result<GroupWatch> {
        let queue = &self.queue;
        let (followed, session) = (queue.clone(), Arc::clone(&queue.session));
        let limit = session.ttl().min(LONGEST_JOIN);
        // Runs on the session's runtime, because the caller's may have no timers.
        let starting = queue.run("watch", async move {
            let mut views = followed.observe(Sight::Moment);
            loop {
                match tokio::time::timeout(limit, views.next()).await {
                    Ok(Ok(view)) if view.listing.value.is_some() => return Ok((views, view)),
                    Ok(Err(error)) => return Err(error),
                    // The group does not exist, or is not known here yet, or the store is out of reach: ask the store
                    // itself.
                    Ok(Ok(_)) | Err(_) => {}
                }
                if followed.read("watch").await?.value.is_none() {
                    return Err(missing("watch"));
                }
            }
        });
        // It only reads, whenever it ends.
        let (views, view) = starting.await.map_err(|error| error.with_effect(Effect::None))?;
        Ok(GroupWatch { queue: queue.clone(), views: Some(views), changes: Changes::from(view) })
    }

    /// Like [`watch`](Self::watch), but creates the group if it does not exist: for watchers that may start before the first
    /// member.
    ///
    /// # Errors
    ///
    /// Those of [`watch`](Self::watch) but `GroupMissing`, and those of [`create`](Self::create) but `GroupExists`. With
    /// [`Effect::Unknown`](crate::Effect::Unknown) the group may have been created.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing behind but the group, which may have been created.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("backups")?;
    /// let mut watch = group.watch_or_create().await?;
    /// assert!(watch.members().is_empty());
    ///
    /// let _membership = group.join("ssd").await?;
    /// assert!(matches!(watch.next().await?, coordination::GroupEvent::Joined(_)));
    /// # Ok(()) }
    /// ```
    pub async fn watch_or_create(&self) -> Result<GroupWatch> {
        self.or_create(|| self.watch()).await
    }
}

impl GroupWatch {
    /// The members after the last event that was returned; at first, the snapshot.
    pub fn members(&self) -> Members {
        self.changes.members()
    }

    /// Waits for the next event.
    ///
    /// # Errors
    ///
    /// * [`GroupMissing`](crate::ErrorKind::GroupMissing): after [`GroupEvent::Deleted`].
    /// * [`Closed`](crate::ErrorKind::Closed): the coordinator was stopped, or the runtime on which its session lives has ended.
    ///
    /// It waits through an outage of the store, and returns [`GroupEvent::Resync`] afterwards.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Result<GroupEvent> {
        loop {
            if let Some(event) = self.changes.next() {
                return Ok(event);
            }
            let seen = match &mut self.views {
                Some(views) => self.queue.next_view(views).await,
                None => self.queue.named(Err(missing("watch"))),
            };
            self.look(seen?);
        }
    }

    /// The next event if there is one already.
    ///
    /// # Errors
    ///
    /// Those of [`next`](Self::next).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> coordination::Result<()> {
    /// # let coordinator = coordination::Coordinator::connect("memory://").await?;
    /// let group = coordinator.group("backups")?;
    /// let mut watch = group.watch_or_create().await?;
    /// let _membership = group.join("ssd").await?;
    /// watch.next().await?;
    /// // All that has come so far, without waiting for more.
    /// while let Some(event) = watch.try_next()? {
    ///     println!("{event:?}");
    /// }
    /// assert_eq!(watch.members().len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn try_next(&mut self) -> Result<Option<GroupEvent>> {
        loop {
            if let Some(event) = self.changes.next() {
                return Ok(Some(event));
            }
            let seen = match &mut self.views {
                Some(views) => views.newest(),
                None => Err(missing("watch")),
            };
            match self.queue.named(seen)? {
                Some(view) => self.look(view),
                None => return Ok(None),
            }
        }
    }

    fn look(&mut self, view: Arc<View>) {
        if self.changes.compare(view) == Life::Over {
            self.views = None;
        }
    }
}

impl fmt::Debug for GroupWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupWatch").field("group", &self.queue.name()).finish_non_exhaustive()
    }
}

/// The differences between one view and the next, returned one event at a time.
///
/// Views are shared by all who follow a group in this process, so they cost each of them a pointer.
struct Changes {
    /// The view before the first of `events`, and the view after the last.
    base: Arc<View>,
    latest: Arc<View>,
    events: Vec<GroupEvent>,
    /// How many of `events` were returned.
    told: usize,
}

#[derive(Debug, PartialEq)]
enum Life {
    GoesOn,
    Over,
}

impl From<Arc<View>> for Changes {
    fn from(view: Arc<View>) -> Self {
        Self { base: Arc::clone(&view), latest: view, events: Vec::new(), told: 0 }
    }
}

impl Changes {
    fn members(&self) -> Members {
        let mut members = Members::of(&self.base.listing);
        self.events.iter().take(self.told).for_each(|event| members.apply(event));
        members
    }

    fn next(&mut self) -> Option<GroupEvent> {
        let event = self.events.get(self.told).cloned()?;
        self.told += 1;
        if self.told == self.events.len() {
            (self.events, self.told) = (Vec::new(), 0);
            self.base = Arc::clone(&self.latest);
        }
        Some(event)
    }

    /// Compares this view with the last one. All earlier events have been returned.
    fn compare(&mut self, view: Arc<View>) -> Life {
        let life = |view: &View| view.listing.value.as_ref().map(|value| value.version);
        if life(&view) != life(&self.base) {
            self.events = difference(&present(&self.base.listing), &[]);
            self.events.push(GroupEvent::Deleted);
            self.latest =
                Arc::new(View { listing: Listing::default(), came: view.came, gaps: view.gaps });
            return Life::Over;
        }
        self.events = match view.gaps > self.base.gaps {
            true => vec![GroupEvent::Resync(Members::of(&view.listing))],
            false => difference(&present(&self.base.listing), &present(&view.listing)),
        };
        if self.events.is_empty() {
            self.base = Arc::clone(&view);
        }
        self.latest = view;
        Life::GoesOn
    }
}

/// The events that lead from the old members to the new ones: first updates, and who joined under an id that was free;
/// then who left, each followed by who has joined under its id.
///
/// In which order members joined and left between two views cannot be known. In the order above, a rolling replacement never looks
/// as if nobody were there.
fn difference(old: &[&Entry], new: &[&Entry]) -> Vec<GroupEvent> {
    let find = |entries: &[&Entry], seq: u64| {
        let at = entries.binary_search_by_key(&seq, |entry| entry.seq).ok();
        at.and_then(|at| entries.get(at)).map(|entry| Arc::clone(&entry.data))
    };
    let left: Vec<_> = old.iter().filter(|entry| find(new, entry.seq).is_none()).collect();
    let ids: BTreeSet<&str> = left.iter().map(|entry| &*entry.member).collect();
    let joined = |entry: &&&Entry| find(old, entry.seq).is_none();
    let successors: BTreeMap<&str, &Entry> = new
        .iter()
        .filter(|entry| joined(entry) && ids.contains(&*entry.member))
        .map(|entry| (&*entry.member, *entry))
        .collect();
    let others = new.iter().filter_map(|entry| match find(old, entry.seq) {
        None if ids.contains(&*entry.member) => None,
        None => Some(GroupEvent::Joined(Member::of(entry)?)),
        Some(before) if before != entry.data => Some(GroupEvent::Updated(Member::of(entry)?)),
        Some(_) => None,
    });
    let left = left.iter().flat_map(|entry| {
        let successor = successors.get(&*entry.member);
        let joined = successor.and_then(|entry| Some(GroupEvent::Joined(Member::of(entry)?)));
        let left = Member::of(entry).map(GroupEvent::Left);
        left.into_iter().chain(joined)
    });
    others.chain(left).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::backend::{EntryId, SessionId, Value};
    use crate::session::Came;

    /// The members at one moment: each with its id and its capabilities.
    type Look = Vec<(u8, u8)>;

    /// A group's history: the members at successive moments, and whether the store was out of reach before.
    fn history() -> impl Strategy<Value = Vec<(Look, bool)>> {
        let look = prop::collection::vec((0..6_u8, 0..3_u8), 0..8);
        prop::collection::vec((look, prop::bool::weighted(0.2)), 1..12)
    }

    /// The history as views. A member that joins gets a new number each time; a second entry under its id gets one of
    /// its own.
    fn views(history: Vec<(Look, bool)>) -> Vec<Arc<View>> {
        let session = SessionId::random();
        let (mut last, mut gaps) = (0, 0);
        let mut known: BTreeMap<(u8, usize), Entry> = BTreeMap::new();
        let view = |(look, gap): (Look, bool)| {
            gaps += u64::from(gap);
            let mut now = BTreeMap::new();
            for (member, says) in look {
                let nth = now.keys().filter(|(id, _)| *id == member).count();
                let entry = known.get(&(member, nth)).cloned().unwrap_or_else(|| {
                    last += 1;
                    Entry {
                        id: EntryId::random(session),
                        seq: last,
                        member: format!("member-{member}").into(),
                        since: None,
                        label: None,
                        mode: Default::default(),
                        data: Default::default(),
                    }
                });
                now.insert((member, nth), Entry { data: says.to_string().into(), ..entry });
            }
            known = now;
            let mut entries: Vec<_> = known.values().cloned().collect();
            entries.sort_by_key(|entry| entry.seq);
            let value = Some(Value { version: 1, data: "{}".into(), writer: None });
            seen(Listing { entries, value, ..Listing::default() }, gaps)
        };
        history.into_iter().map(view).collect()
    }

    fn seen(listing: Listing, gaps: u64) -> Arc<View> {
        Arc::new(View { listing, came: Came::now(), gaps })
    }

    fn told(changes: &mut Changes) -> Vec<GroupEvent> {
        std::iter::from_fn(|| changes.next()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn replaying_the_events_gives_the_last_snapshot(history in history()) {
            let mut views = views(history).into_iter();
            let mut changes = Changes::from(views.next().expect("at least one"));
            let mut members = changes.members();
            for view in views {
                let resync = view.gaps > changes.base.gaps;
                prop_assert_eq!(changes.compare(Arc::clone(&view)), Life::GoesOn);
                let mut ids: Vec<_> = members.iter().map(|member| Arc::clone(&member.id)).collect();
                while let Some(event) = changes.next() {
                    match &event {
                        GroupEvent::Left(member) => {
                            prop_assert!(ids.contains(&member.id));
                            ids.retain(|id| *id != member.id);
                        }
                        GroupEvent::Joined(member) => {
                            prop_assert!(!ids.contains(&member.id), "two of {}", member.id);
                            ids.push(Arc::clone(&member.id));
                        }
                        GroupEvent::Updated(member) => prop_assert!(ids.contains(&member.id)),
                        _ => prop_assert!(resync),
                    }
                    members.apply(&event);
                    prop_assert_eq!(&changes.members(), &members);
                }
                prop_assert_eq!(&members, &Members::of(&view.listing));
            }
        }

        /// Members that are in both views are there after each event between the views. So there are never fewer members than
        /// these.
        #[test]
        fn no_step_shows_fewer_members_than_there_were(history in history()) {
            let views = views(history);
            for pair in views.windows(2) {
                let [old, new] = pair else { continue };
                let (before, after) = (Members::of(&old.listing), Members::of(&new.listing));
                let returned = |id: &str| {
                    let incarnation = |members: &Members| members.get(id).map(|member| member.incarnation);
                    incarnation(&before) != incarnation(&after) && after.get(id).is_some()
                };
                let mut members = before.clone();
                for event in difference(&present(&old.listing), &present(&new.listing)) {
                    members.apply(&event);
                    let comes_back = matches!(&event, GroupEvent::Left(member) if returned(&member.id));
                    let fewest = before.len().min(after.len()) - usize::from(comes_back);
                    prop_assert!(members.len() >= fewest, "{} after {event:?}", members.len());
                }
                prop_assert_eq!(members, after);
            }
        }

        /// A watch that skips views reports joins in the order of the members' numbers, and leaves too.
        #[test]
        fn joins_and_leaves_are_told_by_number(history in history()) {
            let views = views(history);
            for pair in views.windows(2) {
                let [old, new] = pair else { continue };
                let events = difference(&present(&old.listing), &present(&new.listing));
                let left = events.iter().filter_map(|event| match event {
                    GroupEvent::Left(member) => Some(member.incarnation),
                    _ => None,
                });
                prop_assert!(left.is_sorted());
                let first = events.iter().take_while(|event| !matches!(event, GroupEvent::Left(_)));
                let first = first.filter_map(|event| match event {
                    GroupEvent::Joined(member) | GroupEvent::Updated(member) => Some(member.incarnation),
                    _ => None,
                });
                prop_assert!(first.is_sorted());
            }
        }

        #[test]
        fn one_resync_after_a_gap(history in history()) {
            let views = views(history);
            let mut changes = Changes::from(Arc::clone(&views[0]));
            let last = Arc::clone(views.last().expect("at least one"));
            changes.compare(Arc::clone(&last));
            let events = told(&mut changes);
            let resyncs = events.iter().filter(|event| matches!(event, GroupEvent::Resync(_)));
            prop_assert_eq!(resyncs.count(), usize::from(last.gaps > views[0].gaps));
        }

        #[test]
        fn a_deleted_group_is_left_by_all(history in history(), again in any::<bool>()) {
            let views = views(history);
            let mut changes = Changes::from(Arc::clone(&views[0]));
            let mut members = changes.members();
            let entries = views.last().expect("at least one").listing.entries.clone();
            // The group is gone, or has been created again, with other members.
            let value = again.then(|| Value { version: 2, data: "{}".into(), writer: None });
            let listing = Listing { entries, value, ..Listing::default() };
            prop_assert_eq!(changes.compare(seen(listing, 9)), Life::Over);
            let events = told(&mut changes);
            prop_assert_eq!(events.last(), Some(&GroupEvent::Deleted));
            for event in events.iter().filter(|event| **event != GroupEvent::Deleted) {
                prop_assert!(matches!(event, GroupEvent::Left(_)));
                members.apply(event);
            }
            prop_assert!(members.is_empty() && changes.members().is_empty());
        }
    }
}
