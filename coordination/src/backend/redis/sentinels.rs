//! The Sentinels, which are asked for the master.
//!
//! A Sentinel that is cut off together with an old master goes on naming that master. So the master is the server that more than
//! half of the URL's Sentinels name: a new master needs the votes of as many to take over. A Sentinel that the URL names twice, or
//! by two names, has one vote.

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
    /// The master's name at the Sentinels.
    name: String,
    each: Vec<Arc<Sentinel>>,
    /// How long an answer may take. The caller may give up earlier.
    patience: Duration,
    /// Called when a Sentinel has published that there is another master.
    on_switch: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct Sentinel {
    host: Host,
    connected: Mutex<Connected>,
}

/// What is needed to connect to a Sentinel.
type Who = (Config, Credentials);

/// The connection to a Sentinel, if there is one, and its number, which rises with each new connection.
#[derive(Clone, Default)]
struct Connected {
    connection: Option<Known>,
    number: u64,
}

/// A connection to a Sentinel, with the id of the Sentinel's process, by which it is recognised under another name.
#[derive(Clone)]
struct Known {
    redis: RawConnection,
    id: Arc<str>,
}

/// The answers of the Sentinels so far.
struct Votes {
    /// How many different Sentinels there are, as far as is known.
    sentinels: usize,
    voted: HashSet<Arc<str>>,
    counts: HashMap<Host, usize>,
}

impl Sentinels {
    /// `patience`: how long a call may take.
    pub(super) fn new(hosts: &[Host], name: &str, patience: Duration) -> Self {
        let sentinel = |host: &Host| Sentinel { host: host.clone(), connected: Mutex::default() };
        let each = hosts.iter().map(sentinel).map(Arc::new).collect();
        Self { name: name.to_owned(), each, patience, on_switch: OnceLock::new() }
    }

    /// Sets what is called each time that a Sentinel publishes another master.
    pub(super) fn on_switch(&self, act: impl Fn() + Send + Sync + 'static) {
        // Set once, when the store connects: it cannot be set already.
        let _ = self.on_switch.set(Box::new(act));
    }

    /// The server that more than half of the Sentinels name. Returns as soon as that many have answered.
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
            // This runs in a task, so that it goes on if the caller gives up: only then is a silent connection found and dropped.
            tokio::spawn(async move {
                let _ = answer.send(sentinels.ask(&sentinel, &who).await).await;
            });
        }
        drop(answer);
        let mut votes = Votes::of(self.each.len());
        let mut refusal = None;
        while let Some(answer) = answers.recv().await {
            match answer {
                Ok((id, host)) => {
                    votes.count(id, host);
                    if let Some(host) = votes.winner() {
                        return Ok(host.clone());
                    }
                }
                Err(failure) if failure.error.kind() != ErrorKind::Unavailable => {
                    refusal = Some(failure);
                }
                Err(_) => {}
            }
        }
        Err(refusal.filter(|_| votes.counts.is_empty()).unwrap_or_else(|| {
            let message = "no master is named by more than half of the Sentinels";
            Failure::harmless(Error::new(ErrorKind::Unavailable, "connect", message))
        }))
    }

    /// Asks a Sentinel on the connection that there is. If that is silent or closed, asks on a new one.
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
        // Connecting takes three round trips, and asking one.
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

    /// The connection that there is, or a new one.
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

    /// Connects to a Sentinel, and subscribes to the channel on which it publishes a new master. The password is sent only if the
    /// Sentinel asks for one.
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
            // A Sentinel that does not tell its id is recognised by the host's name.
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

impl Votes {
    fn of(sentinels: usize) -> Self {
        Self { sentinels, voted: HashSet::new(), counts: HashMap::new() }
    }

    fn count(&mut self, id: Arc<str>, host: Host) {
        match self.voted.insert(id) {
            true => *self.counts.entry(host).or_default() += 1,
            // The URL names this Sentinel twice: so there is one Sentinel less.
            false => self.sentinels -= 1,
        }
    }

    /// The server that more than half of the Sentinels name; `None`: it is not known yet.
    fn winner(&self) -> Option<&Host> {
        let wins = |count: usize| count > self.sentinels / 2;
        self.counts.iter().find_map(|(host, count)| wins(*count).then_some(host))
    }
}

impl Sentinel {
    /// Gives up the connection of this number; another one may have taken its place already.
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
