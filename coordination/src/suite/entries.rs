//! Checks of entries: their order and numbers, and to which session they belong.

use super::MOST_POLLS;
use super::test_store::{
    BOUND, CALL, Client, TestStore, dropped_after, queue, retry_until_settled,
};
use crate::backend::{EntryId, EntryRef, Mode, NewEntry, PAGE, Position, Write};
use crate::error::Result;
use crate::key::QueueKey;

pub(super) async fn repeat_enter(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let (entry, first) = client.enter(&queue).await?;
    let (second, behind) = other.enter(&queue).await?;
    assert_eq!(client.enter_this(&entry).await?, first);
    assert_eq!(other.enter_this(&second).await?, behind);
    assert_eq!(client.numbers(&queue).await?, [first.seq, behind.seq]);
    Ok(())
}

pub(super) async fn repeat_update(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client("a").await?, queue("q"));
    let entry = client.entry(&queue, Mode::Exclusive, "");
    let entry = NewEntry { label: Some("a label".into()), ..entry };
    let position = client.enter_this(&entry).await?;
    let changed = NewEntry { mode: Mode::Shared, data: "new".into(), ..entry };
    for _ in 0..2 {
        assert!(client.update(&changed, position.seq).await?);
        let listing = client.read(&queue).await?;
        let found = listing.entry(position.seq).expect("it keeps its number");
        assert_eq!((found.mode, &*found.data), (Mode::Shared, "new"));
        assert_eq!(found.label.as_deref(), Some("a label"), "it keeps its label");
    }
    Ok(())
}

pub(super) async fn repeat_leave(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client("a").await?, queue("q"));
    let (entry, position) = client.enter(&queue).await?;
    for seq in [Some(position.seq), Some(position.seq), None] {
        client.leave(&entry, seq).await?;
        assert!(client.is_empty(&queue).await?);
    }
    let kept = client.store.kept();
    assert!(!client.update(&entry, position.seq).await?, "it is gone");
    assert_eq!(client.store.kept(), kept, "what is gone is not remembered again");
    assert_eq!(client.position(&entry, position.seq).await?, None, "it is gone");
    // An entry that was never entered is gone as well.
    let never = client.entry(&queue, Mode::Exclusive, "");
    client.leave(&never, None).await
}

pub(super) async fn order_is_that_of_arrival(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let mut numbers = Vec::new();
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Shared, Mode::Exclusive] {
        for client in [&client, &other] {
            numbers.push(client.enter_as(&queue, mode).await?.1.seq);
        }
    }
    assert!(numbers.is_sorted_by(|before, after| before < after), "{numbers:?}");
    assert_eq!(client.numbers(&queue).await?, numbers);
    Ok(())
}

pub(super) async fn order_over_an_empty_queue(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let mut last = 0;
    for _ in 0..5 {
        for client in [&client, &other] {
            let (entry, position) = client.enter(&queue).await?;
            assert!(position.seq > last, "{} after {last}", position.seq);
            last = position.seq;
            client.leave(&entry, Some(position.seq)).await?;
        }
    }
    Ok(())
}

pub(super) async fn order_over_the_end_of_a_session(tested: &TestStore<'_>) -> Result<()> {
    let (watcher, queue) = (tested.client("w").await?, queue("q"));
    let mut last = 0;
    for _ in 0..3 {
        let client = tested.client("a").await?;
        let (_, position) = client.enter(&queue).await?;
        assert!(position.seq > last, "{} after {last}", position.seq);
        last = position.seq;
        client.close().await?;
        assert!(watcher.is_empty(&queue).await?);
    }
    Ok(())
}

pub(super) async fn order_over_a_value_that_comes_and_goes(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client("a").await?, queue("q"));
    let mut last = 0;
    for _ in 0..3 {
        let (entry, position) = client.enter(&queue).await?;
        assert!(position.seq > last, "{} after {last}", position.seq);
        last = position.seq;
        client.leave(&entry, Some(position.seq)).await?;
        let version = client.write(&Write::new(&queue, None, Some("v".into()))).await?;
        client.write(&Write::new(&queue, version, None)).await?;
    }
    Ok(())
}

/// The number of the entry that another one waits for. A position need not have this number, but it has the blocker's id, which is
/// listed in the queue.
async fn number_of_blocker(
    client: &Client,
    queue: &QueueKey,
    position: &Position,
) -> Result<Option<u64>> {
    let Some(blocker) = &position.blocker else { return Ok(None) };
    let listing = client.read(queue).await?;
    let listed = listing.entries.iter().find(|entry| entry.id == blocker.id);
    Ok(Some(listed.expect("what blocks is listed").seq))
}

