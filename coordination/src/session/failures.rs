//! The last failures of a session's calls: they explain to a caller whose time is over why the store did not answer.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorKind};

/// The failures of a repeated call, since the call last succeeded.
#[derive(Default)]
pub(crate) struct Failures(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    last: Option<Error>,
    /// The kinds of errors that do not pass by waiting, and of which a warning was logged.
    warned: Vec<ErrorKind>,
}

impl Failures {
    /// Notes a failure. If it is the first of a kind that does not pass by waiting, logs a warning.
    pub(crate) fn note(&self, error: &Error) {
        let mut noted = self.noted();
        let is_warned_of = is_lasting(error.kind()) || error.kind() == ErrorKind::Corrupt;
        let is_first = is_warned_of && !noted.warned.contains(&error.kind());
        if is_first {
            noted.warned.push(error.kind());
        }
        noted.last = Some(error.clone());
        // A service's own code may run when an event is logged, and call something that asks for the failures.
        drop(noted);
        match error.kind() {
            _ if !is_first => {}
            ErrorKind::Corrupt => {
                tracing::warn!(%error, "what is stored cannot be read; it is tried again");
            }
            _ => tracing::warn!(%error, "the store refuses; it is tried again"),
        }
    }

    /// Forgets the failures, because the call succeeded.
    pub(crate) fn clear(&self) {
        *self.noted() = Noted::default();
    }

    pub(crate) fn last(&self) -> Option<Error> {
        self.noted().last.clone()
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Warns once if the member id is taken for so long that it is not our own lost session that has it.
pub(super) struct TakenId {
    since: Option<Instant>,
    is_told: bool,
}

impl TakenId {
    pub(super) fn new() -> Self {
        Self { since: None, is_told: false }
    }

    /// Notes a failure to open the next session. `limit`: how long our lost session may have the member id.
    pub(super) fn note(&mut self, error: &Error, limit: Duration) {
        if error.kind() != ErrorKind::MemberExists {
            // While the store is away, or afterwards, our own session may begin its lease anew.
            self.since = None;
            return;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > limit && !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!(%error, "another process has this member id; no session can be opened until it ends");
        }
    }
}

/// Whether waiting does not help: somebody has to change something.
fn is_lasting(kind: ErrorKind) -> bool {
    use ErrorKind::{Auth, Config, Permission, Tls};
    matches!(kind, Auth | Permission | Tls | Config)
}

/// The error of a call whose time is over. Of the known failures it names one that waiting does not end, if there is such a one,
/// or else the first.
pub(crate) fn late(
    operation: &'static str,
    message: &str,
    known: impl IntoIterator<Item = Error>,
) -> Error {
    let known: Vec<_> = known.into_iter().collect();
    let lasting = known.iter().position(|error| is_lasting(error.kind()));
    let Some(said) = known.into_iter().nth(lasting.unwrap_or_default()) else {
        return Error::new(ErrorKind::Unavailable, operation, message);
    };
    let kind = match said.kind() {
        kind if is_lasting(kind) => kind,
        kind @ (ErrorKind::Storage | ErrorKind::Quota) => kind,
        _ => ErrorKind::Unavailable,
    };
    let message = format!("{message}: {}", said.message());
    Error::new(kind, operation, message).with_source(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: ErrorKind, message: &str) -> Error {
        Error::new(kind, "open", message)
    }

    #[test]
    fn what_somebody_has_to_change_is_told_before_silence() {
        let known =
            [error(ErrorKind::Unavailable, "no answer"), error(ErrorKind::Auth, "WRONGPASS")];
        let late = late("acquire", "in vain", known);
        assert_eq!((late.kind(), late.operation()), (ErrorKind::Auth, "acquire"));
        assert_eq!(late.message(), "in vain: WRONGPASS");
    }

    #[test]
    fn what_passes_by_itself_stays_unavailable() {
        let refused = late("acquire", "in vain", [error(ErrorKind::Refused, "nobody listens")]);
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert_eq!(refused.message(), "in vain: nobody listens");
        assert_eq!(late("acquire", "in vain", None).message(), "in vain");
    }

    #[test]
    fn the_last_failure_is_kept_until_the_next_success() {
        let failures = Failures::default();
        failures.note(&error(ErrorKind::Auth, "a"));
        failures.note(&error(ErrorKind::Unavailable, "b"));
        assert_eq!(failures.last().map(|error| error.kind()), Some(ErrorKind::Unavailable));
        assert_eq!(failures.noted().warned, [ErrorKind::Auth]);
        failures.clear();
        assert!(failures.last().is_none() && failures.noted().warned.is_empty());
    }
}

#[cfg(all(test, coordination_internals, feature = "memory"))]
mod taken {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::super::logged::Warnings;
    use crate::simulation::{Clocks, Link, Run, Traits, World};
    use crate::{Config, State};

    const TTL: Duration = Duration::from_secs(1);

    /// While a process is cut off for longer than its lease, another one begins under its member id.
    #[tokio::test(start_paused = true)]
    async fn a_member_id_that_another_has_is_warned_of_once() {
        let warnings = Warnings::begin();
        let _run = Run::begin(1);
        let world = World::new(1, Traits::SERVER);
        let [one, other] = [(); 2].map(|()| world.client(Clocks::default()));
        let member_id = Some("host-1".to_owned());
        let config = Config { ttl: Some(TTL), member_id, ..Config::default() };
        let first = one.connect(config.clone()).await.expect("the store is there");
        let cut = Link { requests_cut: true, replies_cut: true, ..Link::default() };
        one.set_link(cut);
        sleep(2 * TTL).await;
        let second = other.connect(config).await.expect("the id is free");
        let taken =
            || warnings.told().iter().filter(|told| told.contains("has this member id")).count();
        one.set_link(Link::default());
        sleep(TTL).await;
        assert_eq!(taken(), 0, "it could be our own");
        sleep(20 * TTL).await;
        assert_eq!(taken(), 1);
        second.stop().await.expect("the store is there");
        sleep(10 * TTL).await;
        assert_eq!(first.state().current(), State::Connected);
    }
}
