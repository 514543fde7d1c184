//! A connection to a server: how scripts are called on it, and what this client knows of the server's *record* of the namespace.
//! The record is a hash at the server, in the same key as the namespace's clock (`scripts/prelude.lua`). It says for how long the
//! server has certainly forgotten no grant.
//!
//! A server closes a connection that subscribes to channels if too many bytes wait to be sent on it (`client-output-buffer-limit
//! pubsub`, 32 MB by default). Answers to calls count towards this limit. So calls whose answers may be larger (listings of queues
//! and names) are made on a separate connection that subscribes to nothing.

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
use super::script::{Answer, Call, Script, Source};
use super::server::Server;
use super::silence::Silence;
use super::topology::{Topology, moved};
use crate::backend::server::connections::Failure;
use crate::env::unix_micros;
use crate::error::{Effect, Error, ErrorKind, LossReason, Result};
use crate::time::BootInstant;
use crate::url::Host;

/// If the last greeting is longer ago than this, the next heartbeat asks the server again for its record and for whether it syncs
/// its log for each write: both may change while the server runs.
const OLD: Duration = Duration::from_secs(10);
/// If the server has refused a call because of quarantine, this client refuses further such calls by itself for this long, without
/// a request. After that, this client sends its next such call to the server, even if the server has announced a later end of
/// quarantine. Quarantine may end earlier than announced, if another client tells the server that the server has forgotten nothing
/// for a longer time.
const QUIET: Duration = Duration::from_secs(1);

pub(super) struct Connection {
    pub(super) epoch: u64,
    pub(super) server: Server,
    pub(super) topology: Topology,
    pub(super) host: Host,
    /// The address of `host` to which this connection was made; the connection for listings is made to the same address. `None`:
    /// any address of the host was good.
    address: Option<SocketAddr>,
    pub(super) redis: RawConnection,
    connections: Weak<Connections>,
    listings: Listings,
    /// A second connection to the same server, for calls that have to wait until replicas confirm them (`WAIT`). `None`: the server
    /// does not require that replicas confirm writes.
    pub(super) confirming: Option<RawConnection>,
    silence: Silence,
    clock: String,
    /// In a cluster, the name of a key that never exists, which each call names in addition; see [`Call::command`] for the reason.
    nowhere: Option<String>,
    unknown: Duration,
    /// Whether the server's settings say that each write is synced to the disk if the server has a log (`appendonly`). The greeting
    /// sends this, because a script cannot read settings.
    syncs: AtomicBool,
    known: Arc<Mutex<Known>>,
    record: Mutex<Record>,
    /// The set of scripts whose full text was sent on this connection: one bit per script. Later calls of such a script send only
    /// its hash.
    sent: AtomicU16,
    /// How long a call waits for replicas to confirm it.
    confirmed_within: Duration,
}

pub(super) enum Ran {
    Answer(Answer),
    /// The call was made at the wrong server. It has to be made again at this host, which has our keys or is the master. The call
    /// had no effect that counts: a node without our keys refuses it, and the new master does not know what an old master has
    /// written.
    Moved(Host),
    /// Our keys are being moved to another node of the cluster. The call had no effect, and has to be made again a moment later.
    Moving,
}

/// What this client last heard from a server: the name of its record, and the newest time under that record. Both are sent with
/// each call. If the server's own data are older than this time, the server has lost writes, and finds that out from the call.
#[derive(Clone, Default)]
pub(super) struct Known {
    /// The record's name; empty: no server has been greeted yet.
    record: String,
    /// The newest time in an answer, in microseconds of the namespace's clock; 0: no answer under this record had a time.
    time: u64,
}

impl Known {
    fn was_told(&mut self, record: &str) {
        if self.record != record {
            *self = Self { record: record.to_owned(), time: 0 };
        }
    }

    /// The newest time that an answer under this record had. Zero if `record` is not the record that a server last named.
    fn time_in(&self, record: &str) -> u64 {
        if self.record == record { self.time } else { 0 }
    }

    /// Notes the time in an answer that was given under this record. If a greeting has named another record since, the answer came
    /// late, and its time is ignored.
    fn was_told_time(&mut self, record: &str, time: u64) {
        if self.record == record {
            self.time = self.time.max(time);
        }
    }
}

/// The server's record of the namespace, as the newest greeting returned it. The server gives the record a new name whenever it may
/// have forgotten grants. The greeting was answered at the moment `told`; at that moment, the server had certainly forgotten
/// nothing within the last `reach`.
struct Record {
    name: String,
    /// How many records were told on this connection before this one.
    number: u64,
    reach: Duration,
    told: Instant,
    /// The same moment as `told`, by the clock that counts since this host's boot. All processes of the host share that clock, so
    /// [`behind`](Self::behind) uses it.
    told_here: BootInstant,
    /// The same moment by the wall clock, in microseconds since 1970.
    told_by_wall: u64,
    /// When the server last answered a greeting; by this the client knows when to greet it again. If that greeting returned the
    /// record that the client knew already, and no longer `reach` than the client's own, then `told` is older than `asked`.
    asked: Instant,
    /// Whether a warning was logged that the server grants nothing yet under this record. It is logged once for each record.
    is_quarantine_told: bool,
    /// For each length of quarantine that a refused call has asked for (as text; empty: the longest lease): the last refusal of
    /// such a call.
    refused: HashMap<String, Refusal>,
}

