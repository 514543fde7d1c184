//! In the place of `tls.rs` in a build without TLS.

use mysql_async::SslOpts;

use crate::backend::server::tls::Tls;

pub(super) fn options(tls: &Tls) -> SslOpts {
    match *tls {}
}
