//! Shares of locks, and permits of semaphores.

use super::*;

#[synchronized("book-<id>", shared, coordinator = c, guard = share)]
async fn read(c: Coordinator, id: u32, room: Arc<Room>) -> Result {
    assert!(share.is_shared() && share.is_held());
    room.visit().await;
    Ok(())
}

#[synchronized("book-<id>", coordinator = c)]
async fn write(c: Coordinator, id: u32, room: Arc<Room>) -> Result {
    assert_eq!(room.inside.load(Ordering::SeqCst), 0, "a writer is alone");
    room.visit().await;
    assert_eq!(room.inside.load(Ordering::SeqCst), 0, "a writer is alone");
    Ok(())
}

#[tokio::test]
async fn readers_meet() -> Result {
    #[synchronized("meet", "meeting", shared, coordinator = c)]
    async fn meet(c: &Coordinator, all: &tokio::sync::Barrier) -> Result {
        all.wait().await;
        Ok(())
    }

    let c = connect("readers-meet").await?;
    let all = tokio::sync::Barrier::new(3);
    let three = async { tokio::try_join!(meet(&c, &all), meet(&c, &all), meet(&c, &all)) };
    timeout(PATIENCE, three).await.expect("none waits for another")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_are_alone() -> Result {
    let room = Arc::new(Room::default());
    let (one, other) = (connect("readers").await?, connect("readers").await?);
    let mut visits = tokio::task::JoinSet::new();
    for n in 0..24 {
        let c = if n % 2 == 0 { one.clone() } else { other.clone() };
        match n % 4 {
            0 => visits.spawn(write(c, 1, room.clone())),
            _ => visits.spawn(read(c, 1, room.clone())),
        };
    }
    while let Some(visit) = visits.join_next().await {
        visit.expect("the body does not panic")?;
    }
    assert_eq!(room.visits.load(Ordering::SeqCst), 24);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_the_permits_run_at_once() -> Result {
    #[synchronized("pool-<id>", permits = size, coordinator = c, guard = permit)]
    async fn work(c: Coordinator, id: u32, size: u32, room: Arc<Room>) -> Result<u32> {
        room.visit().await;
        Ok(permit.slot())
    }

    let room = Arc::new(Room::default());
    let (one, other) = (connect("permits").await?, connect("permits").await?);
    let mut works = tokio::task::JoinSet::new();
    for n in 0..16 {
        let c = if n % 2 == 0 { one.clone() } else { other.clone() };
        works.spawn(work(c, 1, 3, room.clone()));
    }
    while let Some(slot) = works.join_next().await {
        assert!(slot.expect("the body does not panic")? < 3);
    }
    assert!((1..=3).contains(&room.most.load(Ordering::SeqCst)));
    assert_eq!(room.visits.load(Ordering::SeqCst), 16);
    // Who says another number is told so.
    let refused = work(one, 1, 4, room).await.expect_err("it has three");
    assert_eq!(refused.kind(), ErrorKind::Mismatch);
    Ok(())
}

#[tokio::test]
async fn permits_of_several_semaphores() -> Result {
    #[synchronized("b", "a", "b", permits = 1, coordinator = c, guard = held, timeout = "50ms")]
    async fn names(c: &Coordinator) -> Result<Vec<String>> {
        Ok(held.iter().map(|permit| permit.name().to_owned()).collect())
    }

    let c = connect("several-permits").await?;
    assert_eq!(names(&c).await?, ["a", "b"]);
    let held = c.semaphore("b", 1)?.acquire(None).await?;
    assert_eq!(names(&c).await.expect_err("taken").kind(), ErrorKind::Timeout);
    // What was taken before is given back, and a lock of the name is another thing.
    c.semaphore("a", 1)?.acquire(Some(PATIENCE)).await?.release().await?;
    assert!(is_free(&c.lock("b")?).await?);
    held.release().await
}

#[tokio::test]
async fn a_lost_permit_cancels_the_body() -> Result {
    #[synchronized("pool", permits = 2, coordinator = c)]
    async fn work(c: Coordinator, entered: Arc<Notify>) -> Result {
        entered.notify_one();
        pending().await
    }

    let c = connect("lost-permit").await?;
    let entered = Arc::new(Notify::new());
    let working = tokio::spawn(work(c.clone(), entered.clone()));
    entered.notified().await;
    c.stop().await?;
    let lost = timeout(PATIENCE, working).await.expect("the loss is noticed");
    let lost = lost.expect("the body does not panic").expect_err("the session ended");
    assert_eq!(lost.kind(), ErrorKind::Closed);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_functions_too() -> Result {
    #[synchronized("plain", shared, coordinator = c, guard = share)]
    fn share(c: &coordination::blocking::Coordinator) -> Result<bool> {
        Ok(share.is_shared())
    }

    #[synchronized("plain", permits = 2, coordinator = c, guard = permit, timeout = "50ms")]
    fn permit(c: &coordination::blocking::Coordinator) -> Result<u32> {
        Ok(permit.slot())
    }

    let c = connect("plain-manners").await?;
    let held = (c.lock("plain")?.acquire_shared(None).await?, c.semaphore("plain", 2)?);
    let first = held.1.acquire(None).await?;
    let done = spawn_blocking({
        let c = coordination::blocking::Coordinator::from(c.clone());
        move || Ok::<_, Error>((share(&c)?, permit(&c)?))
    });
    assert_eq!(done.await.expect("the body does not panic")?, (true, 1));
    drop(first);
    held.0.release().await
}
