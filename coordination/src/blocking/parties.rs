//! Who is there and who leads, and waiting for each other.

use std::time::Duration;

use serde::Serialize;

use super::calls::{calls, labelled, made, wraps};
use super::{Coordinator, wait};
use crate::{
    Candidate, FencingToken, GroupWatch, Inside, Leadership, Member, Members, Membership, Result,
    Term, Terms,
};

made! {
    Election by election(name: impl AsRef<str>);
    Group by group(name: impl AsRef<str>);
    Barrier by barrier(name: impl AsRef<str>);
    DoubleBarrier by double_barrier(name: impl AsRef<str>, parties: u32);
    Latch by latch(name: impl AsRef<str>, count: u32);
}

/// [`crate::Election`] with blocking calls.
///
/// # Examples
///
/// ```
/// use coordination::{ElectionEvent, blocking};
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let election = coordinator.election("scheduler")?;
///     let leadership = election.campaign("starting", None)?;
///     blocking::wait(leadership.proclaim("ready"))?;
///
///     let mut terms = election.observe();
///     if let ElectionEvent::Leader(term) = blocking::wait(terms.next())? {
///         println!("{} is {}", term.leader, term.value::<String>()?);
///     }
///     blocking::release(leadership)?;
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Election(crate::Election);

wraps! { Election }

calls! { Election:
    campaign(value: &(impl Serialize + ?Sized), timeout: Option<Duration>) -> Leadership;
    try_campaign(value: &(impl Serialize + ?Sized)) -> Option<Leadership>;
    leader() -> Option<Term>;
    candidates() -> Vec<Candidate>;
    break_grant(term: FencingToken) -> Option<Candidate>;
}

impl Election {
    /// Does the same as [`crate::Election::observe`]. A thread waits for the next event by
    /// [`wait`].
    pub fn observe(&self) -> Terms {
        self.0.observe()
    }
}

/// [`crate::Group`] with blocking calls.
///
/// # Examples
///
/// ```
/// use coordination::{GroupEvent, blocking};
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let group = coordinator.group("backups")?;
///     let mut watch = group.watch_or_create()?;
///     let membership = group.join("ssd")?;
///     assert!(matches!(blocking::wait(watch.next())?, GroupEvent::Joined(_)));
///     assert_eq!(group.members()?.len(), 1);
///     blocking::release(membership)?;
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Group(crate::Group);

wraps! { Group }

labelled! { Election Group }

calls! { Group:
    create() -> ();
    delete() -> ();
    exists() -> bool;
    join(capabilities: &(impl Serialize + ?Sized)) -> Membership;
    join_as(member_id: impl AsRef<str>, capabilities: &(impl Serialize + ?Sized)) -> Membership;
    join_or_create(capabilities: &(impl Serialize + ?Sized)) -> Membership;
    members() -> Members;
    member(id: &str) -> Member;
    remove(id: &str) -> Member;
    watch() -> GroupWatch;
    watch_or_create() -> GroupWatch;
}

/// [`crate::Barrier`] with blocking calls.
///
/// # Examples
///
/// ```
/// use coordination::blocking;
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let barrier = coordinator.barrier("maintenance")?;
///     barrier.close()?;
///     let waiting = barrier.clone();
///     let waiting = std::thread::spawn(move || waiting.wait(None));
///     barrier.open()?;
///     waiting.join().expect("no panic")?;
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Barrier(crate::Barrier);

wraps! { Barrier }

calls! { Barrier:
    close() -> bool;
    open() -> bool;
    is_open() -> bool;
    wait(timeout: Option<Duration>) -> ();
}

/// [`crate::DoubleBarrier`] with blocking calls.
///
/// # Examples
///
/// ```
/// use coordination::blocking;
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let phase = coordinator.double_barrier("phase", 1)?;
///     let inside = phase.enter(None)?;
///     // … the work of this phase …
///     blocking::wait(inside.leave(None))?;
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct DoubleBarrier(crate::DoubleBarrier);

wraps! { DoubleBarrier }

calls! { DoubleBarrier:
    enter(timeout: Option<Duration>) -> Inside;
    waiting() -> usize;
}

