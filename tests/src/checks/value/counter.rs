//! VA2: each addition to a counter is counted exactly once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tokio::time::sleep;

use super::super::SCHEDULING;
use super::super::interruption::at_every_poll;
use super::super::tools::{Chance, MOMENT, PATIENCE, drop_after_polls};
use super::*;
use crate::harness::{Mode, eventually_async};

/// VA2: no addition is lost or counted twice, and each addition returns a different sum.
pub async fn va2_counts_every_addition(store: &TestStore) -> Result<()> {
    let reader = counter(&connect(store, "reader").await?);
    let rounds = store.rounds(200, 12);
    let mut tasks = JoinSet::new();
    for client in 0..3 {
        let coordinator = connect(store, &format!("client-{client}")).await?;
        for _ in 0..3 {
            let counter = counter(&coordinator);
            tasks.spawn(async move {
                let mut sums = Vec::new();
                for _ in 0..rounds {
                    sums.push(counter.add(1).await?);
                }
                assert!(sums.is_sorted(), "{sums:?}");
                Ok::<_, coordination::Error>(sums)
            });
        }
    }
    let mut sums = BTreeSet::new();
    while let Some(outcome) = tasks.join_next().await {
        sums.extend(outcome.expect("no panic")?);
    }
    let total = i64::try_from(9 * rounds).expect("small");
    assert!(sums.into_iter().eq(1..=total), "each sum once");
    assert_eq!(reader.read().await?, total);
    assert_eq!(reader.add(-total - 5).await?, -5);
    assert_eq!(reader.read().await?, -5);
    Ok(())
}

/// VA2: a sum that is no 64-bit number is an error, and nothing is added.
pub async fn va2_overflow_is_refused(store: &TestStore) -> Result<()> {
    let counter = counter(&connect(store, "one").await?);
    assert_eq!(counter.read().await?, 0);
    for (limit, too_much) in [(i64::MAX, 1), (i64::MIN, -1), (i64::MAX, i64::MAX)] {
        assert_eq!(counter.add(limit).await?, limit);
        let refused = counter.add(too_much).await.expect_err("it is too much");
        assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Value, Effect::None));
        assert_eq!(refused.key(), Some(NAME));
        assert_eq!(counter.read().await?, limit);
        // The counter goes back to zero in two steps, because `-i64::MIN` is no `i64`.
        counter.add(-(limit / 2)).await?;
        let rest = counter.read().await?;
        assert_eq!(counter.add(-rest).await?, 0);
    }
    Ok(())
}

/// VA2: an addition that is dropped, at any poll, is counted once or not at all.
pub async fn va2_a_dropped_addition_counts_once_or_never(store: &TestStore) -> Result<()> {
    let (one, other) = (connect(store, "one").await?, connect(store, "other").await?);
    let (dropped, reader) = (counter(&one), counter(&other));
    let mut chance = Chance::new("va2_a_dropped_addition_counts_once_or_never");
    let (mut tried, mut confirmed) = (0, 0);
    for round in 0..store.rounds(60, 20) {
        // Additions of 1,000 each. The last three digits of the sum show if only a part of an addition was added.
        let before = reader.read().await?;
        let polls = if round % 2 == 0 { round / 2 % 6 } else { chance.below(12) };
        let done = drop_after_polls(dropped.add(1_000), polls).await;
        tried += 1;
        confirmed += i64::from(done);
        assert!(!done || reader.read().await? >= before + 1_000);
    }
    // Additions that were dropped may still be on their way, for as long as the store's disk takes: a store may end what it has begun
    // though nobody waits for it.
    let mut last = 0;
    for _ in 0..5 {
        sleep(MOMENT).await;
        let sum = reader.read().await?;
        assert_eq!(sum % 1_000, 0);
        assert!(sum >= last, "{sum} after {last}");
        assert!(
            (confirmed..=tried).contains(&(sum / 1_000)),
            "{confirmed} ≤ {sum} / 1000 ≤ {tried}"
        );
        last = sum;
    }
    // One more is added to the sum as it is at this moment, which is again a number of thousands.
    let sum = dropped.add(1).await? - 1;
    assert_eq!(sum % 1_000, 0);
    assert!(sum >= last && sum <= 1_000 * tried, "{last} ≤ {sum} ≤ {tried} × 1000");
    at_every_poll(store, "compare_and_set", store.rounds(1, 2), interrupted_write).await
}

/// VA2: a process is killed while it adds to a counter. Each addition that was confirmed to it has been counted, and
/// at most one more.
pub async fn va2_a_killed_counter_has_counted(store: &TestStore) -> Result<()> {
    let here = counter(&connect(store, "here").await?);
    let mut chance = Chance::new("va2_a_killed_counter_has_counted");
    let mut before = 0;
    for round in 0..store.rounds(4, 3) {
        let workers = [0, 1].map(|worker| store.worker(&format!("worker-{round}-{worker}")));
        for worker in &workers {
            worker.send(json!({ "command": "count", "counter": NAME }));
        }
        let mut sums = BTreeSet::new();
        for _ in 0..10 {
            sums.extend(workers[0].event(PATIENCE).expect("it counts")["sum"].as_i64());
            sums.insert(here.add(1).await?);
        }
        sleep(Duration::from_micros(100) * u32::try_from(chance.below(100)).unwrap_or(0)).await;
        for worker in &workers {
            worker.kill();
            while let Some(event) = worker.event(PATIENCE) {
                sums.extend(event["sum"].as_i64());
            }
        }
        // The last addition of each process may still be on its way. Or the store has counted it, but the process was
        // killed before it wrote the addition's event.
        sleep(MOMENT).await;
        let sum = here.add(1).await?;
        sums.insert(sum);
        let confirmed = i64::try_from(sums.len()).expect("small");
        let counted = sum - before;
        assert!((confirmed..=confirmed + 2).contains(&counted), "{counted} of {confirmed}");
        assert!(sums.first().is_some_and(|first| *first > before), "no sum twice: {sums:?}");
        before = sum;
    }
    Ok(())
}

