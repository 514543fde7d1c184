//! What `tests/soak` runs: the same for longer, and on every store.

mod clients;
mod cron;
mod kept_apart;
mod killed;
mod page;
mod queues;
mod units;
