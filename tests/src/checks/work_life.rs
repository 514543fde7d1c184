//! WK3, WK4, WK6: how claims end, and how clients wait for items.

use std::time::{Duration, Instant};

use coordination::{Ack, ClaimOptions, Effect, ErrorKind, LossReason, NewItem, Result};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::interruption::{Pair, all_cuts, at_every_cut, at_every_poll};
use super::tools::{MOMENT, PATIENCE};
use super::work::{claimed, ids, jobs, kind, limit, posted};
use super::{Backend, TestStore};
use crate::harness::Mode;

/// WK3: a claim ends when its ttl is over, for its owner as for others, and never before.
pub async fn wk3_a_claim_ends_with_its_ttl(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, theirs) = (jobs(&one), jobs(&other));
    posted(&jobs, 2).await?;
    let ttl = Duration::from_millis(600);
    let begun = Instant::now();
    let claim = jobs.claim(limit(2).ttl(ttl)).await?.expect("two are ready");
    let next = theirs.claim_wait(limit(2), Some(PATIENCE)).await?.expect("they come back");
    assert!(begun.elapsed() >= ttl, "no earlier: {:?}", begun.elapsed());
    assert_eq!(ids(&next), ids(&claim));
    assert!(next.token().value() > claim.token().value());
    assert!(!claim.is_held());
    assert_eq!(timeout(MOMENT, claim.lost()).await.ok(), Some(LossReason::DeadlinePassed));
    let item = claim.items()[0].id();
    for outcome in [claim.ack(item).await.map(drop), claim.renew(None, None).await.map(drop)] {
        assert_eq!(kind(outcome), Some(ErrorKind::NoSuchClaim));
    }
    assert_eq!(claim.release().await?, 0);
    assert_eq!(next.ack(item).await?, Ack::Done, "a release of what is over frees nothing");
    Ok(())
}

/// WK3: a claim with `keep_alive` outlasts its ttl.
pub async fn wk3_a_claim_is_kept_alive(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, theirs) = (jobs(&one), jobs(&other));
    posted(&jobs, 1).await?;
    let ttl = Duration::from_secs(2);
    let mut claim = jobs.claim(limit(1).ttl(ttl)).await?.expect("one is ready");
    claim.keep_alive();
    let waited = theirs.claim_wait(limit(1), Some(2 * ttl)).await?;
    assert!(waited.is_none() && claim.is_held());
    assert_eq!(theirs.get(claim.id()).await?.items[0].claims(), 1);
    assert_eq!(claim.ack_all().await?, 1);
    Ok(())
}

/// WK4: when a worker is killed that has ten items, another client can claim them within the bound of L1.
pub async fn wk4_a_killed_workers_items_come_back(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("next").await?;
    let jobs = jobs(&coordinator);
    let posted = posted(&jobs, 10).await?;
    let worker = store.worker("worker");
    let had = worker.call(json!({ "command": "claim_work", "queue": "resize-jobs", "limit": 10 }));
    assert_eq!(had["items"], 10);
    let waiting = tokio::spawn(async move { jobs.claim_wait(limit(10), None).await });
    sleep(MOMENT).await;
    let killed = Instant::now();
    worker.kill();
    let claim = waiting.await.expect("no panic")?.expect("without a timeout it waits");
    let took = killed.elapsed();
    eprintln!("WK4: followed after {took:?}");
    assert!(took <= store.crash_bound(), "followed after {took:?}");
    assert_eq!(ids(&claim), posted);
    assert!(claim.token().value() > had["token"].as_u64().unwrap_or(u64::MAX));
    Ok(())
}

/// WK4: a claim ends with the session of its client, even if its ttl is not over.
pub async fn wk4_a_lost_sessions_items_come_back(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, theirs) = (jobs(&one), jobs(&other));
    let posted = posted(&jobs, 3).await?;
    let claim = claimed(&jobs, 3).await?;
    store.lose(&one, "one").await?;
    // It is over before somebody else has the items. SQL servers leave what an ended session had as long as a transaction, such as a
    // heartbeat's, has locked it.
    let mut found = kind(theirs.get(claim.id()).await);
    let leaves = matches!(store.backend(), Backend::Postgres | Backend::Mysql);
    let begun = Instant::now();
    while leaves && found.is_none() && begun.elapsed() < PATIENCE {
        sleep(Duration::from_millis(1)).await;
        found = kind(theirs.get(claim.id()).await);
    }
    assert_eq!(found, Some(ErrorKind::NoSuchClaim));
    let renewed = kind(claim.renew(None, None).await).expect("it is over");
    let expected = [ErrorKind::NoSuchClaim, ErrorKind::Lost, ErrorKind::Closed];
    assert!(expected.contains(&renewed), "{renewed:?}");
    let next = theirs.claim_wait(limit(3), Some(PATIENCE)).await?.expect("they come back");
    assert_eq!(ids(&next), posted);
    timeout(PATIENCE, claim.lost()).await.expect("it is told");
    assert!(!claim.is_held());
    assert_eq!(kind(theirs.get(claim.id()).await), Some(ErrorKind::NoSuchClaim));
    drop(claim);
    assert_eq!(next.ack_all().await?, 3);
    Ok(())
}

