//! `coordination members` and `coordination leader`: who is there now, and each change.

use coordination::{Coordinator, ErrorKind, GroupEvent, Member, Term};
use serde_json::{Value, json};

use crate::args::{Leader, Members, Store};
use crate::exit::{self, NOBODY, Outcome, print, printable};
use crate::run::signals::until_stopped;
use crate::settings;

pub(crate) async fn members(members: &Members, store: &Store) -> Outcome<u8> {
    let coordinator = settings::connect(settings::read(store)?).await?;
    let following = follow_members(members, &coordinator);
    until_stopped(&coordinator, following).await
}

async fn follow_members(members: &Members, coordinator: &Coordinator) -> Outcome<u8> {
    let group = coordinator.group(&members.group)?;
    let line = |sign: &str, event: &str, member: &Member| match members.json {
        true => print(&format!("{}\n", json(event, member))),
        false => print(&format!(
            "{sign}{}  {}\n",
            exit::who(&member.id, &member.label),
            printable(member.capabilities.as_json())
        )),
    };
    if !members.watch {
        let there = match group.members().await {
            Err(error) if members.exit_code && error.kind() == ErrorKind::GroupMissing => {
                return Ok(NOBODY);
            }
            there => there?,
        };
        for member in &there {
            line("", "member", member)?;
        }
        return Ok(if members.exit_code && there.is_empty() { NOBODY } else { 0 });
    }
    let mut watch = group.watch().await?;
    for member in &watch.members() {
        line("  ", "member", member)?;
    }
    loop {
        match watch.next().await? {
            GroupEvent::Joined(member) => line("+ ", "joined", &member)?,
            GroupEvent::Left(member) => line("- ", "left", &member)?,
            GroupEvent::Updated(member) => line("~ ", "updated", &member)?,
            GroupEvent::Resync(now) => {
                for member in &now {
                    line("= ", "resync", member)?;
                }
            }
            GroupEvent::Deleted => return Ok(0),
            _ => {}
        }
    }
}

fn json(event: &str, member: &Member) -> Value {
    let said = member.capabilities.as_json();
    let capabilities = serde_json::from_str(said).unwrap_or_else(|_| Value::from(said));
    let incarnation = member.incarnation.value();
    let mut line = json!({ "event": event, "member": &*member.id, "incarnation": incarnation, "capabilities": capabilities });
    if !member.label.is_empty() {
        line["label"] = Value::from(&*member.label);
    }
    line
}

pub(crate) async fn leader(leader: &Leader, store: &Store) -> Outcome<u8> {
    let coordinator = settings::connect(settings::read(store)?).await?;
    let following = follow_leader(leader, &coordinator);
    until_stopped(&coordinator, following).await
}

async fn follow_leader(leader: &Leader, coordinator: &Coordinator) -> Outcome<u8> {
    let election = coordinator.election(&leader.name)?;
    let line = |term: Option<&Term>| {
        let value = term.map(|term| term.value::<Value>().unwrap_or(Value::Null));
        match (leader.json, term) {
            (true, _) => print(&format!(
                "{}\n",
                json!({ "leader": term.map(|term| &term.leader), "term": term.map(|term| term.term.value()), "value": value })
            )),
            (false, None) => print("nobody leads\n"),
            (false, Some(term)) => {
                let value = value.filter(|value| value.as_str() != Some(&term.leader));
                let value = value.map(|value| format!("  {value}")).unwrap_or_default();
                print(&format!("{}  term {}{value}\n", printable(&term.leader), term.term))
            }
        }
    };
    if leader.watch {
        let mut terms = election.observe();
        loop {
            line(terms.next().await?.into_term().as_ref())?;
        }
    }
    let term = election.leader().await?;
    line(term.as_ref())?;
    Ok(if term.is_some() { 0 } else { NOBODY })
}
