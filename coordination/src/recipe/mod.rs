//! Coordination recipes, each written once over the [`Backend`](crate::backend::Backend) trait.

pub(crate) mod lock;
mod queue;
