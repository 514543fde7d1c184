//! `redis://host:6379/0`: many hosts, over one Redis server, or the master that Sentinels name.
//!
//! # How it works
//!
//! Every step is one Lua script, and all keys of a namespace have one hash tag, `{<namespace>}:`. A session is
//! a hash with the moment of its end, on a clock of the namespace: the server's, which goes on from where it
//! was if that is set back. An exclusive entry that comes to an empty queue is one string; as soon as there are
//! several, they stand in sorted sets of the queue, exclusive or shared, by their numbers. The text of an
//! entry stands with its session, so that it ends with it. A number is one more than the last, which each
//! heartbeat lifts to the clock's time in microseconds; it is the fencing token. An uncontended lock costs
//! one request, and one more to release, and few commands within it: nothing is told in a queue's channel
//! unless somebody has read or followed one lately, and who comes to a free lock is not asked for the time, as his
//! client knows when his own lease ends, and before the server.
//!
//! Whoever leaves a queue tells those whom he kept waiting, each on the channel of its process, and says
//! whether their turn has come, which spares them a request. A message may be lost: so waiters look themselves
//! when the lease of what they wait for may be over, and after each loss of a connection. Whoever meets a
//! session that has expired ends it. All this goes over one connection per coordinator.
//!
//! A call that was given up may arrive after later ones, but only on a connection that was given up too. So
//! each connection has a number, and the scripts refuse what comes on an older one than the newest that was
//! heard of for the session. A server that comes back with older data is told by each client which entries it
//! knows, and forgets its others.
//!
//! # Guarantees
//!
//! Exclusion, order and tokens hold over crashes of clients, and over a restart of a server whose log is
//! synced for each write (`appendonly yes`, `appendfsync always`). Any other server may forget who holds what
//! when it restarts: it grants nothing until it is up for the longest lease (*quarantine*). Replication is
//! asynchronous, so a fail-over may forget the newest grants: two may hold, until the first one's next
//! heartbeat. Tokens go on rising over all that, also over loss of all data, as long as the server's clock
//! was not set back. Where that clock is set forward, sessions end early by as much: holders learn it with
//! their next heartbeat, and fencing covers the rest. A crashed holder is followed within its lease.
//!
//! # Requirements
//!
//! Redis 6 or newer. The user needs the keys `~{<namespace>}:*`, the channels `&{<namespace>}:*` and the commands
//! `+info +subscribe +unsubscribe +publish +eval +evalsha +time` with `+@hash +@sortedset +@string +del +exists`;
//! `+config|get` tells whether the log is synced. Keys must not be evicted: `maxmemory-policy noeviction`.
//!
//! # URL options
//!
//! `rediss://` is TLS; `redis+unix:///path` is a socket, with the database as `db`. Otherwise the path is the
//! number of the database. Several hosts are tried in random order.
//!
//! * `sentinel`: the hosts are Sentinels, and this is the name of their master.
//! * `quarantine`: how long a server that may have forgotten must be up, if not for the longest lease; or `off`.
//! * `ca`, `cert`, `key`: PEM files. Without `ca`, the system's certificates count.
//! * `server_name`: what the server's certificate says, if it is not the host.
//! * `password_file`: a file with the password, instead of one in the URL.

mod client;
mod config;
mod entries;
mod entry;
mod error;
#[cfg(test)]
mod fuzz;
mod link;
mod reads;
mod script;
mod server;
mod session;
mod values;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;

use self::client::Connections;
use self::config::Quarantine;
pub(crate) use self::config::{Config, OPTIONS};
use self::entry::{Entries, entry_of};
use self::reads::{Reads, revision_of};
use self::script::{Answer, Call, Script};
use self::server::Server;
use self::session::Sessions;
use self::values::{Kept, value_of};
use self::watch::{Hub, Wait, word_for};
use super::stored::{StoredEntry, check_name};
use super::{
    Backend, Blocker, Clock, EntryId, EntryRef, Listing, Mode, NewEntry, NewSession, Position,
    SessionId, Write,
};
use crate::characteristics::{Characteristics, Durability, Liveness, LossDetection, Scope};
use crate::config::{DEFAULT_TTL, Settings};
use crate::error::{Effect, Error, ErrorKind, Result};
use crate::key::QueueKey;

/// The backend: a namespace of a server.
pub(crate) struct Redis {
    connections: Arc<Connections>,
    hub: Arc<Hub>,
    sessions: Sessions,
    entries: Entries,
    reads: Reads,
    /// As it was found at first.
    server: Server,
    /// For how many microseconds a server that may have forgotten must be up; negative: or the longest lease.
    quarantine: i64,
    /// How long one read may take within a wait.
    patience: Duration,
}

