//! F-22 and F-23: an administrator changes the store without the clients' knowledge.

use std::time::Duration;

use serde_json::json;

use super::told::assert_told_within;
use super::{LONG, SCHEDULING, Site};
use crate::bounds;
use crate::harness::log::now_ns;
use crate::must_hold;

const LOCK: &str = "operator";

/// F-22: the holder's session is ended.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f22_session_ended(site: &Site) {
    removed(site, "ExpiredByServer", |entry| {
        let session = site.server().session_of(entry).expect("each entry has its session");
        site.server().end_session(&session)
    });
}

/// F-23: the holder's entry is deleted.
pub fn f23_entry_deleted(site: &Site) {
    removed(site, "EntryDeleted", |entry| site.server().delete_entry(entry));
}

fn removed(site: &Site, reason: &str, remove: impl Fn(&str) -> bool) {
    let (holder, waiter) = (site.process("holder"), site.process("waiter"));
    let notice = match reason {
        "ExpiredByServer" => site.server().notice_of_end(site.heartbeat),
        _ => site.server().notice(site.heartbeat),
    };
    let mut soonest = Duration::MAX;
    for _ in 0..3 {
        let first = holder.acquire(LOCK);
        holder.observe(LOCK);
        let waiting = waiter.wait_for(LOCK);
        waiter.sees_contenders(LOCK, 2);
        assert!(remove(&site.entry_of(first.token)));
        let removed_ns = now_ns();
        let lost = holder.lost(LONG);
        // The bound counts from the arrival of the store's notification at the client, which this test cannot see. A
        // busy server may send the notification late, so ten times the bound is allowed.
        let told = assert_told_within(notice * 10, removed_ns, lost.t_ns);
        soonest = soonest.min(told);
        // The event of the probe is awaited before the release, because the probe ends with the release.
        holder.not_held(LONG);
        // The reason is the entry or the session, whichever loss the client learns of first.
        assert!([reason, "EntryDeleted"].contains(&&*lost.reason), "{lost:?}");
        assert!(!holder.is_held(LOCK));
        let next = waiter.granted(waiting, bounds::served() + SCHEDULING);
        must_hold!(next.token > first.token);
        println!("F-22/23 {}: told after {told:?}: {}", site.name(), lost.reason);
        let error = holder.try_call(json!({ "command": "release", "handle": LOCK }));
        assert_eq!(error.expect_err("it was lost")["kind"], "Lost");
        assert_eq!(waiter.holders(LOCK), ["waiter"]);
        waiter.release(LOCK);
    }
    assert!(soonest <= notice, "told after {soonest:?} at best, and {notice:?} is promised");
}
