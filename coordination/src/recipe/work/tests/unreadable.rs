//! Items that somebody has changed at the store, as no step does.

use super::super::claim::SeenItem;
use super::super::draft::{corrupt, name};
use super::super::layout::Body;
use super::*;
use crate::backend::Write;
use crate::recipe::engine::data::to_data;
use crate::session::Written;
use crate::{ClaimOptions, Coordinator, Effect, NewItem, WorkQueue};

async fn spoil(jobs: &WorkQueue, items: &[ItemId]) -> Result<()> {
    let step = |draft: &mut Draft<'_>, _: &[u64]| -> Step<Outcome<()>> {
        for item in items {
            if let Some(item) = draft.page_mut(0)?.get_mut(&item.rank()) {
                item.body = Body::Here("!".to_owned());
            }
        }
        Ok(Outcome::Done(()))
    };
    jobs.engine.run_here("test", step).await
}

/// What cannot be read is not removed, nor is anything with it; and it does not hold up what is behind it. That it is put aside is an
/// effect (X1).
#[tokio::test]
async fn wk2_an_item_that_cannot_be_read_is_not_popped() -> Result<()> {
    let jobs = Coordinator::connect("memory://work-unreadable").await?.queue("jobs")?;
    let items = jobs.post(&[NewItem::new("a"), NewItem::new("b"), NewItem::new("c")]).await?;
    spoil(&jobs, &items[..1]).await?;
    let error = jobs.pop(2).await.expect_err("one of them cannot be read");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Corrupt, Effect::Applied));
    assert!(error.to_string().contains(&items[0].to_string()), "{error}");
    let stats = jobs.stats().await?;
    assert_eq!((stats.ready, stats.delayed), (2, 1));
    let popped = jobs.pop(2).await?;
    assert_eq!(popped.iter().map(|item| item.body()).collect::<Vec<_>>(), [b"b", b"c"]);
    assert_eq!(jobs.item(items[0]).await.expect_err("it is there").kind(), ErrorKind::Corrupt);
    assert!(jobs.force_delete(items[0]).await?);
    assert_eq!(jobs.pop(2).await?, []);
    Ok(())
}

/// It is tried again when a claim of it would be over, and has become a dead letter then.
#[test]
fn wk2_an_item_that_cannot_be_popped_becomes_a_dead_letter() {
    let mut fake = Fake::default();
    let ids = fake.post(&[new(0, 1_000, 0, 8), new(1, 1_000, 0, 8)]);
    fake.head.poison = Some(Poison { max_claims: 2, queue: "dead".into(), ttl: None });
    let read = |item: SeenItem| if item.id == ids[0] { Err(corrupt()) } else { Ok(item.id) };
    let mut popped = |passed: Micros| {
        fake.now += passed;
        let popped = fake.run(|draft| pop(draft, 1, read)).expect("never refused");
        (popped.map_err(|error| error.kind()), fake.head.letters_on_their_way())
    };
    let five_minutes = 300_000_000;
    assert_eq!(popped(0), (Err(ErrorKind::Corrupt), 0));
    assert_eq!(popped(0), (Ok(vec![ids[1]]), 0));
    assert_eq!(popped(five_minutes - 1), (Ok(vec![]), 0));
    assert_eq!(popped(1), (Err(ErrorKind::Corrupt), 0));
    assert_eq!(popped(five_minutes), (Ok(vec![]), 1));
}

/// X1: it is claimed, which is told, and those behind it are handed out.
#[tokio::test]
async fn x1_a_claim_of_an_item_that_cannot_be_read_is_told_of() -> Result<()> {
    let jobs = Coordinator::connect("memory://work-unreadable-claim").await?.queue("jobs")?;
    let items = jobs.post(&[NewItem::new("a"), NewItem::new("b"), NewItem::new("c")]).await?;
    spoil(&jobs, &items[..2]).await?;
    let one = || ClaimOptions::default().limit(1);
    let claimed = jobs.claim(one()).await.map(drop);
    let claimed_as = jobs.claim_as(ClaimId::random(), one()).await.map(drop);
    for told in [claimed, claimed_as] {
        let error = told.expect_err("it cannot be read");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Corrupt, Effect::Applied));
    }
    assert_eq!(jobs.stats().await?.claimed, 2);
    let claim = jobs.claim(one()).await?.expect("one is left");
    assert_eq!(claim.items()[0].body(), b"c");
    Ok(())
}

/// So it is where the record is changed that has the bodies of long items: those behind them are handed out.
#[tokio::test]
async fn wk2_a_record_of_bodies_that_cannot_be_read_holds_up_nobody() -> Result<()> {
    let jobs = Coordinator::connect("memory://work-unreadable-bodies").await?.queue("jobs")?;
    let items = jobs.post(&[NewItem::new("a".repeat(300)), NewItem::new("b")]).await?;
    let (at, look) = (&jobs.engine.queue, jobs.engine.look("test").await?);
    let head = to_data("test", &look.head, usize::MAX)?;
    let mut spoil = Write::new(&at.key, look.version, Some(head));
    let name = name('b', look.head.live.generation, items[0].rank());
    spoil.beside.push(Beside { name, data: Some("no bodies".into()), is_new: false });
    assert!(matches!(at.session.write("test", &spoil).await?, Written::Yes(_)));
    let claim = || jobs.claim(ClaimOptions::default().limit(1));
    let error = claim().await.map(drop).expect_err("it cannot be read");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Corrupt, Effect::Applied));
    assert!(error.to_string().contains(&items[0].to_string()), "{error}");
    assert_eq!(claim().await?.expect("one is left").items()[0].body(), b"b");
    assert_eq!(jobs.item(items[0]).await.expect_err("it is there").kind(), ErrorKind::Corrupt);
    assert!(jobs.force_delete(items[0]).await?);
    Ok(())
}

/// It becomes a dead letter like any other.
#[test]
fn wk2_an_item_of_such_a_record_becomes_a_dead_letter() {
    let mut from = Fake::default();
    from.post(&[new(0, 1_000, 0, 300), new(1, 1_000, 0, 8)]);
    from.head.poison = Some(Poison { max_claims: 1, queue: "dead".into(), ttl: Some(9_999) });
    assert_eq!(from.claim(&ask(1, 1, 0, None)).len(), 1);
    from.now += 1;
    from.records.insert(name('b', from.head.live.generation, 0), "no bodies".into());
    assert_eq!(from.claim(&ask(2, 1, 0, None)).len(), 1, "that behind it");
    let pending = from.run(|draft| letters::pending(draft, |_| false)).expect("never refused");
    let bodies = pending.map(|pending| pending.letters[0].1.body.clone());
    assert_eq!(bodies.as_deref(), Some("!no!bodies"));
}
