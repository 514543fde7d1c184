use super::*;

#[test]
fn a_watch_tells_each_version_once_and_never_goes_back() {
    let mut told = Told::default();
    let seen = [None, None, Some(3), Some(3), Some(2), Some(5), None, None, Some(5), Some(6)];
    let news = seen.map(|version| told.is_news(version));
    assert_eq!(news, [true, false, true, false, false, true, true, false, false, true]);
}

#[test]
fn a_watch_tells_the_lower_versions_of_a_restored_store() {
    let mut told = Told::default();
    assert!(told.is_news(Some(7)) && !told.is_behind);
    // A late view: the store has the version that was told.
    assert!(!told.is_news(Some(3)) && told.is_behind);
    assert!(!told.is_news_now(Some(7)) && !told.is_behind);
    assert!(!told.is_news(Some(3)) && told.is_behind);
    assert!(told.is_news_now(Some(3)) && !told.is_behind, "it was restored");
    assert!(!told.is_news(Some(3)) && told.is_news(Some(4)) && !told.is_behind);
}

/// Somebody deletes the value by mistake, and an operator restores the store, in which it has the version that was told last.
#[test]
fn va3_a_watch_tells_the_value_that_a_restored_store_has_again() {
    let mut told = Told::default();
    assert!(told.is_news(Some(7)) && told.is_news(None) && !told.is_behind);
    // A late view: the value is gone.
    assert!(!told.is_news(Some(7)) && told.is_behind);
    assert!(!told.is_news_now(None) && !told.is_behind);
    assert!(!told.is_news(Some(7)) && told.is_behind);
    assert!(told.is_news_now(Some(7)) && !told.is_behind, "it was restored");
    assert!(!told.is_news(Some(7)) && !told.is_behind, "it is told once");
    assert!(told.is_news(Some(8)) && told.is_news(None));
}

/// The answer to a read after the store was restored is garbled once. No view need come after that, so the value is read again.
#[cfg(all(coordination_internals, feature = "memory"))]
#[tokio::test(start_paused = true)]
async fn a_restored_value_is_told_though_it_could_not_be_read_at_first() {
    use crate::Config;
    use crate::simulation::{Clocks, Run, Traits, World};

    const TTL: Duration = Duration::from_secs(30);
    let _run = Run::begin(1);
    let world = World::new(1, Traits::SERVER);
    let config = Config { ttl: Some(TTL), ..Config::default() };
    let coordinator = world.client(Clocks::default()).connect(config).await.expect("it is there");
    let limit = coordinator.value::<u32>("limit").expect("a good name");
    limit.set(&7).await.expect("the store is there");
    let mut watch = limit.watch();
    let told = watch.next().await.expect("the store is there");
    assert_ne!(told, ValueEvent::NoValue);
    (watch.told.highest, watch.told.is_behind) = (9, true);
    world.set_failing(Some(ErrorKind::Corrupt));
    let told = watch.next().await.expect_err("it cannot be read");
    assert_eq!(told.kind(), ErrorKind::Corrupt);
    world.set_failing(None);
    let told = tokio::time::timeout(TTL / 4, watch.next()).await.expect("it is read again");
    let told = told.expect("it can be read").into_value();
    assert_eq!(told.map(|told| told.value), Some(7));
}

/// VA3: whoever knows a counter is told of another number, at once if it is there already.
#[cfg(feature = "memory")]
#[tokio::test]
async fn va3_who_knows_a_counter_is_told_of_another_number() {
    const LONG: Duration = Duration::from_secs(20);
    let coordinator = Coordinator::connect("memory://").await.expect("it is there");
    let done = coordinator.counter("done").expect("a good name");
    let mut changed = std::pin::pin!(done.changed(0));
    let early = tokio::time::timeout(Duration::from_millis(50), changed.as_mut()).await;
    assert!(early.is_err(), "nobody has added anything");
    done.add(2).await.expect("memory answers");
    let told = tokio::time::timeout(LONG, changed).await.expect("it is told");
    assert_eq!(told.expect("memory answers"), 2);
    let told = tokio::time::timeout(LONG, done.changed(0)).await.expect("it is there already");
    assert_eq!(told.expect("memory answers"), 2);
    let early = tokio::time::timeout(Duration::from_millis(50), done.changed(2)).await;
    assert!(early.is_err(), "that is known");
}
