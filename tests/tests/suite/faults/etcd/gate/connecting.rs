//! F-48, F-71: what only etcd has in these rows of the fault matrix, namely users and certificates.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use coordination_tests::faults::Site;
use coordination_tests::faults::connecting::Traced;
use coordination_tests::faults::tls::{self, Started};
use coordination_tests::harness::etcd::{ROOT_PASSWORD, USER, USER_PASSWORD};
use coordination_tests::harness::{Etcd, Tls, rerun_if_starved};

use crate::WORKER;

#[test]
fn f48_users() {
    rerun_if_starved(|| {
        let etcd = Etcd::options().users("coordination/").start();
        let mut client = Traced::new(WORKER, &["canary-34", USER_PASSWORD, ROOT_PASSWORD]);
        let at = etcd.authority();
        client.refused(&format!("etcd://tester:canary-34@{at}"), &["Auth"]);
        client.refused(&format!("etcd://nobody:canary-34@{at}"), &["Auth"]);
        client.refused(&format!("etcd://{at}"), &["Auth"]);
        // The user has rights on its prefix only.
        let user = Etcd::user_information();
        client.refused(&format!("etcd://{user}{at}/elsewhere"), &["Permission"]);
        client.connects(&format!("etcd://{user}{at}"));
        client.is_discreet();
        let plain = Etcd::one();
        client.refused(&format!("etcd://tester:canary-34@{}", plain.authority()), &["Auth"]);
        client.is_discreet();
    });
}

/// F-73: in each round, one of the rights that the documentation lists is missing, or is given for only a part of the
/// prefix.
#[test]
fn f73_each_right_is_missing() {
    rerun_if_starved(|| {
        let etcd = Etcd::options().users("coordination/").start();
        let mut client = Traced::new(WORKER, &[]);
        let url = format!("etcd://{}{}/fleet", Etcd::user_information(), etcd.authority());
        let mut given: Vec<(&str, &str)> = Vec::new();
        for (rights, missing) in [
            (vec![("read", "fleet/")], "write"),
            (vec![("write", "fleet/")], "read"),
            (vec![("read", "fleet/"), ("readwrite", "fleet/member/")], "write"),
            (vec![("write", "fleet/"), ("readwrite", "fleet/member/")], "read"),
        ] {
            println!("F-73 etcd: only {rights:?}");
            for (_, prefix) in given.drain(..) {
                etcd.administer(&["role", "revoke-permission", "--prefix=true", USER, prefix]);
            }
            for (right, prefix) in &rights {
                let grant = ["role", "grant-permission", "--prefix=true", USER, right, prefix];
                etcd.administer(&grant);
            }
            given = rights;
            client.refused_with(&url, &["Permission"], &format!("`{missing}`"));
        }
        // The failed attempts to connect have left no keys.
        assert_eq!(etcd.keys("fleet/"), [""; 0]);
        etcd.administer(&[
            "role",
            "grant-permission",
            "--prefix=true",
            USER,
            "readwrite",
            "fleet/",
        ]);
        client.connects(&url);
    });
}

/// F-72: one of the endpoints is a learner, an etcd member without a vote. It answers a client's first request, and
/// refuses all others.
#[test]
fn f72_a_learner_among_the_endpoints() {
    rerun_if_starved(|| {
        let etcd = Etcd::one();
        let learner = etcd.start_learner();
        let mut client = Traced::new(WORKER, &[]);
        // The client connects several times, because it may begin with either endpoint.
        for _ in 0..6 {
            client.connects(&format!("etcd://{},{}", learner.address(), etcd.authority()));
        }
    });
}

#[test]
fn f48_certificates() {
    rerun_if_starved(|| {
        tls::f48_certificates(WORKER, true, |certificates, shown| match shown {
            Some(shown) => {
                secured(Etcd::options().tls(Tls::new(certificates).server(shown)).start())
            }
            None => {
                let etcd = Etcd::one();
                let at = etcd.authority();
                (Arc::new(etcd), at)
            }
        });
    });
}

#[test]
fn f48_client_certificates() {
    rerun_if_starved(|| {
        tls::f48_client_certificates(WORKER, |certificates| {
            secured(Etcd::options().tls(Tls::new(certificates).require_client()).start())
        });
    });
}

#[test]
fn f71_certificates_replaced() {
    rerun_if_starved(|| {
        tls::f71_certificates_replaced(
            WORKER,
            |certificates| {
                secured(Etcd::options().tls(Tls::new(certificates).require_client()).start())
            },
            |_| {},
        );
    });
}

/// F-71: the password is changed in the file that the URL names, and at the server. After the change, the
/// server goes on accepting the tokens that it gave out for the old password, until it restarts. So the password is changed once
/// without a restart, and once with a restart, after which the old tokens are refused.
#[test]
fn f71_password_replaced() {
    rerun_if_starved(|| {
        let etcd = Arc::new(Etcd::options().users("").start());
        let file = etcd.directory().join("password");
        let put = |password: &str| std::fs::write(&file, password).expect("the directory is ours");
        put(USER_PASSWORD);
        let mut site = Site::on(etcd.clone(), WORKER).with_ttl(Duration::from_secs(4));
        site.url = format!("etcd://tester@{}?password_file={}", etcd.authority(), file.display());
        let holder = site.process("holder");
        holder.acquire("it");
        holder.observe("it");
        for (password, restarts) in [("another", false), ("third", true)] {
            etcd.change_password(password);
            put(&format!("{password}\n"));
            if restarts {
                etcd.node(0).restart();
                etcd.wait_ready();
            }
            holder.acquire(password);
            sleep(site.lease() + Duration::from_secs(1));
            holder.keeps("it");
        }
        // The password is changed in the file first, and at the server later.
        put("fourth");
        etcd.node(0).restart();
        etcd.wait_ready();
        sleep(site.lease() + Duration::from_secs(1));
        holder.keeps("it");
        etcd.change_password("fourth");
        holder.acquire("in the end");
        sleep(site.lease() + Duration::from_secs(1));
        holder.keeps("it");
    });
}

fn secured(etcd: Etcd) -> Started {
    let at = etcd.authority();
    (Arc::new(etcd), at)
}
