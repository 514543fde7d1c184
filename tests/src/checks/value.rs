//! VA1–VA3: one writer of a version, each addition once, and the last value for whoever watches.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coordination::{
    Coordinator, Counter, Effect, ErrorKind, Result, SharedValue, ValueWatch, Version, Versioned,
};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Stage;
use super::interruption::{FRAMES, Scene, at_every_cut, at_every_poll};
use super::tools::{Chance, MOMENT, PATIENCE, drop_after_polls};
use crate::harness::Mode;

/// The value, and the counter, that the checks are about.
const NAME: &str = "limit";

fn value(coordinator: &Coordinator) -> SharedValue<u64> {
    coordinator.value(NAME).expect("a valid name")
}

fn counter(coordinator: &Coordinator) -> Counter {
    coordinator.counter(NAME).expect("a valid name")
}

/// A client with time for every call: on a busy machine an answer may take longer than a heartbeat of the
/// stage's, and counts as lost then.
async fn connect(stage: &Stage, member: &str) -> Result<Coordinator> {
    let settings = stage.settings().ttl(Duration::from_secs(30)).heartbeat(Duration::from_secs(5));
    settings.member_id(member).connect(stage.url()).await
}

/// The next that a watch tells, in good time.
async fn told(changes: &mut ValueWatch<u64>) -> Result<Option<Versioned<u64>>> {
    timeout(PATIENCE, changes.next()).await.expect("a watch tells")
}

/// VA1: of many who write over one version, exactly one does.
pub async fn va1_of_many_writers_one_wins(stage: &Stage) -> Result<()> {
    let mut clients = Vec::new();
    for client in 0..3 {
        clients.push(connect(stage, &format!("client-{client}")).await?);
    }
    let mut expected: Option<Version> = None;
    for round in 0..stage.rounds(60, 10) {
        let mut writers = JoinSet::new();
        for writer in 0..9_u64 {
            let value = value(&clients[round % 3]);
            writers.spawn(async move {
                let wrote = value.compare_and_set(expected, &writer).await;
                wrote.map(|wrote| wrote.map(|version| (version, writer)))
            });
        }
        let outcomes = writers.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
        let winners: Vec<_> = outcomes.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "{winners:?}");
        let present = value(&clients[(round + 1) % 3]).read().await?.expect("one wrote");
        assert_eq!((present.version, present.value), winners[0]);
        assert!(Some(present.version) > expected);
        expected = Some(present.version);
    }
    Ok(())
}

/// VA1: versions rise, also when the value was deleted in between; who expects an old one does nothing.
pub async fn va1_versions_rise_over_deletion(stage: &Stage) -> Result<()> {
    let (one, other) = (connect(stage, "one").await?, connect(stage, "other").await?);
    let (one, other) = (value(&one), value(&other));
    assert!(!one.delete().await?, "there is nothing yet");
    let mut last: Option<Version> = None;
    for round in 0..stage.rounds(20, 5) {
        assert_eq!(one.read().await?, None);
        if last.is_some() {
            assert_eq!(one.compare_and_set(last, &0).await?, None, "it was deleted");
        }
        let first = match round % 2 {
            0 => one.set(&1).await?,
            _ => one.compare_and_set(None, &1).await?.expect("there is no value"),
        };
        assert!(Some(first) > last, "{first} after {last:?}");
        assert_eq!(other.compare_and_set(None, &2).await?, None, "there is one");
        let second = other.set(&2).await?;
        let third = other.compare_and_set(Some(second), &3).await?.expect("nobody was faster");
        assert!(first < second && second < third);
        for old in [first, second] {
            assert_eq!(one.compare_and_set(Some(old), &9).await?, None);
            assert!(!one.compare_and_delete(old).await?);
        }
        let present = one.read().await?.expect("it was written");
        assert_eq!((present.version, present.value), (third, 3));
        match round % 2 {
            0 => assert!(one.compare_and_delete(third).await?),
            _ => assert!(other.delete().await?),
        }
        last = Some(third);
    }
    Ok(())
}

