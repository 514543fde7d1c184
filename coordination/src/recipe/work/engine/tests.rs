//! What is kept from one step to the next.

use tokio::runtime::{Handle, Runtime};
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::super::claim::{self, Ask};
use super::super::draft::corrupt;
use super::super::layout::Outbox;
use super::super::look::{Which, list};
use super::*;
use crate::recipe::work::WorkQueue;
#[cfg(coordination_internals)]
use crate::simulation::{Client, Clocks, Run, Traits, Weather, World};
use crate::{ClaimId, ClaimOptions, Coordinator, NewItem};

/// What the clock since boot of this host shows at first, and that of another host.
#[cfg(coordination_internals)]
const HERE: u64 = 0;
#[cfg(coordination_internals)]
const THERE: u64 = 77_000_000_000;

/// A queue as two processes have it.
async fn two(store: &str) -> Result<(WorkQueue, WorkQueue)> {
    let url = format!("memory://work-{store}");
    let queue = async || Coordinator::connect(&url).await?.queue("jobs");
    Ok((queue().await?, queue().await?))
}

/// A run with a store on a server that has no clock.
#[cfg(coordination_internals)]
fn without_clock() -> (Run, World) {
    let run = Run::begin(1);
    let traits =
        Traits { is_remote: true, has_clock: false, watches: true, renews_on_restart: false };
    (run, World::new(1, traits))
}

/// A process on the host whose clock since boot shows this at first.
#[cfg(coordination_internals)]
async fn client_on(world: &World, boot: u64) -> Result<(Arc<Client>, Coordinator)> {
    let client = world.client(Clocks { boot, ..Clocks::default() });
    let coordinator = client.connect(crate::Config::default()).await?;
    Ok((client, coordinator))
}

/// The same, with the queue as that process has it.
#[cfg(coordination_internals)]
async fn queue_on(world: &World, boot: u64) -> Result<(Arc<Client>, WorkQueue)> {
    let (client, coordinator) = client_on(world, boot).await?;
    Ok((client, coordinator.queue("jobs")?))
}

/// What another process does while a step is being made.
fn meanwhile<T>(call: impl Future<Output = T>) -> T {
    block_in_place(|| Handle::current().block_on(call))
}

/// A step looks at the queue, another process writes, and then the step reads the records: they do not belong to what it saw.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_while_others_wrote_is_not_kept() -> Result<()> {
    let (here, there) = two("torn").await?;
    let items = there.post(&[NewItem::new("a"), NewItem::new("b")]).await?;
    let (engine, mut is_deleted) = (&here.engine, false);
    let look = engine.look("test").await?;
    let (before, mark) = (look.version.expect("there is a queue"), look.mark());
    let which = Which { after: None, limit: 10, claimed: true, delayed: true };
    let step = |draft: &mut Draft<'_>, _: &[u64]| {
        if draft.version != before {
            return Err(Stop::Fail(corrupt()));
        }
        if !std::mem::replace(&mut is_deleted, true) {
            assert!(meanwhile(there.delete(items[0]))?);
        }
        list(draft, which).map(Outcome::Done)
    };
    let failed = engine.run_until_done("test", Manner::Reads, step).await;
    assert!(failed.is_err(), "it was to begin anew");
    assert!(engine.cached(mark).is_empty(), "it has kept what it did not see together");
    Ok(())
}

/// What is forgotten is read again, and counts no more.
#[tokio::test]
async fn what_is_forgotten_is_read_again() -> Result<()> {
    let (here, there) = two("forgotten").await?;
    let bytes = 1_000;
    here.post(&[NewItem::new(vec![b'x'; bytes])]).await?;
    let count = here.cached_bytes();
    assert!(count >= bytes, "{count}");
    here.forget_cached();
    assert_eq!(here.cached_bytes(), 0);
    there.post(&[NewItem::new("b")]).await?;
    assert_eq!(here.list(Default::default()).await?.len(), 2);
    assert!(here.cached_bytes() >= bytes);
    here.post(&[NewItem::new("c")]).await?;
    assert_eq!(here.list(Default::default()).await?.len(), 3);
    Ok(())
}