impl Redis {
    /// Connects, and asks who answers.
    pub(crate) async fn connect(config: Config, settings: &Settings) -> Result<Self> {
        let patience = settings.heartbeat.min(settings.ttl / 6);
        let base = format!("{{{}}}:", settings.namespace);
        let client = SessionId::random().to_string();
        let hub = Arc::new(Hub::new(&base, &client));
        let quarantine = quarantine(config.quarantine, settings.ttl);
        let clock = format!("{base}clock");
        let connections =
            Arc::new(Connections::new(config, settings, patience, clock, Arc::clone(&hub)));
        let server = connections.greet().await?;
        Ok(Self {
            sessions: Sessions::new(client),
            connections,
            hub,
            entries: Entries::default(),
            reads: Reads::default(),
            server,
            quarantine,
            patience,
        })
    }

    /// What the answer says of where an entry stands. From here on its blocker's end is told to us.
    fn standing(&self, entry: &NewEntry, epoch: u64, answer: &mut Answer) -> Result<Position> {
        let queue = &entry.place.queue;
        let seq = answer.natural()?;
        let Some(id) = answer.optional_text()? else {
            self.waits_for(&entry.place.id, None);
            return Ok(Position { seq, blocker: None });
        };
        let before = answer.natural()?;
        let left = Duration::from_micros(answer.natural()?);
        // The entry stands there all the same.
        let named = check_name(queue, &answer.bytes()?.unwrap_or_default());
        named.map_err(|error| error.with_effect(Effect::Unknown))?;
        let shared = entry.mode == Mode::Shared;
        let wait = Wait { queue: queue_path(queue), seq: before, shared };
        self.hub.expect(&wait, self.known(epoch, left));
        self.waits_for(&entry.place.id, Some(wait));
        Ok(Position { seq, blocker: Some(Blocker { id: EntryId::from_store(id), seq: before }) })
    }

    fn waits_for(&self, id: &EntryId, wait: Option<Wait>) {
        let before = self.entries.waits_for(id, wait.clone());
        if let Some(before) = before.filter(|before| Some(before) != wait.as_ref()) {
            self.hub.forget(&before);
        }
    }

    fn text(&self, entry: &NewEntry) -> Result<Vec<u8>> {
        StoredEntry::new(entry, self.entries.since_ms(&entry.place.id)).to_bytes()
    }

    fn epoch(&self) -> u64 {
        *self.connections.epochs().borrow()
    }
}