/// WK4: a claim that was detached outlives the session, until its ttl is over. One that was not ends with the client's stop, after which
/// it can be neither renewed nor detached.
pub async fn wk4_a_detached_claim_outlives_its_session(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let theirs = jobs(&other);
    let posted = posted(&theirs, 3).await?;
    let claim = claimed(&jobs(&one), 2).await?;
    let kept = claimed(&jobs(&one), 1).await?;
    let id = claim.detach().await?;
    one.stop().await?;
    assert_eq!(kind(kept.renew(None, None).await), Some(ErrorKind::Closed));
    let refused = kept.detach().await.expect_err("its session has ended");
    assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Closed, Effect::None));
    let back = theirs.claim_wait(limit(3), Some(PATIENCE)).await?.expect("one comes back");
    assert_eq!(ids(&back), posted[2..]);
    assert_eq!(back.ack_all().await?, 1);
    assert_eq!(theirs.get(id).await?.items.len(), 2);
    assert_eq!(theirs.ack(posted[0], id).await?, Ack::Done);
    let ttl = Duration::from_millis(300);
    let begun = Instant::now();
    theirs.renew(id, Some(ttl), None).await?;
    let next = theirs.claim_wait(limit(2), Some(PATIENCE)).await?.expect("it ends");
    assert!(begun.elapsed() >= ttl);
    assert_eq!(ids(&next), posted[1..2]);
    Ok(())
}

/// WK4: dropping a claim's guard gives back the items that are left; acknowledged items stay gone.
pub async fn wk4_a_dropped_claim_gives_back(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, theirs) = (jobs(&one), jobs(&other));
    let posted = posted(&jobs, 3).await?;
    let claim = claimed(&jobs, 3).await?;
    claim.ack(posted[1]).await?;
    drop(claim);
    let next = theirs.claim_wait(limit(2), Some(PATIENCE)).await?.expect("they come back");
    assert_eq!(ids(&next), [posted[0], posted[2]]);
    Ok(())
}

/// WK4: a `claim` that is dropped at any poll leaves nothing claimed.
pub async fn wk4_dropped_claims_leave_nothing(store: &TestStore) -> Result<()> {
    at_every_poll(store, "claim", store.rounds(1, 2), interrupted_claim).await
}

/// WK5: whichever answer is lost, there is one claim, and each item is in it once.
pub async fn wk5_a_lost_answer_leaves_one_claim(store: &TestStore) -> Result<()> {
    for cuts in all_cuts(store) {
        at_every_cut(store, "claim", cuts, interrupted_claim).await?;
    }
    Ok(())
}

/// Case: one client claims the two items of a queue and drops the claim; then the other client gets both items.
async fn interrupted_claim(pair: &Pair<'_>) -> Result<()> {
    let name = super::unique();
    let (mine, theirs) = (pair.one.queue(&name)?, pair.other.queue(&name)?);
    let items = theirs.post(&[NewItem::new("one"), NewItem::new("other")]).await?;
    let had = pair.interrupt(mine.claim(limit(2))).await?;
    if let Some(Some(claim)) = had {
        assert_eq!(ids(&claim), items, "{pair:?}");
        assert_eq!(theirs.stats().await?.claimed, 2);
        drop(claim);
    }
    let next = theirs.claim_wait(limit(2), Some(PATIENCE)).await?;
    let mut next = next.unwrap_or_else(|| panic!("{pair:?}: they come back"));
    if next.items().len() < 2 {
        drop(next);
        next = claimed(&theirs, 2).await?;
    }
    assert_eq!(ids(&next), items, "{pair:?}");
    assert_eq!(next.ack_all().await?, 2, "{pair:?}");
    Ok(())
}

/// WK6: a wait returns after a post, after a release, and at its timeout; a wait that is dropped takes no item.
pub async fn wk6_waiting(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, theirs) = (jobs(&one), jobs(&other));
    let wait = Duration::from_millis(300);
    let begun = Instant::now();
    assert!(theirs.claim_wait(limit(1), Some(wait)).await?.is_none());
    assert!(begun.elapsed() >= wait);
    for by_release in [false, true] {
        let held = match by_release {
            true => Some(claimed(&jobs, 1).await?),
            false => None,
        };
        let waiting = tokio::spawn({
            let theirs = theirs.clone();
            async move { theirs.claim_wait(limit(1), Some(PATIENCE)).await }
        });
        let dropped = timeout(wait, theirs.claim_wait(limit(1), None)).await;
        assert!(dropped.is_err(), "there is nothing yet");
        let served = async {
            match held {
                Some(held) => drop(held.release().await?),
                None => drop(posted(&jobs, 1).await?),
            }
            waiting.await.expect("no panic")
        };
        let claim = store.within(crate::bounds::served(), served).await?;
        claim.expect("within the time given").release().await?;
    }
    Ok(())
}

/// WK6: a client that waits for an item is cut off from the store. Its wait goes on after the outage.
pub async fn wk6_cut_off(store: &TestStore) -> Result<()> {
    let other = store.connect("other").await?;
    let far = store.connect_by_proxy("far").await?;
    let (theirs, jobs) = (jobs(&far), jobs(&other));
    let waiting = tokio::spawn(async move {
        theirs.claim_wait(ClaimOptions::default(), Some(3 * PATIENCE)).await
    });
    sleep(MOMENT).await;
    store.proxy().set_both(Mode::Blackhole);
    posted(&jobs, 1).await?;
    sleep(store.ttl().unwrap_or(MOMENT) * 2).await;
    store.proxy().heal();
    let claim = waiting.await.expect("no panic")?.expect("it goes on");
    assert_eq!(claim.items().len(), 1);
    Ok(())
}
