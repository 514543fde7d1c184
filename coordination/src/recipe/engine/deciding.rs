//! Does what a policy decides, though the store may refuse it for now, and confirms it.

use std::sync::Arc;

use super::own_entry::OwnEntry;
use super::policy::{Decision, Policy};
use super::turn::{Acquire, Turn};
use super::waiting::Waiting;
use crate::backend::{Data, Entry, Listing, Mode, NewEntry, Room, Write};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::retry::DecorrelatedJitter;
use crate::session::{Sight, Written, is_refusal, may_pass};

/// Does what the policy decides, until it decides that the turn has come.
pub(in crate::recipe) async fn await_decision(
    acquire: &Acquire,
    own: &OwnEntry,
    policy: &dyn Policy,
) -> Result<Turn> {
    let (session, queue, lease) = (&acquire.session, &acquire.queue, own.lease());
    let seq = own.seq().unwrap_or_default();
    let (mut views, mut has_waited) = (None, false);
    let mut refusals = Refusals::new(acquire, own, policy);
    loop {
        refusals.note_server();
        // Invariant (S6 in `docs/guarantees.md`): the queue is read anew for every decision, which also shows that our own entry
        // still exists.
        let listing = refusals.read(has_waited).await?;
        let Some(listed) = listing.entry(seq) else { return Ok(Turn::EntryLost) };
        if let Some(taken) = refusals.taken_nevertheless(listed) {
            match refusals.confirmed(Some(taken), has_waited).await? {
                Some(turn) => return Ok(turn),
                None => continue,
            }
        }
        let verdict = policy.decide(&listing, listed)?;
        let has_to_wait = matches!(verdict, Decision::Wait | Decision::WaitFor(_));
        has_waited |= has_to_wait && policy.is_patient();
        acquire.call.note_blocked(has_to_wait);
        acquire.call.note(&listing);
        if has_to_wait {
            // What the store refused before is not what this entry waits for now.
            refusals.note(None);
        }
        match verdict {
            _ if has_to_wait && acquire.waiting == Waiting::Never => return Ok(Turn::NotNow),
            Decision::Wait => {}
            Decision::WaitFor(before) => match acquire.await_gone(own, &before, Mode::Shared).await
            {
                true => continue,
                false => return Ok(Turn::EntryLost),
            },
            Decision::Grant => match refusals.confirmed(None, has_waited).await? {
                Some(turn) => return Ok(turn),
                None => continue,
            },
            Decision::Publish(data) => {
                let room = own.entry().room.after_update();
                let published = own.update_for("acquire", Mode::Shared, data, room).await;
                match refusals.or_pause(published, has_waited).await {
                    Ok(Some(())) => has_waited |= policy.is_patient(),
                    Err(error) if error.loss_reason().is_none() => return Err(error),
                    _ => {}
                }
                continue;
            }
            Decision::Take(data) => match refusals.take(data, has_waited).await {
                Ok(Some(taken)) => match refusals.confirmed(Some(taken), has_waited).await? {
                    Some(turn) => return Ok(turn),
                    None => continue,
                },
                Ok(None) => continue,
                Err(error) if error.loss_reason().is_some() => return Ok(Turn::EntryLost),
                Err(error) => return Err(error),
            },
            Decision::Initialize(data) => {
                let (expected, seen) = (listing.value.map(|value| value.version), listing.source);
                // A server that has taken over may have this version, and none of the entries by which it was decided.
                let write = Write { seen, ..Write::new(queue, expected, Some(data)) };
                let written = session.write_until_settled(lease, "acquire", &write).await;
                let did_nothing = match &written {
                    // If the answer to an earlier try was lost, and others have changed the value since, it is not `No`.
                    Ok(written) => *written == Written::No,
                    Err(error) => error.effect() == Effect::None,
                };
                acquire.tries().may_have_written |= !did_nothing;
                // Whether it was written or not, the next read shows the queue's value.
                refusals.or_pause(written, has_waited).await?;
                continue;
            }
        }
        let views = views.get_or_insert_with(|| session.observe(queue, Sight::Standing));
        loop {
            let view = tokio::select! {
                biased;
                _ = lease.ended() => return Ok(Turn::EntryLost),
                view = views.next() => view?,
            };
            // A view may be older than the listing that was read above. So a view only says when to read again, and not what to
            // do.
            acquire.call.note(&view.listing);
            let listed = view.listing.entry(seq);
            let now = listed.map(|listed| policy.decide(&view.listing, listed));
            if !matches!(now, Some(Ok(Decision::Wait))) {
                break;
            }
        }
    }
}

