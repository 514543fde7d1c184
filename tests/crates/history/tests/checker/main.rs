//! Tests of the checker: for each rule, histories that break it, each next to a similar one that does not.

mod exclusion;
mod fence;
mod file;
mod leaders;
mod leaks;
mod liveness;
mod order;
mod random;
mod refusals;
mod report;
mod story;
mod tokens;
mod values;
