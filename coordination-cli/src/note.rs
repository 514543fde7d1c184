//! Whether the command before has ended for certain. Otherwise it is waited for, as its wrapper may be told only now that its lock
//! was taken away.
//!
//! A store whose sessions can be ended by an operator grants a lock to the next one at the moment at which it tells the former holder.
//! So each command that runs under a lock has a note at the store, a value of the lock's name:
//!
//! * It is written when the lock is held, before the command starts. Without the note no command starts.
//! * It is removed when the command has ended, with all that it has started: before the lock is released, also where it was lost.
//!
//! So where no note is found, no command runs, and nobody needs to wait. In all other cases the note of the command before is still
//! there: its wrapper was killed, its host crashed, it goes on though its lock was lost, the store did not answer at the end.
//! Then the next one waits as long as such a command can take to end, and puts its own note in that place. A wrapper that is not told of
//! its loss, though `break` has taken its lock away, takes longer: for that one there is a mark ([`broken`](crate::broken)).
//!
//! A note is written and removed only if nobody else has changed it since it was seen, so that no late request of a former holder
//! removes a later one's. One who has written his note too late, as he stood still before, finds that he has lost the lock before he
//! starts the command; and where he cannot know that yet, his note makes the next one wait.
//!
//! Those who share a lock have one note for all, which says so and is not removed: one who is alone waits for them, they do not wait
//! for each other.

use std::time::Duration;

use coordination::{Characteristics, Coordinator, Durability, Lock, Scope, SharedValue, Version};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

/// How long the release may be put off by the removal of the note.
const REMOVING: Duration = Duration::from_secs(1);

/// Who may be running under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Note {
    /// One who has the lock alone, with this token.
    Alone(u64),
    /// Some who share it.
    Shared,
    /// One who writes no notes, and whose lock was broken.
    Unknown,
}

/// A note of our own, which is to be removed.
pub(crate) struct Noted {
    value: SharedValue<Note>,
    version: Version,
}

impl Noted {
    pub(crate) fn new(value: SharedValue<Note>, version: Version) -> Self {
        Self { value, version }
    }

    /// Tells those who follow that the command has ended. If that fails, they wait, which does no harm.
    pub(crate) async fn remove(self) {
        let _ = timeout(REMOVING, self.value.compare_and_delete(self.version)).await;
    }
}

/// Whether a note can be relied on: a store that forgets it, or has two who hold a lock, has to let the next one wait.
pub(crate) fn keeps_notes(store: &Characteristics) -> bool {
    use Durability::{NotApplicable, Yes};
    store.scope == Scope::Hosts
        && store.partition_overlap.is_none()
        && store.survives_restart == Yes
        && store.survives_power_loss == Yes
        && matches!(store.survives_failover, Yes | NotApplicable)
}

/// Notes that whoever holds this lock may go on for a moment, as it is about to be taken away, unless there is a note already. A store
/// that takes no more keeps nobody from breaking a lock.
pub(crate) async fn note_break(lock: &Lock, coordinator: &Coordinator) {
    if keeps_notes(&coordinator.characteristics())
        && let Ok(value) = lock.command::<Note>()
    {
        let _ = value.compare_and_set(None, &Note::Unknown).await;
    }
}