/// VA1: what several change at once is changed by each of them.
pub async fn va1_updates_are_not_lost(stage: &Stage) -> Result<()> {
    let list = connect(stage, "reader").await?.value::<Vec<(usize, usize)>>("list")?;
    let rounds = stage.rounds(20, 4);
    let mut tasks = JoinSet::new();
    for client in 0..3_usize {
        let coordinator = connect(stage, &format!("client-{client}")).await?;
        for task in 0..2_usize {
            let list = coordinator.value::<Vec<(usize, usize)>>("list")?;
            tasks.spawn(async move {
                for round in 0..rounds {
                    let changed = list.update(|list| {
                        let mut list = list.unwrap_or_default();
                        list.push((2 * client + task, round));
                        list
                    });
                    assert!(changed.await?.value.contains(&(2 * client + task, round)));
                }
                Ok::<_, coordination::Error>(())
            });
        }
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome.expect("no panic")?;
    }
    let list = list.read().await?.expect("it was written").value;
    assert_eq!(list.len(), 6 * rounds, "each once");
    for writer in 0..6 {
        let of_writer: Vec<_> = list.iter().filter(|(by, _)| *by == writer).collect();
        assert!(of_writer.is_sorted(), "{of_writer:?}");
    }
    Ok(())
}

/// VA1: too large, no JSON, another type: each is refused with its kind, and changes nothing.
pub async fn va1_what_cannot_be_stored_is_refused(stage: &Stage) -> Result<()> {
    const MOST: usize = 256 * 1024;
    let one = stage.connect("one").await?;
    let text = one.value::<String>(NAME)?;
    let fit = "x".repeat(MOST - 2);
    let version = text.set(&fit).await?;
    let refused = text.set(&format!("{fit}x")).await.expect_err("it is too large");
    assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Value, Effect::None));
    assert!(refused.to_string().contains(&MOST.to_string()), "{refused}");
    let no_json = one.value::<std::collections::BTreeMap<Vec<u8>, u8>>(NAME)?;
    let refused = no_json.set(&[(vec![1], 1)].into()).await.expect_err("a key is no text");
    assert_eq!(refused.kind(), ErrorKind::Value);
    let number = one.value::<u64>(NAME)?;
    let refused = number.read().await.expect_err("it is a text");
    assert_eq!((refused.kind(), refused.key()), (ErrorKind::Corrupt, Some(NAME)));
    assert_eq!(number.update(|_| 1).await.expect_err("a text").kind(), ErrorKind::Corrupt);
    let present = text.read().await?.expect("it was written");
    assert_eq!((present.version, present.value), (version, fit));
    // Whoever watches is told of what it cannot read, once, and goes on.
    let mut changes = number.watch();
    assert_eq!(told(&mut changes).await.expect_err("a text").kind(), ErrorKind::Corrupt);
    let version = number.set(&7).await?;
    let change = told(&mut changes).await?.expect("it was written");
    assert_eq!((change.version, change.value), (version, 7));
    // A value, a counter and a lock of one name are three things.
    assert_eq!(one.counter(NAME)?.add(1).await?, 1);
    assert!(one.lock(NAME)?.try_acquire().await?.is_some());
    assert_eq!(number.read().await?.map(|present| present.value), Some(7));
    assert_eq!(one.value::<u64>("").expect_err("it is empty").kind(), ErrorKind::Name);
    Ok(())
}

/// VA1: a value belongs to nobody: it stays when the session that wrote it ends.
pub async fn va1_outlives_its_writer(stage: &Stage) -> Result<()> {
    let reader = stage.connect("reader").await?;
    let writer = stage.connect("writer").await?;
    let mut changes = value(&reader).watch();
    assert_eq!(told(&mut changes).await?, None);
    let old = value(&writer);
    let version = old.set(&7).await?;
    assert_eq!(counter(&writer).add(3).await?, 3);
    writer.stop().await?;
    assert_eq!(old.set(&8).await.expect_err("it was stopped").kind(), ErrorKind::Closed);
    let present = value(&reader).read().await?.expect("it stays");
    assert_eq!((present.version, present.value), (version, 7));
    assert_eq!(told(&mut changes).await?, Some(present));
    let quiet = timeout(3 * stage.heartbeat(), changes.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    assert_eq!(counter(&reader).read().await?, 3);
    reader.stop().await?;
    let ended = told(&mut changes).await.expect_err("the client was stopped");
    assert_eq!(ended.kind(), ErrorKind::Closed);
    Ok(())
}

/// VA1: values outlive everybody's absence and the server's restart; versions go on where they were, also
/// when there was no value at all meanwhile.
pub async fn va1_values_survive(stage: &Stage) -> Result<()> {
    let mut last: Option<Version> = None;
    for round in 0..3 {
        let coordinator = stage.connect("one").await?;
        let value = value(&coordinator);
        let present = value.read().await?;
        assert_eq!(present.is_some(), round == 1, "{present:?}");
        assert!(present.is_none_or(|present| Some(present.version) == last && present.value == 2));
        assert_eq!(counter(&coordinator).add(1).await?, round + 1);
        for number in 1..=2 {
            let version = value.set(&number).await?;
            assert!(Some(version) > last, "{version} after {last:?}");
            last = Some(version);
        }
        if round == 1 {
            assert!(value.delete().await?);
        }
        coordinator.stop().await?;
        if stage.backend() == super::Backend::Etcd {
            stage.server().compact();
            stage.server().node(0).restart();
            stage.server().wait_ready();
        }
    }
    Ok(())
}

/// VA1: when the answer to a write is lost, and nobody else writes, it is found.
pub async fn va1_a_lost_answer_is_found_or_told(stage: &Stage) -> Result<()> {
    let mut expected = None;
    let mut number = 0;
    let cuts = at_every_cut(stage, "compare_and_set", FRAMES, async |scene: &Scene<'_>| {
        number += 1;
        let writing = value(&scene.one);
        let wrote = scene.attempt(writing.compare_and_set(expected, &number)).await;
        let wrote = wrote.expect("it is not dropped")?;
        let version = wrote.unwrap_or_else(|| panic!("{scene:?}: nobody else writes"));
        let present = value(&scene.other).read().await?.expect("it was written");
        assert_eq!((present.version, present.value), (version, number), "{scene:?}");
        assert!(Some(version) > expected, "{scene:?}");
        expected = Some(version);
        Ok(())
    });
    assert!(cuts.await? >= 8, "the cuts are to hit");
    Ok(())
}