/// The number of the entry that `entry` waits for now.
async fn waits_for(client: &Client, entry: &NewEntry, seq: u64) -> Result<Option<u64>> {
    let position = client.position(entry, seq).await?.expect("it is there");
    assert_eq!(position.seq, seq, "an entry keeps its number");
    number_of_blocker(client, &entry.entry_ref.queue, &position).await
}

pub(super) async fn blocker_is_the_newest_before(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let (first, one) = client.enter(&queue).await?;
    let (second, two) = client.enter(&queue).await?;
    let (third, three) = other.enter(&queue).await?;
    assert_eq!(one.blocker, None);
    let of_second = number_of_blocker(&client, &queue, &two).await?;
    assert_eq!(of_second, Some(one.seq), "one's own entries block like others'");
    assert_eq!(number_of_blocker(&other, &queue, &three).await?, Some(two.seq));
    client.leave(&second, Some(two.seq)).await?;
    assert_eq!(waits_for(&other, &third, three.seq).await?, Some(one.seq));
    client.leave(&first, Some(one.seq)).await?;
    assert_eq!(waits_for(&other, &third, three.seq).await?, None);
    Ok(())
}

pub(super) async fn blocker_of_shared_entries(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let (_, one) = client.enter_as(&queue, Mode::Shared).await?;
    let (_, two) = other.enter_as(&queue, Mode::Shared).await?;
    assert_eq!((one.blocker, two.blocker), (None, None));
    let (_, writer) = client.enter(&queue).await?;
    assert_eq!(number_of_blocker(&client, &queue, &writer).await?, Some(two.seq));
    let (_, three) = other.enter_as(&queue, Mode::Shared).await?;
    let before = number_of_blocker(&other, &queue, &three).await?;
    assert_eq!(before, Some(writer.seq), "it does not overtake");
    Ok(())
}

pub(super) async fn blocker_after_an_update(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let (first, one) = client.enter(&queue).await?;
    let (reader, two) = other.enter_as(&queue, Mode::Shared).await?;
    let (writer, three) = other.enter(&queue).await?;
    assert_eq!(waits_for(&other, &reader, two.seq).await?, Some(one.seq));
    let shared = NewEntry { mode: Mode::Shared, ..first };
    assert!(client.update(&shared, one.seq).await?);
    assert_eq!(waits_for(&other, &reader, two.seq).await?, None, "the first is shared now");
    assert_eq!(waits_for(&other, &writer, three.seq).await?, Some(two.seq));
    let (last, four) = other.enter_as(&queue, Mode::Shared).await?;
    assert_eq!(waits_for(&other, &last, four.seq).await?, Some(three.seq));
    Ok(())
}

pub(super) async fn snapshot_has_all_that_was_said(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let listing = other.read(&queue).await?;
    assert!(listing.entries.is_empty() && listing.value.is_none());
    let label = Some("for people \"é\"".into());
    let entry = NewEntry { label, ..client.entry(&queue, Mode::Shared, "said") };
    let one = client.enter_this(&entry).await?;
    let (_, two) = other.enter(&queue).await?;
    let version = client.write(&Write::new(&queue, None, Some("value".into()))).await?;
    for (client, is_whole) in [(&client, true), (&client, false), (&other, true), (&other, false)] {
        let listing = match is_whole {
            true => client.read(&queue).await?,
            false => client.read_standing(&queue).await?,
        };
        let entries: Vec<_> = listing
            .entries
            .iter()
            .map(|entry| (entry.seq, &*entry.member, entry.mode, &*entry.data))
            .collect();
        let expected = [(one.seq, "a", Mode::Shared, "said"), (two.seq, "b", Mode::Exclusive, "")];
        assert_eq!(entries, expected);
        let labels: Vec<_> = listing.entries.iter().map(|entry| entry.label.as_deref()).collect();
        assert_eq!(labels, [Some("for people \"é\""), None]);
        let value = listing.value.expect("it was written");
        assert_eq!((Some(value.version), &*value.data), (version, "value"));
    }
    assert_eq!(client.queues().await?, ["q"]);
    assert_eq!(client.names().await?, ["q"]);
    Ok(())
}