/// Each try needs other records than the one before.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_step_needed_long_ago_is_not_read_again() -> Result<()> {
    let (here, there) = two("wanted").await?;
    there.post(&[NewItem::new("a")]).await?;
    let names = |of: usize| -> Vec<Arc<str>> {
        (0..MOST_BESIDE + 1).map(|number| format!("{of} {number}").into()).collect()
    };
    let mut tries = 0;
    let step = |draft: &mut Draft<'_>, _: &[u64]| -> Step<Outcome<bool>> {
        draft.want(names(tries))?;
        if tries == 2 {
            return Ok(Outcome::Done(draft.want(names(0)).is_err()));
        }
        tries += 1;
        meanwhile(there.post(&[NewItem::new("b")]))?;
        Ok(Outcome::Again)
    };
    assert!(here.engine.run_until_done("test", Manner::Reads, step).await?, "it was read again");
    Ok(())
}

/// A reader may note what it has seen after a later one has noted more.
#[tokio::test]
async fn what_is_late_is_not_noted() -> Result<()> {
    let (here, there) = two("late").await?;
    there.post(&[NewItem::new("a")]).await?;
    let engine = &here.engine;
    let late = engine.look("test").await?;
    there.post(&[NewItem::new("b")]).await?;
    let mut look = engine.look("test").await?;
    look.head.outboxes.insert("dead".to_owned(), Outbox { began: 1, first: 1, end: 2 });
    engine.note(&look);
    engine.note(&late);
    assert!(engine.has_letters(), "they wait for the next claim");
    Ok(())
}

/// A store that was given back older data counts its versions from there, and comes to one that was another's before.
#[tokio::test]
async fn what_was_kept_is_that_of_one_history() -> Result<()> {
    let (here, _there) = two("histories").await?;
    here.post(&[NewItem::new("a")]).await?;
    let engine = &here.engine;
    let look = engine.look("test").await?;
    engine.keep(look.mark(), Known::from([("page".into(), None)]));
    let of_another = Mark { by: Some(7), ..look.mark() };
    assert_eq!(engine.cached(look.mark()).len(), 1);
    assert!(engine.cached(of_another).is_empty(), "another write has made that version");
    engine.newest.store(u64::MAX, Ordering::Release);
    assert!(!engine.is_new(&look));
    let look = engine.look("test").await?;
    assert!(engine.is_new(&look), "the store is what it says");
    assert!(engine.cached(look.mark()).is_empty());
    Ok(())
}

/// The delivery of a letter has failed, and nobody comes but one who waits for an item.
#[tokio::test(start_paused = true)]
async fn wk2_one_who_waits_delivers_the_letters_that_others_have_left() -> Result<()> {
    let one = Coordinator::connect("memory://work-left").await?;
    let (here, dead) = (one.queue("jobs")?, one.queue("dead")?);
    let there = Coordinator::connect("memory://work-left").await?.queue("jobs")?;
    here.set_dead_letters(1, &dead, None).await?;
    here.post(&[NewItem::new("a")]).await?;
    let held = there.claim(ClaimOptions::default()).await?.expect("it is ready");
    let waiting = tokio::spawn(async move { here.claim_wait(ClaimOptions::default(), None).await });
    sleep(Duration::from_secs(1)).await;
    let (id, ttl) = (held.id(), 60_000_000);
    let ask = Ask { id: ClaimId::random(), limit: 1, ttl, grace: 0, holder: None };
    // One step gives the item back and makes a letter of it, so that nobody sees it ready; and does not deliver the letter.
    let step = |draft: &mut Draft<'_>, _: &[u64]| {
        claim::release(draft, id)?;
        claim::claim(draft, &ask)
    };
    assert!(there.engine.run_here("claim", step).await?.is_none());
    assert_eq!(dead.stats().await?.ready, 0);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(dead.stats().await?.ready, 1);
    waiting.abort();
    Ok(())
}

