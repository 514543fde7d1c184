//! `coordination status`: who holds what, and who waits; and what queues of work have.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coordination::{
    Claimant, Coordinator, ErrorKind, FencingToken, Occupant, RateSettings, Recipe, Usage,
};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::args::{Status, Store};
use crate::exit::{self, Failure, NOBODY, Outcome, print, printable, say};
use crate::history;
use crate::run::signals::until_stopped;
use crate::settings;

/// How often a table is drawn again.
const EVERY: Duration = Duration::from_secs(1);
/// To the upper left corner, and nothing below it.
const CLEAR: &str = "\x1b[H\x1b[J";
/// So many rates, counters or jobs are read at a time: a service may have one for each of its clients.
const AT_ONCE: usize = 32;
/// What a claim of a queue is called among what is held.
const CLAIM: &str = "claim";
const COUNTER: &str = "counter";
const JOB: &str = "job";
const VALUE: &str = "value";
const RECIPES: [Recipe; 4] = [Recipe::Lock, Recipe::Semaphore, Recipe::Limiter, Recipe::Election];

/// Somebody who holds something or waits for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    recipe: String,
    name: String,
    /// `holds`, `shares`, `works`, `leads`, `claims`, `waits`, `stands by`
    state: &'static str,
    member: String,
    token: u64,
    /// When it asked, in seconds since 1970 by its own clock.
    since: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slots: Vec<u32>,
    /// How many slots there are for all, of what has a number of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    label: String,
}

/// What a queue of work has.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Queue {
    recipe: &'static str,
    name: String,
    ready: u64,
    claimed: u64,
    delayed: u64,
    dead: u64,
    /// On their way to the dead letter queue.
    letters: u64,
    /// The age of the oldest item, in seconds.
    oldest: Option<u64>,
}

/// What a rate limiter allows.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Rate {
    recipe: &'static str,
    name: String,
    #[serde(flatten)]
    settings: RateSettings,
}

/// Something that is stored, and that nobody holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Stored {
    /// [`COUNTER`], [`JOB`] or [`VALUE`].
    recipe: &'static str,
    name: String,
    /// That of a counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<i64>,
    /// The number of the last claim of a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    /// When that was made, in seconds since 1970 by the clock of who made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed: Option<f64>,
    /// When the next one can be made, by the same clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<f64>,
    /// Whether it can be made now, as far as is known: the clock of who made the last one may be another than ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<bool>,
}

