//! A connection: how scripts are called on it, and what this client knows of the server's *record* of the namespace. The record is
//! a hash at the server, stored next to the namespace's clock. It says what the server may have forgotten (`scripts/prelude.lua`).
//!
//! A server closes the connection of a subscriber if too many bytes wait to be sent on it (`client-output-buffer-limit pubsub`, 32
//! MB by default), and answers to calls count. So listings, which may be larger, are requested on a connection of their own.

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

/// After this time the server is asked again for what may have changed while it runs: whether it syncs its log, and its record.
const OLD: Duration = Duration::from_secs(10);
/// For this long after a refusal because of quarantine, further calls are refused without asking the server. The server has said
/// when quarantine ends; it can end earlier only if another client knows that the server has forgotten nothing for longer.
const QUIET: Duration = Duration::from_secs(1);

pub(super) struct Connection {
    pub(super) epoch: u64,
    pub(super) server: Server,
    pub(super) topology: Topology,
    pub(super) host: Host,
    /// The address of `host` to which the connection goes, if one was chosen.
    address: Option<SocketAddr>,
    pub(super) redis: RawConnection,
    connections: Weak<Connections>,
    listings: Listings,
    /// A second connection, on which calls wait for replicas; `None`: no replica has to confirm.
    pub(super) confirming: Option<RawConnection>,
    silence: Silence,
    clock: String,
    /// In a cluster, the name of a key that never exists; see [`Call::command`].
    nowhere: Option<String>,
    unknown: Duration,
    /// Whether the server, if it has a log, syncs it to the disk for each write.
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
    /// The call was made at the wrong server: the server at this host has our keys, or is the master. The call had no effect, or
    /// one that the master does not know of.
    Moved(Host),
    /// Our keys are being moved to another node of the cluster. The call had no effect.
    Moving,
}

/// What a server told this client last: the name of its record, and the newest time under that record. A server whose data are
/// older has lost writes.
#[derive(Clone, Default)]
pub(super) struct Known {
    /// The record's name; empty: no server has told one yet.
    record: String,
    /// The newest time, in microseconds of the namespace's clock.
    time: u64,
}

impl Known {
    fn was_told(&mut self, record: &str) {
        if self.record != record {
            *self = Self { record: record.to_owned(), time: 0 };
        }
    }

    /// The newest time that was told under this record; zero if the newest record is another one.
    fn time_in(&self, record: &str) -> u64 {
        if self.record == record { self.time } else { 0 }
    }

    /// Notes a time that was told under this record. A time of an earlier record is ignored: its answer came late.
    fn was_told_time(&mut self, record: &str, time: u64) {
        if self.record == record {
            self.time = self.time.max(time);
        }
    }
}

/// The server's record of the namespace, as the newest greeting returned it. The server gives the record a new name whenever it may
/// have forgotten something. At the moment `told`, when the greeting was answered, the server had certainly forgotten nothing for
/// the time `reach`.
struct Record {
    name: String,
    reach: Duration,
    told: Instant,
    /// The moment `told` by this host's clock since boot, which other processes on this host read too: see
    /// [`behind`](Self::behind).
    told_here: BootInstant,
    /// When the server was last asked for its record.
    asked: Instant,
    /// Whether it was logged that nothing is granted under this record yet.
    is_quarantine_told: bool,
    /// The last refusal because of quarantine, for each length of quarantine that calls ask for.
    refused: HashMap<String, Refusal>,
}

/// The answer to a call that was refused because of quarantine.
#[derive(Clone)]
struct Refusal {
    told: Instant,
    until: Instant,
    why: Option<String>,
}

impl Connection {
    /// A connection to the server at `host`, which was probed with these results, and was not greeted yet.
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

    /// Calls a script. If the server has another record than this client knows (`stranger`), greets the server and calls the script
    /// again.
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

    /// [`run`](Self::run), and waits until replicas have confirmed the call, if the server requires that (`min-replicas-to-write`).
    ///
    /// The call is made on the second connection, because the server answers nothing else on a connection that waits for replicas.
    /// A heartbeat also sends a request on the first connection. Otherwise, if this process only waits for messages there, nobody
    /// would notice that it has gone silent.
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