/// The queue of dead letters refuses them: they are counted where they are.
#[tokio::test]
async fn letters_that_cannot_be_delivered_are_counted() -> Result<()> {
    let one = Coordinator::connect("memory://work-refused").await?;
    let (here, dead) = (one.queue("jobs")?, one.queue("dead")?);
    here.set_dead_letters(1, &dead, None).await?;
    here.post(&[NewItem::new("a"), NewItem::new("b")]).await?;
    let ttl = Duration::from_millis(1);
    assert!(here.claim(ClaimOptions::default().ttl(ttl)).await?.is_some());
    sleep(Duration::from_millis(20)).await;
    let queue = &dead.engine.queue;
    let write = Write::new(&queue.key, None, Some("no head".into()));
    assert!(matches!(queue.session.write("test", &write).await?, Written::Yes(_)));
    assert!(here.claim(ClaimOptions::default()).await?.is_none());
    let stats = here.stats().await?;
    assert_eq!((stats.total(), stats.letters), (0, 2));
    Ok(())
}

/// A head that is full for posts has room for all that ends in a shorter one, also for a process that has no claim yet.
#[tokio::test]
async fn a_queue_that_is_full_is_emptied_and_deleted() -> Result<()> {
    use super::super::clear::delete_queue;
    use super::super::layout::Summary;
    use crate::error::ErrorKind;
    let (here, there) = two("full").await?;
    for _ in 0..9 {
        here.post(&[NewItem::new(vec![b'x'; 300])]).await?;
    }
    let fill = |draft: &mut Draft<'_>, _: &[u64]| {
        let head = draft.change();
        for group in 1.. {
            let waits = Summary { delayed: 1, until: u64::MAX, ..Summary::NOTHING };
            head.live.groups.insert(group, waits);
            if group % 16 == 0 && to_data("test", head, MOST_OF_POSTS).is_err() {
                break;
            }
        }
        Ok(Outcome::Done(()))
    };
    here.engine.run_here("test", fill).await?;
    let full = here.post(&[NewItem::new("b")]).await.expect_err("it is full");
    assert_eq!(full.kind(), ErrorKind::Value);
    let claim = there.claim(ClaimOptions::default()).await?.expect("they are ready");
    assert_eq!(claim.ack_all().await?, 9);
    here.engine.run_here("test", |draft, _| delete_queue(draft)).await
}

/// A plain thread may wait for an item, and so may a runtime without timers.
#[test]
fn an_item_is_waited_for_where_no_runtime_has_timers() -> Result<()> {
    let coordinator = crate::blocking::Coordinator::connect("memory://work-plain")?;
    let queue = coordinator.as_async().queue("jobs")?;
    let limit = Some(Duration::from_millis(50));
    let wait = || queue.claim_wait(ClaimOptions::default(), limit);
    assert!(crate::blocking::wait(wait())?.is_none());
    let bare = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    assert!(bare.block_on(wait())?.is_none());
    Ok(())
}

/// Whether a write was done is not known, and the store cannot be asked.
#[cfg(coordination_internals)]
#[tokio::test(start_paused = true)]
async fn a_write_in_doubt_is_never_said_to_have_no_effect() -> Result<()> {
    use crate::error::ErrorKind;
    let _run = Run::begin(1);
    let world = World::new(1, Traits::SERVER);
    let client = world.client(Clocks::default());
    let queue = client.connect(crate::Config::default()).await?.queue("jobs")?;
    queue.post(&[NewItem::new("a")]).await?;
    world.set_failing(Some(ErrorKind::Unavailable));
    let found = queue.engine.find("post", 7, None).await.expect_err("nothing is heard");
    assert_eq!(found.effect(), Effect::Unknown);
    world.set_failing(None);
    Ok(())
}

/// Whoever is cut short by the end of the session is not told that nothing was done.
#[test]
fn a_call_that_ends_with_its_runtime_is_in_doubt() {
    let of_session = Runtime::new().expect("a runtime");
    let connecting = async { Coordinator::connect("memory://work-ended").await?.queue("jobs") };
    let queue = of_session.block_on(connecting).expect("it is in memory").engine.queue.clone();
    let (begin, begun) = std::sync::mpsc::channel();
    let never = async move {
        let _ = begin.send(());
        std::future::pending::<Result<()>>().await
    };
    let waiting = std::thread::spawn(move || {
        let of_caller = Runtime::new().expect("a runtime");
        of_caller.block_on(queue.run("post", never))
    });
    begun.recv().expect("it begins");
    of_session.shutdown_background();
    let error = waiting.join().expect("no panic").expect_err("it never ends");
    assert_eq!(error.effect(), Effect::Unknown);
}

