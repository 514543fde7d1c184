//! A connection: calls of scripts on it, and what is known of the server's record of the namespace.
//!
//! A server closes the connection of a subscriber for whom more than so many bytes wait (`client-output-buffer-limit pubsub`,
//! 32 MB by default), answers included. So what may be larger, a listing, is asked for on a connection of its own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use redis::{ErrorKind as RedisKind, PushInfo, PushKind, ServerErrorKind, Value};

use super::client::Connections;
use super::error::{failure, is_moving};
use super::link::syncs;
use super::listings::{Listing, Listings};
use super::raw_connection::RawConnection;
use super::script::{Answer, Call, Script};
use super::server::Server;
use super::silence::Silence;
use super::topology::{Topology, moved};
use crate::backend::server::connections::Failure;
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::time::BootInstant;
use crate::url::Host;

/// What may change while the server runs is looked at again after this time.
const OLD: Duration = Duration::from_secs(10);
/// For so long after a refusal the server is not asked again whether there is still quarantine. The refusal tells when that
/// ends; it can end earlier only by what another client knows of the record.
const QUIET: Duration = Duration::from_secs(1);

pub(super) struct Connection {
    pub(super) epoch: u64,
    pub(super) server: Server,
    pub(super) topology: Topology,
    pub(super) host: Host,
    /// Which of its addresses it is, if that was known before.
    address: Option<SocketAddr>,
    pub(super) redis: RawConnection,
    connections: Weak<Connections>,
    listings: Listings,
    /// A second connection, on which calls wait for replicas; `None`: no replica has to confirm.
    pub(super) confirming: Option<RawConnection>,
    silence: Silence,
    clock: String,
    /// In a cluster, the name of a key that there never is.
    nowhere: Option<String>,
    unknown: Duration,
    /// Whether the server syncs a log for each write, if it has one.
    syncs: AtomicBool,
    known: Arc<Mutex<Known>>,
    record: Mutex<Record>,
    /// The scripts that were sent in full, a bit each.
    sent: AtomicU16,
    /// How long replicas may take to confirm.
    confirmed_within: Duration,
}

pub(super) enum Ran {
    Answer(Answer),
    /// The server is not the one that has our keys, or not the master: this one is. Nothing was done, or nothing that
    /// counts.
    Moved(Host),
    /// Our keys are on their way to another node: nothing was done.
    Moving,
}

/// What a server told a client last: its record, and the newest time in it. By that the client recognises a server whose data
/// are older.
#[derive(Clone, Default)]
pub(super) struct Known {
    /// Empty: none yet.
    record: String,
    /// In microseconds of the namespace's clock.
    time: u64,
}

impl Known {
    fn was_told(&mut self, record: &str) {
        if self.record != record {
            *self = Self { record: record.to_owned(), time: 0 };
        }
    }

    /// The last time that was told within it.
    fn time_in(&self, record: &str) -> u64 {
        if self.record == record { self.time } else { 0 }
    }

    /// Notes a time; not one of an earlier record, which an answer that comes late may have.
    fn was_told_time(&mut self, record: &str, time: u64) {
        if self.record == record {
            self.time = self.time.max(time);
        }
    }
}

/// The server's record of the namespace, as the newest greeting told it. The record has another name wherever something may
/// have been forgotten; `reach` is how far the record reached back at that moment.
struct Record {
    name: String,
    reach: Duration,
    told: Instant,
    /// This host's clock then.
    told_here: BootInstant,
    /// When it was asked for last.
    asked: Instant,
    /// It was logged that nothing is granted yet.
    is_quarantine_told: bool,
    /// For each length of quarantine that was asked for: the last refusal.
    refused: HashMap<String, Refusal>,
}

/// A refusal, as nothing is granted yet.
#[derive(Clone)]
struct Refusal {
    told: Instant,
    until: Instant,
    why: Option<String>,
}

impl Connection {
    /// A connection to the server at `host`, which says this of itself, and is yet to be greeted.
    pub(super) fn new(
        connections: &Arc<Connections>,
        (host, address): (&Host, Option<SocketAddr>),
        epoch: u64,
        redis: RawConnection,
        (server, topology, syncs): (Server, Topology, bool),
    ) -> Self {
        let client = &connections.link;
        Self {
            epoch,
            server,
            topology,
            host: host.clone(),
            address,
            redis,
            connections: Arc::downgrade(connections),
            listings: Listings::new(5 * client.patience),
            confirming: None,
            silence: Silence::default(),
            clock: client.clock.clone(),
            nowhere: topology.is_cluster.then(|| client.nowhere.clone()),
            unknown: client.unknown,
            syncs: AtomicBool::new(syncs),
            known: Arc::clone(&client.known),
            record: Mutex::new(Record::none()),
            sent: AtomicU16::new(0),
            confirmed_within: client.patience * 3 / 4,
        }
    }

