//! F-48 with TLS: servers that show the wrong certificate, and clients that do; and F-71, certificates that are replaced. Only
//! how a server is started is a store's own.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use super::Site;
use super::connecting::Traced;
use crate::checks::with_option;
use crate::harness::{Certificates, Identity, Scratch, Server};

/// Long enough for a server that has to start as a Java machine, on a machine that is busy.
const LEASE: Duration = Duration::from_secs(8);

/// A server, and the authority at which it speaks TLS, if it does.
pub type Started = (Arc<dyn Server>, String);

/// A server's certificate is checked. `start` makes a server that shows this, or speaks plain text; `takes_names`:
/// the option `server_name` is supported.
///
/// # Panics
///
/// When a row does not hold; likewise below.
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

/// A client's certificate is asked for, by the server that `start` makes.
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

/// F-71: the authority, the server's certificate and the client's are replaced, each in its file, and the server restarts: the
/// session is kept. So it is while a file is being written, and while the server does not take what the files hold. `start` makes
/// a server that wants a client's certificate, and `replaced` tells it of others.
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

/// Files of a client, which hold one certificate after the other.
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

/// What is between the first and the last line of a PEM file.
fn body(key: &Path) -> String {
    let pem = std::fs::read_to_string(key).expect("it was written");
    pem.lines().nth(1).unwrap_or_default().to_owned()
}
