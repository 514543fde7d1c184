//! TLS by the HTTP client.

use reqwest::ClientBuilder;

use crate::backend::server::tls::{Tls, client_config};
use crate::error::Result;

/// Gives the HTTP client the configuration of TLS. It gets one without TLS, too, which trusts nobody: it would make one itself
/// otherwise, with the process's default provider.
pub(super) fn with_tls(builder: ClientBuilder, tls: Option<&Tls>) -> Result<ClientBuilder> {
    let nobody = Tls::trial();
    let Some(tls) = tls.or(nobody.as_ref()) else { return Ok(builder) };
    let mut config = client_config(tls)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(builder.tls_backend_preconfigured(config))
}
