//! TLS: who trusts the service's authority is served, and certificates can be replaced while it runs.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use coordination_tests::harness::{Certificates, Identity, rerun_if_starved, wait_until};
use rustix::process::Signal;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::http::{Answer, Service, answered, ask, hold, raw};
use crate::{LONG, Store, Wrapper, output, stderr, stdout};

const HANDSHAKES: &str = "coordination_tls_handshake_failures_total ";
const FAILURES: &str = "coordination_reload_failures_total ";

/// A client that trusts this authority, and shows this certificate, if it is asked for one.
pub(super) fn trusting(authority: &Path, shown: Option<&Identity>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(authority).expect("it was made");
    roots.add(certificate).expect("it is an authority's");
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_root_certificates(roots);
    let Some(shown) = shown else { return Arc::new(config.with_no_client_auth()) };
    let own = CertificateDer::pem_file_iter(&shown.certificate).expect("it was made");
    let own: Result<Vec<_>, _> = own.collect();
    let key = PrivateKeyDer::from_pem_file(&shown.key).expect("it was made");
    let config = config.with_client_auth_cert(own.expect("it is PEM"), key);
    Arc::new(config.expect("they belong together"))
}

/// A connection to who is called so, by a client that shows this certificate.
pub(super) fn connected(
    at: &str,
    authority: &Path,
    shown: Option<&Identity>,
    name: &'static str,
) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
    connected_by(at, trusting(authority, shown), name)
}

/// The same by a client that may know a session of before.
pub(super) fn connected_by(
    at: &str,
    client: Arc<ClientConfig>,
    name: &'static str,
) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let name = ServerName::try_from(name).expect("a name");
    let client = ClientConnection::new(client, name);
    let stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(LONG))?;
    Ok(StreamOwned::new(client.map_err(std::io::Error::other)?, stream))
}

/// The answer to a request of who calls the service by this name; an error if the connection is not encrypted as it should be.
fn asked(
    at: &str,
    authority: &Path,
    name: &'static str,
    method: &str,
    path: &str,
) -> std::io::Result<Answer> {
    let mut stream = connected(at, authority, None, name)?;
    let head = "Connection: close\r\nX-Project-Id: p\r\nContent-Length: 0\r\n";
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {name}\r\n{head}\r\n")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok(answered(&bytes))
}

/// The options for this certificate, whose key is made ours alone.
pub(super) fn options(identity: &Identity) -> String {
    close(&identity.key);
    format!("--tls-cert {} --tls-key {}", identity.certificate.display(), identity.key.display())
}

fn close(key: &Path) {
    std::fs::set_permissions(key, PermissionsExt::from_mode(0o600)).expect("it is ours");
}

/// A service that is encrypted so, and ready.
fn start(store: &Store, certificates: &Certificates, words: &str) -> Service {
    let service = Service::begin(store, &format!("{} {words}", options(&certificates.server)));
    let get = || asked(&service.native, &certificates.authority, "localhost", "GET", "/readyz");
    assert!(wait_until(LONG, || get().is_ok_and(|answer| answer.status == 200)), "not ready");
    service
}

/// H6, H7: all of our listeners speak TLS but that of rdlm, whose clients cannot; and who speaks HTTP there is told.
#[test]
fn h6_what_is_encrypted_is_served_to_who_trusts_its_authority() {
    rerun_if_starved(|| {
        let (store, certificates) = (Store::file(), Certificates::new());
        let service = start(&store, &certificates, "");
        let trusted = &certificates.authority;
        for (at, method, path, status) in [
            (&service.native, "POST", "/v1/locks/x", 201),
            (&service.native, "POST", "/v1/locks/x", 409),
            (&service.lockable, "GET", "/readyz", 200),
            (&service.zaqar, "GET", "/readyz", 200),
            (&service.lockable, "GET", "/v1/acquire/x", 200),
            (&service.zaqar, "GET", "/v2/ping", 204),
        ] {
            let answer = asked(at, trusted, "localhost", method, path).expect("it is encrypted");
            assert_eq!(answer.status, status, "{answer:?}");
            let distrusted = &certificates.other_authority;
            assert!(asked(at, distrusted, "localhost", method, path).is_err(), "{path}");
            let plain = ask(at, method, path, &[], "");
            assert_eq!(plain.status, 400, "{plain:?}");
            assert!(plain.body.contains("https://"), "{plain:?}");
        }
        let plain = ask(&service.rdlm, "GET", "/readyz", &[], "");
        assert_eq!(plain.status, 200, "rdlm's listener is not encrypted: {plain:?}");
    });
}

/// curl, which trusts this authority, with these options. After the answer's text it writes the version of HTTP and the status.
pub(super) fn curl(authority: &Path, words: &str, url: &str) -> Command {
    let mut command = Command::new("curl");
    command.args(["--silent", "--max-time", "60", "--noproxy", "*", "--cacert"]).arg(authority);
    command.args(["--write-out", "\n%{http_version} %{http_code}"]);
    command.args(words.split(' ')).arg(url);
    command
}