/// A refusal because of quarantine: when the server's answer came (`told`), when quarantine ends by that answer (`until`), and what
/// the server may have forgotten (`why`).
#[derive(Clone)]
struct Refusal {
    told: Instant,
    until: Instant,
    why: Option<String>,
}

impl Connection {
    /// Makes the state of a connection to the server at `host`. The last argument is what `probe` has found out about the server.
    /// The caller has to greet the server before it makes calls.
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

    /// Calls a script on `redis`. The answer `stranger` means that the server has another record than this client knows; then this
    /// greets the server, by which the client learns the new record, and calls the script again.
    pub(super) async fn run(&self, redis: &RawConnection, call: &Call) -> Result<Ran, Failure> {
        if let Some(refusal) = self.record().refusal(call) {
            return Err(Failure::harmless(refusal.error(call.operation)));
        }
        // Read before the call is sent. If a greeting names another record while the call is under way, the answer has the earlier
        // one as its source, and a grant in it is asked for again.
        let mut source = self.source();
        let mut ran = self.evaluate(redis, call).await?;
        if matches!(&ran, Ran::Answer(answer) if answer.status == "stranger") {
            match self.greet().await? {
                Ran::Answer(_) => {
                    source = self.source();
                    ran = self.evaluate(redis, call).await?;
                }
                elsewhere => return Ok(elsewhere),
            }
        }
        let Ran::Answer(mut answer) = ran else { return Ok(ran) };
        answer.source = source;
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

    /// Makes a call as [`run`](Self::run) does. If the server has `min-replicas-to-write`, then waits until that many replicas have
    /// confirmed what the call wrote.
    ///
    /// The call and the `WAIT` for replicas go over the second connection (`confirming`): while `WAIT` waits, the server answers
    /// nothing else on its connection. A heartbeat also sends the command `TIME` over the first connection. Otherwise, while this
    /// process only waits for messages on the first connection, nobody would notice that the server no longer answers there.
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

    /// Runs `work`, which sends a request on the second connection and waits for the answer. Measures for how long no answer comes
    /// on the second connection. When `Listening` is dropped and no answer has come for too long, it gives up the epoch. Answers on
    /// the first connection do not prove that the second one works, so the rotation's own measurement is not enough.
    async fn listening<T>(&self, work: impl Future<Output = T>) -> T {
        self.silence.asked();
        let _listening = Listening(self);
        let outcome = work.await;
        self.silence.ended();
        outcome
    }

    /// Asks the server again for two things that may have changed since the connection was made: whether it syncs its log for each
    /// write, and, by a greeting, whether it has another record, for instance because it was a replica in between.
    pub(super) async fn look_again(&self) -> Result<(), Failure> {
        let is_so = syncs(&self.redis).await == Some(true);
        self.syncs.store(is_so, Ordering::Relaxed);
        self.greet().await.map(drop)
    }

    /// Greets the server: calls the script `greet.lua` with what this client knows of the namespace's record, and notes the record
    /// that the script returns. If the server may have forgotten grants, the script begins a new record.
    pub(super) async fn greet(&self) -> Result<Ran, Failure> {
        let known = locked(&self.known).clone();
        let call = Call::new("connect", Script::Greet)
            .with(if self.syncs.load(Ordering::Relaxed) { "1" } else { "0" })
            .with(self.unknown.as_micros().to_string())
            .with(host().unwrap_or_default())
            .with_number(micros(BootInstant::now()))
            .with_number(unix_micros())
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

    /// The name of the server's record of the namespace, as the newest greeting returned it. The record has a new name whenever the
    /// server may have forgotten grants.
    pub(super) fn record_name(&self) -> String {
        self.record().name.clone()
    }

    /// The source of an answer that this server gives now.
    pub(super) fn source(&self) -> Source {
        let (epoch, record) = (self.epoch, self.record().number);
        Source { epoch, record, needs_replicas: self.confirming.is_some() }
    }

    /// Whether the server is known to have forgotten nothing within the last `length`.
    pub(super) fn reaches(&self, length: Duration) -> bool {
        self.record().reach() >= length
    }

    /// Whether the last greeting is longer ago than `OLD`, so that it is time for another one.
    pub(super) fn is_old(&self) -> bool {
        self.record().asked.elapsed() > OLD
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        locked(&self.record)
    }

    async fn evaluate(&self, redis: &RawConnection, call: &Call) -> Result<Ran, Failure> {
        if !call.is_for(self.source()) {
            return Ok(Ran::Answer(Answer::not_sent()));
        }
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
                    command.arg(host).arg(record.behind());
                }
                command
            };
            command.query_async::<Value>(&mut redis.clone()).await
        };
        // The first call of a script on a connection sends the script's text, later calls only its hash. If the first call sent the
        // hash too and the server did not know it, the call would take two round trips.
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

