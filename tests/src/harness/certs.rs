//! Certificates that are made for one test: those of an authority, of servers and of clients. Some are valid, and each
//! of the others is wrong in one way.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

use super::Scratch;

/// The common name of [`Certificates::client`]. If etcd's authentication is on, a client with this certificate is the
/// etcd user of this name.
pub const CLIENT_NAME: &str = "tester";

/// The names by which a client reaches a server on this machine; server certificates have to contain them.
const LOCAL: [&str; 2] = ["localhost", "127.0.0.1"];

/// The PEM files of a certificate and its private key.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

/// A certificate authority, the certificates that it has signed, and certificates that a client or a server has to
/// refuse.
#[derive(Debug)]
pub struct Certificates {
    /// The authority that clients and servers should trust.
    pub authority: PathBuf,
    /// The certificate of a server at `localhost` and `127.0.0.1`.
    pub server: Identity,
    /// The certificate of a client named [`CLIENT_NAME`].
    pub client: Identity,
    /// Another authority, which nobody should trust.
    pub other_authority: PathBuf,
    /// Like `server`, but signed by the other authority.
    pub other_server: Identity,
    /// Like `client`, but signed by the other authority.
    pub other_client: Identity,
    /// A server certificate, signed by the authority, that names only the host `elsewhere.example`. So it is wrong for
    /// a server on this machine.
    pub wrong_host: Identity,
    /// Like `server`, but expired.
    pub expired: Identity,
    ours: Authority,
    directory: Scratch,
}

impl Certificates {
    /// Makes all certificates, in a directory that is removed on drop.
    ///
    /// # Panics
    ///
    /// When a file cannot be written.
    pub fn new() -> Self {
        Self::within(Scratch::new("certificates"))
    }

    /// Makes all certificates again, with new authorities. The new files replace the old ones at the same paths.
    pub fn replace(&mut self) {
        let directory = std::mem::replace(&mut self.directory, Scratch::new("certificates"));
        *self = Self::within(directory);
    }

    fn within(directory: Scratch) -> Self {
        let path = directory.path();
        let ours = Authority::new("Test CA");
        let other = Authority::new("Other CA");
        let mut expired = parameters("expired", &LOCAL);
        expired.not_before = date_time_ymd(2020, 1, 1);
        expired.not_after = date_time_ymd(2021, 1, 1);
        Self {
            authority: write(path, "ca.pem", &ours.certificate),
            server: ours.sign(path, "server", parameters("server", &LOCAL)),
            client: ours.sign(path, "client", parameters(CLIENT_NAME, &[])),
            other_authority: write(path, "other-ca.pem", &other.certificate),
            other_server: other.sign(path, "other-server", parameters("server", &LOCAL)),
            other_client: other.sign(path, "other-client", parameters(CLIENT_NAME, &[])),
            wrong_host: ours.sign(path, "wrong-host", parameters("server", &["elsewhere.example"])),
            expired: ours.sign(path, "expired", expired),
            ours,
            directory,
        }
    }

    /// The certificate of one more client, signed by the authority: with this serial number, and with this URI as its only
    /// name.
    ///
    /// # Panics
    ///
    /// When a file cannot be written.
    pub fn client_named(&self, serial: u64, uri: &str) -> Identity {
        let mut parameters = parameters(CLIENT_NAME, &[]);
        parameters.serial_number = Some(SerialNumber::from(serial));
        let uri = uri.try_into().expect("a URI is ASCII");
        parameters.subject_alt_names.push(SanType::URI(uri));
        self.ours.sign(self.directory.path(), &format!("client-{serial}"), parameters)
    }

    /// The authority's list of the certificates that it has revoked, by their serial numbers. It is out of date from the
    /// first day of this year on. Each list replaces the one before, at the same path.
    ///
    /// # Panics
    ///
    /// When the file cannot be written.
    pub fn revoked(&self, serials: &[u64], until: i32) -> PathBuf {
        let revoked_certs = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(until, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked_certs.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.ours.issuer).expect("the authority may sign lists");
        write(self.directory.path(), "revoked.pem", &list.pem().expect("it is a list"))
    }
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug)]
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut parameters = parameters(name, &[]);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        parameters.extended_key_usages.clear();
        let key = new_key();
        let certificate = parameters.self_signed(&key).expect("the parameters are complete");
        Self { certificate: certificate.pem(), issuer: Issuer::new(parameters, key) }
    }

    fn sign(&self, directory: &Path, file: &str, parameters: CertificateParams) -> Identity {
        let key = new_key();
        let certificate =
            parameters.signed_by(&key, &self.issuer).expect("the parameters are complete");
        Identity {
            certificate: write(directory, &format!("{file}.pem"), &certificate.pem()),
            key: write(directory, &format!("{file}-key.pem"), &key.serialize_pem()),
        }
    }
}

fn parameters(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut parameters = CertificateParams::new(hosts).expect("the names are ASCII");
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.use_authority_key_identifier_extension = true;
    // Each certificate may be used by servers and by clients: etcd's HTTP gateway connects to its own server as a
    // client, and uses the server's certificate for it.
    parameters.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    parameters
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("the system has randomness")
}

fn write(directory: &Path, name: &str, pem: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, pem).expect("the scratch directory is writable");
    path
}
