//! WK1 to WK3, WK5: each item of a work queue is claimed by one client at a time, none is lost, and only its claim can
//! acknowledge it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use coordination::{
    Ack, ClaimId, ClaimOptions, Coordinator, ErrorKind, ItemId, ListOptions, NewItem, Result,
    WorkClaim, WorkLimits, WorkQueue,
};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::TestStore;
use super::tools::PATIENCE;

const NAME: &str = "resize-jobs";
const MINUTE: Duration = Duration::from_secs(60);

pub(super) fn jobs(coordinator: &Coordinator) -> WorkQueue {
    coordinator.queue(NAME).expect("a good name")
}

pub(super) fn limit(limit: usize) -> ClaimOptions {
    ClaimOptions::default().limit(limit)
}

pub(super) async fn posted(jobs: &WorkQueue, count: usize) -> Result<Vec<ItemId>> {
    let items: Vec<_> = (0..count).map(|number| NewItem::new(format!("job {number}"))).collect();
    jobs.post(&items).await
}

pub(super) async fn claimed(jobs: &WorkQueue, count: usize) -> Result<WorkClaim> {
    let claim = jobs.claim(limit(count)).await?.expect("items are ready");
    assert_eq!(claim.items().len(), count);
    Ok(claim)
}

pub(super) fn ids(claim: &WorkClaim) -> Vec<ItemId> {
    claim.items().iter().map(coordination::WorkItem::id).collect()
}

pub(super) fn kind<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

async fn counts(jobs: &WorkQueue) -> Result<(u64, u64, u64)> {
    let stats = jobs.stats().await?;
    assert_eq!(stats.total(), stats.ready + stats.claimed + stats.delayed);
    Ok((stats.claimed, stats.ready, stats.delayed))
}

/// WK2: twenty items, of which fifteen are claimed, and the claim is renewed and released.
pub async fn wk2_lifecycle(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, theirs) = (jobs(&one), jobs(&other));
    assert!(jobs.claim(limit(1)).await?.is_none(), "there is no queue yet");
    assert_eq!(jobs.stats().await?, Default::default());
    let posted = posted(&jobs, 20).await?;
    let options = limit(15).ttl(70 * MINUTE / 60).grace(30 * MINUTE / 60);
    let claim = jobs.claim(options).await?.expect("twenty are ready");
    assert_eq!(ids(&claim), posted[..15], "the oldest first");
    assert_eq!(claim.items()[3].body(), b"job 3");
    assert!(claim.is_held());
    assert_eq!(counts(&theirs).await?, (15, 5, 0));
    let seen = theirs.get(claim.id()).await?;
    assert_eq!((seen.items.len(), seen.token, seen.ttl), (15, claim.token(), 70 * MINUTE / 60));
    let hundred = 100 * MINUTE / 60;
    assert_eq!(claim.renew(Some(hundred), Some(MINUTE)).await?, hundred);
    let seen = theirs.get(claim.id()).await?;
    assert_eq!((seen.ttl, seen.grace), (hundred, MINUTE));
    assert!(seen.age < MINUTE && seen.expires_in > 40 * MINUTE / 60);
    assert!(seen.items.iter().all(|item| item.claims() == 1), "a renewal is no claim");
    let id = claim.id();
    assert_eq!(claim.release().await?, 15);
    assert_eq!(kind(theirs.get(id).await), Some(ErrorKind::NoSuchClaim));
    assert_eq!(theirs.release(id).await?, 0, "released once");
    assert_eq!(counts(&theirs).await?, (0, 20, 0));
    let again = claimed(&theirs, 20).await?;
    assert_eq!(ids(&again), posted, "those that came back keep their place");
    assert!(again.token().value() > seen.token.value());
    assert_eq!(again.ack_all().await?, 20);
    assert_eq!(counts(&jobs).await?, (0, 0, 0));
    Ok(())
}

