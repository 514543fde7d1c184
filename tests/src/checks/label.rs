//! LB1: whoever lists what is acquired sees the label that it was given.

use coordination::{Admission, ErrorKind, Lock, Patience, Result};
use serde_json::json;

use super::TestStore;
use super::tools::{NAME, PATIENCE, acquire_in_background, lock, until, until_contenders};

/// Has what some texts would have to escape.
const LABEL: &str = r#"nightly "dump" of <h1> \ 50 %, é日"#;

async fn labels(lock: &Lock) -> Result<Vec<String>> {
    Ok(lock.holders().await?.into_iter().map(|contender| contender.label).collect())
}

/// LB1: locks, by whatever way they are held or waited for, and whoever was given no label has none.
pub async fn lb1_of_a_lock(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let held = lock(&one).label(LABEL)?.acquire(Some(PATIENCE)).await?;
    let plain = acquire_in_background(&other);
    until_contenders(store, &lock(&one), 2).await;
    let longest = "x".repeat(255);
    let waits = lock(&other).label(&longest)?;
    let waits = tokio::spawn(async move { waits.acquire(Some(PATIENCE)).await });
    until_contenders(store, &lock(&one), 3).await;
    let expected = [LABEL, "", &longest];
    assert_eq!(labels(&lock(&other)).await?, expected);
    // Its entry is changed.
    let held = held.downgrade().await?;
    assert_eq!(labels(&lock(&other)).await?, expected);
    let broken = lock(&other).break_grant(held.token()).await?.expect("it is held");
    assert_eq!(broken.label, LABEL);
    drop(held);
    plain.await.expect("no panic")?.release().await?;
    waits.await.expect("no panic")?.release().await?;

    let both = one.locks([NAME, "other"])?.label(LABEL)?.acquire_shared(Some(PATIENCE)).await?;
    for name in [NAME, "other"] {
        assert_eq!(labels(&other.lock(name)?).await?, [LABEL]);
    }
    both.release().await?;
    // An empty one is none, and takes away what the handle had.
    let guard = lock(&one).label(LABEL)?.label("")?.acquire(Some(PATIENCE)).await?;
    assert_eq!(labels(&lock(&other)).await?, [""]);
    guard.release().await
}

/// LB1: permits and slots, while they are waited for and when they are had: what their entries say changes in between.
pub async fn lb1_of_slots(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let semaphore = one.semaphore("uploads", 1)?;
    let permit = semaphore.clone().label(LABEL)?.acquire(Some(PATIENCE)).await?;
    let waits = other.semaphore("uploads", 1)?.label("waits")?;
    let waits = tokio::spawn(async move { waits.acquire(Some(PATIENCE)).await });
    let listed = async || -> Result<Vec<String>> {
        Ok(semaphore.holders().await?.into_iter().map(|occupant| occupant.label).collect())
    };
    until(async || Ok(listed().await?.len() == 2)).await;
    assert_eq!(listed().await?, [LABEL, "waits"]);
    permit.release().await?;
    let permit = waits.await.expect("no panic")?;
    assert_eq!(listed().await?, ["waits"]);
    permit.release().await?;

    let limiter = one.limiter("nightly")?.standby(1);
    let Admission::Working(slot) = limiter.clone().label(LABEL)?.enter().await? else {
        panic!("nobody else is there");
    };
    let patience = Patience::Timeout(PATIENCE);
    let stands_by = other.limiter("nightly")?.standby(1).patience(patience).label("stands by")?;
    let stands_by = tokio::spawn(async move { stands_by.enter().await });
    until(async || Ok(limiter.inspect().await?.iter().any(|occupant| occupant.standby))).await;
    let occupants = limiter.inspect().await?;
    let labels: Vec<_> = occupants.iter().map(|occupant| &*occupant.label).collect();
    assert_eq!(labels, [LABEL, "stands by"]);
    slot.release().await?;
    let Admission::Working(slot) = stands_by.await.expect("no panic")? else {
        panic!("it was first");
    };
    assert_eq!(limiter.inspect().await?[0].label, "stands by");
    slot.release().await
}

/// LB1: candidates and members, whatever they say of themselves.
pub async fn lb1_of_candidates_and_members(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    let election = one.election("scheduler")?;
    let leadership = election.clone().label(LABEL)?.campaign(&1, Some(PATIENCE)).await?;
    let candidate = async || {
        let candidate = other.election("scheduler")?.candidates().await?.remove(0);
        Ok::<_, coordination::Error>((candidate.value::<u8>()?, candidate.label))
    };
    assert_eq!(candidate().await?, (1, LABEL.to_owned()));
    leadership.proclaim(&2).await?;
    assert_eq!(candidate().await?, (2, LABEL.to_owned()));
    leadership.resign().await?;

    let group = one.group("workers")?.label(LABEL)?;
    let membership = group.join_or_create(&json!({ "n": 1 })).await?;
    membership.update(&json!({ "n": 2 })).await?;
    let members = other.group("workers")?.members().await?;
    let member = members.iter().next().expect("it has joined");
    assert_eq!((member.capabilities.as_json(), &*member.label), (r#"{"n":2}"#, LABEL));
    membership.leave().await
}

/// LB1: a label that is none is refused, whether or not the store could be asked, and takes nothing.
pub async fn lb1_bad_ones_are_refused(store: &TestStore) -> Result<()> {
    let (one, other) = (store.connect("one").await?, store.connect("other").await?);
    one.stop().await?;
    for bad in ["two\nlines", "\0", "\u{9b}31m", &"x".repeat(256), &"é".repeat(128)] {
        for coordinator in [&one, &other] {
            let refusals = [
                lock(coordinator).label(bad).err(),
                coordinator.locks([NAME])?.label(bad).err(),
                coordinator.semaphore(NAME, 1)?.label(bad).err(),
                coordinator.limiter(NAME)?.label(bad).err(),
                coordinator.election(NAME)?.label(bad).err(),
                coordinator.group(NAME)?.label(bad).err(),
            ];
            for refused in refusals {
                let error = refused.expect("it is no label");
                assert_eq!(error.kind(), ErrorKind::Input, "{bad:?}: {error}");
                assert!(error.to_string().contains("label"), "{error}");
            }
        }
    }
    assert!(labels(&lock(&other)).await?.is_empty());
    Ok(())
}
