//! The service: `serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use coordination_service::Network;

use super::Listen;
use super::values::{duration, listen};

/// Offer locks and other recipes over HTTP to programs in any language, and a page that shows who holds what
///
/// An API of its own under /v1, the page at /, and the APIs of rdlm, lockable.dev and Zaqar on listeners of their own. It
/// keeps nothing on its own disk: what is held is held at the store. SIGTERM lets clients renew and release for a while; a
/// second one ends it at once.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  coordination serve --url file:///run/lock/coordination\n  \
    curl -X POST localhost:8420/v1/locks/backup -d '{\"wait_ms\":5000}'")]
pub(crate) struct Serve {
    /// Where to listen: an address, or unix:PATH, or one of each
    #[arg(long, value_name = "ADDR", value_parser = listen, default_value = "127.0.0.1:8420")]
    pub(crate) listen: Vec<Listen>,
    /// Serve rdlm's API there
    #[arg(long, value_name = "ADDR")]
    pub(crate) rdlm: Option<SocketAddr>,
    /// Serve the API of lockable.dev there
    #[arg(long, value_name = "ADDR")]
    pub(crate) lockable: Option<SocketAddr>,
    /// Serve the API of OpenStack's Zaqar there, version 2
    #[arg(long, value_name = "ADDR")]
    pub(crate) zaqar: Option<SocketAddr>,
    /// Tell metrics there, too, to whoever asks, and nothing else but health
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
    /// A name by which clients may call us, besides localhost and the addresses
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
    /// A proxy, or a network of them, whose X-Forwarded-For says where a request comes from
    #[arg(long, value_name = "ADDR[/BITS]")]
    pub(crate) trusted_proxy: Vec<Network>,
    /// The file with tokens and with the names in clients' certificates, which only we may read; without one everybody who reaches us may hold locks
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Encrypt with this certificate, in PEM, followed by those of its authorities; also read again at SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key, in PEM, which only we may read
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Ask clients for a certificate that one of these authorities has signed, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Whether a client that shows no certificate is refused [default: required]
    #[arg(long, value_enum, value_name = "WHETHER", requires = "client_ca")]
    pub(crate) client_auth: Option<ClientAuth>,
    /// Refuse certificates that are in these lists of revoked ones, in PEM: one list of each authority
    #[arg(long, value_name = "FILE", requires = "client_ca")]
    pub(crate) client_crl: Option<PathBuf>,
    /// Listen where others can reach us though there are no tokens
    #[arg(long)]
    pub(crate) allow_anonymous: bool,
    /// Listen where others can reach us though nothing is encrypted
    #[arg(long)]
    pub(crate) allow_plaintext: bool,
    /// Names that begin so may have leases that outlive us; rdlm/ and lockable/ always may
    #[arg(long, value_name = "PREFIX")]
    pub(crate) long: Vec<String>,
    /// How long clients may still renew and release when we are to stop
    #[arg(long, value_name = "D", value_parser = duration, default_value = "30s")]
    pub(crate) drain: Duration,
    /// Write no line for each request to stdout
    #[arg(long)]
    pub(crate) no_access_log: bool,
    /// Accept memory://, which knows nothing after a restart
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Print a new token of this name and the lines for the file, and end
    #[arg(long, value_name = "NAME")]
    pub(crate) make_token: Option<String>,
    /// What the new token may hold: a prefix that ends in /, a name, or *
    #[arg(long = "use", value_name = "SPACE", requires = "make_token")]
    pub(crate) uses: Vec<String>,
}

/// Whether clients have to show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientAuth {
    Required,
    Optional,
}