/// WK2: five claims of ten items each leave one of the queue's 51 items.
pub async fn wk2_five_claims_of_ten_leave_one_of_51(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    posted(&jobs, 51).await?;
    let mut claims = Vec::new();
    for _ in 0..5 {
        claims.extend(jobs.claim(ClaimOptions::default()).await?);
    }
    let items: BTreeSet<_> = claims.iter().flat_map(ids).collect();
    assert_eq!(items.len(), 50);
    assert_eq!(claimed(&jobs, 1).await?.items().len(), 1);
    Ok(())
}

/// WK2: claimers that ask at the same time get different items. Together they get all items, or as many as they asked
/// for.
pub async fn wk2_claimers_at_once(store: &TestStore) -> Result<()> {
    let coordinators = [store.connect("one").await?, store.connect("other").await?];
    let queues: Vec<_> = coordinators.iter().map(jobs).collect();
    for (ready, each) in [(30, 3), (13, 4)] {
        posted(&queues[0], ready).await?;
        let mut claiming = JoinSet::new();
        for number in 0..6 {
            let queue = queues[number % 2].clone();
            claiming.spawn(async move { queue.claim(limit(each)).await });
        }
        let mut claims = Vec::new();
        while let Some(claim) = claiming.join_next().await {
            claims.extend(claim.expect("no panic")?);
        }
        let items: Vec<_> = claims.iter().flat_map(ids).collect();
        assert_eq!(items.len(), ready.min(6 * each));
        assert_eq!(items.iter().collect::<BTreeSet<_>>().len(), items.len(), "one at a time");
        let tokens: BTreeSet<_> = claims.iter().map(|claim| claim.token().value()).collect();
        assert_eq!(tokens.len(), claims.len());
        for claim in claims {
            claim.ack_all().await?;
        }
        while let Some(rest) = queues[1].claim(limit(1_000)).await? {
            rest.ack_all().await?;
        }
    }
    Ok(())
}

/// What happened to an item: the times during which a claim had it, by this process's clock, and how often it was
/// acknowledged.
#[derive(Default)]
struct History {
    stays: Vec<(Instant, Instant)>,
    done: usize,
}

#[derive(Default)]
struct Histories(Mutex<BTreeMap<ItemId, History>>);

impl Histories {
    fn had(&self, items: &[ItemId], from: Instant, to: Instant) {
        let mut histories = self.0.lock().expect("nobody panics");
        items.iter().for_each(|item| histories.entry(*item).or_default().stays.push((from, to)));
    }

    fn done(&self, item: ItemId) {
        self.0.lock().expect("nobody panics").entry(item).or_default().done += 1;
    }
}

/// WK1: some workers acknowledge, others give back, drop their claim or let it expire; no item is in two claims at a
/// time, and each is acknowledged once.
pub async fn wk1_no_item_is_had_by_two(store: &TestStore) -> Result<()> {
    let coordinators = [store.connect("one").await?, store.connect("other").await?];
    let count = store.rounds(400, 60);
    let posted = posted(&jobs(&coordinators[0]), count).await?;
    let histories = Arc::new(Histories::default());
    let mut workers = JoinSet::new();
    for number in 0..4 {
        let (queue, histories) = (jobs(&coordinators[number % 2]), Arc::clone(&histories));
        workers.spawn(async move { work(&queue, &histories, number).await });
    }
    while let Some(worked) = workers.join_next().await {
        worked.expect("no panic")?;
    }
    let histories = histories.0.lock().expect("nobody panics");
    assert_eq!(histories.keys().copied().collect::<Vec<_>>(), posted, "none is lost");
    for (item, history) in histories.iter() {
        let mut stays = history.stays.clone();
        stays.sort_unstable();
        let overlap = stays.windows(2).find(|two| two[1].0 < two[0].1);
        assert_eq!(overlap, None, "{item} was had by two");
        assert_eq!(history.done, 1, "{item} was done once");
    }
    Ok(())
}

