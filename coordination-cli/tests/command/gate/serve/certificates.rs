//! Certificates of clients: whoever shows one that is accepted is the principal with its name.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coordination::blocking;
use coordination_tests::harness::{Certificates, Identity, rerun_if_starved, wait_until};
use rustix::process::Signal;
use rustls::HandshakeKind;

use super::safety::{made, tokens};
use super::tls::{connected, connected_by, curl, curled, options, trusting};
use crate::http::{Answer, Service, answered};
use crate::{LONG, Store, output, stderr};

/// A year in which nobody will run this.
const FAR: i32 = 2200;
const BILLING: &str = "uri:spiffe://example/billing";
const BOSS: &str = "uri:spiffe://example/boss";

/// An entry of the file of tokens.
fn entry(name: &str, san: &str, right: &str) -> String {
    format!("[[certificate]]\nname = \"{name}\"\nsan = \"{san}\"\n{right}\n")
}

/// The file of tokens with these lines.
fn known(store: &Store, lines: &str) -> PathBuf {
    tokens(store, &[(String::new(), lines.to_owned())])
}

/// Clients of one service, which trust the same authority as it does.
struct Clients<'a> {
    at: &'a str,
    authority: &'a Path,
}

impl Clients<'_> {
    /// The answer to who shows this certificate, and sends this header; an error if that one is not let in.
    fn asked(
        &self,
        shown: Option<&Identity>,
        header: &str,
        method: &str,
        path: &str,
    ) -> std::io::Result<Answer> {
        let mut stream = connected(self.at, self.authority, shown, "localhost")?;
        let head = "Host: localhost\r\nConnection: close\r\nContent-Length: 0\r\n";
        write!(stream, "{method} {path} HTTP/1.1\r\n{head}{header}\r\n")?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        Ok(answered(&bytes))
    }

    /// The same of who is let in.
    fn ask(&self, shown: &Identity, method: &str, path: &str) -> Answer {
        self.asked(Some(shown), "", method, path).expect("the certificate is accepted")
    }

    fn is_let_in(&self, shown: Option<&Identity>) -> bool {
        self.asked(shown, "", "GET", "/livez").is_ok_and(|answer| answer.status == 200)
    }
}