/// The store's refusals to write what a policy has decided, while its entry waits on.
///
/// For an entry that has waited: that the store has no room, or refuses our login or the call, or that the process has no file descriptor
/// left, may pass (`F-36`, `F-56`, `F-64`). So such an entry waits on in its place. What was decided may be wrong by then: somebody may
/// have changed the number of slots, for instance. So the queue is read and it is decided anew.
struct Refusals<'a> {
    acquire: &'a Acquire,
    own: &'a OwnEntry,
    policy: &'a dyn Policy,
    delays: DecorrelatedJitter,
    /// Whether the log was told of one.
    is_told: bool,
    /// What was to be taken by updates of our entry that were refused, although the store may have carried them out.
    in_doubt: Option<Data>,
    /// Whether a server that was asked since this entry began to wait needs the confirmation of others, so that one of them may
    /// take over.
    may_be_replaced: bool,
}

impl<'a> Refusals<'a> {
    fn new(acquire: &'a Acquire, own: &'a OwnEntry, policy: &'a dyn Policy) -> Self {
        let delays = acquire.session.retry_delays(own.lease().ttl);
        let (is_told, in_doubt, may_be_replaced) = (false, None, false);
        Self { acquire, own, policy, delays, is_told, in_doubt, may_be_replaced }
    }

    /// Stores with our entry what it takes, and returns what that is; `None`: the store has refused it, and it is to be decided anew.
    ///
    /// If an earlier update is in doubt, this repeats that update, whatever the policy chooses now (S9). The earlier update may come
    /// late and then be replaced by this one. Entries after ours that decide in between see the slots of the earlier one as
    /// taken, and may take those that the policy would choose now. Nobody else has the earlier slots: entries before ours can only give
    /// slots back, and entries after ours decide only once ours is shared, and see its slots then. If another server has taken over
    /// meanwhile, that need not be so there: then [`confirmed`](Self::confirmed) looks.
    async fn take(&mut self, data: Data, has_waited: bool) -> Result<Option<Data>> {
        let data = self.in_doubt.clone().unwrap_or(data);
        let updated = self.own.update("acquire", Mode::Shared, Arc::clone(&data)).await;
        let may_be_there = updated.as_ref().is_err_and(|refused| refused.effect() != Effect::None);
        if may_be_there {
            self.in_doubt = Some(Arc::clone(&data));
        }
        Ok(self.or_pause(updated, has_waited).await?.map(|()| data))
    }

    /// What our entry has taken by an update that is in doubt, if the entry as it is listed shows that it was carried out.
    fn taken_nevertheless(&self, listed: &Entry) -> Option<Data> {
        let taken = self.in_doubt.as_ref().filter(|taken| listed.data == **taken)?;
        let (mode, data, room) = (Mode::Shared, Arc::clone(taken), Room::default());
        let entry = NewEntry { mode, data, room, ..self.own.entry().clone() };
        self.acquire.session.backend.updated(&entry, listed.seq);
        self.note(None);
        Some(Arc::clone(taken))
    }

    fn note_server(&mut self) {
        self.may_be_replaced |= self.acquire.session.backend.confirms();
    }