/// A value is written over the version that is there.
pub async fn interrupted_write(scene: &Scene<'_>) -> Result<()> {
    let (mine, theirs) = (value(&scene.one), value(&scene.other));
    let before = theirs.read().await?;
    let next = before.as_ref().map_or(1, |before| before.value + 2);
    let version = before.as_ref().map(|before| before.version);
    let wrote = scene.interrupt(mine.compare_and_set(version, &next)).await?;
    let certain = wrote.map(|wrote| wrote.expect("nobody else writes"));
    // It has happened, or does so before this, or never.
    let present = theirs.update(|present| present.unwrap_or_default() + 2).await?;
    let without = before.map_or(2, |before| before.value + 2);
    assert!(
        present.value == next + 2 || (certain.is_none() && present.value == without),
        "{scene:?}"
    );
    assert!(Some(present.version) > certain.max(version), "{scene:?}");
    Ok(())
}

/// VA2: no addition is lost, none is counted twice, and each has an answer of its own.
pub async fn va2_counts_every_addition(stage: &Stage) -> Result<()> {
    let reader = counter(&connect(stage, "reader").await?);
    let rounds = stage.rounds(200, 12);
    let mut tasks = JoinSet::new();
    for client in 0..3 {
        let coordinator = connect(stage, &format!("client-{client}")).await?;
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
pub async fn va2_overflow_is_refused(stage: &Stage) -> Result<()> {
    let counter = counter(&connect(stage, "one").await?);
    assert_eq!(counter.read().await?, 0);
    for (limit, too_much) in [(i64::MAX, 1), (i64::MIN, -1), (i64::MAX, i64::MAX)] {
        assert_eq!(counter.add(limit).await?, limit);
        let refused = counter.add(too_much).await.expect_err("it is too much");
        assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Value, Effect::None));
        assert_eq!(refused.key(), Some(NAME));
        assert_eq!(counter.read().await?, limit);
        // Back to zero, in two steps: there is one negative number more.
        counter.add(-(limit / 2)).await?;
        let rest = counter.read().await?;
        assert_eq!(counter.add(-rest).await?, 0);
    }
    Ok(())
}

/// VA2: an addition whose future was dropped, wherever it was, counts once or not at all.
pub async fn va2_a_dropped_addition_counts_once_or_never(stage: &Stage) -> Result<()> {
    let (one, other) = (connect(stage, "one").await?, connect(stage, "other").await?);
    let (dropped, reader) = (counter(&one), counter(&other));
    let mut chance = Chance::new("va2_a_dropped_addition_counts_once_or_never");
    let (mut tried, mut confirmed) = (0, 0);
    for round in 0..stage.rounds(60, 20) {
        // Each has a digit of its own, so that one that counts twice is told from another.
        let before = reader.read().await?;
        let polls = if round % 2 == 0 { round / 2 % 6 } else { chance.below(12) };
        let done = drop_after_polls(dropped.add(1_000), polls).await;
        tried += 1;
        confirmed += i64::from(done);
        assert!(!done || reader.read().await? >= before + 1_000);
    }
    // Those that were dropped may still be under way.
    for _ in 0..5 {
        sleep(MOMENT).await;
        let sum = reader.read().await? / 1_000;
        assert!(sum >= confirmed && sum <= tried, "{confirmed} ≤ {sum} ≤ {tried}");
    }
    let sum = reader.read().await?;
    assert_eq!(sum % 1_000, 0);
    assert_eq!(dropped.add(1).await?, sum + 1);
    at_every_poll(stage, "compare_and_set", stage.rounds(1, 2), interrupted_write).await
}

