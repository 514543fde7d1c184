//! WK1 to WK4: defects that Zaqar's queues have or had. `docs/testing.md` says which check finds which defect.

use std::time::{Duration, Instant};

use coordination::{Ack, ClaimOptions, ErrorKind, ListOptions, NewItem, Result, WorkItem};
use serde_json::json;
use tokio::time::sleep;

use super::TestStore;
use super::tools::PATIENCE;
use super::work::{claimed, ids, jobs, kind, limit, posted};

/// The lengths of a claim that expires within the check (`SHORT`) and of a claim that does not (`LONG`).
const SHORT: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(600);
const SECOND: Duration = Duration::from_secs(1);
/// By how much an item's remaining life may be shorter than expected, because some time has passed since its claim.
const SPENT: Duration = Duration::from_secs(15);

/// WK1: one claim has expired, and another one is live. A new claim gets the items of the expired claim, and none of
/// the live one.
pub async fn wk1_a_live_claim_between_free_items(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, theirs) = (jobs(&one), jobs(&other));
    let posted = posted(&jobs, 6).await?;
    let over = jobs.claim(limit(2).ttl(SHORT)).await?.expect("six are ready");
    let live = jobs.claim(limit(2).ttl(LONG)).await?.expect("four are ready");
    while theirs.stats().await?.claimed > 2 {
        sleep(SHORT / 10).await;
    }
    let next = theirs.claim(limit(6)).await?.expect("four are ready");
    assert_eq!(ids(&next), [&posted[..2], &posted[4..]].concat());
    assert_eq!(theirs.get(live.id()).await?.items.len(), 2);
    assert_eq!(kind(over.ack(posted[0]).await), Some(ErrorKind::NoSuchClaim));
    assert_eq!(kind(next.ack(posted[2]).await), Some(ErrorKind::NotClaimedBy));
    assert_eq!((live.ack_all().await?, next.ack_all().await?), (2, 4));
    Ok(())
}

/// WK2: an item whose own life is over lives on as long as a claim has it.
pub async fn wk2_a_claim_outlasts_the_life_of_its_item(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, theirs) = (jobs(&one), jobs(&other));
    let life = 3 * SECOND;
    jobs.post(&[NewItem::new("short").ttl(life)]).await?;
    let begun = Instant::now();
    let claim = jobs.claim(limit(1).ttl(2 * life).grace(Duration::ZERO)).await?;
    let claim = claim.expect("it is alive");
    // The pause is almost as long as the claim lasts.
    sleep((life * 5 / 3).saturating_sub(begun.elapsed())).await;
    assert_eq!(theirs.get(claim.id()).await?.items.len(), 1);
    assert_eq!(claim.ack_all().await?, 1);
    Ok(())
}

/// WK2: thousands of dead items in front of a live one do not keep claimers from the live item.
pub async fn wk2_dead_items_in_front(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    let dead: Vec<_> = (0..1_000).map(|_| NewItem::new("dead").ttl(SHORT)).collect();
    // More than a group of pages has, which is 4,096.
    for _ in 0..store.rounds(20, 5) {
        jobs.post(&dead).await?;
    }
    let alive = posted(&jobs, 2).await?;
    while jobs.stats().await?.total() > 2 {
        sleep(SHORT / 5).await;
    }
    assert_eq!(ids(&claimed(&jobs, 1).await?), alive[..1]);
    let popped: Vec<_> = jobs.pop(2).await?.iter().map(WorkItem::id).collect();
    assert!(popped.contains(&alive[1]), "{popped:?}");
    Ok(())
}

/// WK3: a renewal affects only items that the claim still has: an acknowledged item stays gone, and an item that was
/// given back stays free.
pub async fn wk3_a_renewal_revives_nothing(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, theirs) = (jobs(&one), jobs(&other));
    let posted = posted(&jobs, 3).await?;
    let claim = claimed(&jobs, 3).await?;
    assert_eq!(claim.ack(posted[0]).await?, Ack::Done);
    assert_eq!(claim.nack(posted[1], Duration::ZERO).await?, Ack::Done);
    claim.renew(None, None).await?;
    let has: Vec<_> = theirs.get(claim.id()).await?.items.iter().map(WorkItem::id).collect();
    assert_eq!(has, posted[2..]);
    let next = claimed(&theirs, 1).await?;
    assert_eq!(ids(&next), posted[1..2]);
    claim.renew(None, None).await?;
    assert_eq!(next.ack_all().await?, 1, "a renewal takes nothing from another claim");
    assert_eq!(theirs.stats().await?.total(), 1);
    assert_eq!(claim.ack_all().await?, 1);
    Ok(())
}

