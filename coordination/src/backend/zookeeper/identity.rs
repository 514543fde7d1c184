//! How this client authenticates itself at the servers: by certificates, and by a password.
//!
//! The client crate connects again by itself. Its certificates can be exchanged while the session lasts: while there is no
//! connection, the crate gets the certificates that are in the files now. If the crate cannot connect with these certificates, it
//! gets earlier ones and these in turn. A password is not checked when a connection is made. A server accepts any password, and
//! compares it with the access control list of each node. So the password is read again when a node refuses access.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use zookeeper_client::{Client, Connector, Error as ZooKeeperError};

use super::config::Config;
use super::tls::Certs;
use crate::backend::server::credentials::{Access, Credentials};
use crate::error::Result;
use crate::url::Secret;

/// How long the crate tries to connect with one set of certificates before it gets the next set. Within this time it tries several
/// times.
const EACH: Duration = Duration::from_millis(400);
/// How many sets of certificates are kept, and tried one after the other.
const KEPT: usize = 3;

/// The credentials that are in the URL and in the files that it names, and those that are in use.
pub(super) struct Identity {
    user: Option<String>,
    access: Arc<Access>,
    /// The certificates with which the client crate connects, and which can be exchanged at any time. `None`: no TLS.
    certs: Option<Certs>,
    offered: Mutex<Offered>,
}

/// What the servers know of the password in one session.
pub(super) struct Presented {
    confirmed: Mutex<Option<Secret>>,
    /// Locked by the call that sends a new password to the server, so that only one call does so at a time.
    turn: tokio::sync::Mutex<()>,
}

impl Presented {
    pub(super) fn new(password: Option<Secret>) -> Self {
        Self { confirmed: Mutex::new(password), turn: tokio::sync::Mutex::default() }
    }

    /// The password that the server has confirmed last.
    pub(super) fn password(&self) -> Option<Secret> {
        self.confirmed().clone()
    }

    fn confirmed(&self) -> MutexGuard<'_, Option<Secret>> {
        self.confirmed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

struct Offered {
    /// The newest credentials and some earlier ones, from the newest to the oldest.
    known: VecDeque<Arc<Credentials>>,
    /// The index in `known` of the credentials that the client crate has now.
    turn: usize,
    /// When the crate got these credentials; `None`: there is a connection, or none was tried yet.
    since: Option<Instant>,
}

impl Identity {
    pub(super) fn new(config: &Config) -> Result<Self> {
        let access = Arc::clone(&config.access);
        let credentials = access.used();
        let certs = credentials.tls.as_ref().map(Certs::new).transpose()?;
        Ok(Self {
            user: config.user.clone(),
            access,
            certs,
            offered: Mutex::new(Offered {
                known: VecDeque::from([credentials]),
                turn: 0,
                since: None,
            }),
        })
    }

    pub(super) fn is_secure(&self) -> bool {
        self.access.is_secure()
    }

    /// The credentials that the client crate has now.
    pub(super) fn credentials(&self) -> Arc<Credentials> {
        Arc::clone(self.offered().current())
    }

    /// Connects with the client crate, with TLS if the URL says so.
    pub(super) async fn connect(
        &self,
        connector: Connector,
        servers: &str,
    ) -> Result<Client, ZooKeeperError> {
        match &self.certs {
            Some(certs) => certs.connect(connector, servers).await,
            None => connector.connect(servers).await,
        }
    }

    /// The password that the URL or its file has now; `None`: there is no user.
    pub(super) fn password(&self) -> Option<Secret> {
        self.user.as_ref().and_then(|_| self.access.newest().password.clone())
    }

    /// The user's name with this password, in the form that ZooKeeper's `digest` scheme expects.
    pub(super) fn digest(&self, password: &Secret) -> Vec<u8> {
        let user = self.user.as_deref().unwrap_or_default();
        format!("{user}:{}", password.expose()).into_bytes()
    }

    /// To be called while there is no connection. Gives the client crate the certificates that the files have now or, if it could
    /// not connect with those, earlier ones in turn.
    pub(super) fn offer(&self) {
        let Some(certs) = &self.certs else { return };
        let mut offered = self.offered();
        if offered.since.is_some_and(|since| since.elapsed() < EACH) {
            return;
        }
        let before = Arc::clone(offered.current());
        offered.next(self.access.newest());
        let next = Arc::clone(offered.current());
        if next != before
            && let Some(next) = &next.tls
        {
            certs.update(next);
        }
    }

    /// To be called while there is a connection.
    pub(super) fn connected(&self) {
        self.offered().since = None;
    }

    /// To be called when a node has refused a call. `told`: the password that the server had when the call was sent. If there is a
    /// newer password by now, this makes sure that the server has it. Returns true if the caller should send the call again.
    ///
    /// Of several calls that are refused at the same time, the first one sends the new password. The other calls then find that the
    /// server has got another password since they were sent, and are only sent again. If the first call is dropped before the
    /// server has answered, nothing is noted, and the next call sends the password.
    pub(super) async fn present(
        &self,
        client: &Client,
        told: &Option<Secret>,
        presented: &Presented,
    ) -> bool {
        let _turn = presented.turn.lock().await;
        if presented.password() != *told {
            return true;
        }
        let password = self.password().filter(|password| told.as_ref() != Some(password));
        let Some(password) = password else { return false };
        match client.auth("digest", &self.digest(&password)).await {
            Ok(()) => *presented.confirmed() = Some(password),
            Err(ZooKeeperError::AuthFailed) => return false,
            // For instance, the connection broke. The caller sends the call again. If the server does not have the new password
            // yet, it refuses the call again, and then the password is sent again.
            Err(_) => {}
        }
        true
    }

    fn offered(&self) -> MutexGuard<'_, Offered> {
        self.offered.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Offered {
    fn current(&self) -> &Arc<Credentials> {
        // `known` is never empty: it has one set at first, and `next` drops only the oldest of more than `KEPT`.
        &self.known[self.turn % self.known.len()]
    }

    /// Chooses the credentials to try next: the newest if they were not tried yet since the connection broke, otherwise those after
    /// the current ones.
    fn next(&mut self, newest: Arc<Credentials>) {
        let is_first = self.since.replace(Instant::now()).is_none();
        if self.known[0] != newest {
            self.known.push_front(newest);
            self.known.truncate(KEPT);
            self.turn = 0;
        } else if is_first {
            self.turn = 0;
        } else {
            self.turn = (self.turn + 1) % self.known.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_tried_first_and_then_those_of_before() {
        let named = |name: &str| {
            let password = Some(Secret::new(name.to_owned()));
            Arc::new(Credentials { password, tls: None })
        };
        let (old, new) = (named("old"), named("new"));
        let known = VecDeque::from([Arc::clone(&old)]);
        let mut offered = Offered { known, turn: 0, since: None };
        let after = |offered: &mut Offered, newest: &Arc<Credentials>| {
            offered.next(Arc::clone(newest));
            Arc::clone(offered.current())
        };
        assert_eq!(after(&mut offered, &old), old);
        assert_eq!(after(&mut offered, &new), new);
        assert_eq!(after(&mut offered, &new), old);
        assert_eq!(after(&mut offered, &new), new);
        // As if a connection was made with the second credentials, and broke.
        offered.turn = 1;
        offered.since = None;
        assert_eq!(after(&mut offered, &new), new);
    }
}
