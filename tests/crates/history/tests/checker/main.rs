//! Tests of the checker. For each rule there are histories that break it, and each stands next to a similar history
//! that does not.

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
mod work;
