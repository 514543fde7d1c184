//! VA3: what watchers of a value see.

use tokio::time::sleep;

use super::super::tools::{Chance, MOMENT};
use super::*;
use crate::harness::Mode;

/// VA3: a watcher that keeps up sees each value, and its deletion, once.
pub async fn va3_every_change_is_told(store: &TestStore) -> Result<()> {
    let (one, other) = (connect(store, "one").await?, connect(store, "other").await?);
    let mut watches = [value(&one).watch(), value(&other).watch()];
    for watch in &mut watches {
        assert_eq!(told(watch).await?, None, "there is none at first");
    }
    let mut last = None;
    for round in 0..store.rounds(10, 4) {
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

/// The versions that a watch reports until the number `last` comes.
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

/// VA3: watchers, fast or slow, see versions rise and reach the last value.
pub async fn va3_watchers_reach_the_last_value(store: &TestStore) -> Result<()> {
    const LAST: u64 = u64::MAX;
    let mut clients = Vec::new();
    for client in 0..3 {
        clients.push(connect(store, &format!("client-{client}")).await?);
    }
    let mut watchers = JoinSet::new();
    for (client, pause) in [(0, 0), (1, 0), (2, 1), (2, 10)] {
        let changes = value(&clients[client]).watch();
        watchers.spawn(watch_until(changes, LAST, Duration::from_millis(pause)));
    }
    let rounds = store.rounds(200, 25);
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

/// VA3: a watcher goes on when the revision from which it would resume is compacted, and when the server restarted.
pub async fn va3_watchers_survive_compaction(store: &TestStore) -> Result<()> {
    let writer = value(&store.connect("writer").await?);
    let watching = store.connect_by_proxy("watching").await?;
    let mut changes = value(&watching).watch();
    assert_eq!(told(&mut changes).await?, None);
    for round in 0..3_u64 {
        writer.set(&(10 * round)).await?;
        while told(&mut changes).await?.is_none_or(|change| change.value != 10 * round) {}
        store.proxy().set_both(Mode::Stall);
        for number in 1..=5 {
            writer.set(&(10 * round + number)).await?;
        }
        store.server().forget_history();
        match round {
            0 => {}
            1 => store.proxy().reset_all(),
            _ => store.restart(),
        }
        store.proxy().heal();
        let last = 10 * round + 5;
        while told(&mut changes).await?.is_none_or(|change| change.value != last) {}
    }
    Ok(())
}

/// VA3: a watcher that was cut off goes on with the present value.
pub async fn va3_watchers_go_on_after_an_outage(store: &TestStore) -> Result<()> {
    let writer = value(&store.connect("writer").await?);
    let mut changes = value(&store.connect_by_proxy("watching").await?).watch();
    assert_eq!(told(&mut changes).await?, None);
    let mut seen = writer.set(&0).await?;
    for (round, mode) in [Mode::Blackhole, Mode::Stall].into_iter().enumerate() {
        while told(&mut changes).await?.is_none_or(|change| change.version < seen) {}
        store.proxy().set_both(mode);
        for number in 1..=5 {
            writer.set(&number).await?;
        }
        if round == 0 {
            writer.delete().await?;
        }
        let last = writer.set(&6).await?;
        let unheard = timeout(store.attempt_timeout(), changes.next()).await;
        assert!(unheard.is_err(), "it is cut off: {unheard:?}");
        store.proxy().heal();
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