    /// Runs a script. A server that has another record than we know of is greeted first.
    pub(super) async fn run(&self, redis: &RawConnection, call: &Call) -> Result<Ran, Failure> {
        if let Some(refusal) = self.record().refusal(call) {
            return Err(Failure::harmless(refusal.error(call.operation)));
        }
        let mut ran = self.evaluate(redis, call).await?;
        if matches!(&ran, Ran::Answer(answer) if answer.status == "stranger") {
            match self.greet().await? {
                Ran::Answer(_) => ran = self.evaluate(redis, call).await?,
                elsewhere => return Ok(elsewhere),
            }
        }
        let Ran::Answer(answer) = ran else { return Ok(ran) };
        if answer.status == "quarantine" {
            let refusal = Refusal::read(answer).map_err(Failure::harmless)?;
            let error = refusal.error(call.operation);
            if self.record().note(call, refusal) {
                tracing::warn!("{error}");
            }
            return Err(Failure::harmless(error));
        }
        let checked = checked(call.operation, answer);
        if call.tells_time()
            && let Ok(answer) = &checked
            && let Some(time) = answer.next_number()
        {
            let name = self.record_name();
            locked(&self.known).was_told_time(&name, time);
        }
        checked.map(Ran::Answer).map_err(Failure::harmless)
    }

    /// [`run`](Self::run), and waits until replicas have confirmed it where the server wants that.
    ///
    /// The call is made on the second connection, as the server answers nothing else on a connection while replicas are waited
    /// for. A heartbeat also sends a request on the first connection, to find out whether that is silent: nobody else may send
    /// one there for as long as this process only waits for messages.
    pub(super) async fn run_confirmed(&self, call: &Call) -> Result<Ran, Failure> {
        let Some(confirming) = &self.confirming else { return self.run(&self.redis, call).await };
        let is_there = async {
            if call.is_heartbeat() {
                let told = redis::cmd("TIME").query_async::<Value>(&mut self.redis.clone()).await;
                told.map_err(|error| failure(call.operation, &error))?;
            }
            Ok(())
        };
        let (ran, ()) = tokio::try_join!(self.listening(self.run(confirming, call)), is_there)?;
        if let Ran::Answer(_) = &ran {
            let (wanted, limit) = (self.topology.confirming, self.confirmed_within);
            let count = replicas_of(confirming, wanted, limit, call.operation);
            let count = self.listening(count).await?;
            if count < wanted {
                let message = format!("{count} of {wanted} replicas have confirmed it");
                let error = Error::new(ErrorKind::Unavailable, call.operation, message);
                return Err(Failure::harmless(error.with_effect(Effect::Unknown)));
            }
        }
        Ok(ran)
    }

    /// Runs something on the second connection, and counts how long that is silent: answers on the first one say nothing of it.
    async fn listening<T>(&self, work: impl Future<Output = T>) -> T {
        self.silence.asked();
        let _listening = Listening(self);
        let outcome = work.await;
        self.silence.ended();
        outcome
    }

    /// Asks again what may have changed while the connection stayed: whether the log is synced, and, by a greeting, whether the
    /// server was a replica meanwhile.
    pub(super) async fn look_again(&self) -> Result<(), Failure> {
        let is_so = syncs(&self.redis).await == Some(true);
        self.syncs.store(is_so, Ordering::Relaxed);
        self.greet().await.map(drop)
    }

    /// Greets the server: tells what this client knows, and notes the server's record of the namespace.
    pub(super) async fn greet(&self) -> Result<Ran, Failure> {
        let known = locked(&self.known).clone();
        let call = Call::new("connect", Script::Greet)
            .with(if self.syncs.load(Ordering::Relaxed) { "1" } else { "0" })
            .with(self.unknown.as_micros().to_string())
            .with(host().unwrap_or_default())
            .with_number(micros(BootInstant::now()))
            .with(known.record)
            .with_number(known.time);
        let mut ran = self.evaluate(&self.redis, &call).await?;
        if let Ran::Answer(answer) = &mut ran {
            let told = Record::read(answer).map_err(Failure::harmless)?;
            locked(&self.known).was_told(&told.name);
            self.record().update(told);
        }
        Ok(ran)
    }

    /// The name of the server's record of the namespace, as it was told last: another one wherever something may have been
    /// forgotten.
    pub(super) fn record_name(&self) -> String {
        self.record().name.clone()
    }

