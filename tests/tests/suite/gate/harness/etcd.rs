//! The harness's etcd: starting, pausing and killing servers, TLS and users.

use std::{
    collections::BTreeMap, io::Write, net::TcpStream, path::Path, process::Command, time::Instant,
};

use coordination_tests::harness::{
    Certificates, Direction, Etcd, Identity, Proxy, Server, Tls, Unit,
    etcd::{ROOT, ROOT_PASSWORD, USER, USER_PASSWORD},
    rerun_if_starved, wait_until,
};

use super::{SECOND, http2::PREFACE, proxy::is_silent};

#[test]
fn one_node_starts_fast_and_keeps_its_data() {
    rerun_if_starved(|| {
        let start = Instant::now();
        let etcd = Etcd::one();
        let took = start.elapsed();
        assert!(took < 20 * SECOND, "{took:?}");
        eprintln!("one node: {took:?}");
        etcd.administer(&["put", "a/1", "x"]);
        etcd.node(0).kill();
        assert!(!etcd.node(0).is_running());
        assert!(TcpStream::connect(etcd.node(0).address()).is_err());
        etcd.node(0).restart();
        etcd.wait_ready();
        assert_eq!(etcd.keys("a/"), ["a/1"]);
        assert_eq!(etcd.leader_index(), Some(0));
    });
}

#[test]
fn a_paused_node_does_not_answer() {
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        etcd.node(0).pause();
        assert!(!etcd.node(0).is_healthy());
        assert_eq!(etcd.leader_index(), None);
        let mut client = TcpStream::connect(etcd.node(0).address()).expect("the kernel accepts");
        client.write_all(PREFACE).expect("open");
        assert!(is_silent(&client));
        etcd.node(0).resume();
        etcd.wait_ready();
    });
}

#[test]
fn leases_and_keys_are_administered() {
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        let granted = etcd.administer(&["lease", "grant", "60"]);
        let id = granted.split_whitespace().nth(1).expect("lease … granted");
        etcd.administer(&["put", &format!("--lease={id}"), "a/leased", "x"]);
        etcd.administer(&["put", "a/free", "x"]);
        etcd.administer(&["put", "b", "x"]);
        let id = i64::from_str_radix(id, 16).expect("an id");
        assert_eq!(etcd.lease_ids(), [id]);
        assert!(etcd.lease_remaining(id).is_some_and(|left| left > 50));
        assert_eq!(etcd.keys("a/"), ["a/free", "a/leased"]);
        assert_eq!(etcd.revoke_all_leases(), 1);
        assert_eq!(etcd.lease_remaining(id), None);
        assert_eq!(etcd.keys("a/"), ["a/free"]);
        assert!(etcd.delete_key("a/free"));
        assert!(!etcd.delete_key("a/free"));
        etcd.compact();
        etcd.compact();
        let old = etcd.etcdctl(&["get", "b", "--rev=3"]);
        assert!(String::from_utf8_lossy(&old.stderr).contains("compacted"));
    });
}

#[test]
fn requests_are_counted() {
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        let before = etcd.request_counts();
        etcd.administer(&["put", "a", "x"]);
        etcd.administer(&["put", "a", "y"]);
        let after = etcd.request_counts();
        let puts = |counts: &BTreeMap<String, u64>| counts.get("Put").copied().unwrap_or_default();
        assert_eq!(puts(&after) - puts(&before), 2);
    });
}

#[test]
fn three_nodes_survive_the_loss_of_one() {
    rerun_if_starved(|| {
        let start = Instant::now();
        let etcd = Etcd::three();
        eprintln!("three nodes: {:?}", start.elapsed());
        assert_eq!(etcd.authority().split(',').count(), 3);
        let leader = etcd.wait_leader();
        etcd.node(leader).kill();
        assert!(wait_until(30 * SECOND, || {
            etcd.leader_index().is_some_and(|new| new != leader)
        }));
        etcd.administer(&["put", "a", "x"]);
        etcd.node(leader).restart();
        etcd.wait_ready();
        let second = etcd.wait_leader();
        etcd.node(second).pause();
        assert!(wait_until(30 * SECOND, || {
            etcd.leader_index().is_some_and(|new| new != second)
        }));
        assert_eq!(etcd.keys("a"), ["a"]);
        etcd.node(second).resume();
        etcd.wait_ready();
    });
}

