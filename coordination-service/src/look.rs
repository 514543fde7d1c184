//! Who holds a lock and who waits for it, as the store says, with what this instance knows of its own holds.

use std::time::SystemTime;

use coordination::Coordinator;
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::service::Service;
use crate::text::{millis, rfc3339};

/// The holders of the lock of this name, and those who wait for it, in order.
pub(crate) async fn entries(
    service: &Service,
    coordinator: &Coordinator,
    name: &str,
) -> coordination::Result<Vec<Value>> {
    let contenders = coordinator.lock(name)?.holders().await?;
    let now = SystemTime::now();
    let entry = |who: coordination::Contender| {
        let state = match (who.holding, who.shared) {
            (true, false) => "held",
            (true, true) => "shared",
            (false, _) => "waiting",
        };
        let mut entry = json!({
            "state": state, "who": who.member, "fence": who.token.value(), "since": who.since.map(rfc3339),
        });
        if !who.holding {
            let since = who.since.and_then(|since| now.duration_since(since).ok());
            entry["waiting_ms"] = since.map(millis).into();
        }
        let own = service.holds.of_fence(Kind::Lock, name, who.token.value());
        if let Some((hold, now)) =
            own.and_then(|hold| Some((hold.clone(), service.holds.now(&hold).ok()?)))
        {
            entry["client"] = hold.client.clone().into();
            entry["title"] = hold.title.clone().into();
            entry["since"] = rfc3339(hold.granted_at).into();
            entry["lease_ms"] = millis(now.lease).into();
            entry["expires_in_ms"] = millis(now.expires_in).into();
            entry["covered"] = hold.covered.text().into();
            entry["handle"] = hold.handle.clone().into();
            entry["instance"] = service.tag.clone().into();
        }
        entry
    };
    Ok(contenders.into_iter().map(entry).collect())
}