pub(super) async fn pages_have_every_name(tested: &TestStore<'_>) -> Result<()> {
    let client = tested.client("a").await?;
    let mut expected = Vec::new();
    for number in 0..PAGE + PAGE / 5 {
        let name = format!("{number:03}");
        client.enter(&queue(&name)).await?;
        client.write(&Write::new(&queue(&name), None, Some("v".into()))).await?;
        expected.push(name);
    }
    assert_eq!(client.queues().await?, expected);
    assert_eq!(client.names().await?, expected);
    Ok(())
}

pub(super) async fn snapshot_has_another_revision_after_each_change(
    tested: &TestStore<'_>,
) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let mut revisions = Vec::new();
    let (entry, position) = client.enter(&queue).await?;
    revisions.push(other.read(&queue).await?.revision);
    let changed = NewEntry { data: "new".into(), ..entry };
    client.update(&changed, position.seq).await?;
    revisions.push(other.read(&queue).await?.revision);
    let version = client.write(&Write::new(&queue, None, Some("v".into()))).await?;
    revisions.push(other.read(&queue).await?.revision);
    client.leave(&changed, Some(position.seq)).await?;
    revisions.push(other.read(&queue).await?.revision);
    let version = client.write(&Write::new(&queue, version, Some("w".into()))).await?;
    revisions.push(other.read(&queue).await?.revision);
    client.write(&Write::new(&queue, version, None)).await?;
    revisions.push(other.read(&queue).await?.revision);
    let moved = revisions.windows(2).all(|two| two[0] != two[1]);
    assert!(moved, "{revisions:?}");
    Ok(())
}

pub(super) async fn own_entries_answer_to_their_session_only(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let (entry, position) = client.enter(&queue).await?;
    let foreign = NewEntry { session: other.session.id, data: "new".into(), ..entry.clone() };
    assert!(!other.update(&foreign, position.seq).await?);
    assert_eq!(other.position(&foreign, position.seq).await?, None);
    let listing = client.read(&queue).await?;
    assert_eq!(listing.entries.iter().map(|entry| &*entry.data).collect::<Vec<_>>(), [""]);
    assert_eq!(client.position(&entry, position.seq).await?, Some(position));
    Ok(())
}

pub(super) async fn own_entries_have_their_number(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client("a").await?, queue("q"));
    let (first, one) = client.enter(&queue).await?;
    let (_, two) = client.enter(&queue).await?;
    let changed = NewEntry { data: "new".into(), ..first };
    assert!(!client.update(&changed, two.seq).await?, "that is the number of another entry");
    assert_eq!(client.position(&changed, two.seq).await?, None);
    assert!(client.update(&changed, one.seq).await?);
    Ok(())
}

pub(super) async fn missing_is_what_is_not_listed(tested: &TestStore<'_>) -> Result<()> {
    let (client, other) = (tested.client("a").await?, tested.client("b").await?);
    if !client.store.lists_held() {
        return Ok(());
    }
    let mut held = Vec::new();
    for (name, mode) in [("one", Mode::Exclusive), ("two", Mode::Shared), ("two", Mode::Exclusive)]
    {
        held.push(client.enter_as(&queue(name), mode).await?);
    }
    let places: Vec<_> = held.iter().map(|(entry, _)| entry.entry_ref.clone()).collect();
    until_missing(&client, &places, &[]).await?;
    let (changed, position) = &held[0];
    let changed = NewEntry { mode: Mode::Shared, data: "new".into(), ..changed.clone() };
    assert!(client.update(&changed, position.seq).await?);
    until_missing(&client, &places, &[]).await?;

    let (_, taken) = &held[1];
    let listing = other.read(&places[1].queue).await?;
    let id = listing.entry(taken.seq).expect("it is there").id.clone();
    let listed = EntryRef { queue: places[1].queue.clone(), id };
    retry_until_settled(|| other.store.leave(&listed, Some(taken.seq))).await?;
    until_missing(&client, &places, std::slice::from_ref(&places[1].id)).await?;
    let (last, position) = &held[2];
    assert!(client.store.is_there(last, position.seq).await?);
    assert!(!client.store.is_there(&held[1].0, taken.seq).await?);
    Ok(())
}

/// Waits until a list of the session's entries lacks these: a server that lags behind may answer at first.
async fn until_missing(client: &Client, held: &[EntryRef], expected: &[EntryId]) -> Result<()> {
    let tries = async {
        loop {
            match client.missing(held).await {
                Ok(missing) if missing != expected => tokio::time::sleep(CALL).await,
                listed => return listed.map(drop),
            }
        }
    };
    tokio::time::timeout(10 * BOUND, tries).await.expect("in the end the list is right")
}