/// A call that only reads has done nothing, whenever it ends.
#[test]
fn x1_a_look_that_ends_with_its_runtime_has_done_nothing() {
    use std::future::poll_fn;
    use std::task::Poll;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let connecting = async { Coordinator::connect("memory://work-looks").await?.queue("jobs") };
    let queue = runtime.block_on(connecting).expect("it is in memory");
    let mut looking = Box::pin(async move { queue.stats().await });
    let begun = runtime.block_on(poll_fn(|context| Poll::Ready(looking.as_mut().poll(context))));
    assert!(begun.is_pending(), "its task has not run");
    drop(runtime);
    let error = pollster::block_on(looking).expect_err("its runtime has ended");
    assert_eq!((error.kind(), error.effect()), (crate::ErrorKind::Closed, Effect::None), "{error}");
}

/// A letter is posted by the process that finds it, in its own store: a queue of another store would never get it.
#[tokio::test]
async fn dead_letters_stay_with_the_same_coordinator() -> Result<()> {
    use crate::error::ErrorKind;
    let one = Coordinator::connect("memory://work-letters").await?;
    let other = Coordinator::connect("memory://work-letters-elsewhere").await?;
    let jobs = one.queue("jobs")?;
    let refused = jobs.set_dead_letters(1, &other.queue("dead")?, None).await;
    assert_eq!(refused.expect_err("it is in another store").kind(), ErrorKind::Input);
    jobs.set_dead_letters(1, &one.queue("dead")?, None).await
}

/// A call of many steps holds the turn for one step at a time. This one ends once the other call has had its turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_call_lets_others_of_its_process_in_between() -> Result<()> {
    let queue = Coordinator::connect("memory://work-long").await?.queue("jobs")?;
    queue.post(&[NewItem::new("a")]).await?;
    let (begin, begun) = tokio::sync::oneshot::channel();
    let (mut begin, is_posted) = (Some(begin), Arc::new(AtomicBool::new(false)));
    let (engine, is_last) = (Arc::clone(&queue.engine), Arc::clone(&is_posted));
    let long = tokio::spawn(async move {
        let step = |draft: &mut Draft<'_>, _: &[u64]| -> Step<Outcome<()>> {
            if let Some(begin) = begin.take() {
                let _ = begin.send(());
            }
            draft.change();
            let is_last = is_last.load(Ordering::Acquire);
            Ok(if is_last { Outcome::Done(()) } else { Outcome::Again })
        };
        engine.run_here("test", step).await
    });
    begun.await.expect("it begins");
    let (items, limit) = ([NewItem::new("b")], Duration::from_secs(60));
    let posted = tokio::time::timeout(limit, queue.post(&items)).await;
    is_posted.store(true, Ordering::Release);
    posted.expect("the post has waited for all steps")?;
    long.await.expect("no panic")
}

/// Of those who wait in one process, one gets the item, and the others see together that there is no more.
#[cfg(coordination_internals)]
#[tokio::test(start_paused = true)]
async fn those_who_wait_share_what_one_of_them_has_seen() -> Result<()> {
    const WAITERS: usize = 50;
    let _run = Run::begin(1);
    let world = World::new(1, Traits::SERVER);
    let client = world.client(Clocks::default());
    let queue = client.connect(crate::Config::default()).await?.queue("jobs")?;
    queue.post(&[NewItem::new("own")]).await?;
    let own = queue.claim(ClaimOptions::default()).await?.expect("it is ready");
    // Ten milliseconds there and ten back.
    let message = 10;
    world.set_weather(Weather { delay: message..=message, ..Weather::calm() });
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let queue = queue.clone();
            client.spawn(async move { queue.claim_wait(ClaimOptions::default(), None).await })
        })
        .collect();
    sleep(Duration::from_secs(10)).await;
    queue.post(&[NewItem::new("for one")]).await?;
    // The news of it has come, was read, and all who wait ask at the same time.
    sleep(Duration::from_millis(60)).await;
    let begun = Instant::now();
    own.ack_all().await?;
    // One look, one claim and one more look go before it; and it has to read and to write itself.
    assert!(begun.elapsed() < Duration::from_millis(300), "{:?}", begun.elapsed());
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(())
}

