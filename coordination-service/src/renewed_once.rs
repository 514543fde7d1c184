//! Clients of lockable.dev's API that renew a lock once and then never again.

use crate::ends::End;
use crate::hold::Hold;
use crate::kind::Kind;
use crate::metrics;

/// A hold has ended. `lockable-dev` 0.1.2 sends one heartbeat and no further one, and its program goes on without the lock: nobody tells it,
/// so whoever runs the service is told.
pub(crate) fn has_ended(hold: &Hold, end: End) {
    let is_lockables = hold.kind == Kind::Lock && hold.name.starts_with("lockable/");
    if is_lockables && end == End::Expired && hold.renewals() == 1 {
        metrics::one_heartbeat();
        let (name, address) = (&hold.name, &hold.title);
        let why = "a lease ended after its only heartbeat: its client may go on without the lock";
        tracing::warn!(name, address, "{why}");
    }
}