pub(super) async fn exact_leave_takes_one(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let (_, one) = client.enter(&queue).await?;
    let (second, two) = client.enter(&queue).await?;
    let (_, three) = other.enter(&queue).await?;
    client.leave(&second, Some(two.seq)).await?;
    assert_eq!(other.numbers(&queue).await?, [one.seq, three.seq]);
    Ok(())
}

pub(super) async fn exact_leave_takes_anothers_as_it_is_listed(
    tested: &TestStore<'_>,
) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let (first, one) = client.enter(&queue).await?;
    let (_, two) = client.enter(&queue).await?;
    let listing = other.read(&queue).await?;
    let id = listing.entry(one.seq).expect("it is there").id.clone();
    let listed = EntryRef { queue: queue.clone(), id };
    retry_until_settled(|| other.store.leave(&listed, Some(one.seq))).await?;
    assert_eq!(client.numbers(&queue).await?, [two.seq]);
    assert_eq!(client.position(&first, one.seq).await?, None, "its owner is told");
    Ok(())
}

pub(super) async fn exact_leave_spares_the_next(tested: &TestStore<'_>) -> Result<()> {
    let (client, other, queue) = (tested.client("a").await?, tested.client("b").await?, queue("q"));
    let (entry, position) = client.enter(&queue).await?;
    client.leave(&entry, Some(position.seq)).await?;
    let mut before = (entry, position);
    // Some stores use keys again. Each of the next entries has its turn nevertheless.
    for _ in 0..20 {
        let (next, now) = client.enter(&queue).await?;
        let (old, was) = &before;
        for client in [&client, &other] {
            client.leave(old, Some(was.seq)).await?;
        }
        client.leave(old, None).await?;
        assert_eq!(client.numbers(&queue).await?, [now.seq], "the next one stays");
        client.leave(&next, Some(now.seq)).await?;
        before = (next, now);
    }
    Ok(())
}

pub(super) async fn cancel_safe_enter(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client("a").await?, queue("q"));
    for polls in 0..=MOST_POLLS {
        // If the call is repeated under the same id, the entry is entered once.
        let entry = client.entry(&queue, Mode::Exclusive, "");
        let repeated = dropped_after(polls, client.store.enter(&entry)).await;
        let position = client.enter_this(&entry).await?;
        assert_eq!(client.numbers(&queue).await?, [position.seq], "after {polls} polls");
        client.leave(&entry, Some(position.seq)).await?;
        // If the entry is then removed by its id, it is not in the queue.
        let entry = client.entry(&queue, Mode::Exclusive, "");
        dropped_after(polls, client.store.enter(&entry)).await;
        client.leave(&entry, None).await?;
        assert!(client.is_empty(&queue).await?, "after {polls} polls");
        if repeated.is_some() {
            break;
        }
    }
    Ok(())
}

pub(super) async fn cancel_safe_update(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client("a").await?, queue("q"));
    let (entry, position) = client.enter(&queue).await?;
    for polls in 0..=MOST_POLLS {
        let changed = NewEntry { data: format!("{polls}").into(), ..entry.clone() };
        let dropped = dropped_after(polls, client.store.update(&changed, position.seq)).await;
        assert!(client.update(&changed, position.seq).await?, "after {polls} polls");
        let listing = client.read(&queue).await?;
        let data = listing.entry(position.seq).map(|entry| entry.data.clone());
        assert_eq!(data.as_ref(), Some(&changed.data), "after {polls} polls");
        if dropped.is_some() {
            break;
        }
    }
    Ok(())
}

pub(super) async fn cancel_safe_leave(tested: &TestStore<'_>) -> Result<()> {
    let (client, queue) = (tested.client("a").await?, queue("q"));
    for polls in 0..=MOST_POLLS {
        let (entry, position) = client.enter(&queue).await?;
        let seq = Some(position.seq);
        let dropped = dropped_after(polls, client.store.leave(&entry.entry_ref, seq)).await;
        client.leave(&entry, seq).await?;
        let (next, now) = client.enter(&queue).await?;
        assert_eq!(client.numbers(&queue).await?, [now.seq], "after {polls} polls");
        client.leave(&next, Some(now.seq)).await?;
        if dropped.is_some() {
            break;
        }
    }
    Ok(())
}