#[test]
fn a_minority_is_not_healthy() {
    rerun_if_starved(|| {
        let etcd = Etcd::three();
        etcd.node(0).kill();
        etcd.node(1).kill();
        assert!(wait_until(30 * SECOND, || !etcd.node(2).is_healthy()));
        assert!(etcd.node(2).is_running());
    });
}

/// Whether a client with these arguments is served.
fn is_served(etcd: &Etcd, arguments: &[&str]) -> bool {
    let output = etcd.etcdctl_as_stranger(&[arguments, &["get", "coordination/x"]].concat());
    output.status.success()
}

/// Whether a client with these arguments is refused within a second; without the limit, `etcdctl` would retry for
/// longer.
fn is_refused(etcd: &Etcd, arguments: &[&str]) -> bool {
    !is_served(etcd, &[arguments, &["--command-timeout=1s"]].concat())
}

/// The argument with which `etcdctl` trusts `authority`.
fn trusting(authority: &Path) -> String {
    format!("--cacert={}", authority.display())
}

/// The arguments with which `etcdctl` presents `identity`.
fn showing(identity: &Identity) -> [String; 2] {
    [
        format!("--cert={}", identity.certificate.display()),
        format!("--key={}", identity.key.display()),
    ]
}

#[test]
fn certificates_are_taken_by_etcd() {
    rerun_if_starved(|| {
        let certificates = Certificates::new();
        let etcd = Etcd::options().tls(Tls::new(&certificates)).start();
        assert!(etcd.client_urls()[0].starts_with("https://"));
        assert!(is_served(&etcd, &[&trusting(&certificates.authority)]));
        assert!(is_refused(&etcd, &[&trusting(&certificates.other_authority)]));
        etcd.administer(&["put", "a", "x"]);
        assert!(etcd.request_counts().contains_key("Put"));
    });
}

#[test]
fn client_certificates_are_asked_for() {
    rerun_if_starved(|| {
        let certificates = Certificates::new();
        let etcd = Etcd::options().tls(Tls::new(&certificates).require_client()).start();
        let ca = trusting(&certificates.authority);
        let [cert, key] = showing(&certificates.client);
        assert!(is_served(&etcd, &[&ca, &cert, &key]));
        assert!(is_refused(&etcd, &[&ca]));
        let [cert, key] = showing(&certificates.other_client);
        assert!(is_refused(&etcd, &[&ca, &cert, &key]));
    });
}

#[test]
fn a_client_certificate_stands_for_its_user() {
    rerun_if_starved(|| {
        let certificates = Certificates::new();
        let etcd = Etcd::options()
            .tls(Tls::new(&certificates).require_client())
            .users("coordination/")
            .start();
        let ca = trusting(&certificates.authority);
        let [cert, key] = showing(&certificates.client);
        assert!(is_served(&etcd, &[&ca, &cert, &key]));
        let elsewhere = etcd.etcdctl_as_stranger(&[&ca, &cert, &key, "get", "elsewhere"]);
        assert!(String::from_utf8_lossy(&elsewhere.stderr).contains("permission denied"));
    });
}

#[test]
fn wrong_server_certificates_are_wrong() {
    rerun_if_starved(|| {
        let certificates = Certificates::new();
        let ca = trusting(&certificates.authority);
        let wrong = [&certificates.other_server, &certificates.wrong_host, &certificates.expired];
        for identity in wrong {
            let etcd = Etcd::options().tls(Tls::new(&certificates).server(identity)).start();
            assert!(is_refused(&etcd, &[&ca]));
            // `administer` accepts any certificate of the server, so it works although clients refuse this one.
            etcd.administer(&["put", "a", "x"]);
        }
    });
}