async fn work(queue: &WorkQueue, histories: &Histories, number: usize) -> Result<()> {
    let mut round = number;
    loop {
        round += 1;
        let ttl = if round.is_multiple_of(5) { Duration::from_millis(150) } else { MINUTE };
        let options = limit(1 + round % 4).ttl(ttl).grace(MINUTE);
        let Some(claim) = queue.claim_wait(options, Some(PATIENCE)).await? else { return Ok(()) };
        let (items, from) = (ids(&claim), Instant::now());
        if round.is_multiple_of(5) {
            sleep(2 * ttl).await;
        }
        let (mut to, mut kept) = (from, Vec::new());
        for (nth, item) in items.iter().enumerate() {
            if claim.is_held() {
                to = Instant::now();
            }
            match (round + nth) % 6 {
                // After the item is given back, another claim may have it, while this claim still has its other items.
                0 => {
                    histories.had(&[*item], from, to);
                    drop(claim.nack(*item, Duration::from_millis(20)).await);
                }
                1 => kept.push(*item),
                _ => {
                    histories.had(&[*item], from, to);
                    if claim.ack(*item).await.is_ok_and(|ack| ack == Ack::Done) {
                        histories.done(*item);
                    }
                }
            }
        }
        if claim.is_held() {
            to = Instant::now();
        }
        histories.had(&kept, from, to);
        drop(claim);
        if queue.stats().await?.total() == 0 {
            return Ok(());
        }
    }
}

/// WK3: an acknowledgement checks, in this order, whether the item exists, whether the claim is live, and whether the
/// claim has the item.
pub async fn wk3_who_may_acknowledge(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    posted(&jobs, 10).await?;
    let (mine, theirs) = (claimed(&jobs, 3).await?, claimed(&jobs, 3).await?);
    let (own, other) = (mine.items()[0].id(), theirs.items()[0].id());
    let ill: ClaimId = "'; DROP TABLE claims; --".parse().unwrap_or_else(|never| match never {});
    let nothing: ItemId = "not an id".parse().unwrap_or_else(|never| match never {});
    assert_eq!(jobs.ack(nothing, ill).await?, Ack::AlreadyGone);
    for unknown in [ill, ClaimId::random()] {
        assert_eq!(kind(jobs.ack(own, unknown).await), Some(ErrorKind::NoSuchClaim));
        assert_eq!(kind(jobs.get(unknown).await), Some(ErrorKind::NoSuchClaim));
        assert_eq!(kind(jobs.renew(unknown, None, None).await), Some(ErrorKind::NoSuchClaim));
        assert_eq!(jobs.release(unknown).await?, 0);
    }
    assert_eq!(kind(mine.ack(other).await), Some(ErrorKind::NotClaimedBy));
    assert_eq!(kind(jobs.ack_many(&[own, other], mine.id()).await), Some(ErrorKind::NotClaimedBy));
    assert_eq!(jobs.get(mine.id()).await?.items.len(), 3, "all or none");
    assert_eq!(kind(jobs.delete(own).await), Some(ErrorKind::IsClaimed));
    assert_eq!(mine.ack(own).await?, Ack::Done);
    assert_eq!(mine.ack(own).await?, Ack::AlreadyGone, "a lost answer is asked for again");
    assert_eq!(mine.nack(mine.items()[1].id(), Duration::ZERO).await?, Ack::Done);
    assert_eq!(kind(mine.ack(mine.items()[1].id()).await), Some(ErrorKind::NotClaimed));
    let (id, left) = (mine.id(), mine.items()[2].id());
    mine.release().await?;
    assert_eq!(kind(jobs.ack(left, id).await), Some(ErrorKind::NoSuchClaim));
    assert!(jobs.delete(left).await? && !jobs.delete(left).await?);
    assert!(jobs.force_delete(other).await?);
    assert_eq!(theirs.ack(other).await?, Ack::AlreadyGone);
    assert_eq!(counts(&jobs).await?, (2, 5, 0));
    assert_eq!(theirs.ack_all().await?, 2);
    Ok(())
}

