//! Who holds something and who waits for it, as the store says, with what this instance knows of its own holds.

use std::time::SystemTime;

use coordination::{Candidate, Contender, Coordinator, Member, Occupant};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::service::Service;
use crate::text::{millis, rfc3339};

/// One who holds something or waits for it.
struct Row {
    state: &'static str,
    who: String,
    /// Its label: of what was granted through a service, the title.
    title: String,
    fence: u64,
    since: Option<SystemTime>,
    /// What only this recipe has.
    own: Vec<(&'static str, Value)>,
}

/// The most bytes of what candidates and members say of themselves, in one answer; beyond that it is only told who they are.
pub(crate) const SAID: usize = 1024 * 1024;

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

/// How many there are for all who ask, as it is stored: permits of a semaphore, slots of a limiter.
pub(crate) async fn stored(
    coordinator: &Coordinator,
    kind: Kind,
    name: &str,
) -> coordination::Result<Option<u32>> {
    match kind {
        // The number that a caller expects does not matter.
        Kind::Semaphore => coordinator.semaphore(name, 1)?.stored_permits().await,
        Kind::Limiter => coordinator.limiter(name)?.stored_slots().await,
        Kind::Lock | Kind::Election | Kind::Group => Ok(None),
    }
}

/// The holders of what has this name, and those who wait for it, in order, with so many bytes of what they say of themselves.
pub(crate) async fn entries(
    service: &Service,
    coordinator: &Coordinator,
    kind: Kind,
    name: &str,
    said: usize,
) -> coordination::Result<Vec<Value>> {
    let mut said = Said(said);
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
            candidates
                .into_iter()
                .map(|candidate| Row::of_candidate(candidate, &mut said))
                .collect()
        }
        Kind::Group => {
            let members = coordinator.group(name)?.members().await?;
            members.iter().map(|member| Row::of_member(member, &mut said)).collect()
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
        let (fence, since, title) = (who.token.value(), who.since, who.label);
        Self { state, who: who.member, title, fence, since, own: Vec::new() }
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
        let (fence, since, title) = (who.token.value(), who.since, who.label);
        Self { state, who: who.member, title, fence, since, own }
    }
}

impl Row {
    fn of_candidate(who: Candidate, said: &mut Said) -> Self {
        let state = if who.leading { "leading" } else { "waiting" };
        let own = said.of("value", who.value());
        let (fence, since, title) = (who.term.value(), who.since, who.label);
        Self { state, who: who.member, title, fence, since, own }
    }

    fn of_member(member: &Member, said: &mut Said) -> Self {
        Self {
            state: "member",
            who: member.id.to_string(),
            title: member.label.to_string(),
            fence: member.incarnation.value(),
            since: member.since,
            own: said.of("capabilities", member.capabilities.parse()),
        }
    }
}

/// How many bytes there is room for of what all say of themselves.
struct Said(usize);

impl Said {
    /// What one says of itself, as long as there is room. What another program says need not be JSON: that is null.
    fn of(
        &mut self,
        field: &'static str,
        text: coordination::Result<Box<RawValue>>,
    ) -> Vec<(&'static str, Value)> {
        let Ok(text) = text else { return vec![(field, Value::Null)] };
        // Before it is read: a text of many small parts is many times as large afterwards.
        let Some(left) = self.0.checked_sub(text.get().len()) else {
            return vec![(field, Value::Null), ("truncated", true.into())];
        };
        self.0 = left;
        vec![(field, serde_json::from_str(text.get()).unwrap_or_default())]
    }
}

/// A row as it stands in answers.
fn told(service: &Service, kind: Kind, name: &str, row: Row, now: SystemTime) -> Value {
    let mut entry = json!({
        "state": row.state, "who": row.who, "fence": row.fence, "since": row.since.map(rfc3339),
    });
    if !row.title.is_empty() {
        entry["title"] = row.title.into();
    }
    for (field, value) in row.own {
        entry[field] = value;
    }
    if matches!(row.state, "waiting" | "standby") {
        let since = row.since.and_then(|since| now.duration_since(since).ok());
        entry["waiting_ms"] = since.map(millis).into();
    }
    if kind == Kind::Lock && service.queued.is_sitting_out(kind, name, row.fence) {
        entry["sitting_out"] = true.into();
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
        entry["covered"] = now.covered.text().into();
        entry["handle"] = hold.handle.clone().into();
        entry["instance"] = service.tag.clone().into();
    }
    entry
}
