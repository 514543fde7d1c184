//! How we are authenticated at the servers: by certificates, and by a password.
//!
//! The client crate connects again by itself, with certificates that can be exchanged while the session lasts. While there is no
//! connection, the crate is given the certificates that the files hold now; if no connection is made with those, they and earlier
//! ones take turns. A password is not checked when a connection is made: a server accepts any, and compares it with the access
//! control list of each node. So the password is read anew when a node refuses access.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use zookeeper_client::{
    Client, Error as ZooKeeperError, TlsCa, TlsCerts, TlsDynamicCerts, TlsIdentity, TlsOptions,
};

use super::config::Config;
use super::probe::{authorities, choose_provider};
use crate::backend::server::credentials::{Access, Credentials, Tls};
use crate::error::{Error, Result};
use crate::url::Secret;

/// How long each set of certificates is used before the next one. The client crate tries to connect several times within this
/// time.
const EACH: Duration = Duration::from_millis(400);
/// How many sets of certificates take turns.
const KEPT: usize = 3;

/// The credentials that the URL and its files have, and those in use.
pub(super) struct Identity {
    user: Option<String>,
    access: Arc<Access>,
    /// The certificates with which the client crate connects, which can be exchanged; `None`: no TLS.
    certs: Option<TlsDynamicCerts>,
    offered: Mutex<Offered>,
}

/// What the server of one session knows of the password.
pub(super) struct Presented {
    confirmed: Mutex<Option<Secret>>,
    /// Held by the call that sends a new password to the server.
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
    /// The newest credentials and some that were in use before, the newest first.
    known: VecDeque<Arc<Credentials>>,
    /// The index of the credentials that the client crate has.
    turn: usize,
    /// Since when the crate has them; `None`: there is a connection.
    since: Option<Instant>,
}

impl Identity {
    pub(super) fn new(config: &Config) -> Result<Self> {
        let access = Arc::clone(&config.access);
        let credentials = access.used();
        let certs = credentials.tls.as_ref().map(certs).transpose()?;
        Ok(Self {
            user: config.user.clone(),
            access,
            certs: certs.map(TlsDynamicCerts::new),
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

    /// The options with which the client crate connects; `None`: no TLS.
    pub(super) fn tls_options(&self) -> Option<TlsOptions> {
        self.certs.as_ref().map(|certs| TlsOptions::new().with_certs(certs.clone()))
    }

    /// The password as of now, if there is a user.
    pub(super) fn password(&self) -> Option<Secret> {
        self.user.as_ref().and_then(|_| self.access.newest().password.clone())
    }

    /// The credentials of our user with this password, as ZooKeeper's `digest` scheme expects them.
    pub(super) fn digest(&self, password: &Secret) -> Vec<u8> {
        let user = self.user.as_deref().unwrap_or_default();
        format!("{user}:{}", password.expose()).into_bytes()
    }

    /// To be called while there is no connection. The next one is made with the certificates that the files hold now or, in turn,
    /// with those that they held before.
    pub(super) fn offer(&self) {
        let Some(certs) = &self.certs else { return };
        let mut offered = self.offered();
        if offered.since.is_some_and(|since| since.elapsed() < EACH) {
            return;
        }
        let before = Arc::clone(offered.current());
        offered.next(self.access.newest());
        let next = Arc::clone(offered.current());
        // An error is unlikely, as the files were checked when they were read. After an error, the certificates in use stay.
        if next != before
            && let Some(Ok(next)) = next.tls.as_ref().map(self::certs)
        {
            certs.update(next);
        }
    }

    /// To be called when there is a connection.
    pub(super) fn connected(&self) {
        self.offered().since = None;
    }

    /// To be called when a node has refused a call that was sent when `told` was the password that the server knew. If the password
    /// has changed since, makes sure that the server knows the new one. True: the server knows it, and the call may be sent again.
    ///
    /// Of several calls that are refused at the same time, the first one tells the server, and the others find that this was done
    /// after they were sent. If the first one is dropped before the server has answered, nothing is noted, and the next one tells
    /// the server.
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
            // The connection broke, say. The call is sent again, is refused again, and then the server is told once more.
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
        // `known` is never empty: it begins with one, and only the oldest of more than `KEPT` are dropped.
        &self.known[self.turn % self.known.len()]
    }

    /// Chooses the newest credentials if they have not been tried yet, otherwise the next ones in turn.
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

fn certs(tls: &Tls) -> Result<TlsCerts> {
    let wrong = |option: &str, error: ZooKeeperError| {
        Error::config(format!("option `{option}`: the file has no use: {error}"))
    };
    let text = |option: &str, pem: &[u8]| {
        String::from_utf8(pem.to_vec())
            .map_err(|_| Error::config(format!("option `{option}`: the file is not PEM text")))
    };
    choose_provider();
    let ca =
        TlsCa::from_pem(&text("ca", &authorities(tls))?).map_err(|error| wrong("ca", error))?;
    let mut builder = TlsCerts::builder().with_ca(ca);
    if let Some((cert, key)) = &tls.identity {
        let identity = TlsIdentity::from_pem(&text("cert", cert)?, key.expose());
        builder = builder.with_identity(identity.map_err(|error| wrong("cert` and `key", error))?);
    }
    builder.build().map_err(|error| wrong("ca", error))
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
        // A connection was made, and broke.
        offered.turn = 1;
        offered.since = None;
        assert_eq!(after(&mut offered, &new), new);
    }
}