/// WK4: if a worker is killed while it makes a claim, the claim either does not exist, or is complete and ends in time.
pub async fn wk4_killed_within_a_claim(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("next").await?;
    let jobs = jobs(&coordinator);
    for millis in [0, 1, 3, 6, 12, 25] {
        let posted = posted(&jobs, 3).await?;
        let worker = store.worker(&format!("worker-{millis}"));
        worker.send(json!({ "command": "claim_work", "queue": "resize-jobs", "limit": 3 }));
        sleep(Duration::from_millis(millis)).await;
        let killed = Instant::now();
        worker.kill();
        let mut left = posted.clone();
        while !left.is_empty() {
            let claim = jobs.claim_wait(limit(3), Some(PATIENCE)).await?.expect("they come back");
            let took = killed.elapsed();
            assert!(took <= store.crash_bound() + SECOND, "claimed after {took:?}");
            left.retain(|item| !ids(&claim).contains(item));
            claim.ack_all().await?;
        }
        assert_eq!(jobs.stats().await?.total(), 0);
    }
    Ok(())
}

/// WK2: a claimed item lives for its own life, or for the claim's ttl and grace, whichever is longer.
pub async fn wk2_lives_of_claimed_items(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    for (ttl, grace, lives) in
        [(777, 0, 777), (777, 23, 800), (121, 22, 143), (60, 30, 120), (100, 60, 160)]
    {
        jobs.post(&[NewItem::new("").ttl(120 * SECOND)]).await?;
        let options = ClaimOptions::default().ttl(ttl * SECOND).grace(grace * SECOND);
        let claim = jobs.claim(options).await?.expect("one is ready");
        let (left, lives) = (claim.items()[0].expires_in(), lives * SECOND);
        assert!(left <= lives && left + SPENT > lives, "{ttl} {grace}: {left:?}");
        let listed = ListOptions { include_claimed: true, ..ListOptions::default() };
        let listed = jobs.list(listed).await?;
        assert!(listed[0].expires_in() <= lives && listed[0].expires_in() + SPENT > lives);
        assert_eq!(claim.ack_all().await?, 1);
    }
    Ok(())
}

/// WK3: reading a claim returns the complete claim until its ttl is over, and from then on always `NoSuchClaim`.
pub async fn wk3_there_or_not(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, theirs) = (jobs(&one), jobs(&other));
    posted(&jobs, 1).await?;
    let begun = Instant::now();
    let claim = jobs.claim(limit(1).ttl(SHORT)).await?.expect("one is ready");
    let mut over = 0;
    while over < 5 {
        match theirs.get(claim.id()).await {
            Ok(seen) => {
                assert_eq!(over, 0, "it is over for good");
                assert!(seen.expires_in > Duration::ZERO && seen.items.len() == 1, "{seen:?}");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSuchClaim);
                assert!(begun.elapsed() >= SHORT, "no earlier: {:?}", begun.elapsed());
                over += 1;
            }
        }
        assert!(begun.elapsed() < PATIENCE, "it ends");
    }
    Ok(())
}

/// WK3: renewals do not count as claims: after three renewals an item was claimed once, and is not moved to the dead
/// letters.
pub async fn wk3_renewals_are_no_claims(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let (jobs, dead) = (jobs(&coordinator), coordinator.queue("dead")?);
    jobs.set_dead_letters(2, &dead, None).await?;
    posted(&jobs, 1).await?;
    let claim = claimed(&jobs, 1).await?;
    for _ in 0..3 {
        claim.renew(None, None).await?;
    }
    assert_eq!(jobs.get(claim.id()).await?.items[0].claims(), 1);
    claim.release().await?;
    let again = claimed(&jobs, 1).await?;
    assert_eq!(again.items()[0].claims(), 2);
    assert_eq!(dead.stats().await?.total(), 0);
    Ok(())
}
