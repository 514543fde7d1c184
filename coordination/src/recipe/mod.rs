//! Coordination recipes, each written once over the [`Backend`](crate::backend::Backend) trait.

mod acquire;
pub(crate) mod data;
pub(crate) mod grant;
mod judge;
pub(crate) mod lock;
mod place;
pub(crate) mod queue;
mod turn;