    /// Whether that record is known to reach back so far.
    pub(super) fn reaches(&self, length: Duration) -> bool {
        self.record().reach() >= length
    }

    /// Whether it was a while ago that the server was asked for its record.
    pub(super) fn is_old(&self) -> bool {
        self.record().asked.elapsed() > OLD
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        locked(&self.record)
    }

    async fn evaluate(&self, redis: &RawConnection, call: &Call) -> Result<Ran, Failure> {
        let asked = match call.is_listing() {
            true => Some(match self.listings.asked() {
                Some(asked) => asked,
                None => self.listings.asked_on(Box::pin(self.connect_again())).await?,
            }),
            false => None,
        };
        let redis = asked.as_ref().map_or(redis, |asked| asked.redis());
        let send = async |in_full: bool| {
            let command = {
                let record = self.record();
                let newest = locked(&self.known).time_in(&record.name);
                let known = (record.name.as_str(), record.reach(), newest);
                let nowhere = self.nowhere.as_deref();
                let mut command = call.command(&self.clock, nowhere, known, self.epoch, in_full);
                if let Some(host) = host().filter(|_| call.opens()) {
                    command.arg(host).arg(record.behind().to_string());
                }
                command
            };
            command.query_async::<Value>(&mut redis.clone()).await
        };
        // A server that does not know the hash of a script costs a round trip: so the first call on a connection sends the
        // text.
        let is_first = self.sent.fetch_or(call.bit(), Ordering::Relaxed) & call.bit() == 0;
        let answer = match send(is_first).await {
            Err(error) if error.kind() == RedisKind::Server(ServerErrorKind::NoScript) => {
                send(true).await
            }
            answer => answer,
        };
        if let Some(asked) = &asked {
            match &answer {
                Err(error) if failure(call.operation, error).is_broken => asked.give_up(),
                _ => asked.is_answered(),
            }
        }
        match answer {
            Ok(answer) => Answer::read(answer).map(Ran::Answer).map_err(Failure::harmless),
            Err(error) if is_moving(&error) => Ok(Ran::Moving),
            Err(error) => {
                let failure = failure(call.operation, &error);
                let host = failure.moved_to.as_deref().and_then(|to| moved(&self.host, to));
                let refused =
                    || Failure { error: self.of_another_type(failure.error.clone()), ..failure };
                host.map(Ran::Moved).ok_or_else(refused)
            }
        }
    }

    /// Another connection to the same server, whose end says nothing of this one.
    async fn connect_again(&self) -> Result<Listing, Failure> {
        let gone = || Error::new(ErrorKind::Unavailable, "connect", "the store is going away");
        let connections = self.connections.upgrade().ok_or_else(|| Failure::harmless(gone()))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let pushes = move |push: PushInfo| {
            told.fetch_or(push.kind == PushKind::Disconnection, Ordering::Relaxed);
            Ok::<_, ()>(())
        };
        let config = &connections.link.config;
        let (there, credentials) = ((&self.host, self.address), config.access.used());
        let redis = config.connect(there, &credentials, pushes).await?;
        Ok(Listing { redis, is_over })
    }

    /// If a key has another type than ours, the error names the keys that are ours.
    fn of_another_type(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Corrupt {
            return error;
        }
        let base = self.clock.trim_end_matches("clock");
        let message = format!("another program has a key among those of this namespace, `{base}*`");
        let (operation, effect) = (error.operation(), error.effect());
        Error::new(ErrorKind::Corrupt, operation, message).with_effect(effect).with_source(error)
    }
}

