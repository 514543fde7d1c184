//! What was measured, for programs: a line of JSON for each series of values, added to the file that `COORDINATION_BENCH_JSON`
//! names. The path is absolute, as cargo runs us in the package's directory. `tests/performance` makes a page of it.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;

use serde::Serialize;

use crate::Outcome;

/// Whose values they are.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Side {
    Ours,
    /// The fewest requests of any correct lock.
    Floor,
    /// The best other lock that waits without polling.
    Rival,
    /// A lock that others use.
    Peer,
}

/// What is measured, of whichever side.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Measure<'a> {
    pub(crate) store: &'a str,
    /// What can be measured alone, such as `contended`.
    pub(crate) part: &'a str,
    pub(crate) measure: &'a str,
    pub(crate) unit: &'a str,
    /// How much there is of what the measure depends on, such as waiters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parameter: Option<f64>,
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    measure: &'a Measure<'a>,
    side: Side,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<&'a [f64]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<&'a str>,
}

impl Measure<'_> {
    /// Records the value of each round. The values of two sides that ran in turn have the same order.
    pub(crate) fn values(&self, side: Side, name: Option<&str>, values: &[f64]) -> Outcome {
        write(&Line { measure: self, side, name, values: Some(values), cut: None })
    }

    /// Records why there are no values.
    pub(crate) fn cut(&self, side: Side, name: Option<&str>, why: &str) -> Outcome {
        write(&Line { measure: self, side, name, values: None, cut: Some(why) })
    }
}

fn file() -> Option<OsString> {
    std::env::var_os("COORDINATION_BENCH_JSON")
}

/// Whether anything is recorded.
pub(crate) fn is_wanted() -> bool {
    file().is_some()
}

fn write(line: &Line<'_>) -> Outcome {
    let Some(path) = file() else { return Ok(()) };
    let text = serde_json::to_string(line)? + "\n";
    Ok(OpenOptions::new().create(true).append(true).open(path)?.write_all(text.as_bytes())?)
}
