//! WK2, WK3, WK6: defects that were found by using work queues in unusual ways.

use std::time::{Duration, Instant};

use coordination::{Ack, ClaimId, ErrorKind, ListOptions, NewItem, Result, WorkLimits};
use tokio::time::{sleep, timeout};

use super::TestStore;
use super::tools::{MOMENT, PATIENCE};
use super::work::{claimed, ids, jobs, kind, limit, posted};

const MINUTE: Duration = Duration::from_secs(60);

/// WK2: items that move to the dead letter queue may be as large as any item, and do not keep claimers from other
/// items.
pub async fn wk2_large_dead_letters(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let (jobs, dead) = (jobs(&coordinator), coordinator.queue("dead")?);
    jobs.set_dead_letters(1, &dead, None).await?;
    for _ in 0..4 {
        jobs.post(&[NewItem::new(vec![7; 262_144])]).await?;
    }
    while let Some(claim) = jobs.claim(limit(4)).await? {
        claim.release().await?;
    }
    assert_eq!(jobs.stats().await?.total(), 0);
    assert_eq!(dead.stats().await?.ready, 4);
    let letters = dead.list(ListOptions { limit: 1, ..ListOptions::default() }).await?;
    assert_eq!((letters[0].body().len(), letters[0].claims()), (262_144, 1));
    Ok(())
}

/// WK2: many items with bodies that are stored outside the queue's value are claimed, renewed, given back and
/// acknowledged, on every store.
pub async fn wk2_claims_of_a_thousand(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    for _ in 0..2 {
        let items: Vec<_> = (0..800).map(|_| NewItem::new([3; 190])).collect();
        jobs.post(&items).await?;
    }
    let claim = jobs.claim(limit(1_000)).await?.expect("all are ready");
    assert!(claim.items().len() >= 300, "{}", claim.items().len());
    claim.renew(None, None).await?;
    claim.release().await?;
    let mut done = 0;
    while let Some(claim) = jobs.claim(limit(1_000)).await? {
        done += claim.ack_all().await?;
    }
    assert_eq!(done, 1_600);
    Ok(())
}

/// WK2: a claim that was dropped before its call returned does not count towards the dead letters.
pub async fn wk2_a_dropped_claim_does_not_count(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, theirs) = (jobs(&one), jobs(&other));
    let dead = one.queue("dead")?;
    let drops = 5;
    jobs.set_dead_letters(drops + 1, &dead, None).await?;
    posted(&jobs, 1).await?;
    // This makes the client's own entry. Later claims of this client find it, and so begin already with their first
    // poll.
    assert_eq!(claimed(&jobs, 1).await?.ack_all().await?, 1);
    posted(&theirs, 1).await?;
    let mut had = 0;
    for _ in 0..drops {
        // The claim may succeed within the first poll.
        let claim = timeout(Duration::ZERO, jobs.claim(limit(1))).await;
        had += u32::from(claim.is_ok_and(|claim| claim.is_ok_and(|claim| claim.is_some())));
        sleep(2 * MOMENT).await;
    }
    let claim = theirs.claim_wait(limit(1), Some(PATIENCE)).await?.expect("it comes back");
    assert_eq!(claim.items()[0].claims(), 1 + had);
    assert_eq!(dead.stats().await?.total(), 0);
    Ok(())
}

/// WK2: the limits of a handle can be narrower than the general limits, but not wider.
pub async fn wk2_wider_limits(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let all = jobs(&coordinator);
    posted(&all, 1).await?;
    let day = 24 * 60 * MINUTE;
    let wide = WorkLimits {
        claim_ttl: Duration::ZERO..=Duration::MAX,
        grace: Duration::ZERO..=Duration::MAX,
        limit: 0..=usize::MAX,
        item_ttl: Duration::ZERO..=Duration::MAX,
        delay: Duration::ZERO..=Duration::MAX,
    };
    let jobs = all.with_limits(wide);
    for count in [0, 1_001] {
        assert_eq!(kind(jobs.claim(limit(count)).await), Some(ErrorKind::Input), "{count}");
        assert_eq!(kind(jobs.pop(count).await), Some(ErrorKind::Input), "{count}");
    }
    for ttl in [Duration::ZERO, day] {
        assert_eq!(kind(jobs.claim(limit(1).ttl(ttl)).await), Some(ErrorKind::Input), "{ttl:?}");
    }
    let long = NewItem::new("").ttl(15 * day);
    assert_eq!(kind(jobs.post(&[long]).await), Some(ErrorKind::Input));
    assert_eq!(jobs.pop(1_000).await?.len(), 1);
    Ok(())
}

