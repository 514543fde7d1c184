//! Coordination recipes, each written once over the [`Store`](crate::backend::Store) trait.

mod acquire;
pub(crate) mod barrier;
pub(crate) mod data;
pub(crate) mod double_barrier;
pub(crate) mod election;
mod gate;
pub(crate) mod grant;
pub(crate) mod group;
pub(crate) mod in_use;
mod judge;
pub(crate) mod latch;
pub(crate) mod limiter;
pub(crate) mod lock;
pub(crate) mod loss;
pub(crate) mod multi;
pub(crate) mod once;
mod own_entry;
pub(crate) mod partition;
pub(crate) mod protect;
pub(crate) mod queue;
pub(crate) mod rate_limiter;
pub(crate) mod ring;
pub(crate) mod semaphore;
pub(crate) mod slots;
mod turn;
pub(crate) mod value;
mod waiting;