/// One of the objects of the array.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Row(&'a Row),
    Queue(&'a Queue),
    Rate(&'a Rate),
    Stored(&'a Stored),
}

/// All that is shown.
#[derive(Clone, Debug, PartialEq)]
struct Shown {
    rows: Vec<Row>,
    queues: Vec<Queue>,
    rates: Vec<Rate>,
    stored: Vec<Stored>,
}

impl Shown {
    /// Whether anybody has any of it, and not only waits for it.
    fn is_held(&self) -> bool {
        let holds = |row: &Row| !matches!(row.state, "waits" | "stands by");
        self.rows.iter().any(holds) || self.queues.iter().any(|queue| queue.claimed > 0)
    }
}

/// Shows it once, or until interrupted.
pub(crate) async fn status(status: &Status, store: &Store) -> Outcome<u8> {
    let coordinator = settings::connect(settings::read(store)?).await?;
    if status.history {
        let showing = history::show(&coordinator, status.name.as_deref(), status.json);
        return until_stopped(&coordinator, showing).await;
    }
    let showing = async {
        let mut shown = None;
        loop {
            let only = status.name.as_deref();
            let mut now = Shown {
                rows: rows(&coordinator, only).await?,
                queues: queues(&coordinator, only).await?,
                rates: rates(&coordinator, only).await?,
                stored: match status.stored {
                    true => stored(&coordinator, only).await?,
                    false => Vec::new(),
                },
            };
            if only.is_some() {
                now.rows.extend(claims(&coordinator, &now.queues).await?);
            }
            if !status.watch {
                show(status, &now)?;
                return Ok(if status.exit_code && !now.is_held() { NOBODY } else { 0 });
            }
            // A table shows how old things are, and changes by itself.
            if !status.json || shown.as_ref() != Some(&now) {
                show(status, &now)?;
            }
            shown = Some(now);
            tokio::time::sleep(EVERY).await;
        }
    };
    until_stopped(&coordinator, showing).await
}

async fn rows(coordinator: &Coordinator, only: Option<&str>) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for recipe in RECIPES {
        let overview = coordinator.overview(recipe).await?;
        let mut overview = overview.of_names(|name| only.is_none_or(|only| only == name));
        while let Some(used) = overview.next().await {
            rows.extend(rows_of(recipe, &used.name, used.usage?));
        }
    }
    Ok(rows)
}

/// The queues that have something, and that of the name that was asked for.
async fn queues(coordinator: &Coordinator, only: Option<&str>) -> Outcome<Vec<Queue>> {
    let mut queues = Vec::new();
    for name in coordinator.queues().await? {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let stats = coordinator.queue(&name)?.stats().await?;
        if only.is_some() || stats.total() + stats.dead + stats.letters > 0 {
            queues.push(Queue {
                recipe: "queue",
                name,
                ready: stats.ready,
                claimed: stats.claimed,
                delayed: stats.delayed,
                dead: stats.dead,
                letters: stats.letters,
                oldest: stats.oldest.map(|oldest| oldest.as_secs()),
            });
        }
    }
    Ok(queues)
}

/// Who has claims of these queues. There may be thousands, so it is asked for one queue only.
async fn claims(coordinator: &Coordinator, queues: &[Queue]) -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for Queue { name, .. } in queues.iter().filter(|queue| queue.claimed > 0) {
        let claims = coordinator.queue(name)?.claims().await?.into_iter();
        rows.extend(claims.map(|who| Row::of_claim(name, who)));
    }
    Ok(rows)
}

async fn rates(coordinator: &Coordinator, only: Option<&str>) -> Outcome<Vec<Rate>> {
    let (mut rates, mut reading) = (Vec::new(), JoinSet::new());
    let names = coordinator.rate_limiters().await?.into_iter();
    let mut names = names.filter(|name| only.is_none_or(|only| only == name));
    loop {
        while reading.len() < AT_ONCE
            && let Some(name) = names.next()
        {
            // Its numbers do not matter to who only looks.
            let limiter = coordinator.rate_limiter(&name, 1, EVERY)?;
            reading.spawn(async move { (name, limiter.stored_settings().await) });
        }
        let Some(read) = reading.join_next().await else { break };
        match read.map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))? {
            // What is held is to be seen all the same.
            (name, Err(error)) if error.kind() == ErrorKind::Corrupt => {
                say(format_args!("the rate {name:?} is not shown: {error}"));
            }
            (name, settings) => {
                rates.extend(settings?.map(|settings| Rate { recipe: "rate", name, settings }));
            }
        }
    }
    rates.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(rates)
}

/// Counters, jobs and values.
async fn stored(coordinator: &Coordinator, only: Option<&str>) -> Outcome<Vec<Stored>> {
    let mut names = Vec::new();
    for (recipe, all) in [
        (COUNTER, coordinator.counters().await?),
        (JOB, coordinator.once_jobs().await?),
        (VALUE, coordinator.values().await?),
    ] {
        names.extend(all.into_iter().map(|name| (recipe, name)));
    }
    names.retain(|(_, name)| only.is_none_or(|only| only == name));
    let (mut names, mut stored, mut reading) = (names.into_iter(), Vec::new(), JoinSet::new());
    loop {
        while reading.len() < AT_ONCE
            && let Some((recipe, name)) = names.next()
        {
            let coordinator = coordinator.clone();
            reading.spawn(async move {
                let read = Stored::read(&coordinator, recipe, &name).await;
                (recipe, name, read)
            });
        }
        let Some(read) = reading.join_next().await else { break };
        match read.map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))? {
            (recipe, name, Err(error)) if error.kind() == ErrorKind::Corrupt => {
                say(format_args!("the {recipe} {name:?} is not shown: {error}"));
            }
            (_, _, read) => stored.extend(read?),
        }
    }
    stored.sort_by(|one, other| (one.recipe, &one.name).cmp(&(other.recipe, &other.name)));
    Ok(stored)
}