/// WK3: an operator sees who has which claims, and takes away exactly one of them, which is live no more.
pub async fn wk3_an_operator_takes_a_claim_away(store: &TestStore) -> Result<()> {
    let (coordinator, operator) = (store.connect("one").await?, store.connect("other").await?);
    let (jobs, looks) = (jobs(&coordinator), jobs(&operator));
    posted(&jobs, 5).await?;
    assert_eq!(looks.claims().await?, []);
    let (mine, other) = (claimed(&jobs, 2).await?, claimed(&jobs, 2).await?);
    let id = ClaimId::random();
    let view = jobs.claim_as(id, limit(1)).await?.expect("one is left");
    let claims = looks.claims().await?.into_iter();
    let seen: Vec<_> = claims.map(|who| (who.member, who.token, who.items)).collect();
    let member = coordinator.member_id().to_owned();
    let expected = [
        (member.clone(), mine.token(), 2),
        (member, other.token(), 2),
        (String::new(), view.token, 1),
    ];
    assert_eq!(seen, expected);
    let broken = looks.break_claim(mine.token()).await?.expect("it is live");
    assert_eq!(broken.token, mine.token());
    assert_eq!(looks.break_claim(mine.token()).await?, None, "it is over");
    assert_eq!(kind(mine.ack(mine.items()[0].id()).await), Some(ErrorKind::NoSuchClaim));
    let next = claimed(&looks, 2).await?;
    assert_eq!(ids(&next), ids(&mine));
    assert_eq!(other.ack_all().await?, 2, "nobody else's was taken away");
    let broken = looks.break_claim(view.token).await?.expect("it is live");
    assert_eq!(broken.member, "", "no process has it");
    assert_eq!(kind(jobs.get(id).await), Some(ErrorKind::NoSuchClaim));
    Ok(())
}

/// WK5: a repeated call with the same claim id returns the claim that the first call made; an id that was used before
/// makes no new claim.
pub async fn wk5_a_repeated_claim_is_the_same(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    posted(&jobs, 4).await?;
    let id = ClaimId::random();
    let first = jobs.claim_as(id, limit(2)).await?.expect("four are ready");
    let again = jobs.claim_as(id, limit(3)).await?.expect("it is live");
    assert_eq!((again.token, again.items.len()), (first.token, 2));
    assert!(again.items.iter().zip(&first.items).all(|(one, other)| one.id() == other.id()));
    assert_eq!(jobs.stats().await?.claimed, 2);
    assert_eq!(jobs.release(id).await?, 2);
    assert_eq!(kind(jobs.claim_as(id, limit(2)).await), Some(ErrorKind::ClaimIdReused));
    assert_eq!(jobs.stats().await?.claimed, 0);
    Ok(())
}

/// WK2: a delay keeps back its own item and no other; `pop` respects it too.
pub async fn wk2_a_delayed_item_stays(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    let begun = Instant::now();
    let delay = Duration::from_secs(2);
    let delayed = NewItem::new("later").delay(delay);
    let ids = jobs.post(&[NewItem::new("now"), delayed, NewItem::new("now too")]).await?;
    let claim = jobs.claim(limit(3)).await?.expect("two are ready");
    let got: Vec<_> = claim.items().iter().map(coordination::WorkItem::id).collect();
    if begun.elapsed() < delay {
        assert_eq!(got, [ids[0], ids[2]]);
        assert_eq!(jobs.pop(3).await?, []);
    }
    // This item's delay is far longer than that of the other delayed item. If both were due, this item would be
    // claimed first, because it was posted first.
    claim.nack(ids[0], 10 * delay).await?;
    let came = jobs.claim_wait(limit(1), Some(PATIENCE)).await?.expect("its delay ends");
    assert_eq!(came.items()[0].id(), ids[1]);
    assert!(begun.elapsed() >= delay, "no earlier");
    Ok(())
}

