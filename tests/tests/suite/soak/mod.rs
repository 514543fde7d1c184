//! What `tests/soak` runs: tests that take long, keep the whole machine busy, or are repeated a hundred times; faults
//! of stores of which `gate` has none; checks that the gate leaves out.

mod chaos;
mod connecting;
mod crowd;
#[cfg(feature = "consul")]
mod faults_consul;
mod faults_etcd;
#[cfg(feature = "mysql")]
mod faults_mysql;
#[cfg(feature = "postgres")]
mod faults_postgres;
#[cfg(feature = "redis")]
mod faults_redis;
#[cfg(feature = "zookeeper")]
mod faults_zookeeper;
mod group_scale;
mod limiter_storm;
mod many_names;
#[cfg(feature = "mysql")]
mod mysql_only;
#[cfg(feature = "mysql")]
mod mysql_operators;
mod pauses;
mod rates;
mod settings;
mod shortage;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sql_load;
mod store_suite;

coordination_tests::conformance!(soak);
coordination_tests::conformance!(optional);