/// WK3: a claim with `keep_alive` is still kept alive after it was made shorter.
pub async fn wk3_a_shorter_claim_is_kept_alive(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, theirs) = (jobs(&one), jobs(&other));
    posted(&jobs, 1).await?;
    let mut claim = jobs.claim(limit(1).ttl(10 * MINUTE)).await?.expect("one is ready");
    claim.keep_alive();
    let ttl = Duration::from_secs(2);
    claim.renew(Some(ttl), None).await?;
    assert!(theirs.claim_wait(limit(1), Some(2 * ttl)).await?.is_none());
    assert!(claim.is_held());
    assert_eq!(claim.ack_all().await?, 1);
    Ok(())
}

/// WK3: if `keep_alive` is called late, the claim is still renewed before it ends.
pub async fn wk3_a_claim_is_kept_alive_late(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    posted(&jobs, 1).await?;
    let ttl = Duration::from_secs(4);
    let mut claim = jobs.claim(limit(1).ttl(ttl)).await?.expect("one is ready");
    sleep(ttl * 3 / 4).await;
    claim.keep_alive();
    sleep(ttl / 2).await;
    assert!(claim.is_held());
    assert_eq!(claim.ack_all().await?, 1);
    Ok(())
}

/// WK1, WK3: if a client makes its claim shorter and drops the call before the answer, it does not rely on the claim
/// for longer than the new ttl.
pub async fn wk3_a_shorter_claim_is_not_relied_on(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, theirs) = (jobs(&one), jobs(&other));
    posted(&jobs, 1).await?;
    let claim = claimed(&jobs, 1).await?;
    let (begun, ttl) = (Instant::now(), Duration::from_millis(700));
    drop(timeout(Duration::ZERO, claim.renew(Some(ttl), None)).await);
    let next = theirs.claim_wait(limit(1), Some(PATIENCE)).await?.expect("it comes back");
    assert!(begun.elapsed() >= ttl);
    assert!(!claim.is_held(), "two have it");
    timeout(MOMENT, claim.lost()).await.expect("it is told");
    assert_eq!(next.ack_all().await?, 1);
    Ok(())
}

/// WK3: `ack_all` acknowledges the items that are left, without those that were given back.
pub async fn wk3_what_was_given_back_is_not_left(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    let posted = posted(&jobs, 3).await?;
    let claim = claimed(&jobs, 3).await?;
    assert_eq!(claim.nack(posted[1], Duration::ZERO).await?, Ack::Done);
    let next = claimed(&jobs, 1).await?;
    assert_eq!(claim.ack_all().await?, 2);
    assert_eq!(ids(&next), posted[1..2]);
    assert_eq!(next.ack_all().await?, 1);
    assert_eq!(jobs.stats().await?.total(), 0);
    Ok(())
}

/// WK3: text that is not a claim id is refused as the id of a new claim, so that two clients with such text do not
/// share a claim.
pub async fn wk3_nobody_claims_under_no_name(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    posted(&jobs, 1).await?;
    let id = |text: &str| text.parse::<ClaimId>().unwrap_or_else(|never| match never {});
    assert_eq!(kind(jobs.claim_as(id("fail"), limit(1)).await), Some(ErrorKind::Input));
    assert_eq!(kind(jobs.get(id("'; DROP TABLE claims; --")).await), Some(ErrorKind::NoSuchClaim));
    assert_eq!(jobs.stats().await?.ready, 1);
    Ok(())
}

/// WK6: `claim_wait` with a time of zero claims what is ready.
pub async fn wk6_a_wait_of_no_time(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    let wait = Some(Duration::ZERO);
    assert!(jobs.claim_wait(limit(1), wait).await?.is_none());
    posted(&jobs, 1).await?;
    let claim = jobs.claim_wait(limit(1), wait).await?.expect("it is ready");
    assert_eq!(claim.items()[0].claims(), 1);
    Ok(())
}

/// WK6: ttls and delays end on time, even if the server restarted and nobody has written since.
pub async fn wk6_time_goes_on_after_a_restart(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    let later = Duration::from_secs(3);
    let posted = jobs.post(&[NewItem::new("one"), NewItem::new("other").delay(later)]).await?;
    jobs.claim_as(ClaimId::random(), limit(1).ttl(later)).await?.expect("one is ready");
    store.restart();
    let mut came = Vec::new();
    let begun = Instant::now();
    while came.len() < 2 && begun.elapsed() < PATIENCE {
        let claim = jobs.claim_wait(limit(2), Some(PATIENCE)).await?.expect("they come back");
        came.extend(ids(&claim));
        claim.ack_all().await?;
    }
    came.sort_unstable();
    assert_eq!(came, posted);
    Ok(())
}