/// What curl writes, as text and what it says of it.
pub(super) fn curled(mut command: Command) -> (String, String) {
    let text = stdout(&output(&mut command));
    let (text, said) = text.rsplit_once('\n').expect("curl tells of the answer");
    (text.to_owned(), said.to_owned())
}

/// H6, H7: HTTP/2 is spoken with whoever asks for it in the handshake, HTTP/1.1 with all others, and without TLS with everybody.
#[test]
fn h6_http_2_is_spoken_over_tls_alone() {
    rerun_if_starved(|| {
        let (store, certificates) = (Store::file(), Certificates::new());
        let service = start(&store, &certificates, "");
        let said = |words: &str, url: &str| curled(curl(&certificates.authority, words, url)).1;
        for at in [&service.native, &service.lockable, &service.zaqar] {
            let url = format!("https://{at}/readyz");
            assert_eq!(said("--http2", &url), "2 200");
            assert_eq!(said("--http1.1", &url), "1.1 200");
        }
        let plain = format!("http://{}/readyz", service.rdlm);
        assert_eq!(said("--http2", &plain), "1.1 200", "who asks for an upgrade gets none");
        let begun = said("--http2-prior-knowledge", &plain);
        assert!(!begun.ends_with("200"), "{begun}");
    });
}

/// H6, H10: over HTTP/2, too, whoever leaves waits no more, whoever waits is told of a stop, and nothing is freed under who holds it.
#[test]
fn h6_who_leaves_over_http_2_waits_no_more() {
    rerun_if_starved(|| {
        let (store, certificates) = (Store::file(), Certificates::new());
        let mut service = start(&store, &certificates, "");
        let (at, trusted) = (service.native.clone(), &certificates.authority);
        let post = |body: &str| {
            curl(trusted, &format!("--http2 --data {body}"), &format!("https://{at}/v1/locks/x"))
        };
        let (held, said) = curled(post(r#"{"lease_ms":60000}"#));
        assert_eq!(said, "2 201", "{held}");
        let held: Value = serde_json::from_str(&held).expect("it is JSON");
        let are = |count: usize| {
            let look = asked(&at, trusted, "localhost", "GET", "/v1/locks/x");
            let look = look.expect("it is served").json();
            look["entries"].as_array().is_some_and(|entries| entries.len() == count)
        };
        let wait = || post(r#"{"wait_ms":60000}"#);
        let waiter = wait().stdout(Stdio::null()).spawn().expect("curl is there");
        let waiter = Wrapper(waiter);
        assert!(wait_until(LONG, || are(2)), "it waits");
        drop(waiter);
        assert!(wait_until(LONG, || are(1)), "it has left");
        let waiting = wait();
        let waiting = std::thread::spawn(move || curled(waiting));
        assert!(wait_until(LONG, || are(2)), "it waits");
        service.terminate();
        let (told, said) = waiting.join().expect("no panic");
        assert_eq!(said, "2 503", "{told}");
        assert!(told.contains("draining"), "{told}");
        let url = format!("https://{at}{}", hold(&held));
        let (told, said) = curled(curl(trusted, "--http2 --request DELETE", &url));
        assert_eq!(said, "2 204", "{told}");
        assert_eq!(service.process.code(), Some(0));
    });
}

/// H9: the names in the certificate are ours, and no others.
#[test]
fn h9_a_certificates_names_are_the_services() {
    rerun_if_starved(|| {
        let (store, certificates) = (Store::file(), Certificates::new());
        let words = options(&certificates.wrong_host);
        let service = Service::begin(&store, &words);
        let get = |name| asked(&service.native, &certificates.authority, name, "GET", "/v1/info");
        let is_ready = || get("elsewhere.example").is_ok_and(|answer| answer.status == 200);
        assert!(wait_until(LONG, is_ready), "{:?}", get("elsewhere.example"));
        assert!(get("localhost").is_err(), "the client is to refuse it");
        let metrics = || {
            asked(&service.native, &certificates.authority, "elsewhere.example", "GET", "/metrics")
        };
        let counted = || {
            let text = metrics().expect("it is the name").body;
            let count = text.lines().find_map(|line| line.strip_prefix(HANDSHAKES));
            count.is_some_and(|count| count.trim() != "0")
        };
        assert!(wait_until(LONG, counted), "{:?}", metrics());
        // Where nothing is encrypted, the name of another page may lead to us.
        let mut plain = TcpStream::connect(&service.rdlm).expect("it listens");
        let head =
            "GET /resources HTTP/1.1\r\nHost: elsewhere.example\r\nConnection: close\r\n\r\n";
        plain.write_all(head.as_bytes()).expect("it reads");
        let mut bytes = Vec::new();
        plain.read_to_end(&mut bytes).expect("it answers");
        assert_eq!(answered(&bytes).code(), "wrong-host");
        // Who does not look at the certificate is asked for the same names.
        drop(service);
        let service = start(&store, &certificates, "");
        let answer = asked_as(&service.native, &certificates.authority, "evil.example");
        assert_eq!((answer.status, answer.code().as_str()), (421, "wrong-host"), "{answer:?}");
    });
}

/// The answer to who connects to localhost, and says another `Host`.
fn asked_as(at: &str, authority: &Path, host: &str) -> Answer {
    let mut stream = connected(at, authority, None, "localhost").expect("it listens");
    let head = format!("GET /v1/info HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("it answers");
    answered(&bytes)
}

/// A certificate that has been replaced is used after SIGHUP, for new connections; one that is wrong is not, and that is counted.
#[test]
fn h6_a_certificate_is_replaced_while_the_service_runs() {
    rerun_if_starved(|| {
        let (store, mut certificates) = (Store::file(), Certificates::new());
        let service = start(&store, &certificates, "");
        let before = store.path("before.pem");
        std::fs::copy(&certificates.authority, &before).expect("it was made");
        let get = |authority: &Path, path: &str| {
            asked(&service.native, authority, "localhost", "GET", path)
        };
        // The key of another certificate, as in the moment between two files that are replaced one after the other.
        let own = std::fs::read(&certificates.server.key).expect("it was made");
        std::fs::copy(&certificates.client.key, &certificates.server.key).expect("it is ours");
        service.process.signal(Signal::HUP);
        let counted = || {
            let metrics = get(&before, "/metrics").expect("the old certificate is used");
            let count = metrics.body.lines().find_map(|line| line.strip_prefix(FAILURES));
            count.is_some_and(|count| count.trim() != "0")
        };
        assert!(wait_until(LONG, counted), "{}", service.written());
        std::fs::write(&certificates.server.key, own).expect("it is ours");
        certificates.replace();
        close(&certificates.server.key);
        service.process.signal(Signal::HUP);
        let is_new = || get(&certificates.authority, "/livez").is_ok();
        assert!(wait_until(LONG, is_new), "{}", service.written());
        assert!(get(&before, "/livez").is_err(), "the old one is not used any more");
    });
}

/// What was refused is tried again by itself: setting its mode changes neither its content nor its time.
#[test]
fn h6_a_key_whose_mode_is_mended_is_used() {
    rerun_if_starved(|| {
        let (store, mut certificates) = (Store::file(), Certificates::new());
        let service = start(&store, &certificates, "");
        let mut written = String::new();
        certificates.replace();
        std::fs::set_permissions(&certificates.server.key, PermissionsExt::from_mode(0o644))
            .expect("it is ours");
        let is_told = || {
            written.push_str(&service.written());
            written.contains("can be read by others")
        };
        assert!(wait_until(LONG, is_told));
        close(&certificates.server.key);
        let get = || asked(&service.native, &certificates.authority, "localhost", "GET", "/livez");
        assert!(wait_until(LONG, || get().is_ok()), "{}", service.written());
    });
}

/// H8: clients that do not say what TLS wants are gone in time, and keep nobody else from being served.
#[test]
fn h8_who_does_not_shake_hands_holds_up_nobody() {
    rerun_if_starved(|| {
        let (store, certificates) = (Store::file(), Certificates::new());
        let service = start(&store, &certificates, "");
        let silent: Vec<_> = ["", "\u{16}", "\u{16}\u{3}\u{1}\u{0}\u{7f}\u{1}"]
            .into_iter()
            .cycle()
            .take(30)
            .map(|begun| raw(&service.native, begun))
            .collect();
        let answer = asked(&service.native, &certificates.authority, "localhost", "GET", "/livez");
        assert_eq!(answer.expect("it is served").status, 200);
        for mut stream in silent {
            stream.set_read_timeout(Some(Duration::from_secs(100))).expect("a socket");
            let ended = stream.read_to_end(&mut Vec::new());
            let kind = ended.map_err(|error| error.kind());
            assert!(matches!(kind, Ok(_) | Err(ErrorKind::ConnectionReset)), "{kind:?}");
        }
    });
}

/// What is wrong with the files is said at the start.
#[test]
fn a_certificate_that_cannot_be_used_is_refused() {
    let (store, certificates) = (Store::file(), Certificates::new());
    let (server, client) = (&certificates.server, &certificates.client);
    close(&client.key);
    let none = store.path("none.pem");
    let text = store.path("text.pem");
    std::fs::write(&text, "no PEM").expect("a file");
    close(&text);
    let open = &certificates.other_server;
    std::fs::set_permissions(&open.key, PermissionsExt::from_mode(0o644)).expect("it is ours");
    for (certificate, key, why) in [
        (&server.certificate, &open.key, "can be read by others"),
        (&server.certificate, &client.key, "key"),
        (&server.certificate, &none, "cannot read"),
        (&none, &client.key, "cannot read"),
        (&text, &client.key, "no certificate"),
        (&server.certificate, &text, "no private key"),
    ] {
        let mut command = store.coordination(["serve", "--listen", "127.0.0.1:0"]);
        command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
        let refused = output(&mut command);
        assert_eq!(refused.status.code(), Some(64), "{why}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(why), "{why}: {}", stderr(&refused));
    }
    let mut command = store.coordination(["serve", "--listen", "127.0.0.1:0"]);
    let refused = output(command.arg("--tls-cert").arg(&server.certificate));
    assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
}