    /// Runs `work` on the second connection, and measures for how long that connection is silent. Answers on the first connection
    /// do not prove that the second one works.
    async fn listening<T>(&self, work: impl Future<Output = T>) -> T {
        self.silence.asked();
        let _listening = Listening(self);
        let outcome = work.await;
        self.silence.ended();
        outcome
    }

    /// Asks the server again for what may have changed since the connection was made: whether the log is synced, and, by a
    /// greeting, whether the server was a replica in between.
    pub(super) async fn look_again(&self) -> Result<(), Failure> {
        let is_so = syncs(&self.redis).await == Some(true);
        self.syncs.store(is_so, Ordering::Relaxed);
        self.greet().await.map(drop)
    }

    /// Greets the server (`greet.lua`): sends what this client knows of the record, and notes the record that the server returns.
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

    /// The name of the server's record of the namespace, which says what the server may have forgotten, as of the newest greeting.
    /// The server gives the record a new name whenever it may have forgotten something.
    pub(super) fn record_name(&self) -> String {
        self.record().name.clone()
    }

    /// Whether the server has certainly forgotten nothing for at least this long.
    pub(super) fn reaches(&self, length: Duration) -> bool {
        self.record().reach() >= length
    }

    /// Whether the server was not asked for its record for a while.
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
        // The first call of a script on a connection sends the script's text: if the server did not know its hash, the call would
        // take two round trips.
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

    /// Makes another connection to the same server. When it ends, this connection is not given up.
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

/// A wait for an answer on the second connection. When it is dropped and that connection has been silent for too long, the epoch is
/// given up.
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

    /// Notes the record that a greeting returned. If it is the same record, and this client knows of a longer reach, the longer
    /// reach is kept.
    fn update(&mut self, told: Self) {
        if self.name == told.name && self.reach() >= told.reach {
            self.asked = told.asked;
        } else {
            let is_quarantine_told = self.is_quarantine_told && self.name == told.name;
            *self = Self { is_quarantine_told, ..told };
        }
    }

    /// The refusal that the server would give this call too; `None`: the server has to be asked.
    fn refusal(&self, call: &Call) -> Option<Refusal> {
        let refusal = self.refused.get(call.quarantine()?)?;
        let is_told = refusal.told.elapsed() < QUIET && Instant::now() < refusal.until;
        is_told.then(|| refusal.clone())
    }

    /// Notes the refusal of this call. Returns whether it is the first under this record, and so has to be logged.
    fn note(&mut self, call: &Call, refusal: Refusal) -> bool {
        if let Some(length) = call.quarantine() {
            self.refused.insert(length.to_owned(), refusal);
        }
        !std::mem::replace(&mut self.is_quarantine_told, true)
    }

    /// This host's clock minus the record's reach, in microseconds. The difference stays the same as long as nothing is forgotten:
    /// so if all clients stop, the next client on this host can tell from its clock for how long nothing was forgotten.
    fn behind(&self) -> i128 {
        i128::from(micros(self.told_here))
            - i128::try_from(self.reach.as_micros()).unwrap_or(i128::MAX)
    }

    /// For how long the server has certainly forgotten nothing by now.
    fn reach(&self) -> Duration {
        self.reach.saturating_add(self.told.elapsed())
    }
}

/// The name of this host's clock, which counts from the boot and cannot be set: the id of the boot. `None`: this process is in a
/// time namespace, where the clock is another one, or the id cannot be read.
fn host() -> Option<&'static str> {
    /// The name of the kernel's first time namespace, whose clock has no offset.
    const INITIAL: &str = "time:[4026531834]";
    static HOST: LazyLock<Option<String>> = LazyLock::new(|| {
        // If there is no such link, the kernel has no time namespaces.
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

/// How many replicas have confirmed everything that was written on this connection. Waits until as many as `wanted` have, or
/// `limit` is over.
pub(super) async fn replicas_of(
    connection: &RawConnection,
    wanted: usize,
    limit: Duration,
    operation: &'static str,
) -> Result<usize, Failure> {
    let mut command = redis::cmd("WAIT");
    // A limit of zero would mean to wait for ever.
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

/// Returns an error for those statuses that mean the same in all scripts. The caller has handled the status `quarantine` before.
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
