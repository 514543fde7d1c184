//! Records of what the clients of a test run did and saw, and a checker of such a history.
//!
//! For each thing that a client does, and for each result that it gets, the client writes a fixed-size [`Record`]. It
//! keeps the records in memory, or writes them with a [`Writer`] to a file that several processes share and that
//! remains if they are killed. [`check`] compares the records of all clients with [`Rules`] and returns a [`Report`].
//!
//! | rule | what holds | module under `rules` |
//! | --- | --- | --- |
//! | [`O1`](Rule::O1) | an object never has more holders at once than allowed, and a lost guard stays lost | `exclusion` |
//! | [`O2`](Rule::O2) | the later grant has the larger token | `tokens` |
//! | [`O3`](Rule::O3) | the fenced resource applies no write of an old holder, and loses no applied write | `fence` |
//! | [`O4`](Rule::O4) | first come, first served | `order` |
//! | [`O5`](Rule::O5) | waiters are granted, timeouts and losses are reported in time | `liveness` |
//! | [`O6`](Rule::O6) | no entries are left at the store | `leaks` |
//! | [`O7`](Rule::O7) | tries, leaders, values and counters are linearizable | `refusals`, `leaders`, `values` |
//! | [`O8`](Rule::O8) | no item of a work queue is in two live claims, each is acknowledged once, and none is lost | `work` |
//!
//! # No false alarms
//!
//! Every reported violation is a real one, never a guess. For this, all clients have to read the same clock, [`now`],
//! either before or after each call; [`Event`] says for each event which of the two is right. So the exact moment at
//! which a client's call took effect is unknown, but it lies between two readings of the clock. The checker reports a
//! violation only if the rule is broken for every possible choice of these moments.
//!
//! A simulation uses its own clock. The checker does not know the order of two records that have the same time, so a
//! simulation has to give each record a different time. It may, for example, count its steps as nanoseconds.
//!
//! # Examples
//!
//! ```
//! use coordination_history::{Event, Kind, NO_SLOT, Object, Record, Rule, Rules, check};
//!
//! let rules = Rules::new(vec![Object { id: 1, name: "lock".into(), kind: Kind::Lock, fifo: true }]);
//! let of = |client, at, event| Record { at, client, attempt: 1, object: 1, event };
//! let records = [
//!     of(1, 10, Event::Call { shared: false, timeout: 0 }),
//!     of(1, 20, Event::Granted { token: 5, slot: NO_SLOT }),
//!     of(2, 30, Event::Call { shared: false, timeout: 0 }),
//!     of(2, 40, Event::Granted { token: 6, slot: NO_SLOT }),
//!     of(1, 60, Event::Probe { before: 50, held: true }),
//! ];
//! assert_eq!(check(&records, &rules).violations[0].rule, Rule::O1);
//! ```

mod clients;
mod codec;
mod display;
mod file;
#[cfg(test)]
mod fuzz;
mod record;
mod report;
mod rules;
mod timeline;

pub use codec::{Malformed, SIZE, decode, encode};
pub use file::{Damage, Writer, now, read};
pub use record::{Answer, Event, NEVER, NO_SLOT, Operation, Record, Why, Work};
pub use report::{Report, Rule, Violation};
pub use rules::{Kind, Object, Rules, check};
