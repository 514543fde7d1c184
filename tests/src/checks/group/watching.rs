//! G2: what watchers of a group see.

use super::super::tools::drop_after_polls;
use super::*;

/// G2: all watchers see the same joins, leaves and updates, in the same order.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_watch_group_join`, `test_watch_leave_group`,
/// `test_unwatch_leave_group`, `test_unwatch_join_group_callback_not_found` and the like (here a watch that is dropped
/// ends, and no callback is left), `TestHook`.
pub async fn g2_joins_leaves_and_updates_in_order(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (here, there) = (group(&one), group(&other));
    let early = here.join_or_create("early").await?;
    let (mut watch, mut same) = (there.watch().await?, there.watch().await?);
    let dropped = there.watch().await?;
    let mut elsewhere = here.watch().await?;
    assert_eq!(ids(&watch.members()), ["one"]);
    assert!(watch.try_next()?.is_none());
    drop(dropped);

    let second = there.join("late").await?;
    // If the future of `next` is dropped, no event is lost: either the last poll applied it to `members`, or the next
    // call returns it.
    let mut polls = 0;
    while watch.members().len() < 2 {
        drop_after_polls(watch.next(), polls % 3).await;
        polls += 1;
    }
    let incarnation = second.incarnation();
    second.update("later").await?;
    let event = next(&mut watch).await?;
    let GroupEvent::Updated(member) = &event else { panic!("{event:?}") };
    assert_eq!(
        (&*member.capabilities.parse::<String>()?, member.incarnation),
        ("later", incarnation)
    );
    second.leave().await?;
    let event = next(&mut watch).await?;
    let GroupEvent::Left(member) = &event else { panic!("{event:?}") };
    // The event of a leave has the member's last known capabilities.
    assert_eq!(member.capabilities.parse::<String>()?, "later");
    let again = there.join("again").await?;
    let event = next(&mut watch).await?;
    let GroupEvent::Joined(member) = &event else { panic!("{event:?}") };
    assert!(member.incarnation > incarnation && member.incarnation == again.incarnation());
    early.leave().await?;
    assert_eq!(short(&next(&mut watch).await?), "-one");
    assert_eq!(ids(&watch.members()), ["other"]);

    // Watches of one coordinator share their reads of the store; another coordinator's watch reads by itself. A watch
    // may merge changes, but never reports them in another order.
    for other in [&mut same, &mut elsewhere] {
        let mut members = other.members();
        while ids(&members) != ["other"] || members.get("other") != Some(member) {
            members.apply(&next(other).await?);
            assert_eq!(members, other.members());
        }
        assert!(other.try_next()?.is_none());
    }
    Ok(())
}

/// G2: when a member is replaced by a new one, a watcher that polls rarely sees the new member before the old one
/// leaves.
pub async fn g2_a_rolling_replacement_is_never_empty(store: &TestStore) -> Result<()> {
    let (_one, here) = with_group(store, "one").await?;
    let other = store.connect("other").await?;
    let mut watch = group(&other).watch().await?;
    let mut old = here.join_as("old", &0).await?;
    assert_eq!(short(&next(&mut watch).await?), "+old");
    for round in 1..=5 {
        let new = here.join_as(format!("new-{round}"), &round).await?;
        old.leave().await?;
        // Both changes are known to this client before it polls the watch.
        until_members(&group(&other), &[&format!("new-{round}")]).await;
        sleep(MOMENT).await;
        let mut told = vec![next(&mut watch).await?, next(&mut watch).await?];
        assert!(watch.try_next()?.is_none());
        assert!(matches!(told.remove(0), GroupEvent::Joined(_)), "{told:?}");
        assert!(matches!(told.remove(0), GroupEvent::Left(_)));
        old = new;
    }
    Ok(())
}

