//! Asks the Sentinels of the URL which server is the master.
//!
//! A Sentinel that is cut off together with an old master goes on naming that old master. So a server counts as the master only if
//! more than half of the URL's Sentinels name it: a new master, too, needs the votes of more than half of the Sentinels to take
//! over, and so the two majorities have a Sentinel in common. If the URL names one Sentinel twice, perhaps by two names, it still
//! has one vote.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind};
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

use super::config::Config;
use super::error::failure;
use super::link::{anonymous, open_at};
use super::raw_connection::RawConnection;
use crate::backend::server::connections::Failure;
use crate::backend::server::credentials::Credentials;
use crate::error::{Effect, Error, ErrorKind};
use crate::url::Host;

/// The channel on which a Sentinel publishes that there is another master.
const SWITCHED: &str = "+switch-master";

/// The Sentinels of one URL.
pub(super) struct Sentinels {
    /// The name by which the Sentinels know the master and its replicas (the option `sentinel` of the URL).
    name: String,
    each: Vec<Arc<Sentinel>>,
    /// How long a call may take. Limits the requests to a Sentinel, which go on if the caller of `master` gives up earlier.
    patience: Duration,
    /// Called when a Sentinel has published that another server is the master now.
    on_switch: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct Sentinel {
    host: Host,
    connected: Mutex<Connected>,
}

/// What is needed to connect and log in to a Sentinel: the options of the URL, and the password and certificates.
type Who = (Config, Credentials);

/// The connection to a Sentinel, if there is one, and the number of the newest connection, which rises with each new one. By the
/// number, a late failure of an old connection does not give up a newer one.
#[derive(Clone, Default)]
struct Connected {
    connection: Option<Known>,
    number: u64,
}

/// A connection to a Sentinel, and the id of the Sentinel's process. Two names of the URL that lead to the same Sentinel have the
/// same id, so the Sentinel gets only one vote.
#[derive(Clone)]
struct Known {
    redis: RawConnection,
    id: Arc<str>,
}

/// Counts the answers of the Sentinels to one question for the master.
struct Votes {
    /// How many different Sentinels the URL names. Lowered when two answers turn out to come from the same Sentinel.
    sentinels: usize,
    voted: HashSet<Arc<str>>,
    counts: HashMap<Host, usize>,
}

impl Sentinels {
    /// `hosts`: the Sentinels' hosts; `name`: the master's name; `patience`: how long a call may take.
    pub(super) fn new(hosts: &[Host], name: &str, patience: Duration) -> Self {
        let sentinel = |host: &Host| Sentinel { host: host.clone(), connected: Mutex::default() };
        let each = hosts.iter().map(sentinel).map(Arc::new).collect();
        Self { name: name.to_owned(), each, patience, on_switch: OnceLock::new() }
    }

    /// Sets the function that is called each time that a Sentinel publishes that another server is the master.
    pub(super) fn on_switch(&self, act: impl Fn() + Send + Sync + 'static) {
        // This is called only once, when the store connects. So the function is not set already, and `set` does not fail.
        let _ = self.on_switch.set(Box::new(act));
    }

    /// Asks all Sentinels at the same time, and returns the server that more than half of them name, as soon as that many answers
    /// have come.
    pub(super) async fn master(
        self: &Arc<Self>,
        config: &Config,
        credentials: &Credentials,
    ) -> Result<Host, Failure> {
        let (answer, mut answers) = mpsc::channel(self.each.len());
        for sentinel in &self.each {
            let (sentinels, sentinel) = (Arc::clone(self), Arc::clone(sentinel));
            let who = (config.clone(), credentials.clone());
            let answer = answer.clone();
            // Each Sentinel is asked in a task of its own, which goes on if the caller gives up or has a majority. So the task
            // always waits long enough to find that a Sentinel does not answer, and then drops its connection.
            tokio::spawn(async move {
                let _ = answer.send(sentinels.ask(&sentinel, &who).await).await;
            });
        }
        drop(answer);
        let mut votes = Votes::of(self.each.len());
        let mut failed = Vec::new();
        while let Some(answer) = answers.recv().await {
            match answer {
                Ok((id, host)) => {
                    votes.count(id, host);
                    if let Some(host) = votes.winner() {
                        return Ok(host.clone());
                    }
                }
                Err(failure) => failed.push(failure),
            }
        }
        Err(told(failed, self.each.len()))
    }

    /// Asks a Sentinel for the master, on the existing connection if there is one. If the Sentinel does not answer there in time,
    /// or the connection is broken, asks again on a new connection. Returns the Sentinel's id and the master.
    async fn ask(
        self: &Arc<Self>,
        sentinel: &Sentinel,
        who: &Who,
    ) -> Result<(Arc<str>, Host), Failure> {
        let known = sentinel.connected.lock().await.clone();
        if let Some(connection) = known.connection {
            match timeout(self.patience / 2, self.query(connection)).await {
                Ok(Err(failure)) if failure.is_broken => {}
                Ok(answer) => return answer,
                Err(_) => {}
            }
            sentinel.leave(known.number).await;
        }
        // Connecting takes about three round trips (log in, subscribe, ask for the id), and asking for the master takes one. A
        // round trip may take `patience`.
        let limit = 4 * self.patience;
        let asking = async {
            let (connection, number) = self.connection(sentinel, who).await?;
            let answer = self.query(connection).await;
            if answer.is_err() {
                sentinel.leave(number).await;
            }
            answer
        };
        timeout(limit, asking).await.unwrap_or_else(|_| Err(late(limit)))
    }