    /// The turn has come, once everything that a grant of the store has to survive knows our entry and what it has taken. `None`: a
    /// server that has taken over meanwhile does not know that, or not why the turn had come, and it is to be decided anew.
    async fn confirmed(&mut self, taken: Option<Data>, has_waited: bool) -> Result<Option<Turn>> {
        self.note_server();
        if !self.may_be_replaced {
            return Ok(Some(Turn::Mine(taken)));
        }
        let (acquire, own) = (self.acquire, self.own);
        let (session, entry) = (&acquire.session, own.entry());
        loop {
            // The server that confirms may be another one than that which was told what the entry takes, or which has the value and the
            // entries that made it its turn. So it is looked at first, and only the server that was looked at may confirm: whatever is
            // seen there was written before, and is confirmed as well.
            let listing = self.read(has_waited).await?;
            let Some(listed) = listing.entry(own.seq().unwrap_or_default()) else {
                return Ok(Some(Turn::EntryLost));
            };
            let is_there = |taken: &Data| listed.mode == Mode::Shared && listed.data == *taken;
            let is_known = taken.as_ref().is_none_or(is_there);
            if !is_known || !self.policy.stands(&listing, listed)? {
                if is_known && taken.is_some() {
                    // It was decided by what another server knew, and written here, where an entry before ours has not decided yet, or
                    // has one of the slots. Others rely on what ours has by now, so it cannot be decided anew.
                    return Ok(Some(Turn::EntryLost));
                }
                self.in_doubt = None;
                return Ok(None);
            }
            let confirming = session.backend.confirm(entry, listing.source);
            match session.attempt(own.lease().ttl, "acquire", confirming).await {
                Ok(true) => return Ok(Some(Turn::Mine(taken))),
                Ok(false) => return Ok(Some(Turn::EntryLost)),
                Err(error) if may_pass(&error) || has_waited && is_refusal(&error) => {}
                Err(error) => {
                    error.loss_reason().into_iter().for_each(|reason| own.lease().lose(reason));
                    return Err(error);
                }
            }
            // If the session ends meanwhile, the next read says so.
            tokio::select! {
                biased;
                _ = own.lease().ended() => {}
                () = tokio::time::sleep(self.delays.next_delay()) => {}
            }
        }
    }

    async fn read(&self, has_waited: bool) -> Result<Listing> {
        let (session, lease) = (&self.acquire.session, self.own.lease());
        let read = || session.backend.read_standing(&self.acquire.queue);
        let listing = match has_waited {
            false => session.retry_until_settled(lease, "acquire", read).await,
            true => session.retry_while_waiting(lease, "acquire", read).await,
        };
        // A read has no effect, whether its answer came or not.
        listing.map_err(|error| error.with_effect(Effect::None))
    }

    /// If the store has refused this for now, and the entry waits on: waits a moment, and returns `None`.
    async fn or_pause<T>(&mut self, outcome: Result<T>, has_waited: bool) -> Result<Option<T>> {
        let backend = &self.acquire.session.backend;
        let may_wait =
            |error: &Error| is_refusal(error) || is_full(error) || backend.lacks_descriptors(error);
        let refused = match outcome {
            Err(error) if has_waited && may_wait(&error) => error,
            outcome => {
                self.note(None);
                return outcome.map(Some);
            }
        };
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(error = %refused, "refused while it waits; it goes on waiting");
        }
        self.note(Some(refused));
        tokio::select! {
            biased;
            _ = self.own.lease().ended() => {}
            () = tokio::time::sleep(self.delays.next_delay()) => {}
        }
        Ok(None)
    }

    fn note(&self, refused: Option<Error>) {
        self.policy.refused(refused.as_ref());
        self.acquire.tries().refused = refused;
    }
}

fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::Quota
}

