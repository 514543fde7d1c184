//! Shared locks, and permits of semaphores.

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
    // A call that names another number of permits for the same semaphore gets an error.
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
    // The call acquired the permit of `a` before it timed out at `b`, and has to give this permit back. The lock `b` is
    // free, because locks and semaphores of one name are independent.
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

#[tokio::test(flavor = "multi_thread")]
async fn a_manner_for_each_name() -> Result {
    #[synchronized(shared("tree"), "leaf-<id>", coordinator = c, guard = held)]
    async fn leaf(c: Coordinator, id: u32, all: Arc<tokio::sync::Barrier>) -> Result {
        let manners: Vec<_> = held.iter().map(|guard| (guard.name(), guard.is_shared())).collect();
        assert_eq!(manners, [(&*format!("leaf-{id}"), false), ("tree", true)]);
        all.wait().await;
        Ok(())
    }

    #[synchronized("tree", coordinator = c, timeout = "50ms")]
    async fn tree(c: &Coordinator) -> Result {
        Ok(())
    }

    let (c, all) = (connect("each-manner").await?, Arc::new(tokio::sync::Barrier::new(3)));
    let leaves: Vec<_> = (1..3).map(|id| tokio::spawn(leaf(c.clone(), id, all.clone()))).collect();
    // Both calls hold the shared lock `tree`.
    becomes_shared(&c.lock("tree")?, 2).await?;
    assert_eq!(tree(&c).await.expect_err("shared").kind(), ErrorKind::Timeout);
    let same = leaf(c.clone(), 1, all.clone());
    assert!(timeout(Duration::from_millis(50), same).await.is_err(), "a leaf is not shared");
    all.wait().await;
    for leaf in leaves {
        leaf.await.expect("the body does not panic")?;
    }
    tree(&c).await
}

async fn becomes_shared(lock: &Lock, by: usize) -> Result {
    while lock.holders().await?.iter().filter(|holder| holder.shared && holder.holding).count() < by
    {
        yield_now().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_name_in_both_manners_is_not_shared() -> Result {
    #[synchronized(shared("<one>", name = "c"), "<other>", coordinator = c, guard = held)]
    async fn both(c: &Coordinator, one: &str, other: &str) -> Result<Vec<bool>> {
        Ok(held.iter().map(|guard| guard.is_shared()).collect())
    }

    #[synchronized(shared("a", "b"), coordinator = c, guard = held)]
    fn threads(c: &coordination::blocking::Coordinator) -> Result<Vec<bool>> {
        Ok(held.iter().map(|guard| guard.is_shared()).collect())
    }

    let c = connect("both-manners").await?;
    assert_eq!(both(&c, "a", "a").await?, [false, true]);
    assert_eq!(both(&c, "b", "a").await?, [false, true, true]);
    let c = coordination::blocking::Coordinator::from(c);
    let shares = spawn_blocking(move || threads(&c)).await.expect("the body does not panic")?;
    assert_eq!(shares, [true, true]);
    Ok(())
}
