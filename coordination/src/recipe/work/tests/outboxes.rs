//! Letters to several queues, of which some take none.

use super::*;

/// Claims an item, and finds it claimed too often: it is on its way to this queue then.
fn dies(from: &mut Fake, mark: u64, queue: &str) {
    from.head.poison = Some(Poison { max_claims: 1, queue: queue.into(), ttl: Some(9_999) });
    from.post(&[new(mark, 1_000, 0, 8)]);
    assert_eq!(from.claim(&ask(1, 1, 0, None)).len(), 1);
    from.now += 1;
    assert!(from.claim(&ask(1, 1, 0, None)).is_empty());
}

/// The next letters that do not go to this queue: where they go, and their numbers.
fn next_but(from: &mut Fake, queue: &str) -> Option<(String, Vec<u64>)> {
    let pending = from.run(|draft| letters::pending(draft, |to| to == queue));
    let numbers = |letters: Vec<(u64, Letter)>| letters.iter().map(|(number, _)| *number).collect();
    pending.expect("never refused").map(|pending| (pending.queue, numbers(pending.letters)))
}

#[test]
fn letters_do_not_wait_for_those_that_go_elsewhere() {
    let mut from = Fake::default();
    for (mark, queue) in [(0, "old"), (1, "old"), (2, "new"), (3, "old"), (4, "new")] {
        dies(&mut from, mark, queue);
    }
    assert_eq!(from.look(stats).letters, 5);
    assert_eq!(next_but(&mut from, "old"), Some(("new".to_owned(), vec![2, 3])));
    from.run(|draft| letters::delivered(draft, 0, "new", 3)).expect("never refused");
    assert_eq!(next_but(&mut from, "old"), None);
    assert_eq!(next_but(&mut from, "new"), Some(("old".to_owned(), vec![0, 1, 2])));
    // What has had all its letters expects larger numbers than theirs.
    dies(&mut from, 5, "new");
    let (_, numbers) = next_but(&mut from, "old").expect("one is on its way");
    assert!(numbers.len() == 1 && numbers[0] > 3, "{numbers:?}");
    from.run(|draft| letters::delivered(draft, 0, "old", 2)).expect("never refused");
    from.run(|draft| letters::delivered(draft, 0, "new", numbers[0])).expect("never refused");
    assert_eq!(from.look(stats).letters, 0);
    assert!(from.records.keys().all(|name| !name.contains('l')), "{:?}", from.records.keys());
}

/// A queue that takes no letters is told of once, and keeps no letters from another one. Once it takes letters, it gets its own.
#[cfg(all(coordination_internals, feature = "memory"))]
#[tokio::test(start_paused = true)]
async fn a_queue_that_takes_no_letters_holds_up_no_others() -> Result<()> {
    use crate::backend::Write;
    use crate::session::Written;
    use crate::session::logged::Warnings;
    use crate::{ClaimOptions, Coordinator, NewItem};

    let warnings = Warnings::begin();
    let one = Coordinator::connect("memory://work-held-up").await?;
    // The one that takes none comes first in the head.
    let (jobs, old, new) = (one.queue("jobs")?, one.queue("dead-1")?, one.queue("dead-2")?);
    let at = &old.engine.queue;
    let spoil = Write::new(&at.key, None, Some("no head".into()));
    let Written::Yes(version) = at.session.write("test", &spoil).await? else {
        panic!("nobody else writes")
    };
    for dead in [&old, &new] {
        jobs.set_dead_letters(1, dead, None).await?;
        jobs.post(&[NewItem::new("a")]).await?;
        let claim = jobs.claim(ClaimOptions::default()).await?.expect("it is ready");
        claim.release().await?;
        assert!(jobs.claim(ClaimOptions::default()).await?.is_none());
    }
    assert_eq!((new.stats().await?.ready, jobs.stats().await?.letters), (1, 1));
    let turn = jobs.engine.turn.lock().await;
    let begun = tokio::time::Instant::now();
    jobs.deliver_briefly(super::super::delivery::DELIVERY).await;
    assert!(begun.elapsed().is_zero(), "a claim waits for what is not tried");
    drop(turn);
    let told = || {
        let all = warnings.told();
        all.iter().filter(|warning| warning.contains("not delivered yet")).count()
    };
    for _ in 0..5 {
        assert!(jobs.claim(ClaimOptions::default()).await?.is_none());
        tokio::time::sleep(2 * super::super::refused::REFUSED).await;
    }
    assert_eq!(told(), 1, "{:?}", warnings.told());
    let mended = at.session.write("test", &Write::new(&at.key, Some(version), None)).await?;
    assert!(matches!(mended, Written::Yes(_)));
    // Another process delivers it.
    let other = Coordinator::connect("memory://work-held-up").await?.queue("jobs")?;
    assert!(other.claim(ClaimOptions::default()).await?.is_none());
    assert_eq!((old.stats().await?.ready, jobs.stats().await?.letters), (1, 0));
    // The same failure of another day is told of as well.
    assert!(jobs.claim(ClaimOptions::default()).await?.is_none());
    let Some(version) = old.engine.look("test").await?.version else { panic!("it has a letter") };
    let spoil = Write::new(&at.key, Some(version), Some("no head".into()));
    assert!(matches!(at.session.write("test", &spoil).await?, Written::Yes(_)));
    jobs.set_dead_letters(1, &old, None).await?;
    jobs.post(&[NewItem::new("a")]).await?;
    let claim = jobs.claim(ClaimOptions::default()).await?.expect("it is ready");
    claim.release().await?;
    assert!(jobs.claim(ClaimOptions::default()).await?.is_none());
    assert_eq!(told(), 2, "{:?}", warnings.told());
    Ok(())
}

