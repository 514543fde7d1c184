//! Checks of sessions: what ends with a session, and which clients may open one.

use std::sync::Arc;

use super::MOST_POLLS;
use super::test_store::{
    Client, TestStore, attempt, dropped_after, open, queue, retry_until_settled,
};
use crate::backend::{Mode, NewSession, SessionId, Write};
use crate::characteristics::LossDetection;
use crate::error::{Effect, ErrorKind, Result};

pub(super) async fn repeat_open(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client("a").await?, queue("q"));
    let (_, position) = client.enter(&queue).await?;
    let leases = [client.open_again().await?, client.open_again().await?];
    assert_eq!(leases[0].is_some(), leases[1].is_some(), "{leases:?}");
    assert_eq!(client.numbers(&queue).await?, [position.seq], "its entries");
    Ok(())
}

pub(super) async fn repeat_open_keeps_the_session_alive(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    client.open_again().await?;
    other.close().await?;
    let lost = client.renew(&[]).await?;
    assert!(lost.is_empty());
    client.enter(&queue).await?;
    Ok(())
}

pub(super) async fn session_end_takes_its_entries(tested: &TestStore<'_>) -> Result<()> {
    let (client, other) = (tested.client("a").await?, tested.client("b").await?);
    let queues = [queue("one"), queue("two")];
    for queue in &queues {
        client.enter(queue).await?;
        client.enter_as(queue, Mode::Shared).await?;
        let (_, position) = other.enter(queue).await?;
        assert!(position.blocker.is_some());
    }
    client.close().await?;
    for queue in &queues {
        let listing = other.read(queue).await?;
        let members: Vec<_> = listing.entries.iter().map(|entry| &*entry.member).collect();
        assert_eq!(members, ["b"], "nobody else's entry goes");
    }
    Ok(())
}

pub(super) async fn session_end_refuses_what_is_entered_after(
    tested: &TestStore<'_>,
) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    client.enter(&queue).await?;
    client.close().await?;
    let entry = client.entry(&queue, Mode::Exclusive, "");
    let refused = client.enter_this(&entry).await.expect_err("its session is over");
    assert_eq!(refused.kind(), ErrorKind::Lost);
    assert!(other.is_empty(&queue).await?);
    Ok(())
}

pub(super) async fn session_end_keeps_values(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    client.enter(&queue).await?;
    client.write(&Write::new(&queue, None, Some("kept".into()))).await?;
    client.close().await?;
    assert_eq!(other.value(&queue).await?.as_deref(), Some("kept"));
    Ok(())
}

pub(super) async fn close_twice(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    client.enter(&queue).await?;
    let (_, position) = other.enter(&queue).await?;
    for _ in 0..2 {
        client.close().await?;
        assert_eq!(other.numbers(&queue).await?, [position.seq]);
    }
    Ok(())
}

pub(super) async fn close_twice_spares_the_next_session(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client("a").await?, queue("q"));
    client.close().await?;
    let next = Client::open(client.store.clone(), "a").await?;
    let (_, position) = next.enter(&queue).await?;
    client.close().await?;
    assert_eq!(next.numbers(&queue).await?, [position.seq]);
    Ok(())
}

pub(super) async fn close_twice_of_what_was_never_opened(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client("a").await?, queue("q"));
    let (_, position) = client.enter(&queue).await?;
    retry_until_settled(|| client.store.close(SessionId::random())).await?;
    assert_eq!(client.numbers(&queue).await?, [position.seq]);
    Ok(())
}

pub(super) async fn forgets_what_lost_sessions_had(tested: &TestStore<'_>) -> Result<()> {
    const LOSSES: usize = 200;
    let (client, queue) = (tested.client("a").await?, queue("q"));
    let mut kept = Vec::new();
    for round in 0..LOSSES {
        let lost = Client::open(Arc::clone(&client.store), &format!("lost-{round}")).await?;
        lost.enter_as(&queue, Mode::Shared).await?;
        // The call that closes the session is dropped, so no client learns that the session has ended. Then the next session is
        // opened.
        dropped_after(1, client.store.close(lost.session.id)).await;
        kept.push(client.store.kept());
    }
    let grown = kept[LOSSES - 1].saturating_sub(kept[LOSSES / 2]);
    assert!(grown < LOSSES / 10, "{grown} more after {} losses: {kept:?}", LOSSES / 2);
    Ok(())
}