/// VA2: a process that is killed while it counts has counted what it was told, and at most one more.
pub async fn va2_a_killed_counter_has_counted(stage: &Stage) -> Result<()> {
    let here = counter(&connect(stage, "here").await?);
    let mut chance = Chance::new("va2_a_killed_counter_has_counted");
    let mut before = 0;
    for round in 0..stage.rounds(4, 3) {
        let workers = [0, 1].map(|worker| stage.worker(&format!("worker-{round}-{worker}")));
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
        // A last call of each may be on its way, or was not told any more.
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

/// VA2: the connection is cut before or after the answer to an addition, while others add as well: what was
/// confirmed is there once; what was not is an error that says that it may be there, once.
pub async fn va2_a_lost_answer_counts_once(stage: &Stage) -> Result<()> {
    let other = counter(&stage.connect("other").await?);
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
    let cuts = at_every_cut(stage, "add", FRAMES, async |scene: &Scene<'_>| {
        let cut_off = counter(&scene.one);
        match scene.attempt(cut_off.add(1)).await.expect("it is not dropped") {
            Ok(sum) => sums.push(sum),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{scene:?}: {error}");
                unknown += i64::from(error.effect() == Effect::Unknown);
                assert_ne!(error.effect(), Effect::Applied, "{scene:?}");
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

/// VA2: while the store is out of reach calls fail within their bound, and say what may have happened.
pub async fn va2_out_of_reach_is_told(stage: &Stage) -> Result<()> {
    let client = stage.connect_by_proxy("cut off").await?;
    let (counter, value) = (counter(&client), value(&client));
    assert_eq!(counter.add(1).await?, 1);
    let version = value.set(&1).await?;
    // As long as a lease, or a call that began just before that.
    let ttl = stage.ttl().expect("the check is for leases");
    let bound = ttl + stage.attempt_timeout() + super::SLACK + stage.scheduling();
    stage.proxy().set_both(Mode::Blackhole);
    let start = std::time::Instant::now();
    let read = counter.read();
    let add = counter.add(1);
    let write = value.compare_and_set(Some(version), &2);
    let (read, add, write) = tokio::join!(read, add, write);
    let took = start.elapsed();
    assert!(took <= bound, "{took:?}");
    let read = read.expect_err("out of reach");
    assert_eq!((read.kind(), read.effect()), (ErrorKind::Unavailable, Effect::None));
    // It reads first, and did not come further.
    let add = add.expect_err("out of reach");
    assert_eq!((add.kind(), add.effect()), (ErrorKind::Unavailable, Effect::None));
    let write = write.expect_err("out of reach");
    assert_eq!((write.kind(), write.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    stage.proxy().heal();
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

/// VA3: a watcher who keeps up is told of every value and of its deletion, and of nothing twice.
pub async fn va3_every_change_is_told(stage: &Stage) -> Result<()> {
    let (one, other) = (connect(stage, "one").await?, connect(stage, "other").await?);
    let mut watches = [value(&one).watch(), value(&other).watch()];
    for watch in &mut watches {
        assert_eq!(told(watch).await?, None, "there is none at first");
    }
    let mut last = None;
    for round in 0..stage.rounds(10, 4) {
        for number in 0..3 {
            let version = value(if number % 2 == 0 { &one } else { &other }).set(&number).await?;
            assert!(Some(version) > last);
            last = Some(version);
            for watch in &mut watches {
                let change = told(watch).await?.expect("there is one");
                assert_eq!((change.version, change.value), (version, number));
            }
        }
        let mut late = value(&other).watch();
        assert_eq!(told(&mut late).await?.map(|change| change.value), Some(2), "round {round}");
        assert!(value(&one).delete().await?);
        for watch in watches.iter_mut().chain([&mut late]) {
            assert_eq!(told(watch).await?, None, "it was deleted");
        }
    }
    let quiet = timeout(MOMENT, watches[0].next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    Ok(())
}

/// What a watch tells until the number comes.
async fn watch_until(
    mut changes: ValueWatch<u64>,
    last: u64,
    pause: Duration,
) -> Result<Vec<Version>> {
    let mut versions = Vec::new();
    loop {
        let change = told(&mut changes).await?;
        versions.extend(change.as_ref().map(|change| change.version));
        if change.is_some_and(|change| change.value == last) {
            return Ok(versions);
        }
        sleep(pause).await;
    }
}

/// VA3: whoever watches, fast or slow, sees versions rise and reaches the last value.
pub async fn va3_watchers_reach_the_last_value(stage: &Stage) -> Result<()> {
    const LAST: u64 = u64::MAX;
    let mut clients = Vec::new();
    for client in 0..3 {
        clients.push(connect(stage, &format!("client-{client}")).await?);
    }
    let mut watchers = JoinSet::new();
    for (client, pause) in [(0, 0), (1, 0), (2, 1), (2, 10)] {
        let changes = value(&clients[client]).watch();
        watchers.spawn(watch_until(changes, LAST, Duration::from_millis(pause)));
    }
    let rounds = stage.rounds(200, 25);
    let mut writers = JoinSet::new();
    let mut chance = Chance::new("va3_watchers_reach_the_last_value");
    for client in &clients {
        let (value, mut chance) = (value(client), chance.fork());
        writers.spawn(async move {
            for round in 0..rounds as u64 {
                match chance.below(5) {
                    0 => value.delete().await.map(|_| ())?,
                    1 => value.update(|value| value.unwrap_or(round)).await.map(|_| ())?,
                    _ => value.set(&round).await.map(|_| ())?,
                }
            }
            Ok::<_, coordination::Error>(())
        });
    }
    while let Some(outcome) = writers.join_next().await {
        outcome.expect("no panic")?;
    }
    let last = value(&clients[0]).set(&LAST).await?;
    while let Some(outcome) = watchers.join_next().await {
        let versions = outcome.expect("no panic")?;
        assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
        assert_eq!(versions.last(), Some(&last));
        eprintln!("VA3: a watcher saw {} values", versions.len());
    }
    Ok(())
}

/// VA3: a watcher goes on when the history that it would look back to is gone, and when the server was away.
pub async fn va3_watchers_survive_compaction(stage: &Stage) -> Result<()> {
    let writer = value(&stage.connect("writer").await?);
    let watching = stage.connect_by_proxy("watching").await?;
    let mut changes = value(&watching).watch();
    assert_eq!(told(&mut changes).await?, None);
    for round in 0..3_u64 {
        writer.set(&(10 * round)).await?;
        while told(&mut changes).await?.is_none_or(|change| change.value != 10 * round) {}
        stage.proxy().set_both(Mode::Stall);
        for number in 1..=5 {
            writer.set(&(10 * round + number)).await?;
        }
        stage.server().compact();
        match round {
            0 => {}
            1 => stage.proxy().reset_all(),
            _ => {
                stage.server().node(0).restart();
                stage.server().wait_ready();
            }
        }
        stage.proxy().heal();
        let last = 10 * round + 5;
        while told(&mut changes).await?.is_none_or(|change| change.value != last) {}
    }
    Ok(())
}

/// VA3: a watcher who was cut off goes on with the value as it is then.
pub async fn va3_watchers_go_on_after_an_outage(stage: &Stage) -> Result<()> {
    let writer = value(&stage.connect("writer").await?);
    let mut changes = value(&stage.connect_by_proxy("watching").await?).watch();
    assert_eq!(told(&mut changes).await?, None);
    let mut seen = writer.set(&0).await?;
    for (round, mode) in [Mode::Blackhole, Mode::Stall].into_iter().enumerate() {
        while told(&mut changes).await?.is_none_or(|change| change.version < seen) {}
        stage.proxy().set_both(mode);
        for number in 1..=5 {
            writer.set(&number).await?;
        }
        if round == 0 {
            writer.delete().await?;
        }
        let last = writer.set(&6).await?;
        let unheard = timeout(stage.attempt_timeout(), changes.next()).await;
        assert!(unheard.is_err(), "it is cut off: {unheard:?}");
        stage.proxy().heal();
        while seen < last {
            if let Some(change) = told(&mut changes).await? {
                assert!(change.version > seen, "{} after {seen}", change.version);
                seen = change.version;
            }
        }
        seen = writer.set(&7).await?;
    }
    Ok(())
}
