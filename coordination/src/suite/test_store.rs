//! What a check works with: clients of the store, and calls as the session makes them.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use super::mistaken::{Mistake, Mistaken};
use super::{Proxy, StoreAccess};
use crate::Config;
use crate::backend::registry::Target;
use crate::backend::{
    Cursor, Data, EntryId, EntryRef, Listing, Mode, NewEntry, NewSession, Page, Position, Room,
    SessionId, Store, Write,
};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::{DEFAULT_MAX_NAME_BYTES, QueueKey};

/// The lease that clients ask for: longer than a check takes, because nobody sends heartbeats. Without heartbeats, only the call
/// that is checked can notice that the store is silent.
const TTL: Duration = Duration::from_secs(10);
/// How long one call may take before it is given up: the heartbeat interval, as in the session.
pub(super) const CALL: Duration = Duration::from_millis(250);
/// For how long a call is repeated.
const REPEATED: Duration = Duration::from_secs(15);
/// The time limit for what has to end by itself after about one call: ten times as long as a call.
pub(super) const BOUND: Duration = Duration::from_millis(2_500);

/// A namespace of the store that only one check uses.
pub(super) struct TestStore<'a> {
    access: &'a dyn StoreAccess,
    mistake: Option<Mistake>,
}

/// A client of the store, with a session.
pub(super) struct Client {
    pub(super) store: Arc<dyn Store>,
    pub(super) session: NewSession,
}

impl<'a> TestStore<'a> {
    pub(super) fn new(access: &'a dyn StoreAccess, mistake: Option<Mistake>) -> Self {
        Self { access, mistake }
    }

    /// What lies between the store and the clients that come [by the proxy](Self::client_by_proxy).
    pub(super) fn proxy(&self) -> &dyn Proxy {
        self.access.proxy().expect("a check that needs a proxy runs only where there is one")
    }

    /// A client that nothing disturbs.
    pub(super) async fn client(&self, member: &str) -> Result<Client> {
        let store = self.connect(&self.access.url(), false).await?;
        Client::open(store, member).await
    }

    /// A client that the proxy can disturb.
    pub(super) async fn client_by_proxy(&self, member: &str) -> Result<Client> {
        let store = self.connect(&self.proxy().url(), true).await?;
        Client::open(store, member).await
    }

    async fn connect(&self, url: &str, by_proxy: bool) -> Result<Arc<dyn Store>> {
        let store = repeat(|| self.connect_once(url, by_proxy)).await?;
        Ok(match self.mistake {
            Some(mistake) => Arc::new(Mistaken::new(store, mistake)),
            None => store,
        })
    }

    async fn connect_once(&self, url: &str, by_proxy: bool) -> Result<Arc<dyn Store>> {
        let config = || Config { ttl: Some(TTL), heartbeat: Some(CALL), ..Config::default() };
        let mut parsed = None;
        self.access.as_client(by_proxy, &mut || parsed = Some(Target::parse(url, config())));
        let (target, settings) = parsed.expect("what the client is to do is done")?;
        target.connect(&settings).await
    }
}

impl Client {
    /// Opens a session.
    pub(super) async fn open(store: Arc<dyn Store>, member: &str) -> Result<Self> {
        let session = NewSession { id: SessionId::random(), member: member.into(), ttl: TTL };
        open(&*store, &session).await?;
        Ok(Self { store, session })
    }

    /// Opens the same session once more.
    pub(super) async fn open_again(&self) -> Result<Option<Duration>> {
        open(&*self.store, &self.session).await
    }

    /// A new entry of this client, which is not entered yet.
    pub(super) fn entry(&self, queue: &QueueKey, mode: Mode, data: &str) -> NewEntry {
        let id = EntryId::random(self.session.id);
        NewEntry {
            entry_ref: EntryRef { queue: queue.clone(), id },
            session: self.session.id,
            member: Arc::clone(&self.session.member),
            label: None,
            mode,
            data: data.into(),
            room: Room::default(),
        }
    }

    /// Enters an exclusive entry.
    pub(super) async fn enter(&self, queue: &QueueKey) -> Result<(NewEntry, Position)> {
        self.enter_as(queue, Mode::Exclusive).await
    }

    /// Enters an entry of this mode.
    pub(super) async fn enter_as(
        &self,
        queue: &QueueKey,
        mode: Mode,
    ) -> Result<(NewEntry, Position)> {
        let entry = self.entry(queue, mode, "");
        let position = self.enter_this(&entry).await?;
        Ok((entry, position))
    }

    pub(super) async fn enter_this(&self, entry: &NewEntry) -> Result<Position> {
        retry_until_settled(|| self.store.enter(entry)).await
    }