/// H9: no certificate and that of another authority are refused, a good one has the rights of its name, and one that was revoked is
/// refused once the list was read again, on connections that are open as well.
#[test]
fn h9_a_clients_certificate_says_who_it_is() {
    rerun_if_starved(|| {
        let (store, certificates) = (Store::file(), Certificates::new());
        let [billing, boss, nobody] = [(1_001, BILLING), (1_002, BOSS), (1_003, "uri:urn:x")]
            .map(|(serial, san)| certificates.client_named(serial, &san[4..]));
        let lines = [
            entry("billing", BILLING, "use = [\"build/\"]"),
            entry("boss", BOSS, "admin = [\"*\"]"),
        ];
        let file = known(&store, &lines.concat());
        let (ca, list) = (certificates.authority.display(), certificates.revoked(&[999], FAR));
        let words = format!(
            "{} --client-ca {ca} --client-crl {} --tokens {}",
            options(&certificates.server),
            list.display(),
            file.display()
        );
        let service = Service::begin(&store, &words);
        let clients = Clients { at: &service.native, authority: &certificates.authority };
        let is_ready = || {
            clients
                .asked(Some(&boss), "", "GET", "/readyz")
                .is_ok_and(|answer| answer.status == 200)
        };
        assert!(wait_until(LONG, is_ready), "{}", service.written());

        assert!(!clients.is_let_in(None), "it shows none");
        assert!(!clients.is_let_in(Some(&certificates.other_client)), "of another authority");
        let told = clients.ask(&nobody, "GET", "/v1/info");
        assert_eq!((told.status, told.code().as_str()), (401, "unauthenticated"), "{told:?}");
        let told = clients.ask(&billing, "GET", "/v1/info");
        assert_eq!(told.json()["principal"], "billing", "{told:?}");
        for (who, method, path, status) in [
            (&billing, "POST", "/v1/locks/build/x", 201),
            (&billing, "POST", "/v1/locks/other", 403),
            (&billing, "DELETE", "/v1/locks/build/x?fence=9999", 403),
            (&boss, "DELETE", "/v1/locks/build/x?fence=9999", 409),
            (&boss, "POST", "/v1/locks/other", 201),
        ] {
            let answer = clients.ask(who, method, path);
            assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        }

        // On one connection of HTTP/2 each request is that of whoever has shown the certificate.
        let over_http2 = |words: &str, path: &str| {
            let (own, key) = (billing.certificate.display(), billing.key.display());
            let words = format!("--http2 --cert {own} --key {key} {words}");
            let url = format!("https://{}{path}", service.native);
            curl(&certificates.authority, &words, &url)
        };
        let twice = format!("https://{}/v1/info", service.native);
        let (told, said) = curled(over_http2(&twice, "/v1/info"));
        assert_eq!(said, "2 200", "{told}");
        assert_eq!(told.matches(r#""principal":"billing""#).count(), 2, "{told}");

        // Two that wait while it is revoked, one by each version of HTTP.
        let coordinator = blocking::Coordinator::connect(&store.url).expect("it is there");
        let lock = coordinator.lock("build/y").expect("a name");
        let _held = lock.acquire(None).expect("it is free");
        let mut waiting =
            connected(&service.native, &certificates.authority, Some(&billing), "localhost")
                .expect("it listens");
        let body = r#"{"wait_ms":3600000}"#;
        let head = format!("Host: localhost\r\nContent-Length: {}\r\n", body.len());
        write!(waiting, "POST /v1/locks/build/y HTTP/1.1\r\n{head}\r\n{body}").expect("it reads");
        let entries = || {
            let told = clients.ask(&boss, "GET", "/v1/locks/build/y").json();
            told["entries"].as_array().map_or(0, Vec::len)
        };
        assert!(wait_until(LONG, || entries() == 2), "it does not wait: {}", entries());
        let other = over_http2(&format!("--data {body}"), "/v1/locks/build/y");
        let other = std::thread::spawn(move || curled(other));
        assert!(wait_until(LONG, || entries() == 3), "it does not wait: {}", entries());
        // What is wrong with the service's own key keeps nobody in.
        std::fs::set_permissions(&certificates.server.key, PermissionsExt::from_mode(0o644))
            .expect("it is ours");
        certificates.revoked(&[999, 1_001], FAR);
        service.process.signal(Signal::HUP);
        assert!(wait_until(LONG, || !clients.is_let_in(Some(&billing))), "{}", service.written());
        assert!(clients.is_let_in(Some(&boss)), "another one was revoked");
        let mut bytes = Vec::new();
        let ended = waiting.read_to_end(&mut bytes).map_err(|error| error.kind());
        let is_open = matches!(ended, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut));
        assert!(!is_open && bytes.is_empty(), "{ended:?} {}", String::from_utf8_lossy(&bytes));
        let (told, said) = other.join().expect("no panic");
        assert!(said.ends_with(" 000") && told.is_empty(), "{said} {told}");
        assert!(wait_until(LONG, || entries() == 1), "it still waits");

        // A list that is out of date lets nobody in.
        certificates.revoked(&[999], 2021);
        service.process.signal(Signal::HUP);
        let mut written = String::new();
        let is_told = || {
            let is_let_in = clients.is_let_in(Some(&boss));
            written.push_str(&service.written());
            !is_let_in && written.contains("out of date")
        };
        assert!(wait_until(LONG, is_told), "{written}");
    });
}

/// H9: where a certificate is optional, whoever shows none is asked for a token.
#[test]
fn h9_a_certificate_may_be_optional() {
    rerun_if_starved(|| {
        let (store, certificates) = (Store::file(), Certificates::new());
        let billing = certificates.client_named(1, &BILLING[4..]);
        let (token, lines) = made(&store, "ci", "*", "use");
        let file = known(&store, &(lines + &entry("billing", BILLING, "use = [\"*\"]")));
        let words = format!(
            "{} --client-ca {} --client-auth optional --tokens {}",
            options(&certificates.server),
            certificates.authority.display(),
            file.display()
        );
        let service = Service::begin(&store, &words);
        let clients = Clients { at: &service.native, authority: &certificates.authority };
        let principal = |shown: Option<&Identity>, header: &str| {
            let told = clients.asked(shown, header, "GET", "/v1/info").expect("it is let in");
            match told.status {
                200 => told.json()["principal"].as_str().unwrap_or_default().to_owned(),
                _ => told.code(),
            }
        };
        let token = format!("Authorization: Bearer {token}\r\n");
        assert_eq!(principal(None, ""), "unauthenticated");
        assert_eq!(principal(None, &token), "ci");
        assert_eq!(principal(Some(&billing), ""), "billing");
        assert_eq!(principal(Some(&billing), &token), "ci", "a token goes first");
        let other = Some(&certificates.other_client);
        assert!(!clients.is_let_in(other), "one that is shown has to be right");
        // Who shows very many has very many signatures checked.
        let pem = |path: &Path| std::fs::read_to_string(path).expect("it was made");
        for (between, is_let_in) in [(3, true), (4, false)] {
            let certificate = store.path("chain.pem");
            let chain = pem(&billing.certificate) + &pem(&certificates.authority).repeat(between);
            std::fs::write(&certificate, chain).expect("a file");
            let shown = Identity { certificate, key: billing.key.clone() };
            assert_eq!(clients.is_let_in(Some(&shown)), is_let_in, "{between}");
        }
        // Whoever could go on with a session of before would not be asked for its certificate again.
        let client = trusting(&certificates.authority, Some(&billing));
        for _ in 0..2 {
            let mut stream = connected_by(&service.native, Arc::clone(&client), "localhost")
                .expect("it listens");
            let head = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            stream.write_all(head.as_bytes()).expect("it reads");
            stream.read_to_end(&mut Vec::new()).expect("it answers");
            assert_ne!(stream.conn.handshake_kind(), Some(HandshakeKind::Resumed));
        }
    });
}

/// The resident memory of the service, in MiB.
#[cfg(target_os = "linux")]
fn resident(service: &Service) -> u64 {
    let path = format!("/proc/{}/status", service.process.0.id());
    let status = std::fs::read_to_string(path).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("Linux says it");
    let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
    kib.expect("a number") / 1_024
}

/// H8: a list that was replaced takes no room any more, though connections are open that were accepted by it.
#[cfg(target_os = "linux")]
#[test]
fn h8_a_list_that_was_replaced_takes_no_room() {
    rerun_if_starved(|| {
        let (store, certificates) = (Store::file(), Certificates::new());
        let boss = certificates.client_named(1, &BOSS[4..]);
        let file = known(&store, &entry("boss", BOSS, "admin = [\"*\"]"));
        // Of so many a list takes some 9 MiB; with each list there is one more.
        let mut serials: Vec<_> = (1_000..41_000).collect();
        let (ca, list) = (certificates.authority.display(), certificates.revoked(&serials, FAR));
        let words = format!(
            "{} --client-ca {ca} --client-crl {} --tokens {}",
            options(&certificates.server),
            list.display(),
            file.display()
        );
        let service = Service::begin(&store, &words);
        let clients = Clients { at: &service.native, authority: &certificates.authority };
        assert!(clients.is_let_in(Some(&boss)), "{}", service.written());
        let (before, mut open) = (resident(&service), Vec::new());
        for serial in 50_000..50_010 {
            let mut stream =
                connected(&service.native, &certificates.authority, Some(&boss), "localhost")
                    .expect("it listens");
            write!(stream, "GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
            stream.read_exact(&mut [0; 12]).expect("it answers");
            open.push(stream);
            let revoked = certificates.client_named(serial, "urn:x");
            serials.push(serial);
            certificates.revoked(&serials, FAR);
            service.process.signal(Signal::HUP);
            let is_read = || !clients.is_let_in(Some(&revoked));
            assert!(wait_until(LONG, is_read), "{}", service.written());
        }
        let more = resident(&service).saturating_sub(before);
        assert!(more < 50, "{more} MiB more after ten lists");
    });
}

/// What is wrong with the files is said at the start.
#[test]
fn what_is_wrong_with_clients_certificates_is_said() {
    let (store, certificates) = (Store::file(), Certificates::new());
    let (encrypted, ca) = (options(&certificates.server), certificates.authority.display());
    let text = store.path("text.pem");
    std::fs::write(&text, "no PEM").expect("a file");
    let text = text.display();
    let pinned = certificates.client.certificate.display();
    // As if a new list had been put after the one that it replaces, which would go on being used.
    let lists = [&[1][..], &[1, 2]].map(|serials| {
        std::fs::read_to_string(certificates.revoked(serials, FAR)).expect("it was made")
    });
    let both = store.path("both.pem");
    std::fs::write(&both, lists.concat()).expect("a file");
    let both = both.display();
    let one = entry("billing", BILLING, "");
    for (words, lines, why) in [
        (format!("--client-ca {ca}"), "", "--tls-cert"),
        (format!("{encrypted} --client-auth optional"), "", "--client-ca"),
        (format!("{encrypted} --client-crl {text}"), "", "--client-ca"),
        (format!("{encrypted} --client-ca {ca} --client-auth perhaps"), "", "required"),
        (format!("{encrypted} --client-ca {text}"), "", "no certificate in PEM"),
        (format!("{encrypted} --client-ca {text}.none"), "", "cannot read"),
        (format!("{encrypted} --client-ca {pinned}"), "", "is no authority's"),
        (
            format!("{encrypted} --client-ca {ca} --client-crl {text}"),
            "",
            "no list of revoked certificates in PEM",
        ),
        (
            format!("{encrypted} --client-ca {ca} --client-crl {both}"),
            "",
            "two lists of one authority",
        ),
        (encrypted.clone(), &one[..], "--client-ca"),
        (
            format!("{encrypted} --client-ca {ca}"),
            &entry("billing", "billing", "")[..],
            "no certificate has the `san` billing",
        ),
        (format!("{encrypted} --client-ca {ca}"), &one.repeat(2)[..], "is there twice"),
    ] {
        let file = known(&store, lines);
        let mut command = store.coordination(["serve", "--listen", "127.0.0.1:0"]);
        command.args(words.split(' ')).arg("--tokens").arg(file);
        let refused = output(&mut command);
        assert_eq!(refused.status.code(), Some(64), "{why}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(why), "{why}: {}", stderr(&refused));
    }
}
