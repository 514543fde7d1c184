//! `coordination status`: who holds what, and who waits.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coordination::{Coordinator, FencingToken, Occupant, Recipe};
use serde::Serialize;

use crate::args::{Status, Store};
use crate::exit::{self, Failure, Outcome, print, printable};
use crate::run::signals::until_stopped;
use crate::settings;

/// How often a table is drawn again.
const EVERY: Duration = Duration::from_secs(1);
/// To the upper left corner, and nothing below it.
const CLEAR: &str = "\x1b[H\x1b[J";
const RECIPES: [Recipe; 4] = [Recipe::Lock, Recipe::Semaphore, Recipe::Limiter, Recipe::Election];

/// Somebody who holds something or waits for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    recipe: String,
    name: String,
    /// `holds`, `shares`, `works`, `leads`, `waits`, `stands by`
    state: &'static str,
    member: String,
    token: u64,
    /// When it asked, in seconds since 1970 by its own clock.
    since: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slots: Vec<u32>,
}

/// Shows it once, or until interrupted.
pub(crate) async fn status(status: &Status, store: &Store) -> Outcome<u8> {
    let coordinator = settings::connect(settings::read(store)?).await?;
    let showing = async {
        let mut shown = None;
        loop {
            let rows = rows(&coordinator, status.name.as_deref()).await?;
            if !status.watch {
                return show(status, &rows).map(|()| 0);
            }
            // A table shows how old things are, and changes by itself.
            if !status.json || shown.as_ref() != Some(&rows) {
                show(status, &rows)?;
            }
            shown = Some(rows);
            tokio::time::sleep(EVERY).await;
        }
    };
    until_stopped(&coordinator, showing).await
}

async fn rows(coordinator: &Coordinator, only: Option<&str>) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for recipe in RECIPES {
        for name in coordinator.in_use(recipe).await? {
            if only.is_none_or(|only| only == name) {
                rows.extend(rows_of(coordinator, recipe, &name).await?);
            }
        }
    }
    Ok(rows)
}

async fn rows_of(coordinator: &Coordinator, recipe: Recipe, name: &str) -> Outcome<Vec<Row>> {
    let row = |state, member: String, token: FencingToken, since: Option<SystemTime>, slots| {
        let since = since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
        let (recipe, name, token) = (recipe.to_string(), name.to_owned(), token.value());
        Row {
            recipe,
            name,
            state,
            member,
            token,
            since: since.map(|since| since.as_secs_f64()),
            slots,
        }
    };
    let occupants = match recipe {
        Recipe::Lock => {
            let holders = coordinator.lock(name)?.holders().await?.into_iter();
            let state = |holding, shared| match (holding, shared) {
                (true, false) => "holds",
                (true, true) => "shares",
                _ => "waits",
            };
            return Ok(holders
                .map(|who| {
                    row(
                        state(who.holding, who.shared),
                        who.member,
                        who.token,
                        who.since,
                        Vec::new(),
                    )
                })
                .collect());
        }
        Recipe::Election => {
            let candidates = coordinator.election(name)?.candidates().await?.into_iter();
            let state = |leading| if leading { "leads" } else { "waits" };
            return Ok(candidates
                .map(|who| row(state(who.leading), who.member, who.term, who.since, Vec::new()))
                .collect());
        }
        // Their numbers do not matter to who only looks.
        Recipe::Semaphore => coordinator.semaphore(name, 1)?.holders().await?,
        _ => coordinator.limiter(name)?.inspect().await?,
    };
    let state = |who: &Occupant| match (who.slots.is_empty(), who.standby, recipe) {
        (false, _, Recipe::Semaphore) => "holds",
        (false, _, _) => "works",
        (true, true, _) => "stands by",
        (true, false, _) => "waits",
    };
    Ok(occupants
        .into_iter()
        .map(|who| row(state(&who), who.member, who.token, who.since, who.slots))
        .collect())
}

fn show(status: &Status, rows: &[Row]) -> Outcome {
    let text = match status.json {
        true => {
            let json = serde_json::to_string(rows)
                .map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))?;
            format!("{json}\n")
        }
        false => table(rows, SystemTime::now()),
    };
    let clear = if status.watch && !status.json && io::stdout().is_terminal() { CLEAR } else { "" };
    print(&format!("{clear}{text}"))
}

fn table(rows: &[Row], now: SystemTime) -> String {
    if rows.is_empty() {
        return "nobody holds anything or waits for it\n".to_owned();
    }
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let titles =
        ["RECIPE", "NAME", "STATE", "MEMBER", "TOKEN", "SINCE", "SLOTS"].map(str::to_owned);
    let lines: Vec<[String; 7]> =
        std::iter::once(titles).chain(rows.iter().map(|row| row.cells(now))).collect();
    let mut widths = [0; 7];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in &lines {
        let mut padded = String::new();
        for (cell, width) in line.iter().zip(widths) {
            let _ = write!(padded, "{cell:<width$}  ");
        }
        let _ = writeln!(text, "{}", padded.trim_end());
    }
    text
}

impl Row {
    /// Escaped: they are others' texts, on our terminal.
    fn cells(&self, now: f64) -> [String; 7] {
        let member = match self.member.as_str() {
            "" => "(another program)".to_owned(),
            member => printable(member),
        };
        let slots: Vec<_> = self.slots.iter().map(u32::to_string).collect();
        [
            self.recipe.clone(),
            printable(&self.name),
            self.state.to_owned(),
            member,
            self.token.to_string(),
            self.since.map(|since| age(now - since)).unwrap_or_default(),
            slots.join(","),
        ]
    }
}

/// `12 s`, `3 min`, `5 h`, `2 d`; clocks differ, so it may be a little less than none.
fn age(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    for (unit, length) in [("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)] {
        if seconds >= 2.0 * length {
            return format!("{:.0} {unit}", (seconds / length).floor());
        }
    }
    format!("{:.0} s", seconds.floor())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each() {
        let row = |name: &str, state, member: &str, since, slots: &[u32]| Row {
            recipe: "lock".to_owned(),
            name: name.to_owned(),
            state,
            member: member.to_owned(),
            token: 7,
            since,
            slots: slots.to_vec(),
        };
        let now = UNIX_EPOCH + Duration::from_secs(10_000);
        let rows = [
            row("a", "holds", "host\n1", Some(9_990.0), &[]),
            row("long-name", "waits", "", None, &[1, 2]),
        ];
        let expected = "\
RECIPE  NAME       STATE  MEMBER             TOKEN  SINCE  SLOTS
lock    a          holds  host\\n1            7      10 s
lock    long-name  waits  (another program)  7             1,2
";
        assert_eq!(table(&rows, now), expected);
        assert!(table(&[], now).contains("nobody"));
    }

    #[test]
    fn ages_are_short() {
        let ages = [
            (-3.0, "0 s"),
            (119.0, "119 s"),
            (120.0, "2 min"),
            (7_300.0, "2 h"),
            (200_000.0, "2 d"),
        ];
        for (seconds, text) in ages {
            assert_eq!(age(seconds), text);
        }
    }
}