/// Each wrong certificate is refused by `openssl` for exactly the reason that its name says.
#[test]
fn wrong_certificates_are_wrong_in_one_way() {
    rerun_if_starved(|| {
        let certificates = Certificates::new();
        let verify = |certificate: &Path| {
            let output = Command::new("openssl")
                .args(["verify", "-verify_ip", "127.0.0.1", "-CAfile"])
                .args([&certificates.authority, certificate])
                .output()
                .expect("openssl is installed");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let reason = |identity: &Identity| verify(&identity.certificate);
        assert_eq!(reason(&certificates.server), "");
        assert!(reason(&certificates.expired).contains("expired"));
        assert!(reason(&certificates.wrong_host).contains("IP address mismatch"));
        assert!(reason(&certificates.other_server).contains("issuer"));
    });
}

#[test]
fn users_have_their_rights_only() {
    rerun_if_starved(|| {
        let etcd = Etcd::options().users("coordination/").start();
        let as_user = |user: &str, arguments: &[&str]| {
            let user = format!("--user={user}");
            let output = etcd.etcdctl_as_stranger(&[&[user.as_str()], arguments].concat());
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
        };
        let user = format!("{USER}:{USER_PASSWORD}");
        let root = format!("{ROOT}:{ROOT_PASSWORD}");
        assert_eq!(as_user(&user, &["put", "coordination/a", "x"]), "OK\n");
        assert!(as_user(&user, &["put", "elsewhere", "x"]).contains("permission denied"));
        assert!(
            as_user("tester:wrong", &["get", "coordination/a"]).contains("authentication failed")
        );
        assert_eq!(as_user(&root, &["put", "elsewhere", "x"]), "OK\n");
        let nobody = etcd.etcdctl_as_stranger(&["get", "coordination/a"]);
        assert!(!nobody.status.success());
        assert!(as_user(&user, &["lease", "grant", "5"]).contains("granted"));
        assert_eq!(etcd.keys("coordination/"), ["coordination/a"]);
        assert_eq!(etcd.revoke_all_leases(), 1);
        etcd.node(0).restart();
        etcd.wait_ready();
    });
}

#[test]
fn a_proxied_etcd_shows_its_requests() {
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        let proxy = Proxy::start(etcd.node(0).address());
        let put = || {
            Command::new("etcdctl")
                .env("ETCDCTL_API", "3")
                .arg(format!("--endpoints=http://{}", proxy.address()))
                .args(["put", "a", "x"])
                .output()
                .expect("it is installed: checked at start")
                .status
                .success()
        };
        assert!(put());
        assert!(proxy.requests() >= 1 && proxy.messages() >= 1);
        assert!(proxy.messages_in(Direction::ToClient) >= 1);
        let version = || {
            let fields = etcd.administer(&["get", "a", "--write-out=fields"]);
            let version = fields.lines().find(|line| line.starts_with("\"Version\""));
            version.expect("the key exists").to_owned()
        };
        let before = version();
        // The server carries out the request, and its answer is lost.
        let answers = proxy.messages_in(Direction::ToClient);
        proxy.cut_before(Direction::ToClient, Unit::Messages, 1);
        assert!(!put());
        assert!(proxy.messages_in(Direction::ToClient) > answers);
        assert_ne!(version(), before);
    });
}

#[test]
fn a_node_is_isolated_from_the_others_and_joins_again() {
    rerun_if_starved(|| {
        let etcd = Etcd::options().nodes(3).peers_by_proxy().start();
        for leads in [true, false] {
            let leader = etcd.wait_leader();
            let index = if leads { leader } else { (leader + 1) % 3 };
            etcd.isolate(index);
            let others = || etcd.nodes().iter().enumerate().filter(|(other, _)| *other != index);
            assert!(wait_until(30 * SECOND, || !etcd.node(index).is_healthy()), "it is not alone");
            assert!(wait_until(30 * SECOND, || others().all(|(_, node)| node.is_healthy())));
            etcd.rejoin();
            etcd.wait_ready();
        }
    });
}
