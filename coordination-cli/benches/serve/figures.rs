//! What came out, round by round.

use std::fmt;
use std::time::{Duration, Instant};

use crate::Outcome;

/// The values of one measure.
#[derive(Default)]
pub(crate) struct Figures(Vec<f64>);

impl Figures {
    pub(crate) fn add(&mut self, figure: f64) {
        self.0.push(figure);
    }

    /// What becomes of this and another measure, round by round.
    pub(crate) fn with(&self, other: &Self, both: impl Fn(f64, f64) -> f64) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, other)| both(*one, *other)).collect())
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    pub(crate) fn median(&self) -> f64 {
        let sorted = self.sorted();
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn greatest(&self) -> f64 {
        self.sorted().last().copied().unwrap_or(f64::NAN)
    }
}

/// The median, and within which bounds all of them are; with the decimals that the format asks for.
impl fmt::Display for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = formatter.precision().unwrap_or(0);
        let (median, greatest) = (self.median(), self.greatest());
        let least = self.sorted().first().copied().unwrap_or(f64::NAN);
        write!(formatter, "{median:.decimals$} ({least:.decimals$} to {greatest:.decimals$})")
    }
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Microseconds of one repetition.
pub(crate) fn timed(repeats: u32, mut work: impl FnMut() -> Outcome) -> Outcome<f64> {
    let begun = Instant::now();
    for _ in 0..repeats {
        work()?;
    }
    Ok(micros(begun.elapsed()) / f64::from(repeats))
}