    async fn query(&self, mut known: Known) -> Result<(Arc<str>, Host), Failure> {
        let mut command = Cmd::new();
        command.arg("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let answer = command.query_async::<Option<(String, u16)>>(&mut known.redis).await;
        let (name, port) =
            answer.map_err(|error| failure("connect", &error))?.ok_or_else(|| {
                let message = "the Sentinel does not know a master of this name";
                Failure::broken(Error::new(ErrorKind::Config, "connect", message))
            })?;
        Ok((known.id, Host { name, port: Some(port) }))
    }

    /// Returns the existing connection to the Sentinel, or makes one, and its number.
    async fn connection(
        self: &Arc<Self>,
        sentinel: &Sentinel,
        who: &Who,
    ) -> Result<(Known, u64), Failure> {
        let mut connected = sentinel.connected.lock().await;
        if let Some(connection) = &connected.connection {
            return Ok((connection.clone(), connected.number));
        }
        let opened = self.open(&sentinel.host, who).await?;
        connected.number += 1;
        Ok((connected.connection.insert(opened).clone(), connected.number))
    }

    /// Connects to a Sentinel, and subscribes to the channel on which it publishes that there is a new master. First connects
    /// without a password; only if the Sentinel refuses that, connects again with the user and the password of the URL.
    async fn open(
        self: &Arc<Self>,
        host: &Host,
        (config, credentials): &Who,
    ) -> Result<Known, Failure> {
        let open = async |login| {
            let pushes = pushes(Arc::downgrade(self));
            let config_of = AsyncConnectionConfig::new().set_push_sender(pushes);
            let tls = credentials.tls.as_ref();
            let mut redis = open_at((host, None), login, tls, config_of).await?;
            let subscribed = redis.subscribe(SWITCHED).await;
            subscribed.map_err(|error| failure("connect", &error))?;
            // If the Sentinel does not tell the id of its process, its host's name is used as the id.
            let id = run_id(&mut redis).await.unwrap_or_else(|| host.to_string());
            Ok(Known { redis, id: id.into() })
        };
        match open(anonymous()).await {
            Err(Failure { error, .. }) if error.kind() == ErrorKind::Auth => {
                open(config.login(credentials, 0)).await
            }
            opened => opened,
        }
    }
}

/// Why there is no master, by what the Sentinels have answered instead of a name: what more than half of them say. What fewer of
/// them say may be wrong by now: a Sentinel that was cut off may know an old password, for instance.
fn told(failed: Vec<Failure>, sentinels: usize) -> Failure {
    let say = |kind| failed.iter().filter(|failure| failure.error.kind() == kind).count();
    let told = |failure: &&Failure| failure.error.kind() != ErrorKind::Unavailable;
    let of_most = |failure: &&Failure| 2 * say(failure.error.kind()) > sentinels;
    if let Some(failure) = failed.iter().filter(told).find(of_most) {
        return failure.clone();
    }
    let failure = unnamed();
    match failed.iter().find(told) {
        Some(other) => Failure { error: failure.error.with_source(other.error.clone()), ..failure },
        None => failure,
    }
}

fn unnamed() -> Failure {
    let message = "no master is named by more than half of the Sentinels";
    Failure::harmless(Error::new(ErrorKind::Unavailable, "connect", message))
}

impl Votes {
    fn of(sentinels: usize) -> Self {
        Self { sentinels, voted: HashSet::new(), counts: HashMap::new() }
    }

    fn count(&mut self, id: Arc<str>, host: Host) {
        match self.voted.insert(id) {
            true => *self.counts.entry(host).or_default() += 1,
            // The URL names this Sentinel twice, so there is one Sentinel less than hosts in the URL, and the second answer is no
            // vote.
            false => self.sentinels -= 1,
        }
    }

    /// The server that more than half of the Sentinels name; `None`: no server has that many votes yet.
    fn winner(&self) -> Option<&Host> {
        let wins = |count: usize| count > self.sentinels / 2;
        self.counts.iter().find_map(|(host, count)| wins(*count).then_some(host))
    }
}

impl Sentinel {
    /// Gives up the connection with this number. Does nothing if a newer connection has taken its place already.
    async fn leave(&self, number: u64) {
        let mut connected = self.connected.lock().await;
        if connected.number == number {
            connected.connection = None;
        }
    }
}

async fn run_id(redis: &mut RawConnection) -> Option<String> {
    let info = redis::cmd("INFO").arg("server").query_async::<String>(redis).await.ok()?;
    info.lines().find_map(|line| Some(line.strip_prefix("run_id:")?.trim().to_owned()))
}

fn late(after: Duration) -> Failure {
    Failure::late("connect", after, Effect::None)
}

fn pushes(
    sentinels: Weak<Sentinels>,
) -> impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static {
    move |push| {
        if push.kind == PushKind::Message
            && let Some(sentinels) = sentinels.upgrade()
        {
            sentinels.on_switch.get().into_iter().for_each(|act| act());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn winner(sentinels: usize, votes: &[(&str, &str)]) -> Option<String> {
        let mut counted = Votes::of(sentinels);
        for (id, host) in votes {
            counted.count((*id).into(), Host { name: (*host).to_owned(), port: None });
        }
        counted.winner().map(|host| host.name.clone())
    }

    #[test]
    fn each_sentinel_has_one_vote() {
        assert_eq!(winner(3, &[("a", "one")]), None);
        assert_eq!(winner(3, &[("a", "one"), ("b", "two")]), None);
        assert_eq!(winner(3, &[("a", "one"), ("b", "two"), ("c", "one")]).as_deref(), Some("one"));
        assert_eq!(winner(3, &[("a", "one"), ("a", "one")]), None, "of two");
        assert_eq!(winner(3, &[("a", "one"), ("a", "two"), ("a", "two")]).as_deref(), Some("one"));
    }
}
