//! Why a connection could not be made, or a call on it failed.

use std::io;
use std::time::Duration;

use super::super::cause::{causes, connection_kind};
use crate::error::{Effect, Error, ErrorKind};
use crate::url::Host;

/// Why a connection could not be made, or a call on it failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The connection cannot be used any more, and another connection is to be made.
    pub(crate) is_broken: bool,
    /// The server closed the connection without an answer. Some servers do that if they demand TLS and the client does not use it.
    pub(crate) is_hang_up: bool,
    /// The server seems to accept no more connections. This says nothing about the connections that exist.
    pub(crate) is_full: bool,
    /// The server did not answer in time.
    pub(crate) is_late: bool,
    /// The address of another server, if the answer says that the call has to be sent there.
    pub(crate) moved_to: Option<String>,
}

impl Failure {
    /// A failure after which the connection can still be used.
    pub(crate) fn harmless(error: Error) -> Self {
        Self {
            error,
            is_broken: false,
            is_hang_up: false,
            is_full: false,
            is_late: false,
            moved_to: None,
        }
    }

    pub(crate) fn broken(error: Error) -> Self {
        Self { is_broken: true, ..Self::harmless(error) }
    }

    /// The failure of a call that was not answered within the time `after`.
    pub(crate) fn late(operation: &'static str, after: Duration, effect: Effect) -> Self {
        let message = format!("no answer within {after:?}");
        let error = Error::new(ErrorKind::Unavailable, operation, message);
        Self { is_late: true, ..Self::broken(error.with_effect(effect)) }
    }

    /// Whether the failure may pass by itself, so that a later try may succeed.
    pub(super) fn is_passing(&self) -> bool {
        self.is_broken && self.error.kind() == ErrorKind::Unavailable
    }

    /// Whether the server may be away for a while, after there has been a connection. Nobody listens at the address of a server that
    /// starts, and its host may have no address meanwhile. (Before there has been a connection, these two mean that the URL is wrong.)
    pub(super) fn is_of_outage(&self) -> bool {
        let is_away = matches!(self.error.kind(), ErrorKind::Refused | ErrorKind::Dns);
        self.is_passing() || self.is_broken && is_away
    }

    /// Whether the server refuses our credentials, or says that we lack a right. Another try right away would most likely be
    /// refused too.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.error.kind(), ErrorKind::Auth | ErrorKind::Permission)
    }

    /// The same failure, which tells in addition that another server has refused us, if one has.
    pub(super) fn beside(self, refusal: Option<Error>) -> Self {
        let Some(refusal) = refusal.filter(|_| !self.is_refusal()) else { return self };
        let (said, refused) = (self.error.message(), refusal.message());
        let message = format!("{said}; another server refuses us: {refused}");
        let error = Error::new(self.error.kind(), self.error.operation(), message)
            .with_effect(self.error.effect());
        Self { error: error.with_source(self.error), ..self }
    }
}

/// The failure if making a connection takes longer than this.
pub(super) fn late(limit: Duration) -> Failure {
    Failure::late("connect", limit, Effect::None)
}

/// The failure if a host's name cannot be looked up. It counts as broken, so that the next host is tried, whose name may have an
/// address.
pub(super) fn unknown(host: &Host, error: &io::Error) -> Failure {
    let kind = connection_kind(&causes(Some(error)));
    Failure::broken(Error::new(kind, "connect", format!("{}: {error}", host.name)))
}