fn rows_of(recipe: Recipe, name: &str, usage: Usage) -> Vec<Row> {
    let row =
        |state, who: (String, String), token: FencingToken, since: Option<SystemTime>, slots| {
            let since = since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
            let (recipe, name, token) = (recipe.to_string(), name.to_owned(), token.value());
            let (member, label) = who;
            Row {
                recipe,
                name,
                state,
                member,
                token,
                since: since.map(|since| since.as_secs_f64()),
                slots,
                of: None,
                label,
            }
        };
    let (occupants, of) = match usage {
        Usage::Lock(contenders) => {
            let state = |holding, shared| match (holding, shared) {
                (true, false) => "holds",
                (true, true) => "shares",
                _ => "waits",
            };
            let rows = contenders.into_iter().map(|who| {
                let state = state(who.holding, who.shared);
                row(state, (who.member, who.label), who.token, who.since, Vec::new())
            });
            return rows.collect();
        }
        Usage::Election(candidates) => {
            let rows = candidates.into_iter().map(|who| {
                let state = if who.leading { "leads" } else { "waits" };
                row(state, (who.member, who.label), who.term, who.since, Vec::new())
            });
            return rows.collect();
        }
        Usage::Semaphore { occupants, permits } => (occupants, permits),
        Usage::Limiter { occupants, slots } => (occupants, slots),
        _ => return Vec::new(),
    };
    let state = |who: &Occupant| match (who.slots.is_empty(), who.standby, recipe) {
        (false, _, Recipe::Semaphore) => "holds",
        (false, _, _) => "works",
        (true, true, _) => "stands by",
        (true, false, _) => "waits",
    };
    occupants
        .into_iter()
        .map(|who| row(state(&who), (who.member, who.label), who.token, who.since, who.slots))
        .map(|row| Row { of, ..row })
        .collect()
}

fn show(status: &Status, shown: &Shown) -> Outcome {
    let text = match status.json {
        true => json(shown).map_err(|error| Failure::new(exit::SYSTEM, error.to_string()))?,
        false => tables(shown, SystemTime::now()),
    };
    let clear = if status.watch && !status.json && io::stdout().is_terminal() { CLEAR } else { "" };
    print(&format!("{clear}{text}"))
}

/// One array, in which those of a queue, of a rate and of what is stored have other fields.
fn json(shown: &Shown) -> Result<String, serde_json::Error> {
    let rows = shown.rows.iter().map(Line::Row);
    let lines = rows.chain(shown.queues.iter().map(Line::Queue));
    let lines = lines.chain(shown.rates.iter().map(Line::Rate));
    let all: Vec<_> = lines.chain(shown.stored.iter().map(Line::Stored)).collect();
    Ok(format!("{}\n", serde_json::to_string(&all)?))
}

/// One of those who hold something or wait for it, one of the queues, one of the rates, and one of what is stored.
fn tables(shown: &Shown, now: SystemTime) -> String {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let titles = ["RECIPE", "NAME", "STATE", "MEMBER", "TOKEN", "SINCE", "SLOTS", "LABEL"];
    // There is a column of labels if anybody has one.
    let is_labelled = shown.rows.iter().any(|row| !row.label.is_empty());
    let titles = &titles[..titles.len() - usize::from(!is_labelled)];
    let rows = table(titles, shown.rows.iter().map(|row| row.cells(now)));
    let titles = ["QUEUE", "READY", "CLAIMED", "DELAYED", "DEAD", "LETTERS", "OLDEST"];
    let queues = table(&titles, shown.queues.iter().map(Queue::cells));
    let cells = |rate: &Rate| [printable(&rate.name), rate.settings.to_string()];
    let rates = table(&["RATE", "SETTINGS"], shown.rates.iter().map(cells));
    let cells = shown.stored.iter().map(|stored| stored.cells(now));
    let stored = table(&["STORED", "NAME", "WHAT"], cells);
    let all = [
        (shown.rows.is_empty(), rows),
        (shown.queues.is_empty(), queues),
        (shown.rates.is_empty(), rates),
        (shown.stored.is_empty(), stored),
    ];
    let all = all.into_iter().filter(|(is_empty, _)| !is_empty).map(|(_, table)| table);
    let all: Vec<_> = all.collect();
    match all.is_empty() {
        true => "nobody holds anything or waits for it\n".to_owned(),
        false => all.join("\n"),
    }
}

