//! Tests of the algorithms of this folder, with a store in memory that can lose an answer and carry out the call later.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::backend::server::stored::StoredEntry;
use crate::backend::{Cursor, EntryId, Mode, NewEntry, Room, Write};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::QueueKey;

/// The store in memory: keys with versions.
#[derive(Default)]
struct Memory(Mutex<State>);

#[derive(Default)]
struct State {
    version: u64,
    keys: BTreeMap<String, Kept>,
    /// The next transaction gets no answer, and is carried out only when [`comes_late`](TxnKv::comes_late) is called.
    lose: bool,
    late: Vec<Txn<Infallible>>,
    /// `Some`: the next delete is not carried out, and fails with an error that has this effect.
    fail_delete: Option<Effect>,
    /// Whether the store has no space: every transaction is refused with `Quota`, and only [`delete`](Transact::delete) works.
    is_full: bool,
    /// How many transactions were refused because of `is_full`.
    refused: usize,
}

impl State {
    fn make(&mut self, txn: &Txn<Infallible>) -> Outcome {
        let holds = |condition: &Condition<Infallible>| match condition {
            Condition::Version(key, version) => {
                self.keys.get(key).map_or(0, |kept| kept.version) == *version
            }
            Condition::Own(never) => match *never {},
        };
        if !txn.conditions.iter().all(holds) {
            return Outcome::Refused(
                txn.looks.iter().map(|key| self.keys.get(key).cloned()).collect(),
            );
        }
        self.version += 1;
        for change in &txn.changes {
            match change.clone() {
                Change::Put(key, value) => self.put(key, value, ""),
                Change::Hold(key, value, session) => self.put(key, value, &session.to_string()),
                Change::Seize(key, session) => self.put(key, Vec::new(), &session.to_string()),
                Change::Delete(key) => drop(self.keys.remove(&key)),
            }
        }
        Outcome::Done(self.version)
    }

    fn put(&mut self, key: String, value: Vec<u8>, owner: &str) {
        let version = self.version;
        let created = self.keys.get(&key).map_or(version, |kept| kept.created);
        self.keys.insert(key, Kept { version, created, value, owner: owner.into() });
    }
}

impl Transact for Memory {
    const LOOKS_AT_ONCE: bool = true;
    const ALL_COUNT: bool = true;
    const VALUE: &'static str = "!";
    const REMOVED: &'static str = "!removed";
    const IS_ENTRY: fn(&str) -> bool = |name| !name.starts_with('!');
    type Check = Infallible;

    async fn commit(&self, operation: &'static str, txn: Txn<Infallible>) -> Result<Outcome> {
        let mut state = self.0.lock().expect("nobody panics");
        if std::mem::take(&mut state.lose) {
            state.late.push(txn);
            let error = Error::new(ErrorKind::Unavailable, operation, "no answer");
            return Err(error.with_effect(Effect::Unknown));
        }
        if state.is_full {
            state.refused += 1;
            let error = Error::new(ErrorKind::Quota, operation, "no room");
            return Err(error.with_effect(Effect::Unknown));
        }
        Ok(state.make(&txn))
    }

    async fn delete(&self, key: &str, _only: Option<u64>) -> Result<()> {
        let mut state = self.0.lock().expect("nobody panics");
        if let Some(effect) = state.fail_delete.take() {
            return Err(Error::new(ErrorKind::Unavailable, "leave", "it fails").with_effect(effect));
        }
        state.keys.remove(key);
        Ok(())
    }

    async fn alone(&self, _keys: &Keys, _write_fence: &WriteFence) -> Result<Queue<Infallible>> {
        Ok(Queue::Empty(Txn::default()))
    }

