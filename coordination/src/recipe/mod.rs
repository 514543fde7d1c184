//! Coordination recipes, each written once over the [`Store`](crate::backend::Store) trait.

pub(crate) mod barrier;
pub(crate) mod body;
pub(crate) mod double_barrier;
pub(crate) mod election;
pub(crate) mod engine;
pub(crate) mod group;
pub(crate) mod in_use;
pub(crate) mod latch;
pub(crate) mod limiter;
pub(crate) mod lock;
pub(crate) mod multi;
pub(crate) mod once;
pub(crate) mod overview;
pub(crate) mod partition;
pub(crate) mod rate_limiter;
pub(crate) mod semaphore;
pub(crate) mod value;
mod with;
pub(crate) mod work;
