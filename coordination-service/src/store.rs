//! The session at the store: opened as soon as the store answers, and followed.

use std::time::{Duration, Instant};

use coordination::{Config, Error, ErrorKind};

use crate::service::{Session, Shared};

/// Time between tries to reach a store that has never answered.
const AGAIN: Duration = Duration::from_secs(1);

/// Connects, however long that takes, and tells from then on how the session is.
///
/// # Errors
///
/// What no waiting can mend: a URL or a setting that is wrong.
pub(crate) async fn connect(service: Shared, config: Config) -> Result<(), Error> {
    let coordinator = loop {
        match config.clone().connect().await {
            Ok(coordinator) => break coordinator,
            Err(error) if may_pass(error.kind()) => {
                tracing::warn!(%error, "the store cannot be reached yet");
                tokio::time::sleep(AGAIN).await;
            }
            Err(error) => return Err(error),
        }
    };
    let mut states = coordinator.state();
    let tell = |state| service.session.send_replace(Some(Session { state, since: Instant::now() }));
    tell(states.current());
    service.coordinator.send_replace(Some(coordinator));
    while let Some(state) = states.changed().await {
        tell(state);
    }
    Ok(())
}

fn may_pass(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::Config
            | ErrorKind::Name
            | ErrorKind::Unsupported
            | ErrorKind::Input
            | ErrorKind::Value
    )
}