/// In an outage, hundreds of calls are told of it in the time that two of them take, and nothing is carried out after that for which
/// nobody waits any longer.
#[cfg(coordination_internals)]
#[tokio::test(start_paused = true)]
async fn all_who_wait_are_told_of_an_outage_together() -> Result<()> {
    use crate::error::ErrorKind;
    let _run = Run::begin(1);
    let world = World::new(1, Traits::SERVER);
    let client = world.client(Clocks::default());
    let queue = client.connect(crate::Config::default()).await?.queue("jobs")?;
    let item = queue.post(&[NewItem::new("a")]).await?[0];
    world.set_failing(Some(ErrorKind::Unavailable));
    let (begun, mut calls) = (Instant::now(), Vec::new());
    for _ in 0..100 {
        let here = queue.clone();
        calls.push(client.spawn(async move {
            let items = [NewItem::new("b")];
            let post = here.post(&items);
            drop(tokio::time::timeout(Duration::from_secs(1), post).await);
        }));
        let here = queue.clone();
        calls.push(client.spawn(async move {
            let told = here.ack(item, ClaimId::random()).await.expect_err("nothing is heard");
            assert_eq!((told.kind(), told.effect()), (ErrorKind::Unavailable, Effect::None));
        }));
        let here = queue.clone();
        calls.push(client.spawn(async move {
            assert!(here.claim(ClaimOptions::default()).await.is_err());
        }));
    }
    for call in calls {
        call.await.expect("no panic");
    }
    assert!(begun.elapsed() < Duration::from_secs(11), "{:?}", begun.elapsed());
    world.set_failing(None);
    let begun = Instant::now();
    queue.post(&[NewItem::new("c")]).await?;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(queue.stats().await?.total(), 2, "posts of the outage were carried out");
    Ok(())
}

/// WK4: a claim that its caller never got does not count for dead letters, though its time was over before it could be taken back, as in
/// an outage, and also where somebody has claimed the item since.
#[tokio::test(start_paused = true)]
async fn wk4_a_claim_that_nobody_got_does_not_count_though_its_time_is_over() -> Result<()> {
    let (here, there) = two("undone-late").await?;
    for is_claimed_since in [false, true] {
        let item = here.post(&[NewItem::new("a")]).await?[0];
        let id = ClaimId::random();
        let short = ClaimOptions::default().ttl(Duration::from_secs(1));
        assert!(here.claim_as(id, short).await?.is_some());
        sleep(Duration::from_secs(2)).await;
        let mut next = None;
        if is_claimed_since {
            next = there.claim(ClaimOptions::default()).await?;
            assert!(next.is_some());
        }
        // Twice, as after a lost answer.
        here.undo_claim(id).await;
        here.undo_claim(id).await;
        let counted = here.item(item).await?.expect("it is there").claims();
        assert_eq!(counted, u32::from(is_claimed_since));
        drop(next);
        assert!(here.force_delete(item).await?);
    }
    Ok(())
}

/// WK6: one host works, another one only posts, all the time. The store has no clock, so each write tells how much time has passed
/// since the one before: time is not to stand still because those who post had not seen that one.
#[cfg(coordination_internals)]
#[tokio::test(start_paused = true)]
async fn wk6_time_goes_on_though_another_host_only_posts() -> Result<()> {
    let (_run, world) = without_clock();
    let ((works, here), (posts, there)) =
        (queue_on(&world, HERE).await?, queue_on(&world, THERE).await?);
    let delayed = NewItem::new("delayed").delay(Duration::from_secs(60));
    here.post(&[delayed]).await?;
    let begun = Instant::now();
    let poster = posts.spawn(async move {
        loop {
            sleep(Duration::from_secs(10)).await;
            there.post(&[NewItem::new("soon")]).await.expect("the store is there");
        }
    });
    let found = works.spawn(async move {
        loop {
            let claim = here.claim_wait(ClaimOptions::default().limit(1), None).await?;
            let claim = claim.expect("it waits for ever");
            let is_it = claim.items()[0].body() == b"delayed";
            claim.ack_all().await?;
            if is_it {
                return crate::Result::<_>::Ok(begun.elapsed());
            }
        }
    });
    let passed = tokio::time::timeout(Duration::from_secs(600), found).await;
    let passed = passed.expect("it comes back").expect("no panic")?;
    poster.abort();
    // The first post comes from a process that has not seen the queue before: the ten seconds until then are lost.
    assert!((60..75).contains(&passed.as_secs()), "{passed:?}");
    Ok(())
}