/// Of each row as many cells as there are titles.
pub(crate) fn table<const N: usize>(
    titles: &[&str],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let head = titles.iter().map(|title| (*title).to_owned()).collect();
    let lines: Vec<Vec<_>> = std::iter::once(head).chain(rows.map(Vec::from)).collect();
    let mut widths = vec![0; titles.len()];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in &lines {
        let mut padded = String::new();
        for (cell, width) in line.iter().zip(widths.iter().copied()) {
            let _ = write!(padded, "{cell:<width$}  ");
        }
        let _ = writeln!(text, "{}", padded.trim_end());
    }
    text
}

impl Queue {
    fn cells(&self) -> [String; 7] {
        let counts = [self.ready, self.claimed, self.delayed, self.dead, self.letters];
        let [ready, claimed, delayed, dead, letters] = counts.map(|count| count.to_string());
        let oldest = self.oldest.map(|oldest| age(oldest as f64)).unwrap_or_default();
        [printable(&self.name), ready, claimed, delayed, dead, letters, oldest]
    }
}

impl Stored {
    /// `None`: an operator has made it forgotten.
    async fn read(
        coordinator: &Coordinator,
        recipe: &'static str,
        name: &str,
    ) -> coordination::Result<Option<Self>> {
        let name = name.to_owned();
        let (number, token, claimed, next, due) = (None, None, None, None, None);
        let none = Self { recipe, name, number, token, claimed, next, due };
        Ok(match recipe {
            COUNTER => {
                let number = Some(coordinator.counter(&none.name)?.read().await?);
                Some(Self { number, ..none })
            }
            // Its period does not matter to who only looks.
            JOB => coordinator.once_per(&none.name, EVERY)?.last_claim().await?.map(|last| Self {
                token: Some(last.token.value()),
                claimed: Some(since_1970(last.at)),
                next: Some(since_1970(last.next)),
                due: Some(last.due.is_zero()),
                ..none
            }),
            _ => Some(none),
        })
    }

    fn cells(&self, now: f64) -> [String; 3] {
        let left = self.next.map_or(0.0, |next| next - now);
        let due = match self.due {
            Some(false) if left > 0.0 => format!("due in {}", age(left)),
            Some(false) => "not due yet".to_owned(),
            _ => "due".to_owned(),
        };
        let what = match (self.number, self.claimed) {
            (Some(number), _) => number.to_string(),
            (None, Some(claimed)) => format!("claimed {} ago, {due}", age(now - claimed)),
            (None, None) => String::new(),
        };
        [self.recipe.to_owned(), printable(&self.name), what]
    }
}

