//! Coordination recipes, each written once over the [`Backend`](crate::backend::Backend) trait.

mod acquire;
pub(crate) mod data;
pub(crate) mod election;
mod gate;
pub(crate) mod grant;
mod judge;
pub(crate) mod limiter;
pub(crate) mod lock;
pub(crate) mod multi;
pub(crate) mod once;
mod place;
pub(crate) mod queue;
pub(crate) mod rate_limiter;
pub(crate) mod semaphore;
pub(crate) mod slots;
mod turn;
pub(crate) mod value;
