//! Functions with more than one name.

use super::*;

#[synchronized("acc-<from>", "acc-<to>", coordinator = c, guard = guards)]
async fn transfer(c: &Coordinator, from: &str, to: &str, room: &Room) -> Result<Vec<String>> {
    room.visit().await;
    Ok(guards.iter().map(|guard| guard.name().to_owned()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn opposite_orders_do_not_deadlock() -> Result {
    let c = connect("opposite").await?;
    let room = Room::default();
    let rounds = async {
        for _ in 0..20 {
            let both = tokio::try_join!(
                transfer(&c, "a", "b", &room),
                transfer(&c, "b", "a", &room),
                transfer(&c, "a", "b", &room),
            )?;
            let names = vec!["acc-a".to_owned(), "acc-b".to_owned()];
            assert_eq!(both, (names.clone(), names.clone(), names));
        }
        Ok::<(), Error>(())
    };
    timeout(PATIENCE, rounds).await.expect("nobody waits in a circle")?;
    assert_eq!(room.most.load(Ordering::SeqCst), 1);
    Ok(())
}

#[tokio::test]
async fn one_name_twice_is_taken_once() -> Result {
    let c = connect("twice").await?;
    let room = Room::default();
    let names = transfer(&c, "a", "a", &room);
    let names = timeout(PATIENCE, names).await.expect("it does not wait for itself")?;
    assert_eq!(names, ["acc-a"]);
    Ok(())
}

#[tokio::test]
async fn all_are_released() -> Result {
    let c = connect("all").await?;
    transfer(&c, "a", "b", &Room::default()).await?;
    assert!(is_free(&c.lock("acc-a")?).await?);
    assert!(is_free(&c.lock("acc-b")?).await?);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn one_timeout_covers_all() -> Result {
    #[synchronized("one", "three", "two", timeout = "300ms", coordinator = c)]
    async fn three(c: &Coordinator) -> Result {
        unreachable!("`two` is taken")
    }

    let c = connect("overall").await?;
    let one = c.lock("one")?.acquire(None).await?;
    let two = c.lock("two")?.acquire(None).await?;
    let start = tokio::time::Instant::now();
    let release = async {
        sleep(Duration::from_millis(200)).await;
        one.release().await
    };
    let (late, released) = tokio::join!(three(&c), release);
    released?;
    assert_eq!(late.expect_err("`two` is taken").kind(), ErrorKind::Timeout);
    let waited = start.elapsed();
    assert!(waited < Duration::from_millis(480), "{waited:?}: the timer started again");
    two.release().await?;
    // The call has acquired the locks `one` and `three` before it timed out at another lock, and has to release both.
    becomes_free(&c.lock("one")?).await?;
    becomes_free(&c.lock("three")?).await
}

#[tokio::test]
async fn losing_one_cancels_the_body() -> Result {
    #[synchronized("first", "second", coordinator = c)]
    async fn both(c: &Coordinator, entered: &Notify) -> Result {
        entered.notify_one();
        pending().await
    }

    let (c, breaker) = (connect("losing-one").await?, connect("losing-one").await?);
    let entered = Notify::new();
    let lose = async {
        entered.notified().await;
        breaker.lock("second")?.break_lock().await
    };
    let (result, broken) = tokio::join!(timeout(PATIENCE, both(&c, &entered)), lose);
    broken?;
    let lost = result.expect("the loss is noticed").expect_err("the lock was broken");
    assert_eq!(lost.kind(), ErrorKind::Lost);
    becomes_free(&breaker.lock("first")?).await
}