#[cfg(all(test, coordination_internals, feature = "memory"))]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use crate::simulation::{Client, Clocks, Link, Room, Run, Traits, Weather, World};
    use crate::{Admission, Config, Coordinator, ErrorKind, Refusal};

    const TTL: Duration = Duration::from_secs(1);

    /// A world, and two clients of it.
    async fn two() -> (World, [Coordinator; 2]) {
        let (world, clients) = two_for(TTL).await;
        (world, clients.map(|(client, _)| client))
    }

    async fn two_for(ttl: Duration) -> (World, [(Coordinator, std::sync::Arc<Client>); 2]) {
        let world = World::new(1, Traits::SERVER);
        let connect = async || {
            let config = Config { ttl: Some(ttl), ..Config::default() };
            let client = world.client(Clocks::default());
            (client.connect(config).await.expect("the store is there"), client)
        };
        let clients = [connect().await, connect().await];
        (world, clients)
    }

    /// The permit that somebody waits for, and the place among those who work, become free while the store has no room for the
    /// numbers of slots. Who waits gets them when there is room.
    #[tokio::test(start_paused = true)]
    async fn f36_who_waits_for_a_slot_waits_until_the_store_has_room() {
        let _run = Run::begin(1);
        let (world, [holder, other]) = two().await;
        let semaphore = |client: &Coordinator| client.semaphore("a", 1).expect("a good name");
        let limiter = |client: &Coordinator| client.limiter("a").expect("a good name").standby(1);
        let permit = semaphore(&holder).acquire(None).await.expect("free");
        let entrant = limiter(&holder).enter().await.expect("free");
        let (waits, stands_by) = (semaphore(&other), limiter(&other));
        let fills = async {
            sleep(TTL).await;
            world.set_room(Room::None);
            permit.release().await.expect("a release needs no room");
            let Admission::Working(slot) = entrant else { panic!("it works") };
            slot.release().await.expect("a release needs no room");
            sleep(3 * TTL).await;
            let refused = semaphore(&holder).try_acquire().await.expect_err("there is no room");
            assert_eq!(refused.kind(), ErrorKind::Quota, "who has not waited is told at once");
            world.set_room(Room::Enough);
        };
        let (permit, entrant, ()) =
            tokio::join!(waits.acquire(Some(10 * TTL)), stands_by.enter(), fills);
        assert!(permit.expect("it waited").is_held());
        let Admission::Working(slot) = entrant.expect("it stood by") else { panic!("it works") };
        assert!(slot.is_held());
    }

    /// While the store has no room for the number of a slot, the number of permits is lowered. The update that was refused must not be
    /// repeated.
    #[tokio::test(start_paused = true)]
    async fn p1_a_refused_permit_is_not_taken_after_all_when_there_are_fewer() {
        for room in [Room::None, Room::NoneInDoubt] {
            let _run = Run::begin(1);
            let (world, [holder, other]) = two().await;
            let semaphore = |client: &Coordinator| client.semaphore("a", 2).expect("a good name");
            let first = semaphore(&holder).acquire(None).await.expect("free");
            let second = semaphore(&holder).acquire(None).await.expect("free");
            let waits = semaphore(&other);
            let waits = tokio::spawn(async move { waits.acquire(Some(60 * TTL)).await });
            sleep(TTL).await;
            world.set_room(room);
            second.release().await.expect("a release needs no room");
            sleep(TTL).await;
            semaphore(&holder).resize(1).await.expect("the number has room");
            world.set_room(Room::Enough);
            sleep(5 * TTL).await;
            assert!(
                !waits.is_finished() && first.is_held(),
                "{room:?}: one is held, and there is one"
            );
            first.release().await.expect("it was held");
            assert!(waits.await.expect("no panic").expect("it is free").is_held());
        }
    }

    /// The store has carried out what it seemed to refuse: whoever has the permit is told so, though nothing can be written.
    #[tokio::test(start_paused = true)]
    async fn f36_a_permit_that_was_taken_with_the_last_room_is_held() {
        let _run = Run::begin(1);
        let (world, [holder, other]) = two().await;
        let semaphore = |client: &Coordinator| client.semaphore("a", 2).expect("a good name");
        let first = semaphore(&holder).acquire(None).await.expect("free");
        let second = semaphore(&holder).acquire(None).await.expect("free");
        let waits = semaphore(&other);
        let waits = tokio::spawn(async move { waits.acquire(None).await });
        sleep(TTL).await;
        world.set_room(Room::Last);
        second.release().await.expect("a release needs no room");
        let third = waits.await.expect("no panic").expect("it has it");
        assert!(third.is_held() && third.slots() != first.slots());
        let holders = semaphore(&holder).holders().await.expect("it is there");
        assert_eq!(holders.iter().map(|holder| holder.slots.len()).sum::<usize>(), 2);
    }

    /// A permit is taken, the answer is lost, and then the login is refused for a while. Meanwhile the permit before it is given back,
    /// and the next contender takes that one. The first must not take it as well.
    #[tokio::test(start_paused = true)]
    async fn p1_a_permit_whose_answer_was_lost_is_not_exchanged_for_another() {
        let mut lost = 0;
        for moment in (0..500).step_by(20) {
            lost += u32::from(take_without_answer(Duration::from_millis(moment)).await);
        }
        assert!(lost > 0, "the answer was lost in no run");
    }

    /// Makes that happen if the answers are lost from this moment on. Returns whether the permit was taken without an answer.
    async fn take_without_answer(moment: Duration) -> bool {
        let _run = Run::begin(1);
        let (world, [(holder, _), (other, link)]) = two_for(60 * TTL).await;
        world.set_weather(Weather { delay: 50..=50, ..Weather::calm() });
        let semaphore = |client: &Coordinator| client.semaphore("a", 2).expect("a good name");
        let first = semaphore(&holder).acquire(None).await.expect("free");
        let second = semaphore(&holder).acquire(None).await.expect("free");
        let waits = semaphore(&other);
        let waits = tokio::spawn(async move { waits.acquire(None).await });
        sleep(TTL).await;
        second.release().await.expect("it was held");
        sleep(moment).await;
        link.set_link(Link { replies_cut: true, ..Link::default() });
        sleep(2 * TTL).await;
        let holders = semaphore(&holder).holders().await.expect("it is there");
        let are_taken = holders.iter().map(|holder| holder.slots.len()).sum::<usize>() == 2;
        let is_lost = are_taken && !waits.is_finished();
        world.set_failing(Some(ErrorKind::Auth));
        link.set_link(Link::default());
        sleep(3 * TTL).await;
        link.set_link(Link { requests_cut: true, ..Link::default() });
        world.set_failing(None);
        first.release().await.expect("it was held");
        let next = semaphore(&holder).acquire(Some(5 * TTL)).await;
        link.set_link(Link::default());
        let third = waits.await.expect("no panic").expect("it has it");
        if let Ok(next) = &next {
            assert_ne!(third.slots(), next.slots(), "{moment:?}");
            let one_more = semaphore(&holder).try_acquire().await.expect("the store is there");
            assert!(one_more.is_none(), "{moment:?}: both are taken");
        }
        is_lost && next.is_ok()
    }

    /// What a full store refused long before is not what its caller waits for when the store is out of reach.
    #[tokio::test(start_paused = true)]
    async fn what_was_refused_before_an_outage_is_not_told_after_it() {
        let _run = Run::begin(1);
        let (world, [holder, other]) = two().await;
        let permit = holder.semaphore("a", 1).expect("a good name").acquire(None).await;
        let waits = other.semaphore("a", 1).expect("a good name");
        let limiter = |client: &Coordinator| client.limiter("a").expect("a good name").standby(1);
        let (stands_by, working) = (limiter(&other), limiter(&holder).enter().await.expect("free"));
        let fills = async {
            sleep(TTL).await;
            world.set_room(Room::None);
            drop((permit, working));
            sleep(3 * TTL).await;
            world.set_room(Room::Enough);
            world.wipe();
            world.set_quarantined(true);
        };
        let entering = stands_by.enter_while(TTL, |attempt, _| attempt < 20);
        let (waited, entered, ()) = tokio::join!(waits.acquire(Some(20 * TTL)), entering, fills);
        let error = waited.expect_err("nobody is let in");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let entered = entered.expect("it gave up");
        assert!(matches!(entered, Admission::Refused(Refusal::GaveUp { .. })), "{entered:?}");
    }

    /// Who waits for a permit until his time is over is told what was missing.
    #[tokio::test(start_paused = true)]
    async fn f36_who_waits_for_room_in_vain_is_told_so() {
        let _run = Run::begin(1);
        let (world, [holder, other]) = two().await;
        let permit = holder.semaphore("a", 1).expect("a good name").acquire(None).await;
        let waits = other.semaphore("a", 1).expect("a good name");
        let fills = async {
            sleep(TTL).await;
            world.set_room(Room::None);
            permit.expect("free").release().await.expect("a release needs no room");
        };
        let begun = tokio::time::Instant::now();
        let (waited, ()) = tokio::join!(waits.acquire(Some(10 * TTL)), fills);
        let error = waited.expect_err("there is no room");
        assert_eq!(error.kind(), ErrorKind::Quota, "{error}");
        assert!(begun.elapsed() >= 10 * TTL, "{:?}", begun.elapsed());
        // Nothing of it is in anybody's way.
        world.set_room(Room::Enough);
        sleep(TTL).await;
        assert!(waits.try_acquire().await.expect("there is room").is_some());
    }

    /// Who gives up while the store refuses to keep the slot is told the store's refusal, rather than that all slots are taken.
    #[tokio::test(start_paused = true)]
    async fn f36_who_gives_up_is_told_what_the_store_refuses() {
        let _run = Run::begin(1);
        let (world, [holder, other]) = two().await;
        let limiter = |client: &Coordinator| client.limiter("a").expect("a good name").standby(1);
        let Admission::Working(slot) = limiter(&holder).enter().await.expect("free") else {
            panic!("it is free");
        };
        let stands_by = limiter(&other);
        let fills = async {
            sleep(TTL).await;
            world.set_room(Room::None);
            slot.release().await.expect("a release needs no room");
        };
        let entering = stands_by.enter_while(TTL, |attempt, _| attempt < 8);
        let (entered, ()) = tokio::join!(entering, fills);
        let error = entered.expect_err("there is a slot, but no room");
        assert_eq!(error.kind(), ErrorKind::Quota, "{error}");
        world.set_room(Room::Enough);
        sleep(TTL).await;
        assert!(matches!(stands_by.enter().await, Ok(Admission::Working(_))), "nothing is left");
    }

    /// The second in line waits for the first, and not for a change of the queue. A login that is refused for a while fails neither.
    #[tokio::test(start_paused = true)]
    async fn f56_the_second_in_line_waits_on_as_well() {
        let _run = Run::begin(1);
        let (world, [holder, other]) = two().await;
        let semaphore = |client: &Coordinator| client.semaphore("a", 1).expect("a good name");
        let permit = semaphore(&holder).acquire(None).await.expect("free");
        let waits = || {
            let semaphore = semaphore(&other);
            tokio::spawn(async move { semaphore.acquire(Some(60 * TTL)).await })
        };
        let first = waits();
        sleep(TTL / 10).await;
        let second = waits();
        sleep(TTL / 2).await;
        world.set_failing(Some(ErrorKind::Auth));
        sleep(TTL / 2).await;
        world.set_failing(None);
        sleep(5 * TTL).await;
        drop(permit);
        first.await.expect("no panic").expect("it waited").release().await.expect("it is held");
        assert!(second.await.expect("no panic").expect("it waited").is_held());
    }
}
