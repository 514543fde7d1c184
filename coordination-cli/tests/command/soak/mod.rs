//! What `tests/soak` runs: the same for longer, and on every store.

mod broken;
mod chaos;
mod clients;
mod cron;
mod kept_apart;
mod killed;
mod leases;
mod openapi;
mod page;
mod queues;
mod rdlm;
mod slow;
mod units;
