//! What the clients of a test run saw, and a checker that judges it.
//!
//! Clients write fixed [`Record`]s, in memory or with a [`Writer`]; [`check`] reads them all and answers a
//! [`Report`].

mod codec;
mod file;
mod record;
mod report;
mod rules;

pub use codec::{Malformed, SIZE, decode, encode};
pub use file::{Damage, Writer, now, parse, read};
pub use record::{Answer, Event, NEVER, NO_SLOT, Operation, Record, Why};
pub use report::{Report, Rule, Violation};
pub use rules::{Kind, Object, Rules, check};
