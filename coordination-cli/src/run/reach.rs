//! The store, which may be out of reach when we begin: for who would wait, that is no more than a wait.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::time::{Duration, Instant};

use coordination::{Config, Coordinator, Error, ErrorKind};
use tokio::time::{sleep, timeout};

use super::progress::Progress;
use super::wanted::Budget;
use crate::args::Wait;
use crate::exit::{Outcome, printable, say};
use crate::secrets::masked;
use crate::settings::{self, not_connected, try_connect};

/// From one try to the next; twice as long each time,
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// but at most so long.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Connects: a store that is out of reach is tried again within this time, if any was given, and told of as other waits are.
pub(super) async fn reach(
    config: Config,
    wait: Option<Wait>,
    budget: Budget,
    is_quiet: bool,
) -> Outcome<Coordinator> {
    if wait.is_none_or(|wait| wait.0 == Some(Duration::ZERO)) {
        return settings::connect(config).await;
    }
    let (start, was_told) = (Instant::now(), Cell::new(false));
    let why = RefCell::new("it does not answer".to_owned());
    let reached = tokio::select! {
        biased;
        reached = patiently(&config, budget, &why) => reached,
        () = Progress::tell("the store", is_quiet, &was_told, async || why.borrow().clone()) => pending().await,
    };
    if reached.is_ok() && was_told.get() {
        say(format_args!("reached the store after {} s", start.elapsed().as_secs()));
    }
    reached.map_err(|error| not_connected(&config, error))
}

/// Tries as long as there is time; the first try has all the time that a try needs, and each notes why it failed.
async fn patiently(
    config: &Config,
    budget: Budget,
    why: &RefCell<String>,
) -> Result<Coordinator, Error> {
    let (mut tried, mut pause) = (try_connect(config).await, FIRST_PAUSE);
    loop {
        let error = match tried {
            Err(error) if is_out_of_reach(&error) => error,
            tried => return tried,
        };
        why.replace(printable(&masked(&error.to_string())));
        let left = || budget.left().unwrap_or(Duration::MAX);
        sleep(pause.min(left())).await;
        if left().is_zero() {
            return Err(error);
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
        tried = timeout(left(), try_connect(config)).await.unwrap_or(Err(error));
    }
}

/// What may pass by itself: a server that is down, or starts, and a network that is not there yet.
pub(super) fn is_out_of_reach(error: &Error) -> bool {
    use ErrorKind::{Dns, Refused, Tls, Unavailable};
    matches!(error.kind(), Unavailable | Refused | Dns | Tls)
}
