//! The last failures of a session's calls: they explain to a caller whose time is over why the store did not answer.

use std::sync::{Mutex, MutexGuard, PoisonError};

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