/// WK6: what this host writes is not read by all of its processes each time; what others write is, as they know when it came.
#[cfg(coordination_internals)]
#[tokio::test(start_paused = true)]
async fn wk6_only_what_other_hosts_write_is_read_each_time() -> Result<()> {
    let (_run, world) = without_clock();
    let (follows, queue) = queue_on(&world, HERE).await?;
    let asks = queue.clone();
    let asking = follows.spawn(async move { asks.claim(ClaimOptions::default()).await });
    assert!(asking.await.expect("no panic")?.is_none());
    for (host, reads_each) in [(HERE, false), (THERE, true)] {
        let (poster, there) = queue_on(&world, host).await?;
        let posting = poster.spawn(async move {
            for _ in 0..200 {
                there.post(&[NewItem::new("a")]).await.expect("the store is there");
                sleep(Duration::from_millis(10)).await;
            }
        });
        let (mut looks, mut in_hurry) = (0, 0);
        while !posting.is_finished() {
            sleep(Duration::from_millis(1)).await;
            looks += 1;
            in_hurry += u32::from(queue.engine.queue.is_in_hurry(Sight::Standing));
        }
        posting.await.expect("no panic");
        assert_eq!(in_hurry * 2 > looks, reads_each, "{in_hurry} of {looks} times");
    }
    Ok(())
}

/// WK6: when another host begins to write, half a second of the queue's time is lost once, and not again with each process of this
/// host that writes after that host and had not read that yet.
#[cfg(coordination_internals)]
#[tokio::test(start_paused = true)]
async fn wk6_all_processes_of_a_host_learn_that_another_one_writes() -> Result<()> {
    let (_run, world) = without_clock();
    let mut all = Vec::new();
    // The last one is on the other host.
    for host in std::iter::repeat_n(HERE, 20).chain([THERE]) {
        all.push(queue_on(&world, host).await?);
    }
    let post = async |who: usize, delay: u64| -> Result<()> {
        let (client, queue) = (&all[who].0, all[who].1.clone());
        let item = NewItem::new("a").delay(Duration::from_secs(delay));
        let posting = client.spawn(async move { queue.post(&[item]).await.map(drop) });
        posting.await.expect("no panic")
    };
    post(0, 60).await?;
    let begun = Instant::now();
    for here in 1..20 {
        post(here, 0).await?;
    }
    sleep(Duration::from_secs(2)).await;
    for here in 1..20 {
        // All processes read the first one at once, and nothing for half a second after that: then the last one is there.
        post(0, 0).await?;
        sleep(Duration::from_millis(50)).await;
        post(20, 0).await?;
        sleep(Duration::from_millis(400)).await;
        post(here, 0).await?;
        sleep(Duration::from_millis(750)).await;
    }
    let (client, queue) = (&all[0].0, all[0].1.clone());
    let waiting = client.spawn(async move {
        while queue.stats().await?.delayed > 0 {
            sleep(Duration::from_millis(100)).await;
        }
        crate::Result::<_>::Ok(begun.elapsed())
    });
    let passed = waiting.await.expect("no panic")?;
    assert!((60..63).contains(&passed.as_secs()), "{passed:?}");
    Ok(())
}

/// WK6: what sets no time costs none, though whoever does it has seen the queue only now.
#[cfg(coordination_internals)]
#[tokio::test(start_paused = true)]
async fn wk6_who_only_removes_takes_no_time_from_others() -> Result<()> {
    let (_run, world) = without_clock();
    let ((waits, here), (removes, there)) =
        (queue_on(&world, HERE).await?, queue_on(&world, THERE).await?);
    let delay = |seconds| NewItem::new("later").delay(Duration::from_secs(seconds));
    let begun = Instant::now();
    let items = here.post(&[delay(60), delay(900), delay(900)]).await?;
    let waiting = waits.spawn(async move {
        let claim = here.claim_wait(ClaimOptions::default(), None).await?;
        crate::Result::<_>::Ok((claim.expect("it waits for ever"), begun.elapsed()))
    });
    sleep(Duration::from_secs(25)).await;
    // Its host is known to the queue from now on, and knows nothing of the time before.
    let asks = there.clone();
    let asking = removes.spawn(async move { asks.claim(ClaimOptions::default()).await });
    assert!(asking.await.expect("no panic")?.is_none());
    sleep(Duration::from_secs(25)).await;
    let removing = removes.spawn(async move {
        for item in &items[1..] {
            assert!(there.delete(*item).await?);
        }
        crate::Result::<_>::Ok(())
    });
    removing.await.expect("no panic")?;
    let waited = tokio::time::timeout(Duration::from_secs(600), waiting).await;
    let (claim, passed) = waited.expect("it is ready").expect("no panic")?;
    assert_eq!(claim.items().len(), 1);
    assert!((60..62).contains(&passed.as_secs()), "{passed:?}");
    Ok(())
}

