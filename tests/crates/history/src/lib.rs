//! What the clients of a test run saw, and a checker that judges it.
//!
//! Clients write fixed [`Record`]s of what they do and what they are told: in memory, or with a [`Writer`] to a file
//! that several processes share and that survives their death. [`check`] judges all of them together by [`Rules`] and
//! answers a [`Report`].
//!
//! | rule | what holds | module under `rules` |
//! | --- | --- | --- |
//! | [`O1`](Rule::O1) | no two hold at once what one may hold, and a loss is final | `exclusion` |
//! | [`O2`](Rule::O2) | the later grant has the larger token | `tokens` |
//! | [`O3`](Rule::O3) | the fenced resource takes nothing from an old holder, and loses nothing | `fence` |
//! | [`O4`](Rule::O4) | first come, first served | `order` |
//! | [`O5`](Rule::O5) | who waits is served, timeouts and losses are told in time | `liveness` |
//! | [`O6`](Rule::O6) | nothing is left at the store | `leaks` |
//! | [`O7`](Rule::O7) | tries, leaders, values and counters answer as if one after the other | `refusals`, `leaders`, `values` |
//!
//! # Exact
//!
//! A violation is one, never a guess. That rests on one clock, [`now`], and on the side of the call on which it is
//! read, which [`Event`] says for each. Whatever may have happened between two readings is given to the library's
//! favour. A simulation uses its own clock; it makes sure that two records never have the same time, as those are in no
//! order: its nanoseconds may count its steps.
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
pub use record::{Answer, Event, NEVER, NO_SLOT, Operation, Record, Why};
pub use report::{Report, Rule, Violation};
pub use rules::{Kind, Object, Rules, check};