/// G2: watchers that come before the group make it, whichever of them is first, and see the first member.
pub async fn g2_watchers_may_come_first(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (here, there) = (group(&one), group(&other));
    let (first, second) = tokio::try_join!(here.watch_or_create(), there.watch_or_create())?;
    let mut watches = [first, second, here.watch_or_create().await?];
    assert!(here.exists().await?);
    let member = there.join(&()).await?;
    for watch in &mut watches {
        assert!(watch.members().is_empty());
        assert_eq!(short(&next(watch).await?), "+other");
    }
    member.leave().await?;
    for watch in &mut watches {
        assert_eq!(short(&next(watch).await?), "-other");
    }
    // A watch of a group that was deleted says so: it is not made again under the watch.
    here.delete().await?;
    for watch in &mut watches {
        assert_eq!(next(watch).await?, GroupEvent::Deleted);
        assert_eq!(kind(next(watch).await), Some(ErrorKind::GroupMissing));
    }
    assert!(!here.exists().await?);
    assert!(there.watch_or_create().await?.members().is_empty());
    assert!(here.exists().await?);
    Ok(())
}

/// G2: whatever many clients do at the same time, replaying the events over the first snapshot gives the last snapshot.
pub async fn g2_replay_gives_the_last_snapshot(store: &TestStore) -> Result<()> {
    let (_one, here) = with_group(store, "one").await?;
    let other = store.connect("other").await?;
    let watches = [here.watch().await?, group(&other).watch().await?, here.watch().await?];
    let done = tokio::sync::watch::Sender::new(false);
    let mut replays = JoinSet::new();
    for mut watch in watches {
        let mut end = done.subscribe();
        replays.spawn(async move {
            let mut members = watch.members();
            let mut newest = BTreeMap::new();
            let mut events = 0;
            loop {
                let event = tokio::select! {
                    biased;
                    event = watch.next() => event.expect("the group is there"),
                    _ = end.wait_for(|done| *done) => return (members, watch, events),
                };
                if let GroupEvent::Joined(member) = &event {
                    let before = newest.insert(member.id.clone(), member.incarnation);
                    assert!(before < Some(member.incarnation), "an old incarnation is back");
                }
                members.apply(&event);
                assert_eq!(members, watch.members());
                events += 1;
            }
        });
    }
    let mut tasks = JoinSet::new();
    for member in 0..6_usize {
        let group = group(if member % 2 == 0 { &other } else { &_one });
        let rounds = store.rounds(30, 8);
        tasks.spawn(async move {
            for round in 0..rounds {
                let membership = group.join_as(format!("member-{member}"), &round).await?;
                membership.update(&(round, "more")).await?;
                if round + 1 == rounds {
                    return Ok::<_, Error>(membership);
                }
                match round % 2 {
                    0 => drop(membership),
                    _ => membership.leave().await?,
                }
            }
            unreachable!("there are rounds")
        });
    }
    let memberships: Vec<Membership> = tasks.join_all().await.into_iter().collect::<Result<_>>()?;
    let last = here.members().await?;
    assert_eq!(last.len(), memberships.len());
    // Waits until the watchers have seen the last change. After it, there are no further changes.
    sleep(4 * MOMENT + store.scheduling()).await;
    done.send_replace(true);
    while let Some(replay) = replays.join_next().await {
        let (mut members, mut watch, events) = replay.expect("no panic");
        while members != last {
            members.apply(&next(&mut watch).await?);
        }
        eprintln!("G2: {events} events");
        assert_eq!(watch.members(), last);
    }
    Ok(())
}

/// G2: a group that does not exist cannot be watched, and the attempt creates nothing.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_watch_join_group_non_existent`,
/// `test_watch_leave_group_non_existent`.
pub async fn g2_a_missing_group_is_not_watched(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (here, there) = (group(&one), group(&other));
    assert_eq!(kind(here.watch().await), Some(ErrorKind::GroupMissing));
    assert!(!there.exists().await?, "watching creates nothing");
    // The group can be watched as soon as it exists, although a watch was refused before.
    for _ in 0..store.rounds(20, 5) {
        there.create().await?;
        assert!(here.watch().await?.members().is_empty());
        there.delete().await?;
        let watch = here.watch().await;
        if let Ok(mut watch) = watch {
            // If the watch began before this client learned of the deletion, the deletion follows at once.
            assert_eq!(next(&mut watch).await?, GroupEvent::Deleted);
        }
    }
    Ok(())
}