/// WK6: whoever only pops or collects, each time in a process that ends, learns that time passes as well.
#[cfg(coordination_internals)]
#[tokio::test(start_paused = true)]
async fn wk6_who_only_pops_or_collects_learns_that_time_passes() -> Result<()> {
    let (_run, world) = without_clock();
    let (_, here) = client_on(&world, HERE).await?;
    let (asks, there) = client_on(&world, THERE).await?;
    for collects in [false, true] {
        let name = if collects { "collected" } else { "popped" };
        let item = match collects {
            true => NewItem::new("a").ttl(Duration::from_secs(60)).delay(Duration::from_secs(59)),
            false => NewItem::new("a").delay(Duration::from_secs(60)),
        };
        here.queue(name)?.post(&[item]).await?;
        let there = there.clone();
        let asking = asks.spawn(async move {
            let begun = Instant::now();
            loop {
                // It has seen nothing yet, as in a process that ends after its call.
                let queue = there.queue(name)?;
                let found = match collects {
                    true => queue.gc(None).await?.items,
                    false => queue.pop(1).await?.len(),
                };
                if found > 0 {
                    return crate::Result::<_>::Ok(begun.elapsed());
                }
                sleep(Duration::from_secs(20)).await;
            }
        });
        let asked = tokio::time::timeout(Duration::from_secs(600), asking).await;
        let passed = asked.expect("its time has come").expect("no panic")?;
        assert!((60..100).contains(&passed.as_secs()), "{name}: {passed:?}");
    }
    Ok(())
}

/// WK6: whoever comes to wait after others sees the queue as it was long ago, and the item wakes it in time all the same.
#[tokio::test(start_paused = true)]
async fn wk6_who_comes_later_is_told_in_time() -> Result<()> {
    let (here, _) = two("old-view").await?;
    let first = here.clone();
    let first = tokio::spawn(async move { first.claim_wait(ClaimOptions::default(), None).await });
    sleep(Duration::from_millis(10)).await;
    here.post(&[NewItem::new("a").delay(Duration::from_secs(900))]).await?;
    let begun = Instant::now();
    sleep(Duration::from_secs(870)).await;
    let second = here.clone();
    let second =
        tokio::spawn(async move { second.claim_wait(ClaimOptions::default(), None).await });
    sleep(Duration::from_secs(10)).await;
    first.abort();
    let claim = second.await.expect("no panic")?;
    assert!(claim.is_some() && begun.elapsed() < Duration::from_secs(901), "{:?}", begun.elapsed());
    Ok(())
}

/// WK6: where this host has written last, an item is due by the clock of this host, and who waits is told then, and not half a percent
/// later.
#[cfg(coordination_internals)]
#[tokio::test(start_paused = true)]
async fn wk6_who_waits_on_the_host_that_wrote_last_is_told_in_time() -> Result<()> {
    let (_run, world) = without_clock();
    let ((posts, there), (waits, here)) =
        (queue_on(&world, HERE).await?, queue_on(&world, HERE).await?);
    let delay = Duration::from_secs(900);
    let item = NewItem::new("a").delay(delay);
    let posting = posts.spawn(async move { there.post(&[item]).await });
    posting.await.expect("no panic")?;
    let begun = Instant::now();
    let waiting = waits.spawn(async move { here.claim_wait(ClaimOptions::default(), None).await });
    let claim = waiting.await.expect("no panic")?;
    let passed = begun.elapsed();
    assert!(claim.is_some() && passed < delay + Duration::from_millis(100), "{passed:?}");
    Ok(())
}
