//! Code that several stores with servers share.
//!
//! Nearly all of this code is compiled as soon as one of these stores is enabled, but each store uses only a part of it, and the
//! compiler would warn about the rest. So the warning about unused code is turned off, except in a build with all of these stores and TLS,
//! such as the build of `tests/lint`.
#![cfg_attr(
    not(all(
        feature = "consul",
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "zookeeper",
        feature = "_tls"
    )),
    allow(dead_code)
)]

pub(crate) mod access;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
pub(crate) mod batches;
pub(crate) mod bounded_cache;
pub(crate) mod cause;
pub(crate) mod connections;
pub(crate) mod credentials;
mod first;
pub(crate) mod names;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod notifications;
pub(crate) mod own_entries;
pub(crate) mod places;
pub(crate) mod reads;
pub(crate) mod rotation;
pub(crate) mod shared_watches;
mod source;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod sql;
pub(crate) mod stored;
#[cfg_attr(not(feature = "_tls"), path = "no_tls.rs")]
pub(crate) mod tls;
#[cfg(any(feature = "consul", feature = "etcd"))]
pub(crate) mod txn_kv;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
pub(crate) mod updates;

use std::time::Duration;

use tokio::time::timeout;

use crate::config::Settings;
use crate::error::{Error, ErrorKind, Result};

/// How long a call may wait for its answer before its connection is given up and the next server is tried. The limit is the same as
/// for a heartbeat.
pub(crate) fn patience(settings: &Settings) -> Duration {
    settings.call_timeout(settings.ttl)
}

/// Bounds one request that is sent by `gone` or `changed`, which themselves have no time limit. Fails with `Unavailable` if the
/// answer takes longer than `patience`.
pub(crate) async fn in_time<T>(
    patience: Duration,
    question: impl Future<Output = Result<T>>,
) -> Result<T> {
    let late = || Error::new(ErrorKind::Unavailable, "watch", "no answer in time");
    timeout(patience, question).await.unwrap_or_else(|_| Err(late()))
}
