//! Claims of which nobody was told yet.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use coordination::ClaimId;

/// Claims that were not delivered yet, and whether they are being given back. The head of the answer, which has a claim's URL, is sent before
/// the text: whoever asks by that URL was told of the claim.
#[derive(Default)]
pub(crate) struct Untold(Mutex<HashMap<ClaimId, bool>>);

impl Untold {
    fn all(&self) -> MutexGuard<'_, HashMap<ClaimId, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, of which nobody was told.
    pub(super) fn begin(&self, id: ClaimId) {
        self.all().insert(id, false);
    }

    /// It was delivered, or was given back.
    pub(super) fn end(&self, id: ClaimId) {
        self.all().remove(&id);
    }

    /// Somebody is told of it: from now on it is not given back. False: it is by now.
    pub(super) fn tell(&self, id: ClaimId) -> bool {
        let mut all = self.all();
        let is_told = all.get(&id) != Some(&true);
        if is_told {
            all.remove(&id);
        }
        is_told
    }

    /// It is to be given back, unless somebody was told of it: then this is false.
    pub(super) fn give_back(&self, id: ClaimId) -> bool {
        let mut all = self.all();
        let Some(is_given_back) = all.get_mut(&id) else { return false };
        *is_given_back = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C4: what is given back is nobody's, and what somebody was told of is not given back.
    #[test]
    fn a_claim_is_either_given_back_or_told_of() {
        let (untold, id) = (Untold::default(), ClaimId::random());
        untold.begin(id);
        assert!(untold.give_back(id) && !untold.tell(id));
        untold.end(id);
        assert!(untold.tell(id), "the store knows what became of it");
        untold.begin(id);
        assert!(untold.tell(id) && !untold.give_back(id));
    }
}