pub(super) async fn member_is_taken(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let (_, position) = client.enter(&queue).await?;
    let second = NewSession { id: SessionId::random(), ..client.session.clone() };
    let refused = open(&*other.store, &second).await.expect_err("it is taken");
    assert_eq!(refused.kind(), ErrorKind::MemberExists);
    // Closing the session that was refused takes nothing from the session that has the member id.
    retry_until_settled(|| other.store.close(second.id)).await?;
    assert_eq!(other.numbers(&queue).await?, [position.seq]);
    let third = NewSession { id: SessionId::random(), ..second.clone() };
    let refused = open(&*other.store, &third).await.expect_err("it is taken");
    assert_eq!(refused.kind(), ErrorKind::MemberExists);
    Ok(())
}

pub(super) async fn member_has_one_session_of_a_client(tested: &TestStore<'_>) -> Result<()> {
    let client = tested.client("a").await?;
    let second = NewSession { id: SessionId::random(), ..client.session.clone() };
    // A store may end the first session when it opens the second: a client has one session at a time.
    let opened = open(&*client.store, &second).await;
    let renewed = client.renew(&[]).await;
    match (opened, renewed) {
        (Err(error), Ok(_)) => assert_eq!(error.kind(), ErrorKind::MemberExists),
        (Ok(_), Err(error)) => assert_eq!(error.kind(), ErrorKind::Lost),
        (opened, renewed) => panic!("the second: {opened:?}, the first: {renewed:?}"),
    }
    Ok(())
}

pub(super) async fn member_is_free_after_close(tested: &TestStore<'_>) -> Result<()> {
    let (client, other) = (tested.client("a").await?, tested.client("b").await?);
    client.close().await?;
    Client::open(other.store.clone(), "a").await?;
    Ok(())
}

pub(super) async fn lost_is_told_when_the_session_is_over(tested: &TestStore<'_>) -> Result<()> {
    let client = tested.client("a").await?;
    client.close().await?;
    let renewed = client.renew(&[]).await;
    assert_eq!(renewed.expect_err("it is over").kind(), ErrorKind::Lost);
    Ok(())
}

pub(super) async fn lost_is_not_said_of_a_silent_store(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client_by_proxy("a").await?, queue("q"));
    let (entry, position) = client.enter(&queue).await?;
    let is_lost = |error: &crate::Error| error.kind() == ErrorKind::Lost;
    for disturb in [
        |tested: &TestStore<'_>| tested.proxy().silence(),
        |tested: &TestStore<'_>| tested.proxy().cut(),
    ] {
        disturb(tested);
        let renewed = client.renew_once(&[]).await;
        assert!(!renewed.as_ref().is_err_and(is_lost), "renew: {renewed:?}");
        let found = attempt(client.store.position(&entry, position.seq)).await;
        assert!(!found.as_ref().is_err_and(is_lost), "position: {found:?}");
        tested.proxy().heal();
        client.renew(&[]).await?;
        assert!(client.position(&entry, position.seq).await?.is_some(), "it has its entry yet");
    }
    Ok(())
}

pub(super) async fn held_entries_that_are_gone_are_told(tested: &TestStore<'_>) -> Result<()> {
    let (client, other) = (tested.client("a").await?, tested.client("b").await?);
    let mut held = Vec::new();
    for name in ["one", "two", "three"] {
        held.push(client.enter(&queue(name)).await?);
    }
    let places: Vec<_> = held.iter().map(|(entry, _)| entry.entry_ref.clone()).collect();
    assert_eq!(client.renew(&places).await?, []);
    let (entry, position) = &held[1];
    other.leave(entry, Some(position.seq)).await?;
    let gone = client.renew(&places).await?;
    // On stores that notify of the removal of an entry, the answer to a heartbeat need not report it.
    if client.store.characteristics().loss_detection == LossDetection::Heartbeat || !gone.is_empty()
    {
        assert_eq!(gone, std::slice::from_ref(&entry.entry_ref.id));
    }
    Ok(())
}

pub(super) async fn effect_of_a_refusal_is_none(tested: &TestStore<'_>) -> Result<()> {
    let (client, other) = (tested.client("a").await?, tested.client("b").await?);
    let second = NewSession { id: SessionId::random(), ..client.session };
    let refused = open(&*other.store, &second).await.expect_err("the name is taken");
    assert_eq!(refused.effect(), Effect::None);
    Ok(())
}

pub(super) async fn cancel_safe_open(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("w").await?, queue("q"));
    for polls in 0..=MOST_POLLS {
        let member = format!("b{polls}").into();
        let session = NewSession { id: SessionId::random(), member, ttl: client.session.ttl };
        let outcome = dropped_after(polls, client.store.open(&session)).await;
        // The next try to open uses the same id.
        open(&*client.store, &session).await?;
        let next = Client { store: client.store.clone(), session };
        next.enter(&queue).await?;
        next.close().await?;
        if outcome.is_some() {
            break;
        }
    }
    assert!(other.is_empty(&queue).await?);
    Ok(())
}
