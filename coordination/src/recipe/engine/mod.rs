//! What all recipes are built on: our own entry in a queue, its turn, and the grant that follows.

pub(crate) mod acquire;
pub(crate) mod any_guard;
pub(crate) mod data;
mod deciding;
pub(crate) mod grant;
pub(crate) mod label;
pub(crate) mod loss;
mod monitor;
pub(crate) mod own_entry;
pub(crate) mod place;
pub(crate) mod policy;
pub(crate) mod protect;
pub(crate) mod queue;
pub(crate) mod rising;
pub(crate) mod slots;
pub(crate) mod turn;
pub(crate) mod waiting;
mod waits;
