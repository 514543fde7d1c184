//! What `tests/run` runs.

mod broken;
mod cron;
mod ends;
mod handles;
mod held;
mod inherited;
mod job_control;
mod kept_apart;
mod looks;
mod no_fork;
mod offices;
mod outages;
mod queues;
mod reach;
mod serve;
mod settings;
mod settling;
mod several;
mod signals;
mod started;
mod terminal;
mod waits;
mod within;