    async fn fetch(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>> {
        let state = self.0.lock().expect("nobody panics");
        Ok(keys.iter().map(|key| state.keys.get(key).map(|kept| kept.value.clone())).collect())
    }

    async fn list(
        &self,
        prefix: &str,
        _: Option<&Cursor>,
    ) -> Result<(Vec<String>, Option<Cursor>)> {
        let state = self.0.lock().expect("nobody panics");
        Ok((state.keys.keys().filter(|key| key.starts_with(prefix)).cloned().collect(), None))
    }

    async fn read_each(&self, prefixes: Vec<String>) -> Result<Vec<(String, Vec<u8>)>> {
        let state = self.0.lock().expect("nobody panics");
        let is_read = |key: &String| prefixes.iter().any(|prefix| key.starts_with(prefix));
        let read = state.keys.iter().filter(|(key, _)| is_read(key));
        Ok(read.map(|(key, kept)| (key.clone(), kept.value.clone())).collect())
    }

    fn owner(&self, session: SessionId) -> Option<Arc<str>> {
        Some(session.to_string().into())
    }
}

impl TxnKv<Memory> {
    async fn opened() -> (Arc<Self>, SessionId) {
        let txn_kv = Self::new(Memory::default(), "ns", |_, _, number| number.to_string(), 1);
        let txn_kv = Arc::new(txn_kv);
        let session = txn_kv.open().await;
        (txn_kv, session)
    }

    async fn open(&self) -> SessionId {
        let session = SessionId::random();
        let member = Change::Hold("member".to_owned(), Vec::new(), session);
        let open = Txn { changes: vec![member], ..Txn::default() };
        let Ok(Outcome::Done(version)) = self.store.commit("open", open).await else {
            panic!("it has no condition");
        };
        self.write_fences.note(session, "member", version);
        session
    }

    /// Makes the next transaction get no answer. It is carried out only when [`comes_late`](Self::comes_late) is called.
    fn lose_next(&self) {
        self.store.0.lock().expect("nobody panics").lose = true;
    }

    fn comes_late(&self) {
        let mut state = self.store.0.lock().expect("nobody panics");
        for txn in std::mem::take(&mut state.late) {
            state.make(&txn);
        }
    }

    fn fill(&self, is_full: bool) {
        self.store.0.lock().expect("nobody panics").is_full = is_full;
    }

    fn puts_refused(&self) -> usize {
        self.store.0.lock().expect("nobody panics").refused
    }

    fn has(&self, key: &str) -> bool {
        self.store.0.lock().expect("nobody panics").keys.contains_key(key)
    }

