//! What `tests/soak` runs: tests that take long, keep the whole machine busy, or are repeated a hundred times; faults
//! of stores of which `gate` has none; checks that the gate leaves out.

mod chaos;
pub(crate) mod connecting;
pub(crate) mod crowd;
mod group_scale;
mod limiter_storm;
mod many_names;
#[cfg(feature = "mysql")]
mod mysql_only;
#[cfg(feature = "mysql")]
mod mysql_operators;
#[cfg(feature = "mysql")]
mod mysql_shared;
mod pauses;
#[cfg(feature = "postgres")]
mod postgres_plans;
mod rates;
mod settings;
pub(crate) mod shortage;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod sql_load;
mod store_suite;
mod testing;
mod work_crowd;
mod work_model;
mod work_size;

coordination_tests::conformance!(soak);
coordination_tests::conformance!(optional);