/// WK2: with `set_dead_letters(2, …)`, the third attempt to claim an item moves it to the dead letter queue, and goes
/// on to the next item.
pub async fn wk2_dead_letters(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let (jobs, dead) = (jobs(&coordinator), coordinator.queue("dead")?);
    jobs.set_dead_letters(2, &dead, Some(9_999 * MINUTE / 60)).await?;
    assert_eq!(kind(jobs.set_dead_letters(2, &jobs, None).await), Some(ErrorKind::Input));
    let ids = jobs.post(&[NewItem::new(vec![7; 5_000])]).await?;
    for _ in 0..2 {
        assert_eq!(claimed(&jobs, 1).await?.release().await?, 1);
    }
    posted(&jobs, 1).await?;
    let next = claimed(&jobs, 1).await?;
    assert_ne!(next.items()[0].id(), ids[0], "the poisoned one is passed over");
    let letters = dead.list(ListOptions::default()).await?;
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].body(), letters[0].claims()), (&[7; 5_000][..], 2));
    assert!(letters[0].expires_in() > 9_900 * MINUTE / 60);
    assert_eq!(jobs.stats().await?.total(), 1);
    Ok(())
}

/// WK2: listing, popping and deleting, and what remains in the queue.
pub async fn wk2_list_pop_and_delete(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    let items = posted(&jobs, 6).await?;
    let claim = claimed(&jobs, 2).await?;
    let list = |options: ListOptions| {
        let jobs = jobs.clone();
        async move {
            let listed = jobs.list(options).await?;
            Ok::<_, coordination::Error>(
                listed.iter().map(coordination::WorkItem::id).collect::<Vec<_>>(),
            )
        }
    };
    assert_eq!(list(ListOptions::default()).await?, items[2..]);
    let all = ListOptions { include_claimed: true, ..ListOptions::default() };
    assert_eq!(list(all.clone()).await?, items);
    let after = ListOptions { after: Some(items[3]), limit: 1, ..all.clone() };
    assert_eq!(list(after).await?, [items[4]]);
    let unknown = ListOptions { after: Some("0".parse().unwrap_or(items[0])), ..all };
    assert_eq!(list(unknown).await?, []);
    let popped = jobs.pop(3).await?;
    assert_eq!(popped.iter().map(coordination::WorkItem::id).collect::<Vec<_>>(), items[2..5]);
    assert_eq!(counts(&jobs).await?, (2, 1, 0));
    jobs.delete_queue().await?;
    assert_eq!(counts(&jobs).await?, (0, 0, 0));
    assert_eq!(kind(jobs.get(claim.id()).await), Some(ErrorKind::NoSuchClaim));
    assert_eq!(claim.ack(items[0]).await?, Ack::AlreadyGone);
    let next = posted(&jobs, 1).await?;
    assert!(next[0] > items[5], "ranks go on");
    for _ in 0..5 {
        jobs.gc(None).await?;
    }
    assert_eq!(ids(&claimed(&jobs, 1).await?), next);
    Ok(())
}

/// WK2: items whose lifetime is over are not visible, and are removed; `gc` removes no more than its limit.
pub async fn wk2_dead_items_go(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    let short = Duration::from_millis(20);
    let items: Vec<_> = (0..8).map(|_| NewItem::new("short").ttl(short)).collect();
    jobs.post(&items).await?;
    sleep(10 * short).await;
    assert_eq!(counts(&jobs).await?, (0, 0, 0));
    assert_eq!(jobs.gc(Some(1)).await?.items, 1);
    assert_eq!(jobs.gc(Some(5)).await?.items, 5);
    assert_eq!(jobs.gc(Some(5)).await?.items, 2);
    // An item in a claim lives on beyond its own life.
    let item = NewItem::new("short").ttl(Duration::from_millis(700));
    jobs.post(&[item]).await?;
    let claim = jobs.claim(limit(1).ttl(MINUTE).grace(MINUTE)).await?;
    if let Some(claim) = claim {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(jobs.get(claim.id()).await?.items.len(), 1);
        assert_eq!(claim.ack_all().await?, 1);
    }
    Ok(())
}