fn since_1970(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Row {
    fn of_claim(queue: &str, who: Claimant) -> Self {
        Self {
            recipe: CLAIM.to_owned(),
            name: queue.to_owned(),
            state: "claims",
            member: who.member,
            token: who.token.value(),
            since: None,
            slots: Vec::new(),
            of: None,
            label: String::new(),
        }
    }

    /// Escaped: they are others' texts, on our terminal.
    fn cells(&self, now: f64) -> [String; 8] {
        let member = match self.member.as_str() {
            "" if self.recipe == CLAIM => "(whoever has its id)".to_owned(),
            "" => "(another program)".to_owned(),
            member => printable(member),
        };
        let slots: Vec<_> = self.slots.iter().map(u32::to_string).collect();
        let of = self.of.filter(|_| !slots.is_empty()).map(|of| format!(" of {of}"));
        [
            self.recipe.clone(),
            printable(&self.name),
            self.state.to_owned(),
            member,
            self.token.to_string(),
            self.since.map(|since| age(now - since)).unwrap_or_default(),
            slots.join(",") + &of.unwrap_or_default(),
            printable(&self.label),
        ]
    }
}

/// `12 s`, `3 min`, `5 h`, `2 d`; clocks differ, so it may be a little less than none.
pub(crate) fn age(seconds: f64) -> String {
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
            of: (!slots.is_empty()).then_some(3),
            label: String::new(),
        };
        let now = UNIX_EPOCH + Duration::from_secs(10_000);
        let rows = [
            row("a", "holds", "host\n1", Some(9_990.0), &[]),
            row("long-name", "waits", "", None, &[1, 2]),
        ];
        let expected = "\
RECIPE  NAME       STATE  MEMBER             TOKEN  SINCE  SLOTS
lock    a          holds  host\\n1            7      10 s
lock    long-name  waits  (another program)  7             1,2 of 3
";
        let shown = |rows: &[Row], queues: &[Queue]| {
            let (rows, queues) = (rows.to_vec(), queues.to_vec());
            tables(&Shown { rows, queues, rates: Vec::new(), stored: Vec::new() }, now)
        };
        assert_eq!(shown(&rows, &[]), expected);
        let mut labelled = rows.clone();
        labelled[0].label = "the first\tone".to_owned();
        let with_labels = "\
RECIPE  NAME       STATE  MEMBER             TOKEN  SINCE  SLOTS     LABEL
lock    a          holds  host\\n1            7      10 s             the first\\tone
lock    long-name  waits  (another program)  7             1,2 of 3
";
        assert_eq!(shown(&labelled, &[]), with_labels);
        assert!(shown(&[], &[]).contains("nobody"));
        let queue = Queue {
            recipe: "queue",
            name: "jobs".to_owned(),
            ready: 12,
            claimed: 3,
            delayed: 0,
            dead: 1,
            letters: 2,
            oldest: Some(90),
        };
        let of_queues = "\
QUEUE  READY  CLAIMED  DELAYED  DEAD  LETTERS  OLDEST
jobs   12     3        0        1     2        90 s
";
        let queues = [queue];
        assert_eq!(shown(&[], &queues), of_queues);
        assert_eq!(shown(&rows, &queues), format!("{expected}\n{of_queues}"));
        let (rows, queues) = (rows.to_vec(), queues.to_vec());
        let shown = Shown { rows, queues, rates: Vec::new(), stored: Vec::new() };
        let all = json(&shown).expect("it is JSON");
        assert!(all.contains(r#""recipe":"queue","name":"jobs","ready":12,"#), "{all}");
    }

    #[test]
    fn what_is_stored_has_a_table_of_its_own() {
        let now = UNIX_EPOCH + Duration::from_secs(10_000);
        let stored = |recipe, name: &str, number, claimed: Option<f64>, next, due| {
            let (name, token) = (name.to_owned(), claimed.map(|_| 7));
            Stored { recipe, name, number, token, claimed, next, due }
        };
        let stored = vec![
            stored(COUNTER, "hits", Some(-3), None, None, None),
            stored(JOB, "backup", None, Some(9_940.0), Some(10_030.0), Some(false)),
            // By clocks that are not ours.
            stored(JOB, "behind", None, Some(9_000.0), Some(9_900.0), Some(false)),
            stored(JOB, "given", None, Some(10_030.0), Some(10_030.0), Some(true)),
            stored(JOB, "report", None, Some(9_000.0), Some(9_900.0), Some(true)),
            stored(VALUE, "li\nmit", None, None, None, None),
        ];
        let (rows, queues, rates) = (Vec::new(), Vec::new(), Vec::new());
        let shown = Shown { rows, queues, rates, stored };
        let expected = "\
STORED   NAME     WHAT
counter  hits     -3
job      backup   claimed 60 s ago, due in 30 s
job      behind   claimed 16 min ago, not due yet
job      given    claimed 0 s ago, due
job      report   claimed 16 min ago, due
value    li\\nmit
";
        assert_eq!(tables(&shown, now), expected);
        let all = json(&shown).expect("it is JSON");
        let counter = r#"[{"recipe":"counter","name":"hits","number":-3},"#;
        assert!(all.starts_with(counter), "{all}");
        assert!(all.contains(r#"{"recipe":"value","name":"li\nmit"}]"#), "{all}");
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