/// [`crate::Latch`] with blocking calls.
///
/// # Examples
///
/// ```
/// use coordination::blocking;
///
/// fn main() -> coordination::Result<()> {
///     let coordinator = blocking::Coordinator::connect("memory://")?;
///     let ready = coordinator.latch("workers-ready", 2)?;
///     let workers = [ready.clone(), ready.clone()];
///     let workers = workers.map(|ready| std::thread::spawn(move || ready.count_down()));
///     ready.wait(None)?;
///     for worker in workers {
///         worker.join().expect("no panic")?;
///     }
///     coordinator.stop()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Latch(crate::Latch);

wraps! { Latch }

calls! { Latch:
    count_down() -> u32;
    remaining() -> u32;
    wait(timeout: Option<Duration>) -> ();
    reset() -> ();
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::super::release;
    use super::*;
    use crate::{ElectionEvent, ErrorKind, GroupEvent, LossReason};

    const MOMENT: Option<Duration> = Some(Duration::from_millis(10));

    #[test]
    fn a_thread_leads() -> Result<()> {
        let coordinator = Coordinator::connect("memory://blocking-election")?;
        let election = coordinator.election("scheduler")?.label("rack 7")?;
        let mut terms = election.observe();
        assert_eq!(wait(terms.next())?, ElectionEvent::NoLeader);
        let leadership = election.campaign("one", None)?;
        assert!(election.try_campaign("other")?.is_none());
        assert_eq!(election.leader()?.map(|term| term.term), Some(leadership.term()));
        assert!(election.candidates()?[0].leading);
        assert_eq!(election.candidates()?[0].label, "rack 7");
        assert!(matches!(wait(terms.next())?, ElectionEvent::Leader(_)));
        release(leadership)?;
        let hanging = election.try_campaign("other")?.expect("nobody leads");
        assert!(election.break_grant(hanging.term())?.is_some());
        coordinator.stop()
    }

    #[test]
    fn threads_are_members() -> Result<()> {
        let coordinator = Coordinator::connect("memory://blocking-group")?;
        let group = coordinator.group("disks")?.label("rack 7")?;
        assert!(!group.exists()?);
        group.create()?;
        let mut watch = group.watch()?;
        let one = group.join("ssd")?;
        let other = group.join_as("other", "hdd")?;
        assert!(matches!(wait(watch.next())?, GroupEvent::Joined(_)));
        assert_eq!(group.members()?.len(), 2);
        assert_eq!(group.member("other")?.capabilities.parse::<String>()?, "hdd");
        assert_eq!(&*group.member("other")?.label, "rack 7");
        group.remove("other")?;
        assert_eq!(wait(other.lost()), LossReason::EntryDeleted);
        assert_eq!(release(other).map_err(|error| error.kind()), Err(ErrorKind::Lost));
        release(one)?;
        release(group.join_or_create(&())?.rejoining())?;
        group.delete()?;
        assert!(group.watch_or_create()?.members().is_empty());
        coordinator.stop()
    }

    #[test]
    fn threads_wait_for_each_other() -> Result<()> {
        let coordinator = Coordinator::connect("memory://blocking-barriers")?;
        let barrier = coordinator.barrier("maintenance")?;
        assert!(barrier.close()? && !barrier.is_open()?);
        let late = barrier.wait(MOMENT).map_err(|error| error.kind());
        assert_eq!(late, Err(ErrorKind::Timeout));
        assert!(barrier.open()?);
        barrier.wait(None)?;

        let latch = coordinator.latch("ready", 1)?;
        assert_eq!((latch.remaining()?, latch.count_down()?), (1, 0));
        latch.wait(None)?;
        latch.reset()?;
        assert_eq!(latch.remaining()?, 1);

        let phase = coordinator.double_barrier("phase", 2)?;
        let other = phase.clone();
        let other = std::thread::spawn(move || wait(other.enter(None)?.leave(None)));
        let inside = phase.enter(None)?;
        assert_eq!(phase.waiting()?, 0);
        release(inside)?;
        other.join().expect("no panic")?;
        coordinator.stop()
    }
}