/// The wait for an answer that replicas may hold back for a while.
struct Listening<'a>(&'a Connection);

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let Connection { silence, confirmed_within, connections, epoch, .. } = self.0;
        silence.left();
        if silence.is_longer(3 * *confirmed_within) {
            connections.upgrade().into_iter().for_each(|all| all.rotation.give_up(*epoch));
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Record {
    fn none() -> Self {
        let (told, told_here) = (Instant::now(), BootInstant::now());
        let name = String::new();
        Self {
            name,
            reach: Duration::ZERO,
            told,
            told_here,
            asked: told,
            is_quarantine_told: false,
            refused: HashMap::new(),
        }
    }

    fn read(answer: &mut Answer) -> Result<Self> {
        let (name, reach) = (answer.text()?, Duration::from_micros(answer.natural()?));
        Ok(Self { name, reach, ..Self::none() })
    }

    /// Notes what a greeting told. If it is the same record, this client may know that it reaches back further than that.
    fn update(&mut self, told: Self) {
        if self.name == told.name && self.reach() >= told.reach {
            self.asked = told.asked;
        } else {
            let is_quarantine_told = self.is_quarantine_told && self.name == told.name;
            *self = Self { is_quarantine_told, ..told };
        }
    }

    /// The refusal that this call would get, too.
    fn refusal(&self, call: &Call) -> Option<Refusal> {
        let refusal = self.refused.get(call.quarantine()?)?;
        let is_told = refusal.told.elapsed() < QUIET && Instant::now() < refusal.until;
        is_told.then(|| refusal.clone())
    }

    /// Notes the refusal of this call; whether nobody was told of one before.
    fn note(&mut self, call: &Call, refusal: Refusal) -> bool {
        if let Some(length) = call.quarantine() {
            self.refused.insert(length.to_owned(), refusal);
        }
        !std::mem::replace(&mut self.is_quarantine_told, true)
    }

    /// By how many microseconds the record's reach is behind this host's clock.
    fn behind(&self) -> i128 {
        i128::from(micros(self.told_here))
            - i128::try_from(self.reach.as_micros()).unwrap_or(i128::MAX)
    }

    /// How far it reaches back by now, at least.
    fn reach(&self) -> Duration {
        self.reach.saturating_add(self.told.elapsed())
    }
}

/// The name of this host's clock since its boot, which nobody sets: the id of the boot. `None`: this process has another clock,
/// in a time namespace, or the id cannot be read.
fn host() -> Option<&'static str> {
    /// The kernel's first namespace, which has no offset.
    const INITIAL: &str = "time:[4026531834]";
    static HOST: LazyLock<Option<String>> = LazyLock::new(|| {
        // Without a link there are no such namespaces.
        let namespace = std::fs::read_link("/proc/self/ns/time");
        let is_initial = namespace.map_or(true, |link| link.as_os_str() == INITIAL);
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        is_initial.then(|| boot.trim().to_owned())
    });
    HOST.as_deref()
}

fn micros(clock: BootInstant) -> u64 {
    clock.as_nanos() / 1_000
}

/// How many replicas have all that was written on this connection, once they are as many as wanted or the time is over.
pub(super) async fn replicas_of(
    connection: &RawConnection,
    wanted: usize,
    limit: Duration,
    operation: &'static str,
) -> Result<usize, Failure> {
    let mut command = redis::cmd("WAIT");
    // A limit of zero would be none.
    command.arg(wanted).arg(limit.as_millis().max(1));
    let count = command.query_async(&mut connection.clone()).await;
    count.map_err(|error| failure(operation, &error))
}

impl Refusal {
    fn read(mut answer: Answer) -> Result<Self> {
        let left = Duration::from_micros(answer.natural()?);
        let told = Instant::now();
        Ok(Self { told, until: told + left, why: answer.optional_text()? })
    }

    fn error(&self, operation: &'static str) -> Error {
        let left = self.until.saturating_duration_since(Instant::now());
        let why = match self.why.as_deref() {
            Some("empty") => {
                "the server knows nothing of this namespace: it is new, or its data are gone"
            }
            Some("damaged") => {
                "the server's record of what it has granted in this namespace was changed by somebody else"
            }
            Some("replica") => {
                "the server took over, and may not have heard of what was granted last"
            }
            Some("older") => "the server's data are older than what a client was told last",
            _ => "the server was started lately, and may have forgotten what was granted last",
        };
        let message = format!(
            "{why}. Nothing is granted for {left:?} yet, as long as somebody may hold what it does not know of; the \
             option `quarantine` says otherwise"
        );
        Error::new(ErrorKind::Unavailable, operation, message)
    }
}

/// The answers that mean the same in all scripts, but for those of quarantine.
fn checked(operation: &'static str, answer: Answer) -> Result<Answer> {
    let unavailable = |message: &str| Err(Error::new(ErrorKind::Unavailable, operation, message));
    match answer.status.as_str() {
        "lost" => Err(Error::lost(operation, LossReason::ExpiredByServer)),
        "stale" => unavailable("the connection was given up"),
        "stranger" => unavailable("the server lost its data just now"),
        "removed" => unavailable("the entry was removed again"),
        _ => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_record_it_is_told_once_that_nothing_is_granted() {
        let told = |name: &str, seconds| {
            let (name, reach) = (name.to_owned(), Duration::from_secs(seconds));
            Record { name, reach, ..Record::none() }
        };
        let mut record = told("one", 5);
        record.is_quarantine_told = true;
        record.update(told("one", 3));
        assert!(record.is_quarantine_told && record.reach() >= Duration::from_secs(5));
        record.update(told("one", 60));
        assert!(record.is_quarantine_told && record.reach() >= Duration::from_secs(60));
        record.update(told("other", 1));
        assert!(!record.is_quarantine_told && record.reach() < Duration::from_secs(60));
    }
}
