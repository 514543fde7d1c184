//! The times of a work queue, each to the millisecond, on `memory://` in paused time: those that the tests of the specification name.
//! `tests/src/checks/work*.rs` has the same on every store, with times that can be waited for.

use std::time::Duration;

use coordination::{
    ClaimId, ClaimOptions, Coordinator, ErrorKind, ItemId, ListOptions, NewItem, Result, WorkItem,
    WorkQueue,
};
use tokio::time::sleep;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A queue in a store of this test's own, and its coordinator.
async fn jobs(store: &str) -> Result<(Coordinator, WorkQueue)> {
    let coordinator = Coordinator::connect(&format!("memory://work-times-{store}")).await?;
    let jobs = coordinator.queue("resize-jobs")?;
    Ok((coordinator, jobs))
}

async fn posted(jobs: &WorkQueue, count: usize) -> Result<Vec<ItemId>> {
    jobs.post(&vec![NewItem::new("job"); count]).await
}

/// At most so many items, with a ttl and a grace in seconds.
fn ask(limit: usize, ttl: u32, grace: u32) -> ClaimOptions {
    ClaimOptions::default().limit(limit).ttl(ttl * SECOND).grace(grace * SECOND)
}

/// Claims under an id, so that only its ttl ends the claim.
async fn claimed(jobs: &WorkQueue, options: ClaimOptions) -> Result<(ClaimId, Vec<WorkItem>)> {
    let id = ClaimId::random();
    let view = jobs.claim_as(id, options).await?.expect("items are ready");
    Ok((id, view.items))
}

fn ids(items: &[WorkItem]) -> Vec<ItemId> {
    items.iter().map(WorkItem::id).collect()
}

fn kind<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

/// QD1: eleven seconds on, a claim of ten seconds is over, and one of 600 s is not.
#[tokio::test(start_paused = true)]
async fn wk1_a_live_claim_keeps_its_items() -> Result<()> {
    let (_coordinator, jobs) = jobs("live").await?;
    let posted = posted(&jobs, 6).await?;
    let (over, _) = claimed(&jobs, ask(2, 10, 0)).await?;
    let (live, _) = claimed(&jobs, ask(2, 600, 0)).await?;
    sleep(11 * SECOND).await;
    let (next, items) = claimed(&jobs, ask(6, 60, 0)).await?;
    assert_eq!(ids(&items), [&posted[..2], &posted[4..]].concat());
    assert_eq!(ids(&jobs.get(live).await?.items), posted[2..4]);
    assert_eq!(kind(jobs.ack(posted[0], over).await), Some(ErrorKind::NoSuchClaim));
    assert_eq!(jobs.ack_many(&posted[2..4], live).await?, 2);
    assert_eq!(jobs.release(next).await?, 4);
    Ok(())
}

/// QD3: an item that lives for three seconds is there for all of the minute for which a claim has it.
#[tokio::test(start_paused = true)]
async fn wk2_a_life_of_three_seconds_in_a_claim_of_a_minute() -> Result<()> {
    let (_coordinator, jobs) = jobs("life").await?;
    jobs.post(&[NewItem::new("short").ttl(3 * SECOND)]).await?;
    let (id, items) = claimed(&jobs, ask(1, 60, 0)).await?;
    sleep(59 * SECOND).await;
    assert_eq!(ids(&jobs.get(id).await?.items), ids(&items));
    sleep(SECOND - MS).await;
    assert!(jobs.item(items[0].id()).await?.is_some());
    sleep(MS).await;
    assert_eq!(jobs.item(items[0].id()).await?, None);
    assert_eq!(jobs.stats().await?.total(), 0);
    Ok(())
}

/// QD9: how long an item with a life of 120 s lives once it was claimed.
#[tokio::test(start_paused = true)]
async fn wk2_how_long_claimed_items_live() -> Result<()> {
    let (_coordinator, jobs) = jobs("lives").await?;
    for (ttl, grace, lives) in
        [(777, 0, 777), (777, 23, 800), (121, 22, 143), (60, 30, 120), (100, 60, 160)]
    {
        jobs.post(&[NewItem::new("").ttl(120 * SECOND)]).await?;
        let (_, items) = claimed(&jobs, ask(1, ttl, grace)).await?;
        assert_eq!(items[0].expires_in(), lives * SECOND, "{ttl} {grace}");
        sleep(lives * SECOND - MS).await;
        let left = jobs.item(items[0].id()).await?.map(|item| item.expires_in());
        assert_eq!(left, Some(MS), "{ttl} {grace}");
        sleep(MS).await;
        assert_eq!(jobs.item(items[0].id()).await?, None, "{ttl} {grace}");
    }
    Ok(())
}