    pub(super) async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        retry_until_settled(|| self.store.update(entry, seq)).await
    }

    pub(super) async fn leave(&self, entry: &NewEntry, seq: Option<u64>) -> Result<()> {
        retry_until_settled(|| self.store.leave(&entry.entry_ref, seq)).await
    }

    pub(super) async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        retry_until_settled(|| self.store.position(entry, seq)).await
    }

    pub(super) async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        retry_until_settled(|| self.store.read(queue)).await
    }

    pub(super) async fn read_standing(&self, queue: &QueueKey) -> Result<Listing> {
        retry_until_settled(|| self.store.read_standing(queue)).await
    }

    /// The numbers of the entries in a queue.
    pub(super) async fn numbers(&self, queue: &QueueKey) -> Result<Vec<u64>> {
        Ok(self.read(queue).await?.entries.iter().map(|entry| entry.seq).collect())
    }

    /// Whether a queue has no entry.
    pub(super) async fn is_empty(&self, queue: &QueueKey) -> Result<bool> {
        Ok(self.numbers(queue).await?.is_empty())
    }

    /// The data of a queue's value.
    pub(super) async fn value(&self, queue: &QueueKey) -> Result<Option<Data>> {
        Ok(self.read(queue).await?.value.map(|value| value.data))
    }

    pub(super) async fn write(&self, write: &Write) -> Result<Option<u64>> {
        retry_until_settled(|| self.store.write(write)).await
    }

    /// Sends heartbeats until one is answered; returns which of these entries are gone.
    pub(super) async fn renew(&self, held: &[EntryRef]) -> Result<Vec<EntryId>> {
        repeat(|| self.renew_once(held)).await
    }

    pub(super) async fn renew_once(&self, held: &[EntryRef]) -> Result<Vec<EntryId>> {
        let gone: Mutex<Vec<EntryId>> = Mutex::default();
        let note = |id: &EntryId| gone.lock().expect("nobody panics here").push(id.clone());
        attempt(self.store.renew(self.session.id, held, &note)).await?;
        Ok(gone.into_inner().expect("nobody panics here"))
    }

    /// Those of these entries that a list of the session's entries lacks.
    pub(super) async fn missing(&self, held: &[EntryRef]) -> Result<Vec<EntryId>> {
        let missing = repeat(|| attempt(self.store.missing(self.session.id, held))).await?;
        Ok(missing.expect("a few entries are not too many"))
    }

    /// The names of the queues that have an entry, in order.
    pub(super) async fn queues(&self) -> Result<Vec<String>> {
        all_pages(async |from| retry_until_settled(|| self.store.queues("lock", from)).await).await
    }

    /// The names of the queues that have a value, in order.
    pub(super) async fn names(&self) -> Result<Vec<String>> {
        all_pages(async |from| retry_until_settled(|| self.store.names("lock", from)).await).await
    }

    pub(super) async fn close(&self) -> Result<()> {
        retry_until_settled(|| self.store.close(self.session.id)).await
    }
}

async fn all_pages(page: impl AsyncFn(Option<&Cursor>) -> Result<Page>) -> Result<Vec<String>> {
    let (mut names, mut from) = (Vec::new(), None);
    loop {
        let page = page(from.as_ref()).await?;
        names.extend(page.names);
        from = match page.next {
            Some(next) => Some(next),
            None => break,
        };
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// A queue; each check has a namespace of its own, so that names need not differ from check to check.
pub(super) fn queue(name: &str) -> QueueKey {
    QueueKey::new("lock", name, DEFAULT_MAX_NAME_BYTES).expect("the checks' names are good")
}

/// Opens a session as the session's keeper does: with more time than another call, because on some stores opening has several
/// steps, and no lease depends on it.
pub(super) async fn open(store: &dyn Store, session: &NewSession) -> Result<Option<Duration>> {
    repeat(|| given_up_after(TTL / 6, store.open(session))).await
}

/// One call as the session makes it: given up after a while.
pub(super) async fn attempt<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    given_up_after(CALL, call).await
}

async fn given_up_after<T>(limit: Duration, call: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        let error = Error::new(ErrorKind::Unavailable, "suite", "no answer in time");
        Err(error.with_effect(Effect::Unknown))
    })
}

/// Repeats a call until it is answered, as the session does.
pub(super) async fn retry_until_settled<T, C>(call: impl Fn() -> C) -> Result<T>
where
    C: Future<Output = Result<T>>,
{
    repeat(|| attempt(call())).await
}

async fn repeat<T, C>(call: impl Fn() -> C) -> Result<T>
where
    C: Future<Output = Result<T>>,
{
    let tries = async {
        loop {
            match call().await {
                Err(error) if may_pass(&error) => tokio::time::sleep(CALL / 10).await,
                answer => return answer,
            }
        }
    };
    tokio::time::timeout(REPEATED, tries).await.expect("the store answers, if the call is repeated")
}

/// Whether the same call may succeed later.
pub(super) fn may_pass(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Refused | ErrorKind::Dns)
}

/// Polls a call this often and then drops it; returns its result, if it completed.
pub(super) async fn dropped_after<T>(polls: u32, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    let mut left = polls;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        call.as_mut().poll(context).map(Some)
    })
    .await
}
