//! Clients that show a certificate: what it is checked by, which names are in it, and until when it is accepted.

use std::collections::BTreeSet;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use webpki::{BorrowedCertRevocationList, CertRevocationList, EndEntityCert, KeyUsage};

use super::{Certificate, EncryptedStream, Tls, all};
use crate::auth::Names;
use crate::settings::ClientFiles;

/// How often it is looked whether the time of a certificate, or of a list of what was revoked, is over.
const LOOK: Duration = Duration::from_secs(60);

/// The most certificates that a client may show beside its own. Of those that have one name each order is tried, with a signature to check in
/// each of them: of a hundred certificates a hundred signatures would be checked, of whoever can connect.
const BETWEEN: usize = 3;

/// What clients' certificates are checked by.
pub(super) struct Verifier {
    verifier: Arc<dyn ClientCertVerifier>,
    /// Whether it was said that a list is out of date.
    told: AtomicBool,
}

impl Verifier {
    /// Reads the files.
    pub(super) fn new(files: &ClientFiles, provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        let authorities: Vec<CertificateDer<'static>> = all(&files.authorities, "certificate")?;
        for authority in authorities {
            let shown = files.authorities.display();
            // Whoever has its key could sign a certificate with any name: what it says of itself is not looked at when a client comes.
            if !is_authority(&authority) {
                return Err(format!(
                    "{shown} has a certificate that is no authority's (without CA:TRUE): its owner could be any client"
                ));
            }
            roots.add(authority).map_err(|error| format!("{shown}: {error}"))?;
        }
        let provider = Arc::clone(provider);
        let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        if !files.required {
            builder = builder.allow_unauthenticated();
        }
        if let Some(revoked) = &files.revoked {
            let lists: Vec<CertificateRevocationListDer<'static>> =
                all(revoked, "list of revoked certificates")?;
            if hides_another(&lists) {
                let shown = revoked.display();
                return Err(format!("{shown} has two lists of one authority: keep the newest"));
            }
            // What was revoked since is in none that is out of date.
            builder = builder.with_crls(lists).enforce_revocation_expiration();
        }
        let last = files.revoked.as_ref().unwrap_or(&files.authorities);
        let verifier = builder.build().map_err(|error| format!("{}: {error}", last.display()))?;
        let verifier = Arc::new(Short(verifier));
        Ok(Self { verifier, told: AtomicBool::new(false) })
    }

    pub(super) fn for_handshakes(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.verifier)
    }

    /// Whether it accepts a certificate now, which is followed by those between it and an authority.
    fn accepts(&self, chain: &[CertificateDer<'static>]) -> bool {
        let Some((own, between)) = chain.split_first() else { return false };
        self.verifier.verify_client_cert(own, between, UnixTime::now()).is_ok()
    }

    /// Warns, once, if nobody gets in because a list is out of date.
    pub(super) fn tell(&self, error: &io::Error) {
        let error = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
        let is_late = matches!(
            error,
            Some(Error::InvalidCertificate(
                CertificateError::ExpiredRevocationList
                    | CertificateError::ExpiredRevocationListContext { .. }
            ))
        );
        if is_late && !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a list of revoked certificates is out of date: whose authority it is of is not let in"
            );
        }
    }
}

/// Accepts what another one does, but no more certificates than are needed.
#[derive(Debug)]
struct Short(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Short {
    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if between.len() > BETWEEN {
            return Err(Error::General("the client shows too many certificates".to_owned()));
        }
        self.0.verify_client_cert(own, between, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, own, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, own, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// A client whose certificate was accepted.
pub(crate) struct Client {
    tls: Arc<Tls>,
    /// What has accepted it, which is there for as long as nothing has replaced it.
    by: Weak<Certificate>,
    /// Its certificate, and those between it and an authority.
    chain: Vec<CertificateDer<'static>>,
    names: Names,
}

impl Client {
    /// Who has opened this connection, if that one has shown a certificate.
    pub(super) fn of(
        stream: &EncryptedStream,
        tls: &Arc<Tls>,
        by: &Arc<Certificate>,
    ) -> Option<Self> {
        let chain = stream.get_ref().1.peer_certificates()?.to_vec();
        let names = names(chain.first()?);
        Some(Self { tls: Arc::clone(tls), by: Arc::downgrade(by), chain, names })
    }

    /// The names in its certificate.
    pub(crate) fn names(&self) -> Names {
        Arc::clone(&self.names)
    }

    /// Waits until its certificate is not accepted any more: it was revoked, its authority is gone, or its time is over.
    pub(crate) async fn refused(&self) {
        let (mut loaded, mut by) = (self.tls.loaded.subscribe(), Weak::clone(&self.by));
        loop {
            // What was read again since the handshake began counts as well.
            let replaced = loaded.wait_for(|now| !ptr::eq(Arc::as_ptr(now), by.as_ptr()));
            drop(tokio::time::timeout(LOOK, replaced).await);
            let accepts = async {
                let now = self.tls.certificate();
                by = Arc::downgrade(&now);
                now.clients.as_ref().is_some_and(|clients| clients.accepts(&self.chain))
            };
            // When a list is replaced all connections come at once, and whoever connects meanwhile has ten seconds.
            if !self.tls.turns.take_later(accepts).await {
                return;
            }
        }
    }
}

/// Whether a certificate says that it is an authority's. One of version 1 says nothing of that.
fn is_authority(certificate: &CertificateDer<'_>) -> bool {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return true };
    let at = |time: UnixTime| {
        let usage = KeyUsage::client_auth();
        certificate.verify_for_usage(&[], &[], &[], time, usage, None, None).map(drop)
    };
    // As a client's, an authority's is refused for what it is. That is said after its time, which may be over, or not have come.
    let refused = match at(UnixTime::now()) {
        Err(
            webpki::Error::CertExpired { not_after: time, .. }
            | webpki::Error::CertNotValidYet { not_before: time, .. },
        ) => at(time),
        refused => refused,
    };
    matches!(refused, Err(webpki::Error::CaUsedAsEndEntity))
}

/// Whether two lists are of one authority: only the first of them is looked at, which may be the older one, so that whoever was
/// revoked since would be let in. An authority may have a list for each part of its certificates.
fn hides_another(lists: &[CertificateRevocationListDer<'static>]) -> bool {
    // What is no list is said by who builds the verifier.
    let lists = lists.iter().filter_map(|list| BorrowedCertRevocationList::from_der(list).ok());
    let lists: Vec<_> = lists.map(CertRevocationList::from).collect();
    lists.iter().enumerate().any(|(at, list)| {
        lists[..at].iter().any(|before| {
            let (part, other) =
                (list.issuing_distribution_point(), before.issuing_distribution_point());
            let are_parts = part.is_some() && other.is_some() && part != other;
            list.issuer() == before.issuer() && !are_parts
        })
    })
}

/// The names in a certificate of the kinds that somebody can be known by.
fn names(certificate: &CertificateDer<'_>) -> Names {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Names::default() };
    let hosts = certificate.valid_dns_names();
    let hosts = hosts.map(|name| format!("dns:{}", name.to_ascii_lowercase()));
    let uris = certificate.valid_uri_names().map(|name| format!("uri:{name}"));
    let each: BTreeSet<_> = hosts.chain(uris).collect();
    each.into_iter().collect()
}
