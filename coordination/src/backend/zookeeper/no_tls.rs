//! In the place of `tls.rs` in a build without TLS.

use std::io;
use std::net::TcpStream;

use zookeeper_client::{Client, Connector, Error as ZooKeeperError};

use crate::backend::server::tls::Tls;
use crate::error::Result;
use crate::url::Host;

/// What is said of a server that hangs up on the probe. Nothing can find out whether it wants TLS.
pub(super) const HANGS_UP: &str = "the server hangs up: it has no quorum, is read-only, has too many connections, or wants TLS, which this \
                                   build does not have";

pub(super) enum Certs {}

#[derive(Clone)]
pub(super) enum Handshake {}

impl Certs {
    pub(super) fn new(tls: &Tls) -> Result<Self> {
        match *tls {}
    }

    pub(super) fn update(&self, _tls: &Tls) {
        match *self {}
    }

    pub(super) async fn connect(
        &self,
        _connector: Connector,
        _servers: &str,
    ) -> Result<Client, ZooKeeperError> {
        match *self {}
    }
}

impl Handshake {
    pub(super) fn new(tls: &Tls) -> Result<Self> {
        match *tls {}
    }

    pub(super) fn trial() -> Option<Self> {
        None
    }

    pub(super) fn shake_hands(&self, _host: &Host, _stream: TcpStream) -> io::Result<TcpStream> {
        match *self {}
    }
}

pub(super) fn is_tls(_error: &io::Error) -> bool {
    false
}
