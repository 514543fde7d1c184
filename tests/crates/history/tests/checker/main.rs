//! The checker is checked: for each rule histories that break it, beside the nearest ones that do not.

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
