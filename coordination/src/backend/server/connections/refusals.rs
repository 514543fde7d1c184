//! The servers that refused our credentials, which are not asked again at once.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::places::Place;
use super::failure::Failure;

/// For this long after a server has refused our credentials, it is not asked again: every try to connect to it fails at once with
/// that refusal. So this client asks such a server at most twenty times a minute.
const BELIEVED: Duration = Duration::from_secs(3);

/// Which servers have refused our credentials within the last [`BELIEVED`], and why.
#[derive(Default)]
pub(super) struct Refusals {
    /// For each of these servers: the time until which the refusal is believed, and the refusal.
    by_server: HashMap<Place, (Instant, Failure)>,
    /// `Some` if all known servers have refused us: the time until which no server is asked, and the refusal that all callers get
    /// until then.
    by_all: Option<(Instant, Failure)>,
}

impl Refusals {
    /// Notes that this server has refused us. `are_all`: whether a condition holds for all servers that are known.
    pub(super) fn note(
        &mut self,
        place: Place,
        failure: &Failure,
        are_all: impl FnOnce(&dyn Fn(&Place) -> bool) -> bool,
    ) {
        let now = Instant::now();
        self.by_server.retain(|_, (until, _)| now < *until);
        self.by_server.insert(place, (now + BELIEVED, failure.clone()));
        if are_all(&|place| self.by_server.contains_key(place)) {
            self.by_all = self.by_server.values().min_by_key(|(until, _)| *until).cloned();
        }
    }

    /// Why this server has refused us, if it has.
    pub(super) fn of(&self, place: Place) -> Option<Failure> {
        believed(self.by_server.get(&place))
    }

    /// Why all servers have refused us, if they have.
    pub(super) fn of_all(&self) -> Option<Failure> {
        believed(self.by_all.as_ref())
    }
}

fn believed(refusal: Option<&(Instant, Failure)>) -> Option<Failure> {
    let (_, failure) = refusal.filter(|(until, _)| Instant::now() < *until)?;
    Some(failure.clone())
}
