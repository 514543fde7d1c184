//! In the place of `tls.rs` in a build without TLS.

use etcd_client::ConnectOptions;

use crate::backend::server::tls::Tls;
use crate::url::Host;

pub(super) fn with_tls(_options: ConnectOptions, tls: &Tls, _host: &Host) -> ConnectOptions {
    match *tls {}
}
