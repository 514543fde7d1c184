//! What operators have taken away, as the store remembers it: by whom, when, from whom and why.
//!
//! It is one value for the whole namespace, with the last twenty. Whoever takes something away adds to it afterwards, so that it has
//! nothing that was not done. A command that dies in between has taken away what is not noted.

use std::time::{SystemTime, UNIX_EPOCH};

use coordination::{Coordinator, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::exit::{self, Outcome, print, printable, say};
use crate::status::{age, table};

/// How many are remembered, and ([`MOST_BYTES`]) how long they are together: a name may be long.
const MOST: usize = 20;
const MOST_BYTES: usize = 128 * 1024;

/// What was taken away.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// In seconds since 1970, by the clock of who took it away.
    when: f64,
    /// The member id of who took it away.
    by: String,
    recipe: String,
    name: String,
    /// Who had it; empty: another program, or whoever has a claim's id.
    member: String,
    token: u64,
    #[serde(default)]
    reason: String,
}

impl Taken {
    pub(crate) fn now(coordinator: &Coordinator, recipe: &str, name: &str, reason: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            when: now.as_secs_f64(),
            by: coordinator.member_id().to_owned(),
            recipe: recipe.to_owned(),
            name: name.to_owned(),
            member: String::new(),
            token: 0,
            reason: reason.to_owned(),
        }
    }

    pub(crate) fn away_from(self, member: &str, token: u64) -> Self {
        Self { member: member.to_owned(), token, ..self }
    }

    /// Escaped: they are others' texts, on our terminal.
    fn cells(&self, now: f64) -> [String; 7] {
        [
            age(now - self.when),
            printable(&self.recipe),
            printable(&self.name),
            printable(&self.member),
            self.token.to_string(),
            printable(&self.by),
            printable(&self.reason),
        ]
    }
}

/// Remembers it. What was taken away stays so if the store does not take the note.
pub(crate) async fn note(coordinator: &Coordinator, taken: &Taken) {
    let noted = match coordinator.taken_away::<Vec<Taken>>() {
        Ok(value) => {
            let add = |before: Option<Vec<Taken>>| with(before.unwrap_or_default(), taken.clone());
            match value.update(add).await.map(drop) {
                // What nobody can read is of no use to anybody, and nothing else would ever take its place.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    value.set(&vec![taken.clone()]).await.map(drop)
                }
                noted => noted,
            }
        }
        Err(error) => Err(error),
    };
    if let Err(error) = noted {
        say(format_args!("`status --history` will not show it: {error}"));
    }
}

/// Shows what is remembered, or of it what has this name.
pub(crate) async fn show(
    coordinator: &Coordinator,
    only: Option<&str>,
    is_json: bool,
) -> Outcome<u8> {
    let stored = coordinator.taken_away::<Vec<Taken>>()?.read().await?;
    let mut all = stored.map(|stored| stored.value).unwrap_or_default();
    all.retain(|taken| only.is_none_or(|only| only == taken.name));
    let text = match is_json {
        true => exit::json(&all)?,
        false => shown(&all, SystemTime::now()),
    };
    print(&text).map(|()| 0)
}

fn shown(all: &[Taken], now: SystemTime) -> String {
    if all.is_empty() {
        return "nobody has taken anything away\n".to_owned();
    }
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let titles = ["AGO", "RECIPE", "NAME", "MEMBER", "TOKEN", "BY", "REASON"];
    table(&titles, all.iter().map(|taken| taken.cells(now)))
}

/// The last ones, the newest at the end.
fn with(mut all: Vec<Taken>, taken: Taken) -> Vec<Taken> {
    all.push(taken);
    all.drain(..all.len().saturating_sub(MOST));
    let length = |taken: &Taken| {
        let texts = [&taken.by, &taken.name, &taken.member, &taken.reason];
        texts.iter().map(|text| text.len()).sum::<usize>()
    };
    while all.len() > 1 && all.iter().map(length).sum::<usize>() > MOST_BYTES {
        all.remove(0);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(when: f64, name: &str) -> Taken {
        Taken {
            when,
            by: "operator".to_owned(),
            recipe: "lock".to_owned(),
            name: name.to_owned(),
            member: "host\n1".to_owned(),
            token: 7,
            reason: "hangs".to_owned(),
        }
    }

    #[test]
    fn the_last_ones_are_remembered() {
        let all = (0..25_u32).map(|number| taken(f64::from(number), "x"));
        let all = all.fold(Vec::new(), with);
        assert_eq!(all.len(), MOST);
        assert_eq!((all[0].when, all[MOST - 1].when), (5.0, 24.0));
        let long = "x".repeat(60_000);
        let all = (0..5_u32).map(|number| taken(f64::from(number), &long)).fold(all, with);
        assert_eq!(all.iter().map(|taken| taken.when).collect::<Vec<_>>(), [3.0, 4.0]);
        let longest = "x".repeat(MOST_BYTES);
        assert_eq!(with(all, taken(5.0, &longest)), [taken(5.0, &longest)]);
    }

    #[test]
    fn each_has_a_line() {
        let now = UNIX_EPOCH + std::time::Duration::from_secs(1_000);
        let expected = "\
AGO   RECIPE  NAME  MEMBER   TOKEN  BY        REASON
10 s  lock    x     host\\n1  7      operator  hangs
";
        assert_eq!(shown(&[taken(990.0, "x")], now), expected);
        let foreign = Taken { recipe: "\x1b[2J".to_owned(), ..taken(990.0, "x") };
        assert!(!shown(&[foreign], now).contains('\x1b'));
        assert!(shown(&[], now).contains("nobody"));
    }
}
