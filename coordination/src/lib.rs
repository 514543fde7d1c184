//! Locks that the processes of a distributed service agree on.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod characteristics;
mod config;
mod coordinator;
mod duration;
mod error;
mod key;
mod recipe;
mod retry;
mod session;
mod template;
mod time;
mod token;
mod url;

#[cfg(feature = "macros")]
#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
pub mod blocking;

#[cfg(feature = "macros")]
pub use coordination_macros::synchronized;

pub use characteristics::{Characteristics, Durability, Liveness, Requirement, Scope};
pub use config::Config;
pub use coordinator::{Builder, Coordinator};
pub use error::{Effect, Error, ErrorKind, LossReason, NameError, Result};
pub use recipe::lock::{Contender, Lock, LockGuard};
pub use session::{State, StateWatch};
pub use template::Template;
pub use time::BootInstant;
pub use token::{Fence, FencingToken, Stale};
