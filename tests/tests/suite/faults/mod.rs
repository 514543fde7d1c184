//! What goes wrong on each store: the rows of the fault matrix that several stores have, and those that it has alone. In the folder
//! of a store, `gate` is what `tests/run` runs, and `soak` what `tests/soak` runs.

#[cfg(feature = "consul")]
mod consul;
#[cfg(feature = "etcd")]
mod etcd;
mod file;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "zookeeper")]
mod zookeeper;