/// G2: when a group is deleted, watchers see that its members left, and then that it was deleted.
///
/// Tooz: corresponds to the test `test_watch_join_group_disappear` of the Python library Tooz.
pub async fn g2_a_deleted_group_ends_the_watch(store: &TestStore) -> Result<()> {
    let (_one, here) = with_group(store, "one").await?;
    let there = group(&store.connect("other").await?);
    let (first, second) = (here.join(&()).await?, here.join_as("two", &()).await?);
    let mut watch = there.watch().await?;
    let mut members = watch.members();
    assert_eq!(members.len(), 2);
    first.leave().await?;
    second.leave().await?;
    here.delete().await?;
    here.create().await?;
    let _next_life = here.join_as("three", &()).await?;
    let mut told = Vec::new();
    loop {
        let event = next(&mut watch).await?;
        told.push(short(&event));
        members.apply(&event);
        if event == GroupEvent::Deleted {
            break;
        }
    }
    assert_eq!(told, ["-one", "-two", "deleted"]);
    assert!(members.is_empty() && watch.members().is_empty());
    assert_eq!(kind(watch.next().await), Some(ErrorKind::GroupMissing));
    assert_eq!(kind(watch.try_next()), Some(ErrorKind::GroupMissing));
    // When the group is created again, only a new watch reports it.
    let mut watch = there.watch().await?;
    while ids(&watch.members()) != ["three"] {
        next(&mut watch).await?;
    }
    Ok(())
}

/// G2: a member that is removed by another client learns of its removal, and so do watchers.
///
/// Tooz: corresponds to the test `test_watch_join_group_booted_out` of the Python library Tooz.
pub async fn g2_a_removed_member_is_told(store: &TestStore) -> Result<()> {
    let (_one, here) = with_group(store, "one").await?;
    let there = group(&store.connect("other").await?);
    let membership = here.join("ssd").await?;
    let mut watch = here.watch().await?;
    // The library begins to watch a member's entry a little after the join. This waits until then.
    sleep(2 * MOMENT).await;
    let removed = there.remove("one").await?;
    let start = Instant::now();
    assert_eq!(removed.incarnation, membership.incarnation());
    assert_eq!(removed.capabilities.parse::<String>()?, "ssd");
    let reason = timeout(PATIENCE, membership.lost()).await.expect("told");
    assert_eq!(reason, LossReason::EntryDeleted);
    assert!(start.elapsed() <= store.notice_bound(), "told after {:?}", start.elapsed());
    while short(&next(&mut watch).await?) != "-one" {}
    assert_eq!(kind(membership.leave().await), Some(ErrorKind::Lost));
    assert_eq!(kind(there.remove("one").await), Some(ErrorKind::NotJoined));
    Ok(())
}

/// G2: after an outage there is one `Resync`, and then the watch goes on reporting events.
pub async fn g2_resync_after_an_outage(store: &TestStore) -> Result<()> {
    let (_one, here) = with_group(store, "one").await?;
    let staying = here.join_as("staying", &1).await?;
    let leaving = here.join_as("leaving", &1).await?;
    let cut_off = store.connect_by_proxy("cut-off").await?;
    let mut watches = [group(&cut_off).watch().await?, group(&cut_off).watch().await?];
    let mut state = cut_off.state();
    store.proxy().set_both(Mode::Blackhole);
    until_state(&mut state, |state| matches!(state, State::Lost(_))).await;
    leaving.leave().await?;
    let _coming = here.join_as("coming", &1).await?;
    staying.update(&2).await?;
    // The outage lasts until the next re-check of the watches has failed, because a watch reports an outage only if one
    // of its reads failed.
    let ttl = store.ttl().expect("the check is for leases");
    sleep(ttl + 2 * store.attempt_timeout() + store.scheduling()).await;
    for watch in &mut watches {
        assert_eq!(watch.try_next()?, None, "it cannot know");
    }
    store.proxy().heal();
    let last = here.members().await?;
    for watch in &mut watches {
        assert_eq!(next(watch).await?, GroupEvent::Resync(last.clone()));
        assert_eq!(watch.members(), last);
    }
    // Watches go on reporting events.
    staying.leave().await?;
    for watch in &mut watches {
        assert_eq!(short(&next(watch).await?), "-staying");
    }
    Ok(())
}
