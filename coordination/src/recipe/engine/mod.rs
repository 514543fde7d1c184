//! What all recipes are made of: an entry of ours in a queue, its turn, and the grant that comes of it.

pub(crate) mod acquire;
pub(crate) mod data;
pub(crate) mod grant;
pub(crate) mod loss;
pub(crate) mod own_entry;
pub(crate) mod policy;
pub(crate) mod protect;
pub(crate) mod queue;
pub(crate) mod slots;
pub(crate) mod turn;
pub(crate) mod waiting;
mod waits;
