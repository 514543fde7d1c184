//! Where what we wait for runs: on this thread.

use std::time::Duration;

use crate::exit::{Failure, Outcome};

/// How long our end may be put off by what goes on in threads.
const FINISH: Duration = Duration::from_millis(200);

pub(crate) fn block_on<T>(work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::system("cannot start", &error))?;
    let outcome = runtime.block_on(work);
    // Whoever looks up a host's name has a thread for as long as the name servers are silent.
    runtime.shutdown_timeout(FINISH);
    outcome
}
