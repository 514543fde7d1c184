//! F-48 with TLS: servers and clients that present wrong certificates. F-71: certificates that are replaced. The
//! store's own tests say how its server is started.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use super::Site;
use super::connecting::Traced;
use crate::checks::with_option;
use crate::harness::{Certificates, Identity, Scratch, Server};

/// So long that no session ends while a Java server restarts on a busy machine.
const LEASE: Duration = Duration::from_secs(8);

/// A server, and the authority at which it serves TLS, or plain text if it has no TLS.
pub type Started = (Arc<dyn Server>, String);

/// F-48: clients check the server's certificate. `start` starts a server that presents this certificate, or serves
/// plain text if there is none. `takes_names` says whether the store supports the option `server_name`.
///
/// # Panics
///
/// If an assertion of the row fails.
pub fn f48_certificates(
    worker: &str,
    takes_names: bool,
    start: impl Fn(&Certificates, Option<&Identity>) -> Started,
) {
    let certificates = Certificates::new();
    let mut client = Traced::new(worker, &["canary-35", &body(&certificates.client.key)]);
    let (server, at) = start(&certificates, Some(&certificates.server));
    let (plain, secure) = (server.url(&at, ""), server.secure_url(&at, ""));
    let ca = certificates.authority.display();
    client.refused(&plain, &["Tls"]);
    client.refused(&secure, &["Tls"]);
    let other = certificates.other_authority.display();
    client.refused(&with_option(&secure, &format!("ca={other}")), &["Tls"]);
    client.refused(&with_option(&secure, "ca=/missing"), &["Config"]);
    client.refused(&with_option(&plain, &format!("ca={ca}")), &["Config"]);
    let cert = certificates.client.certificate.display();
    client.refused(&with_option(&secure, &format!("ca={ca}&cert={cert}")), &["Config"]);
    client.refused(&with_option(&secure, &format!("ca={cert}")), &["Tls"]);
    client.connects(&with_option(&secure, &format!("ca={ca}")));
    let named = |name: &str| with_option(&secure, &format!("ca={ca}&server_name={name}"));
    if takes_names {
        client.refused(&named("elsewhere.example"), &["Tls"]);
        client.connects(&named("localhost"));
    } else {
        client.refused(&named("localhost"), &["Config"]);
    }
    let wrong_host = (Some(&certificates.wrong_host), "wrong host");
    for (shown, name) in [wrong_host, (Some(&certificates.expired), "expired"), (None, "none")] {
        let (server, at) = start(&certificates, shown);
        println!("F-48 {}: {name}", server.scheme());
        client.refused(&with_option(&server.secure_url(&at, ""), &format!("ca={ca}")), &["Tls"]);
    }
    client.is_discreet();
}

/// F-48: servers check the client's certificate. `start` starts a server that asks for a client certificate.
pub fn f48_client_certificates(worker: &str, start: impl FnOnce(&Certificates) -> Started) {
    let certificates = Certificates::new();
    let (server, at) = start(&certificates);
    let (own, other) = (&certificates.client, &certificates.other_client);
    let mut client = Traced::new(worker, &[&body(&own.key), &body(&other.key)]);
    let ca = format!("ca={}", certificates.authority.display());
    let url = with_option(&server.secure_url(&at, ""), &ca);
    let with =
        |cert: &Path, key: &Path| format!("{url}&cert={}&key={}", cert.display(), key.display());
    client.refused(&url, &["Tls"]);
    client.refused(&with(&other.certificate, &other.key), &["Tls"]);
    client.refused(&with(&own.certificate, &own.certificate), &["Config", "Tls"]);
    client.connects(&with(&own.certificate, &own.key));
    client.is_discreet();
}

/// F-71: the authority, the server's certificate and the client's certificate are replaced, each in its file, and the
/// server restarts. The session is kept all the time: also while a file is being written, and while the server does
/// not accept the files' certificates. `start` starts a server that asks for client certificates, and `replaced`
/// makes it load its new certificates.
pub fn f71_certificates_replaced(
    worker: &str,
    start: impl FnOnce(&Certificates) -> Started,
    replaced: impl FnOnce(&Certificates),
) {
    let mut certificates = Certificates::new();
    let (server, at) = start(&certificates);
    let files = Placed::new(&certificates);
    let mut site = Site::on(Arc::clone(&server), worker).with_ttl(LEASE);
    site.url = with_option(&server.secure_url(&at, ""), &files.options());
    let holder = site.process("holder");
    holder.acquire("it");
    holder.observe("it");
    let restart = |what: &str| {
        server.node(0).restart();
        server.wait_ready();
        sleep(site.lease() + Duration::from_secs(1));
        holder.keeps("it");
        println!("F-71 {}: kept, {what}", site.name());
    };
    fs::write(files.0.join("key"), "").expect("the directory is ours");
    restart("a file is being written");
    files.put(&Certificates::new());
    restart("the server does not take them");
    certificates.replace();
    replaced(&certificates);
    files.put(&certificates);
    restart("all certificates are new");
    holder.acquire("new");
    site.process("fresh").acquire("fresh");
}

/// A client's certificate files, whose contents are replaced.
struct Placed(Scratch);

impl Placed {
    fn new(certificates: &Certificates) -> Self {
        let placed = Self(Scratch::new("placed"));
        placed.put(certificates);
        placed
    }

    fn put(&self, Certificates { authority, client, .. }: &Certificates) {
        for (name, from) in [("ca", authority), ("cert", &client.certificate), ("key", &client.key)]
        {
            fs::copy(from, self.0.join(name)).expect("the directory is ours");
        }
    }

    fn options(&self) -> String {
        let file = |name: &str| format!("{name}={}", self.0.join(name).display());
        ["ca", "cert", "key"].map(file).join("&")
    }
}

/// The second line of a PEM file, which is part of its secret.
fn body(key: &Path) -> String {
    let pem = std::fs::read_to_string(key).expect("it was written");
    pem.lines().nth(1).unwrap_or_default().to_owned()
}
