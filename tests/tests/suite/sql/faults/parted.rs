//! F-59: the primary is cut off from its replica, which takes over.

use std::sync::Arc;
use std::time::Duration;

use coordination_tests::faults::Site;
use coordination_tests::must_hold;

use super::{Faulty, LONG};
use crate::WORKER;

/// F-59: the primary answers no commit that its replica has not confirmed. It is cut off from the replica, which is promoted. The holder
/// knows only the old primary, which goes on running: it loses the lock before somebody else is granted it. Who knows both servers goes
/// over to the new primary.
pub(crate) fn f59_a_primary_is_cut_off_with_its_client<S: Faulty>() {
    let server = Arc::new(S::confirmed());
    let site = Site::on(Arc::clone(&server) as Arc<_>, WORKER).with_ttl(LONG / 5);
    let alone = site.at(server.node(0).address());
    let (holder, other) = (alone.process("holder"), site.process("other"));
    let old = holder.acquire("x");
    holder.observe("x");
    let waiting = other.wait_for("x");
    holder.sees_contenders("x", 2);
    server.cut_off();
    server.promote_replica();
    let new = other.granted(waiting, LONG);
    let lost = holder.not_held(LONG);
    must_hold!(lost.last_true_ns < new.t_ns, "held by two");
    must_hold!(new.token > old.token, "{} after {}", new.token, old.token);
    let early = Duration::from_nanos(new.t_ns - lost.last_true_ns);
    println!("F-59 {}: granted {early:?} after the loss", site.name());
    let refused = holder.acquire_within("y", Duration::from_secs(2));
    println!("F-59 {}: the old primary: {refused:?}", site.name());
    must_hold!(refused.is_err(), "granted, and no replica has it");
    other.release("x");
    must_hold!(other.acquire("x").token > new.token);
    other.release("x");
}