/// VA2: the connection is cut before or after the answer to an addition, while others add too. A confirmed addition is
/// counted once. An addition that failed is counted once or not at all, and its error says that this is unknown.
pub async fn va2_a_lost_answer_counts_once(store: &TestStore) -> Result<()> {
    let other = counter(&store.connect("other").await?);
    let over = Arc::new(AtomicBool::new(false));
    let adding = {
        let (other, over) = (other.clone(), Arc::clone(&over));
        tokio::spawn(async move {
            let mut sums = Vec::new();
            while !over.load(Ordering::SeqCst) {
                sums.push(other.add(1).await?);
                sleep(Duration::from_millis(1)).await;
            }
            Ok::<_, coordination::Error>(sums)
        })
    };
    let (mut sums, mut unknown) = (Vec::new(), 0);
    let cuts = at_every_cut(store, "add", FRAMES, async |pair: &Pair<'_>| {
        let cut_off = counter(&pair.one);
        match pair.attempt(cut_off.add(1)).await.expect("it is not dropped") {
            Ok(sum) => sums.push(sum),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{pair:?}: {error}");
                unknown += i64::from(error.effect() == Effect::Unknown);
                assert_ne!(error.effect(), Effect::Applied, "{pair:?}");
            }
        }
        Ok(())
    });
    let cuts = cuts.await?;
    over.store(true, Ordering::SeqCst);
    sums.extend(adding.await.expect("no panic")?);
    let confirmed: BTreeSet<_> = sums.iter().copied().collect();
    assert_eq!(confirmed.len(), sums.len(), "no sum is answered twice");
    let confirmed = i64::try_from(confirmed.len()).expect("small");
    let sum = other.read().await?;
    eprintln!("VA2: {cuts} cuts, {confirmed} confirmed, {unknown} unknown, and the sum is {sum}");
    assert!((confirmed..=confirmed + unknown).contains(&sum), "{sum}");
    assert!(cuts >= 8, "the cuts are to hit: {cuts}");
    Ok(())
}

/// VA2, X1: the connection breaks during an addition, while another client adds once. The outcome is unknown only if
/// the addition was carried out. If it was not carried out, the library sees this from the last writer of the value,
/// and adds again.
pub async fn va2_a_lost_request_is_settled(store: &TestStore) -> Result<()> {
    let mine = counter(&store.connect_by_proxy("one").await?);
    let theirs = counter(&store.connect("other").await?);
    let (mut known, mut in_doubt) = (theirs.add(1).await?, 0);
    for round in 0..store.rounds(60, 60) {
        let adding = tokio::spawn({
            let mine = mine.clone();
            async move { mine.add(1).await }
        });
        sleep(Duration::from_micros(150 * u64::try_from(round % 20).expect("few"))).await;
        store.proxy().set_both(Mode::Blackhole);
        theirs.add(1).await?;
        store.proxy().reset_all();
        store.proxy().heal();
        known += 1;
        match adding.await.expect("no panic") {
            Ok(_) => known += 1,
            Err(error) if error.effect() == Effect::Unknown => in_doubt += 1,
            Err(error) => assert_eq!(error.effect(), Effect::None, "{error}"),
        }
        assert_eq!(theirs.read().await?, known + in_doubt, "round {round}: {in_doubt} in doubt");
        let come_back = async || mine.read().await.is_ok();
        eventually_async(PATIENCE, come_back).await;
    }
    Ok(())
}

/// VA2: while the store is out of reach, calls fail in time, and their errors say whether they may have had an effect.
pub async fn va2_out_of_reach_is_told(store: &TestStore) -> Result<()> {
    let client = store.connect_by_proxy("cut off").await?;
    let (counter, value) = (counter(&client), value(&client));
    assert_eq!(counter.add(1).await?, 1);
    let version = value.set(&1).await?;
    // The calls end when the session is lost, after a lease; a call that began just before that may take one attempt
    // longer.
    let ttl = store.ttl().expect("the check is for leases");
    let bound = ttl + store.attempt_timeout() + SCHEDULING + store.scheduling();
    store.proxy().set_both(Mode::Blackhole);
    let start = std::time::Instant::now();
    let read = counter.read();
    let add = counter.add(1);
    let write = value.compare_and_set(Some(version), &2);
    let (read, add, write) = tokio::join!(read, add, write);
    let took = start.elapsed();
    assert!(took <= bound, "{took:?}");
    let read = read.expect_err("out of reach");
    assert_eq!((read.kind(), read.effect()), (ErrorKind::Unavailable, Effect::None));
    // An addition begins with a read, which failed, so it had no effect.
    let add = add.expect_err("out of reach");
    assert_eq!((add.kind(), add.effect()), (ErrorKind::Unavailable, Effect::None));
    let write = write.expect_err("out of reach");
    assert_eq!((write.kind(), write.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    store.proxy().heal();
    let healed = async {
        while counter.read().await.is_err() {
            sleep(MOMENT).await;
        }
    };
    timeout(PATIENCE, healed).await.expect("it is in reach again");
    assert_eq!(counter.add(1).await?, 2);
    let present = value.read().await?.expect("it was set").value;
    assert!((1..=2).contains(&present), "{present}");
    Ok(())
}
