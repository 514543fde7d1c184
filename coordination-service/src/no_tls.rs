//! In the place of `tls.rs` in a build without the features `tls` and `tls-ring`: settings that ask for TLS are refused.
//!
//! [`Tls`], [`Certificate`], [`OwnCertificate`] and [`Client`] have no values, so what takes one is never called. They are there so that
//! nothing else differs between the two builds.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;

use crate::auth::Names;
use crate::settings::TlsFiles;
use crate::stalled::Stalled;

pub(crate) type EncryptedStream = Stalled<TcpStream>;

/// Whether HTTP/2 was agreed upon.
pub(crate) fn is_http2(_stream: &EncryptedStream) -> bool {
    false
}

pub(crate) enum Tls {}

pub(crate) enum Certificate {}

#[derive(Clone)]
pub(crate) enum OwnCertificate {}

pub(crate) enum Client {}

impl Client {
    pub(crate) fn names(&self) -> Names {
        match *self {}
    }

    pub(crate) async fn refused(&self) {
        match *self {}
    }
}

impl Certificate {
    pub(crate) fn own(&self) -> OwnCertificate {
        match *self {}
    }
}

impl OwnCertificate {
    pub(crate) fn is_for(&self, _host: &str) -> bool {
        match *self {}
    }
}

impl Tls {
    pub(crate) fn new(_files: TlsFiles) -> Result<Self, String> {
        let why = "--tls-cert and --tls-key ask for TLS, which this build does not have: turn on the cargo feature `tls` (or `tls-ring`)";
        Err(why.to_owned())
    }

    pub(crate) fn reload(&self) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn reload_clients(&self) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn certificate(&self) -> Arc<Certificate> {
        match *self {}
    }

    pub(crate) async fn accept(
        self: Arc<Self>,
        _stream: TcpStream,
        _certificate: Arc<Certificate>,
    ) -> io::Result<(EncryptedStream, Option<Client>)> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_tls_is_told_the_feature() {
        let (certificate, key) = ("cert.pem".into(), "key.pem".into());
        let files = TlsFiles { certificate, key, clients: None };
        let why = Tls::new(files).err().expect("there is no TLS");
        assert!(why.contains("feature `tls`"), "{why}");
    }
}
