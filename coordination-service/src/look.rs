//! Who holds something and who waits for it, as the store says, with what this instance knows of its own holds.

use std::time::SystemTime;

use coordination::{Candidate, Contender, Coordinator, Member, Occupant};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::service::Service;
use crate::text::{millis, rfc3339};

/// One who holds something or waits for it.
struct Row {
    state: &'static str,
    who: String,
    fence: u64,
    since: Option<SystemTime>,
    /// What only this recipe has.
    own: Vec<(&'static str, Value)>,
}

/// The names of this recipe that are in use.
pub(crate) async fn names(
    coordinator: &Coordinator,
    kind: Kind,
) -> coordination::Result<Vec<String>> {
    match kind {
        // Those without a member, too.
        Kind::Group => coordinator.groups().await,
        _ => coordinator.in_use(kind.recipe()).await,
    }
}

/// The holders of what has this name, and those who wait for it, in order.
pub(crate) async fn entries(
    service: &Service,
    coordinator: &Coordinator,
    kind: Kind,
    name: &str,
) -> coordination::Result<Vec<Value>> {
    let rows: Vec<Row> = match kind {
        Kind::Semaphore => {
            // The number of permits that a caller expects matters only to who asks for some.
            let occupants = coordinator.semaphore(name, 1)?.holders().await?;
            occupants.into_iter().map(Row::from).collect()
        }
        Kind::Limiter => {
            let occupants = coordinator.limiter(name)?.inspect().await?;
            occupants.into_iter().map(Row::from).collect()
        }
        Kind::Election => {
            let candidates = coordinator.election(name)?.candidates().await?;
            candidates.into_iter().map(Row::from).collect()
        }
        Kind::Group => {
            let members = coordinator.group(name)?.members().await?;
            members.iter().map(Row::from).collect()
        }
        Kind::Lock => coordinator.lock(name)?.holders().await?.into_iter().map(Row::from).collect(),
    };
    let now = SystemTime::now();
    Ok(rows.into_iter().map(|row| told(service, kind, name, row, now)).collect())
}

impl From<Contender> for Row {
    fn from(who: Contender) -> Self {
        let state = match (who.holding, who.shared) {
            (true, false) => "held",
            (true, true) => "shared",
            (false, _) => "waiting",
        };
        let (fence, since) = (who.token.value(), who.since);
        Self { state, who: who.member, fence, since, own: Vec::new() }
    }
}

impl From<Occupant> for Row {
    fn from(who: Occupant) -> Self {
        let state = match (who.slots.is_empty(), who.standby) {
            (false, _) => "held",
            (true, true) => "standby",
            (true, false) => "waiting",
        };
        let own = vec![("wants", who.wants.into()), ("slots", who.slots.into())];
        Self { state, who: who.member, fence: who.token.value(), since: who.since, own }
    }
}

impl From<Candidate> for Row {
    fn from(who: Candidate) -> Self {
        let state = if who.leading { "leading" } else { "waiting" };
        // What another program has proclaimed need not be JSON.
        let own = vec![("value", who.value().unwrap_or_default())];
        Self { state, who: who.member, fence: who.term.value(), since: who.since, own }
    }
}

impl From<&Member> for Row {
    fn from(member: &Member) -> Self {
        // What another program says of itself need not be JSON.
        let capabilities = member.capabilities.parse().unwrap_or_default();
        Self {
            state: "member",
            who: member.id.to_string(),
            fence: member.incarnation.value(),
            since: member.since,
            own: vec![("capabilities", capabilities)],
        }
    }
}

/// A row as it stands in answers.
fn told(service: &Service, kind: Kind, name: &str, row: Row, now: SystemTime) -> Value {
    let mut entry = json!({
        "state": row.state, "who": row.who, "fence": row.fence, "since": row.since.map(rfc3339),
    });
    for (field, value) in row.own {
        entry[field] = value;
    }
    if matches!(row.state, "waiting" | "standby") {
        let since = row.since.and_then(|since| now.duration_since(since).ok());
        entry["waiting_ms"] = since.map(millis).into();
    }
    let own = service.holds.of_fence(kind, name, row.fence);
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
}