/// Somebody has changed a letter at the store, as no step does: it goes with the others, as an item that cannot be read either.
#[test]
fn a_letter_that_cannot_be_read_is_delivered_with_the_others() {
    let (mut from, mut to) = (Fake::default(), Fake::default());
    for mark in 0..3 {
        dies(&mut from, mark, "dead");
    }
    from.records.insert(letter_name((0, 1)), "{\"body\":\"QU+J/D\", \u{fc}".into());
    let pending = from.run(|draft| letters::pending(draft, |_| false)).expect("never refused");
    let pending = pending.expect("three are on their way");
    assert_eq!((pending.upto, &pending.unreadable[..]), (2, &[1][..]));
    let [(0, whole), (1, remains), (2, _)] = &pending.letters[..] else { panic!("{pending:?}") };
    assert_eq!((&whole.body[..], &remains.body[..]), ("xxxxxxxx", "!!!body!!!QU+J/D!!!!"));
    to.run(|draft| letters::receive(draft, "q", &pending.letters, &[0, 1, 2])).expect("has room");
    assert_eq!(to.look(stats).ready, 3);
    from.run(|draft| letters::delivered(draft, 0, "dead", 2)).expect("never refused");
    assert_eq!(from.look(stats).letters, 0);
    assert!(from.records.keys().all(|name| !name.contains('l')), "{:?}", from.records.keys());
}

/// An operator has removed the head of another queue of this name, and left such a letter.
#[test]
fn a_letter_is_written_over_one_that_cannot_be_read() {
    let mut from = Fake::default();
    from.records.insert(letter_name((0, 0)), "no letter".into());
    dies(&mut from, 0, "dead");
    assert_eq!(next_but(&mut from, "another"), Some(("dead".to_owned(), vec![0])));
    let pending = from.run(|draft| letters::pending(draft, |_| false)).expect("never refused");
    assert!(pending.is_some_and(|pending| pending.unreadable.is_empty()));
}

/// No letter waits for it, and it is not lost.
#[cfg(feature = "memory")]
#[tokio::test(start_paused = true)]
async fn a_letter_that_cannot_be_read_holds_up_no_others() -> Result<()> {
    use crate::backend::Write;
    use crate::recipe::engine::data::to_data;
    use crate::session::Written;
    use crate::{ClaimOptions, Coordinator, Effect, NewItem};

    let one = Coordinator::connect("memory://work-unreadable-letter").await?;
    let (jobs, first, second) = (one.queue("jobs")?, one.queue("dead-1")?, one.queue("dead-2")?);
    let nobody_brings_them = jobs.engine.delivering.lock().await;
    for (dead, body) in [(&first, "a"), (&first, "b"), (&second, "c")] {
        jobs.set_dead_letters(1, dead, None).await?;
        jobs.post(&[NewItem::new(body)]).await?;
        let claim = jobs.claim(ClaimOptions::default()).await?.expect("it is ready");
        claim.release().await?;
        assert!(jobs.claim(ClaimOptions::default()).await?.is_none());
    }
    let (at, look) = (&jobs.engine.queue, jobs.engine.look("test").await?);
    let head = to_data("test", &look.head, usize::MAX)?;
    let mut spoil = Write::new(&at.key, look.version, Some(head));
    let (name, data) = (letter_name((0, 0)), Some("no letter".into()));
    spoil.beside.push(Beside { name, data, is_new: false });
    assert!(matches!(at.session.write("test", &spoil).await?, Written::Yes(_)));
    drop(nobody_brings_them);
    assert!(jobs.claim(ClaimOptions::default()).await?.is_none());
    assert_eq!((second.stats().await?.ready, jobs.stats().await?.letters), (1, 0));
    assert_eq!(first.stats().await?.ready, 2);
    let error = first.pop(2).await.expect_err("one of them cannot be read");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Corrupt, Effect::Applied));
    assert_eq!(first.pop(2).await?[0].body(), b"b");
    assert_eq!(first.stats().await?.delayed, 1, "it is there");
    Ok(())
}

/// The head has the names of all queues to which letters are on their way.
#[cfg(feature = "memory")]
#[tokio::test]
async fn dead_letters_do_not_go_to_any_number_of_queues_that_take_none() -> Result<()> {
    use super::super::layout::Outbox;
    use crate::Coordinator;

    let one = Coordinator::connect("memory://work-outboxes").await?;
    let jobs = one.queue("jobs")?;
    let on_their_way = |draft: &mut Draft<'_>, _: &[u64]| -> Step<Outcome<()>> {
        let outbox = |number: u64| Outbox { began: number, first: number, end: number + 1 };
        let all = (0..8).map(|number| (format!("dead-{number}"), outbox(number)));
        draft.change().outboxes = all.collect();
        Ok(Outcome::Done(()))
    };
    jobs.engine.run_here("test", on_their_way).await?;
    let refused = jobs.set_dead_letters(1, &one.queue("one-more")?, None).await;
    assert_eq!(refused.expect_err("there are too many").kind(), ErrorKind::Input);
    jobs.set_dead_letters(1, &one.queue("dead-7")?, None).await
}