    async fn put(&self, entry: &NewEntry) -> Result<u64> {
        let write_fence = self.write_fences.of(entry.session)?;
        self.key_pool.sent(entry, write_fence.version);
        let key = self.key(&entry.entry_ref);
        let enter = Txn {
            conditions: vec![Condition::Version(key.clone(), 0), write_fence.holds()],
            changes: vec![Change::Hold(key, Vec::new(), entry.session)],
            looks: Vec::new(),
        };
        match self.store.commit("enter", enter).await? {
            Outcome::Done(version) => {
                self.key_pool.answered(&entry.entry_ref);
                Ok(version)
            }
            Outcome::Refused(_) => Err(Error::new(ErrorKind::Unavailable, "enter", "refused")),
        }
    }
}

fn queue() -> QueueKey {
    QueueKey::new("lock", "a", 10).expect("a valid name")
}

fn entry(session: SessionId) -> NewEntry {
    let entry_ref = EntryRef { queue: queue(), id: EntryId::random(session) };
    let mode = Mode::Exclusive;
    NewEntry {
        entry_ref,
        session,
        member: "m".into(),
        label: None,
        mode,
        data: "".into(),
        room: Room::default(),
    }
}

fn write(expected: Option<u64>, data: Option<&str>) -> Write {
    Write::new(&queue(), expected, data.map(Into::into))
}

#[tokio::test]
async fn an_enter_that_comes_after_its_leave_has_no_effect() -> Result<()> {
    let (txn_kv, session) = TxnKv::opened().await;
    let entry = entry(session);
    txn_kv.lose_next();
    txn_kv.put(&entry).await.expect_err("its answer is lost");
    let key = txn_kv.key(&entry.entry_ref);
    txn_kv.leave(&entry.entry_ref, None).await?;
    txn_kv.comes_late();
    assert!(!txn_kv.has(&key));
    Ok(())
}

/// The entry is left twice, because the first delete fails.
#[tokio::test]
async fn a_key_is_used_again_if_its_first_delete_was_not_sent() -> Result<()> {
    for (effect, is_used_again) in [(Effect::None, true), (Effect::Unknown, false)] {
        let (txn_kv, session) = TxnKv::opened().await;
        let first = entry(session);
        let seq = txn_kv.put(&first).await?;
        let key = txn_kv.key(&first.entry_ref);
        txn_kv.store.0.lock().expect("nobody panics").fail_delete = Some(effect);
        txn_kv.leave(&first.entry_ref, Some(seq)).await.expect_err("it fails");
        assert_eq!(txn_kv.leave(&first.entry_ref, Some(seq)).await?, Left::Gone);
        txn_kv.key_pool.free(&first.entry_ref);
        let second = entry(session);
        txn_kv.put(&second).await?;
        assert_eq!(txn_kv.key(&second.entry_ref) == key, is_used_again, "{effect:?}");
    }
    Ok(())
}

#[tokio::test]
async fn c2_what_ends_the_doubt_about_one_enter_does_so_for_all() -> Result<()> {
    let (txn_kv, session) = TxnKv::opened().await;
    let entries: Vec<_> = (0..300).map(|_| entry(session)).collect();
    for entry in &entries {
        txn_kv.lose_next();
        txn_kv.put(entry).await.expect_err("its answer is lost");
    }
    let before = txn_kv.write_fences.of(session)?.version;
    let keys: Vec<_> = entries.iter().map(|entry| txn_kv.key(&entry.entry_ref)).collect();
    for entry in &entries {
        txn_kv.leave(&entry.entry_ref, None).await?;
    }
    let after = txn_kv.write_fences.of(session)?.version;
    assert_eq!(after, before + 1, "each change has a version");
    txn_kv.comes_late();
    assert!(!keys.iter().any(|key| txn_kv.has(key)));
    // A call that is sent under the next write fence, and gets no answer, must not take effect later either.
    txn_kv.lose_next();
    txn_kv.put(&entries[0]).await.expect_err("its answer is lost");
    txn_kv.leave(&entries[0].entry_ref, None).await?;
    txn_kv.comes_late();
    assert!(!txn_kv.has(&keys[0]));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn without_room_one_task_sees_to_all_that_is_in_doubt() -> Result<()> {
    let (txn_kv, session) = TxnKv::opened().await;
    let entries: Vec<_> = (0..10_000).map(|_| entry(session)).collect();
    for entry in &entries {
        txn_kv.lose_next();
        txn_kv.put(entry).await.expect_err("its answer is lost");
    }
    let keys: Vec<_> = entries.iter().map(|entry| txn_kv.key(&entry.entry_ref)).collect();
    let tasks = tokio::runtime::Handle::current().metrics();
    let before = tasks.num_alive_tasks();
    txn_kv.fill(true);
    for entry in &entries {
        assert_eq!(txn_kv.leave(&entry.entry_ref, None).await?, Left::InDoubt);
    }
    assert_eq!((tasks.num_alive_tasks(), txn_kv.puts_refused()), (before + 1, 1));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(
        txn_kv.puts_refused() < 200,
        "it was tried {} times in a minute",
        txn_kv.puts_refused()
    );
    assert_eq!(txn_kv.key_pool.own(&entries[0].entry_ref).map(|own| own.session), Some(session));
    txn_kv.fill(false);
    txn_kv.comes_late();
    assert!(txn_kv.has(&keys[0]), "nothing has kept it from being put");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!keys.iter().any(|key| txn_kv.has(key)), "and it is removed");
    let is_known = |entry: &NewEntry| txn_kv.key_pool.own(&entry.entry_ref).is_some();
    assert!(!entries.iter().any(is_known), "the keys can be used again");
    assert_eq!(tasks.num_alive_tasks(), before);
    Ok(())
}

/// While the store has no space, a `leave` of an entry whose put was not answered sends a delete without ending the write fence.
/// This delete may be given up and arrive later.
#[tokio::test(start_paused = true)]
async fn a_key_is_not_used_again_if_a_delete_was_given_up_while_there_was_no_room() -> Result<()> {
    let (txn_kv, session) = TxnKv::opened().await;
    let first = entry(session);
    txn_kv.lose_next();
    txn_kv.put(&first).await.expect_err("its answer is lost");
    let key = txn_kv.key(&first.entry_ref);
    txn_kv.fill(true);
    txn_kv.store.0.lock().expect("nobody panics").fail_delete = Some(Effect::Unknown);
    txn_kv.leave(&first.entry_ref, None).await.expect_err("its answer is lost");
    txn_kv.fill(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(txn_kv.leave(&first.entry_ref, None).await?, Left::Gone);
    txn_kv.key_pool.free(&first.entry_ref);
    let second = entry(session);
    txn_kv.put(&second).await?;
    assert_ne!(txn_kv.key(&second.entry_ref), key);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_task_without_room_ends_with_its_session() -> Result<()> {
    let (txn_kv, session) = TxnKv::opened().await;
    let entry = entry(session);
    txn_kv.lose_next();
    txn_kv.put(&entry).await.expect_err("its answer is lost");
    txn_kv.fill(true);
    let tasks = tokio::runtime::Handle::current().metrics();
    let before = tasks.num_alive_tasks();
    assert_eq!(txn_kv.leave(&entry.entry_ref, None).await?, Left::InDoubt);
    assert_eq!(tasks.num_alive_tasks(), before + 1);
    txn_kv.forget(session);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(tasks.num_alive_tasks(), before);
    Ok(())
}

#[tokio::test]
async fn an_update_whose_answer_was_lost_is_recognised_and_an_old_one_refused() -> Result<()> {
    let (txn_kv, session) = TxnKv::opened().await;
    let mut entry = entry(session);
    let seq = txn_kv.put(&entry).await?;
    let key = txn_kv.key(&entry.entry_ref);
    entry.data = "one".into();
    txn_kv.lose_next();
    txn_kv.update(&entry, seq).await.expect_err("its answer is lost");
    txn_kv.comes_late();
    assert!(txn_kv.update(&entry, seq).await?, "done before");
    entry.data = "two".into();
    txn_kv.lose_next();
    txn_kv.update(&entry, seq).await.expect_err("its answer is lost");
    entry.data = "three".into();
    assert!(txn_kv.update(&entry, seq).await?);
    txn_kv.comes_late();
    let state = txn_kv.store.0.lock().expect("nobody panics");
    assert!(String::from_utf8_lossy(&state.keys[&key].value).contains("three"));
    assert_eq!(state.keys[&key].created, seq);
    Ok(())
}

#[tokio::test]
async fn a_value_is_written_by_compare_and_set() -> Result<()> {
    let (txn_kv, _) = TxnKv::opened().await;
    let create = write(None, Some("one"));
    let first = txn_kv.write(&create).await?.expect("there is none");
    assert_eq!(txn_kv.write(&create).await?, Some(first), "a repeated call");
    assert_eq!(txn_kv.write(&write(None, Some("two"))).await?, None);
    let second = txn_kv.write(&write(Some(first), Some("two"))).await?;
    assert!(second > Some(first));
    assert_eq!(txn_kv.write(&write(Some(first), None)).await?, None);
    assert_eq!(txn_kv.write(&write(second, None)).await?, second);
    let third = txn_kv.write(&write(None, Some("three"))).await?;
    assert!(third > second, "over removals too");
    Ok(())
}

#[tokio::test]
async fn a_create_that_comes_late_does_not_bring_back_what_was_removed() -> Result<()> {
    let (txn_kv, _) = TxnKv::opened().await;
    let create = write(None, Some("one"));
    txn_kv.lose_next();
    txn_kv.write(&create).await.expect_err("its answer is lost");
    let version = txn_kv.write(&create).await?;
    assert!(txn_kv.write(&write(version, None)).await?.is_some());
    txn_kv.comes_late();
    assert!(!txn_kv.has(&txn_kv.keys(&queue()).key("!")));
    Ok(())
}

/// The first call of a write creates the value, its answer is lost, and somebody removes the value. Then the answers of very many
/// other writes are lost, too, and these writes are given up.
#[tokio::test]
async fn a_create_is_not_made_twice_however_many_others_were_given_up() -> Result<()> {
    let (txn_kv, _) = TxnKv::opened().await;
    let (create, key) = (write(None, Some("one")), txn_kv.keys(&queue()).key("!"));
    txn_kv.lose_next();
    txn_kv.write(&create).await.expect_err("its answer is lost");
    txn_kv.comes_late();
    let version = txn_kv.store.0.lock().expect("nobody panics").keys[&key].version;
    assert!(txn_kv.write(&write(Some(version), None)).await?.is_some());
    for _ in 0..5_000 {
        txn_kv.lose_next();
        txn_kv.write(&write(None, Some("other"))).await.expect_err("its answer is lost");
    }
    assert_eq!(txn_kv.write(&create).await?, None, "it may have been made before");
    assert!(!txn_kv.has(&key), "it was made twice");
    Ok(())
}

#[tokio::test]
async fn without_a_session_nothing_is_written() {
    let (txn_kv, session) = TxnKv::opened().await;
    txn_kv.forget(session);
    let error = txn_kv.write(&write(None, Some("one"))).await.expect_err("no session");
    assert_eq!((error.kind(), error.loss_reason()), (ErrorKind::Unavailable, None));
}

#[tokio::test]
async fn l5_a_store_that_has_lost_its_data_takes_values_from_the_next_session() -> Result<()> {
    let (txn_kv, _) = TxnKv::opened().await;
    txn_kv.write(&write(None, Some("one"))).await?;
    // The store loses its data after this session is opened. So the member's key of this session has a higher version than the
    // member's key of the next session. This session is never closed.
    txn_kv.open().await;
    *txn_kv.store.0.lock().expect("nobody panics") = State::default();
    txn_kv.open().await;
    assert!(txn_kv.write(&write(None, Some("two"))).await?.is_some());
    Ok(())
}

#[tokio::test]
async fn queues_are_listed_by_their_entries_and_by_their_values() -> Result<()> {
    let (txn_kv, session) = TxnKv::opened().await;
    let (hashed, hold) = ("é/".repeat(150), |key| Change::Hold(key, Vec::new(), session));
    let hashed = QueueKey::new("lock", &hashed, 1024).expect("a valid name");
    let mut create = write(None, Some("one"));
    for queue in [queue(), hashed.clone()] {
        create = Write { queue: queue.clone(), id: create.id + 1, ..create };
        txn_kv.write(&create).await?;
    }
    let put = |queue| hold(txn_kv.keys(queue).key("0"));
    let mut changes = vec![put(&queue()), put(&hashed)];
    txn_kv.store.commit("enter", Txn { changes: changes.clone(), ..Txn::default() }).await?;
    let both = BTreeSet::from([queue().name().to_owned(), hashed.name().to_owned()]);
    assert_eq!(BTreeSet::from_iter(txn_kv.names("lock", None).await?.names), both);
    // The name of one of the queues is hashed. No entry of this queue has a text with the name yet, so this queue is not listed.
    assert_eq!(txn_kv.queues("lock", None).await?.names, [queue().name()]);
    let entry_ref = EntryRef { queue: hashed.clone(), id: EntryId::random(session) };
    let text = StoredEntry::new(&NewEntry { entry_ref, ..entry(session) }, 1).to_bytes()?;
    changes = vec![Change::Put(txn_kv.keys(&hashed).key("1"), text)];
    txn_kv.store.commit("enter", Txn { changes, ..Txn::default() }).await?;
    assert_eq!(BTreeSet::from_iter(txn_kv.queues("lock", None).await?.names), both);
    Ok(())
}