#[async_trait]
impl Backend for Redis {
    fn scheme(&self) -> &'static str {
        "redis"
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            scope: Scope::Hosts,
            liveness: Liveness::Lease,
            loss_detection: self.loss_detection(),
            survives_restart: self.server.survives_restart(),
            survives_power_loss: self.server.survives_restart(),
            // Replication is asynchronous.
            survives_failover: Durability::No,
            fifo: true,
            fencing_survives_data_loss: true,
            early_expiry: Some(self.server.early_expiry()),
            max_plain_name: 200,
            min_ttl: None,
        }
    }

    fn loss_detection(&self) -> LossDetection {
        LossDetection::Heartbeat
    }

    async fn open(&self, session: &NewSession) -> Result<Option<Duration>> {
        self.sessions.open(&self.connections, session).await.map(Some)
    }

    async fn renew(&self, session: SessionId, held: &[EntryRef]) -> Result<Vec<EntryId>> {
        let gone = self.sessions.renew(&self.connections, session, held).await?;
        self.sessions.settle(&self.connections, session, || self.entries.of(session)).await?;
        Ok(gone)
    }

    async fn close(&self, session: SessionId) -> Result<()> {
        // Whatever the server says: nothing of it is waited for any more.
        self.entries.all_left(session).iter().for_each(|wait| self.hub.forget(wait));
        self.sessions.close(&self.connections, session).await
    }

    async fn enter(&self, entry: &NewEntry) -> Result<Position> {
        let epoch = self.epoch();
        let call = Call::new("enter", Script::Enter)
            .of(entry.session)
            .with(queue_path(&entry.place.queue))
            .with(entry.place.id.as_str())
            .with(word_for(entry.mode))
            .with(self.text(entry)?)
            .quarantined(self.quarantine);
        let mut answer = self.connections.call(&call).await?;
        self.standing(entry, epoch, &mut answer)
    }

    async fn update(&self, entry: &NewEntry, seq: u64) -> Result<bool> {
        let call = Call::new("update", Script::Update)
            .of(entry.session)
            .with(queue_path(&entry.place.queue))
            .with(entry.place.id.as_str())
            .with(word_for(entry.mode))
            .with(self.text(entry)?)
            .with_number(seq)
            .quarantined(self.quarantine);
        let answer = self.connections.call(&call).await?;
        if answer.status == "exclusive" {
            let message = "a shared entry cannot become exclusive";
            return Err(Error::new(ErrorKind::Unsupported, "update", message));
        }
        // As another mode it may wait for another.
        self.waits_for(&entry.place.id, None);
        Ok(answer.is_ok())
    }

    async fn leave(&self, entry: &EntryRef, seq: Option<u64>) -> Result<()> {
        let call = Call::new("leave", Script::Leave);
        let call = match self.sessions.owner(&entry.id) {
            Some(session) => call.of(session),
            None => call.with("").with(""),
        };
        let call = call
            .with(queue_path(&entry.queue))
            .with(entry.id.as_str())
            .with(seq.map(|seq| seq.to_string()).unwrap_or_default());
        self.connections.call(&call).await?;
        if let Some(wait) = self.entries.left(&entry.id) {
            self.hub.forget(&wait);
        }
        Ok(())
    }

    async fn position(&self, entry: &NewEntry, seq: u64) -> Result<Option<Position>> {
        let queue = queue_path(&entry.place.queue);
        // Told by whoever left, as of that moment, of this entry under its own live session.
        if self.hub.take_turn(&queue, seq) {
            self.waits_for(&entry.place.id, None);
            return Ok(Some(Position { seq, blocker: None }));
        }
        let epoch = self.epoch();
        let call = Call::new("position", Script::Position)
            .with(entry.session.to_string())
            .with(queue)
            .with(entry.place.id.as_str())
            .with(word_for(entry.mode))
            .with_number(seq)
            .quarantined(self.quarantine);
        let mut answer = self.connections.call(&call).await?;
        answer.is_ok().then(|| self.standing(entry, epoch, &mut answer)).transpose()
    }

    async fn gone(
        &self,
        entry: &EntryRef,
        seq: u64,
        waiter: Mode,
        recheck: Duration,
    ) -> Result<()> {
        self.wait_gone(entry, seq, waiter, recheck).await
    }

    async fn read(&self, queue: &QueueKey) -> Result<Listing> {
        let path = queue_path(queue);
        let count = self.hub.count(&path, self.epoch());
        let call =
            Call::new("list", Script::Read).with(path).with(queue.kind()).with(queue.encoded());
        let mut answer = self.connections.call(&call).await?;
        let now = Duration::from_micros(answer.natural()?);
        let epoch = answer.natural()?;
        let left = u64::try_from(answer.number()?).ok();
        let value = value_of(queue, &mut answer)?.map(Kept::into_value);
        let clock = Some(Clock { epoch, now });
        let mut listing = Listing { value, clock, ..Listing::default() };
        while !answer.is_at_end() {
            listing.entries.push(entry_of(queue, &mut answer)?);
        }
        listing.entries.sort_unstable_by_key(|entry| entry.seq);
        listing.revision = revision_of(&listing);
        let expires = left.map(|left| Instant::now() + Duration::from_micros(left));
        self.reads.note(queue, listing.revision, count, expires);
        Ok(listing)
    }

    async fn write(&self, write: &Write) -> Result<Option<u64>> {
        self.write_value(write).await
    }

    async fn changed(&self, queue: &QueueKey, revision: u64, recheck: Duration) -> Result<()> {
        self.wait_changed(queue, revision, recheck).await
    }

    async fn names(&self, kind: &'static str) -> Result<Vec<String>> {
        self.names_of_values(kind).await
    }

    async fn queues(&self, kind: &'static str) -> Result<Vec<String>> {
        self.names_of_queues(kind).await
    }
}

/// A queue's name within keys, channels and messages: it has no blank.
fn queue_path(queue: &QueueKey) -> String {
    format!("{}/{}", queue.kind(), queue.encoded())
}

fn quarantine(option: Quarantine, ttl: Duration) -> i64 {
    let micros = |length: Duration| i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
    match option {
        Quarantine::For(length) => micros(length),
        // What the longest lease was may have been forgotten as well.
        Quarantine::Lease => -micros(ttl.max(DEFAULT_TTL)),
    }
}