/// QD10, C3: a claim is there a millisecond before its ttl is over; from then on it is not, for nobody and for no call, and others have
/// its items.
#[tokio::test(start_paused = true)]
async fn wk3_a_claim_ends_at_its_ttl() -> Result<()> {
    let (_coordinator, jobs) = jobs("ends").await?;
    let item = posted(&jobs, 1).await?[0];
    let (id, _) = claimed(&jobs, ask(1, 60, 60)).await?;
    sleep(60 * SECOND - MS).await;
    let seen = jobs.get(id).await?;
    assert_eq!((seen.age, seen.expires_in), (60 * SECOND - MS, MS));
    assert_eq!(ids(&seen.items), [item]);
    assert_eq!(kind(jobs.delete(item).await), Some(ErrorKind::IsClaimed));
    assert!(jobs.claim_as(ClaimId::random(), ask(1, 60, 60)).await?.is_none());
    sleep(MS).await;
    let none = Some(ErrorKind::NoSuchClaim);
    assert_eq!(kind(jobs.renew(id, None, None).await), none, "though nobody else has its item");
    assert_eq!(kind(jobs.ack(item, id).await), none);
    assert_eq!(kind(jobs.nack(item, id, Duration::ZERO).await), none);
    assert_eq!(jobs.release(id).await?, 0);
    let (next, taken) = claimed(&jobs, ask(1, 600, 60)).await?;
    assert_eq!((taken[0].id(), taken[0].claims()), (item, 2));
    // It is remembered for a minute, and forgotten then.
    for later in [Duration::ZERO, MS, SECOND, 58 * SECOND, 2 * SECOND, 300 * SECOND] {
        sleep(later).await;
        assert_eq!(kind(jobs.get(id).await), none, "{later:?}");
        assert_eq!(kind(jobs.ack(item, id).await), none, "{later:?}");
    }
    assert_eq!(jobs.ack_many(&[item], next).await?, 1);
    Ok(())
}

/// A renewal counts from when it is made, also if that makes the claim shorter.
#[tokio::test(start_paused = true)]
async fn wk3_how_long_renewed_claims_last() -> Result<()> {
    let (_coordinator, jobs) = jobs("renewed").await?;
    jobs.post(&[NewItem::new("").ttl(120 * SECOND)]).await?;
    let (id, _) = claimed(&jobs, ask(1, 70, 30)).await?;
    sleep(70 * SECOND - MS).await;
    assert_eq!(jobs.renew(id, Some(100 * SECOND), Some(60 * SECOND)).await?, 100 * SECOND);
    let seen = jobs.get(id).await?;
    assert_eq!((seen.ttl, seen.grace, seen.expires_in), (100 * SECOND, 60 * SECOND, 100 * SECOND));
    assert_eq!((seen.age, seen.items[0].expires_in()), (Duration::ZERO, 160 * SECOND));
    assert_eq!(jobs.renew(id, Some(SECOND), None).await?, SECOND);
    assert_eq!(jobs.get(id).await?.items[0].expires_in(), 160 * SECOND, "no shorter");
    sleep(SECOND).await;
    assert_eq!(kind(jobs.get(id).await), Some(ErrorKind::NoSuchClaim));
    assert_eq!(jobs.stats().await?.ready, 1);
    Ok(())
}

/// QD2: what is delayed is ready at the end of its delay, and not before.
#[tokio::test(start_paused = true)]
async fn wk2_when_delayed_items_are_ready() -> Result<()> {
    let (_coordinator, jobs) = jobs("delayed").await?;
    let posted =
        jobs.post(&[NewItem::new("later").delay(900 * SECOND), NewItem::new("now")]).await?;
    let (id, items) = claimed(&jobs, ask(2, 3_600, 0)).await?;
    assert_eq!(ids(&items), posted[1..]);
    sleep(100 * SECOND).await;
    jobs.nack(posted[1], id, 700 * SECOND).await?;
    sleep(700 * SECOND - MS).await;
    assert_eq!(jobs.pop(2).await?, []);
    sleep(MS).await;
    assert_eq!(ids(&jobs.pop(2).await?), posted[1..]);
    sleep(100 * SECOND - MS).await;
    assert_eq!(jobs.stats().await?.delayed, 1);
    sleep(MS).await;
    assert_eq!(ids(&jobs.pop(2).await?), posted[..1]);
    Ok(())
}

/// An item that has died is removed, one whose claim is over is deleted without it, and a dead letter lives for its own time.
#[tokio::test(start_paused = true)]
async fn wk2_when_items_go() -> Result<()> {
    let (coordinator, jobs) = jobs("go").await?;
    jobs.post(&vec![NewItem::new("short").ttl(5 * SECOND); 7]).await?;
    let item = posted(&jobs, 1).await?[0];
    sleep(5 * SECOND - MS).await;
    assert_eq!(jobs.gc(None).await?.items, 0);
    sleep(MS).await;
    assert_eq!([jobs.gc(Some(1)).await?.items, jobs.gc(Some(5)).await?.items], [1, 5]);
    let dead = coordinator.queue("dead")?;
    jobs.set_dead_letters(2, &dead, Some(9_999 * SECOND)).await?;
    for _ in 0..2 {
        let (_, items) = claimed(&jobs, ask(1, 60, 0)).await?;
        assert_eq!(ids(&items), [item]);
        sleep(60 * SECOND).await;
    }
    assert!(jobs.claim_as(ClaimId::random(), ask(1, 60, 0)).await?.is_none());
    let letters = dead.list(ListOptions::default()).await?;
    assert_eq!((letters[0].claims(), letters[0].expires_in()), (2, 9_999 * SECOND));
    let (_, items) = claimed(&dead, ask(1, 60, 0)).await?;
    sleep(60 * SECOND - MS).await;
    assert_eq!(kind(dead.delete(items[0].id()).await), Some(ErrorKind::IsClaimed));
    sleep(MS).await;
    assert!(dead.delete(items[0].id()).await?);
    Ok(())
}