/// WK2: the counts follow each acknowledgement and each release at once, and what is gone is passed over.
pub async fn wk2_counts_follow_each_call(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator);
    let items = posted(&jobs, 10).await?;
    let claim = claimed(&jobs, 10).await?;
    assert_eq!(counts(&jobs).await?, (10, 0, 0));
    assert_eq!(claim.ack(items[0]).await?, Ack::Done);
    assert_eq!(counts(&jobs).await?, (9, 0, 0));
    assert_eq!(jobs.ack_many(&items[..3], claim.id()).await?, 2, "the first is gone");
    assert_eq!(counts(&jobs).await?, (7, 0, 0));
    assert_eq!(claim.release().await?, 7);
    assert_eq!(counts(&jobs).await?, (0, 7, 0));
    // A claim whose ttl is over keeps nobody from its item.
    let claim =
        jobs.claim(limit(1).ttl(Duration::from_millis(500))).await?.expect("seven are ready");
    assert_eq!(kind(jobs.delete(items[3]).await), Some(ErrorKind::IsClaimed));
    let since = Instant::now();
    while kind(jobs.delete(items[3]).await) == Some(ErrorKind::IsClaimed) {
        assert!(since.elapsed() < PATIENCE, "the claim does not end");
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(claim.ack(items[3]).await?, Ack::AlreadyGone);
    assert_eq!(counts(&jobs).await?, (0, 6, 0));
    Ok(())
}

/// WK2: those who collect dead items at the same time remove each of them once, and nothing else.
pub async fn wk2_dead_items_are_collected_once(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let queue = jobs(&one);
    let ttl = Duration::from_millis(20);
    let short: Vec<_> = (0..60).map(|_| NewItem::new("short").ttl(ttl)).collect();
    queue.post(&short).await?;
    let kept = posted(&queue, 3).await?;
    sleep(10 * ttl).await;
    let mut collecting = JoinSet::new();
    for number in 0..4 {
        let queue = jobs(if number % 2 == 0 { &one } else { &other });
        collecting.spawn(async move { queue.gc(Some(20)).await });
    }
    let mut removed = 0;
    while let Some(collected) = collecting.join_next().await {
        removed += collected.expect("no panic")?.items;
    }
    assert_eq!(removed, 60);
    assert_eq!(queue.gc(None).await?.items, 0);
    assert_eq!(ids(&claimed(&queue, 3).await?), kept);
    Ok(())
}

/// WK2: a call with values out of range changes nothing.
pub async fn wk2_out_of_range(store: &TestStore) -> Result<()> {
    let coordinator = store.connect("one").await?;
    let jobs = jobs(&coordinator).with_limits(WorkLimits::zaqar());
    posted(&jobs, 25).await?;
    let seconds = Duration::from_secs;
    for (ttl, grace) in [(59, 60), (60, 59), (43_201, 60), (60, 43_201)] {
        let options = ClaimOptions::default().ttl(seconds(ttl)).grace(seconds(grace));
        assert_eq!(kind(jobs.claim(options).await), Some(ErrorKind::Input), "{ttl} {grace}");
    }
    for count in [0, 21] {
        assert_eq!(kind(jobs.claim(limit(count)).await), Some(ErrorKind::Input));
        assert_eq!(kind(jobs.pop(count).await), Some(ErrorKind::Input));
    }
    assert_eq!(kind(jobs.post(&[]).await), Some(ErrorKind::Input));
    let delayed = NewItem::new("").ttl(seconds(60)).delay(seconds(60));
    for item in [NewItem::new("").ttl(seconds(59)), delayed, NewItem::new(vec![0; 262_145])] {
        assert_eq!(kind(jobs.post(&[item]).await), Some(ErrorKind::Input));
    }
    assert_eq!(counts(&jobs).await?, (0, 25, 0));
    let claim = claimed(&jobs, 20).await?;
    assert_eq!(kind(claim.renew(Some(seconds(59)), None).await), Some(ErrorKind::Input));
    // The largest body that a post may have, on every store.
    let largest = jobs.post(&[NewItem::new(vec![9; 262_144])]).await?;
    claim.ack_all().await?;
    let rest = claimed(&jobs, 6).await?;
    assert_eq!((rest.items()[5].id(), rest.items()[5].body().len()), (largest[0], 262_144));
    assert_eq!(rest.ack_all().await?, 6);
    let many: Vec<_> = (0..1_000).map(|_| NewItem::new([3; 60])).collect();
    assert_eq!(jobs.post(&many).await?.len(), 1_000);
    assert_eq!(jobs.stats().await?.ready, 1_000);
    Ok(())
}