    /// Makes another connection to the same server, for listings. Its end is only noted in `is_over`, and does not give up the main
    /// connection.
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

    /// Makes the error clearer if one of our keys has another type than our scripts use (`WRONGTYPE`), because another program has
    /// written it: the message then says which keys belong to this namespace.
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

/// Exists while a caller waits for an answer on the second connection. When it is dropped, because the answer came or the caller
/// gave up, it checks for how long no answer has come on that connection. If that is too long, it gives up the epoch, so that both
/// connections are replaced.
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
            number: 0,
            reach: Duration::ZERO,
            told,
            told_here,
            told_by_wall: unix_micros(),
            asked: told,
            is_quarantine_told: false,
            refused: HashMap::new(),
        }
    }

    fn read(answer: &mut Answer) -> Result<Self> {
        let (name, reach) = (answer.text()?, Duration::from_micros(answer.natural()?));
        Ok(Self { name, reach, ..Self::none() })
    }

    /// Notes the record that a greeting returned. If it is the record that this client knows already, and the client knows of a
    /// longer `reach` than the server, the client's own `reach` is kept.
    fn update(&mut self, told: Self) {
        if self.name == told.name && self.reach() >= told.reach {
            self.asked = told.asked;
        } else {
            let is_same = self.name == told.name;
            let is_quarantine_told = self.is_quarantine_told && is_same;
            let number = self.number + u64::from(!is_same);
            *self = Self { is_quarantine_told, number, ..told };
        }
    }

    /// The server's last refusal because of quarantine, if it applies to this call too and is recent; then the call fails with it,
    /// without a request. `None`: the call has to be sent to the server.
    fn refusal(&self, call: &Call) -> Option<Refusal> {
        let refusal = self.refused.get(call.quarantine()?)?;
        let is_told = refusal.told.elapsed() < QUIET && Instant::now() < refusal.until;
        is_told.then(|| refusal.clone())
    }

    /// Notes that the server refused this call because of quarantine. Returns true for the first refusal under this record: then
    /// the caller logs it.
    fn note(&mut self, call: &Call, refusal: Refusal) -> bool {
        if let Some(length) = call.quarantine() {
            self.refused.insert(length.to_owned(), refusal);
        }
        !std::mem::replace(&mut self.is_quarantine_told, true)
    }

    /// The moment since when the server has forgotten nothing, in microseconds: by this host's clock since boot, and by its wall
    /// clock. During quarantine, a call that opens a session stores this moment at the server. If all clients stop for a while and a
    /// client on this host comes back, the script `greet.lua` subtracts the stored moment from that client's clocks. The smaller
    /// difference is for how long nothing was forgotten.
    ///
    /// The wall clock can only make that time shorter. All virtual machines that were resumed from one saved state have the id of the
    /// same boot, and each has a clock of its own: each goes on from the same reading, at another time. By the clock since boot
    /// alone, the time between their resumes would count as time in which the server has forgotten nothing.
    fn behind(&self) -> String {
        let reach = i128::try_from(self.reach.as_micros()).unwrap_or(i128::MAX);
        let before = |moment: u64| i128::from(moment) - reach;
        format!("{} {}", before(micros(self.told_here)), before(self.told_by_wall))
    }

    /// For how long, until now, the server has certainly forgotten nothing: `reach` at the greeting, plus the time that has passed
    /// since then.
    fn reach(&self) -> Duration {
        self.reach.saturating_add(self.told.elapsed())
    }
}

/// A name for this host's clock that counts since the boot and that nobody can set: the id of the boot. Two processes that have the
/// same name read the same clock, unless they are in virtual machines that were resumed from one saved state: see
/// [`Record::behind`]. `None`: this process runs in a time namespace, which has a clock of its own, or the id cannot be read.
fn host() -> Option<&'static str> {
    /// The name of the kernel's first time namespace, whose clock has no offset.
    const INITIAL: &str = "time:[4026531834]";
    static HOST: LazyLock<Option<String>> = LazyLock::new(|| {
        // If this link does not exist, the kernel has no time namespaces, so the process has the host's clock.
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

/// How many replicas have confirmed everything that was written on this connection (`WAIT`). Waits until at least `wanted` replicas
/// have, or until `limit` is over.
pub(super) async fn replicas_of(
    connection: &RawConnection,
    wanted: usize,
    limit: Duration,
    operation: &'static str,
) -> Result<usize, Failure> {
    let mut command = redis::cmd("WAIT");
    // At least one millisecond, because `WAIT` takes a limit of zero as no limit.
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

/// Returns an error if the answer's status is one of those that mean the same failure in all scripts. The caller has handled the
/// status `quarantine` before this, and has greeted the server once if the status was `stranger`.
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
