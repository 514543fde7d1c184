//! In the place of `tls.rs` in a build without TLS.

use reqwest::ClientBuilder;

use crate::backend::server::tls::Tls;
use crate::error::Result;

pub(super) fn with_tls(builder: ClientBuilder, tls: Option<&Tls>) -> Result<ClientBuilder> {
    match tls {
        None => Ok(builder),
        Some(tls) => match *tls {},
    }
}
