//! F-48 with what etcd has of its own: several addresses, users and certificates.

use std::path::Path;

use coordination_tests::{
    faults::connecting::Traced,
    harness::{
        Certificates, Etcd, Tls,
        etcd::{ROOT_PASSWORD, USER_PASSWORD},
        ports::free_address,
    },
};

use super::WORKER;

/// What is between the first and the last line of a PEM file.
fn body(key: &Path) -> String {
    let pem = std::fs::read_to_string(key).expect("it was written");
    pem.lines().nth(1).unwrap_or_default().to_owned()
}

#[test]
fn f48_not_all_there() {
    let etcd = Etcd::one();
    let mut client = Traced::new(WORKER, &["canary-31"]);
    let nobody = free_address();
    client.refused(&format!("etcd://user:canary-31@{nobody},{nobody}"), &["Refused"]);
    client.refused("etcd://user@127.0.0.1:1", &["Config"]);
    // One of two is enough.
    client.connects(&format!("etcd://{nobody},{}", etcd.authority()));
    client.is_discreet();
}

#[test]
fn f48_users() {
    let etcd = Etcd::options().users("coordination/").start();
    let mut client = Traced::new(WORKER, &["canary-34", USER_PASSWORD, ROOT_PASSWORD]);
    let at = etcd.authority();
    client.refused(&format!("etcd://tester:canary-34@{at}"), &["Auth"]);
    client.refused(&format!("etcd://nobody:canary-34@{at}"), &["Auth"]);
    client.refused(&format!("etcd://{at}"), &["Auth"]);
    // The user's role ends at its prefix.
    let user = Etcd::user_information();
    client.refused(&format!("etcd://{user}{at}/elsewhere"), &["Permission"]);
    client.connects(&format!("etcd://{user}{at}"));
    client.is_discreet();
    let plain = Etcd::one();
    client.refused(&format!("etcd://tester:canary-34@{}", plain.authority()), &["Auth"]);
    client.is_discreet();
}

#[test]
fn f48_certificates() {
    let certificates = Certificates::new();
    let etcd = Etcd::options().tls(Tls::new(&certificates)).start();
    let key = body(&certificates.client.key);
    let mut client = Traced::new(WORKER, &["canary-35", &key]);
    let at = etcd.authority();
    let ca = certificates.authority.display();
    client.refused(&format!("etcd://{at}"), &["Tls"]);
    client.refused(&format!("etcds://{at}"), &["Tls"]);
    let other = certificates.other_authority.display();
    client.refused(&format!("etcds://{at}?ca={other}"), &["Tls"]);
    client.refused(&format!("etcds://{at}?ca={ca}&server_name=elsewhere.example"), &["Tls"]);
    client.refused(&format!("etcds://{at}?ca=/missing"), &["Config"]);
    client.refused(&format!("etcd://{at}?ca={ca}"), &["Config"]);
    let cert = certificates.client.certificate.display();
    client.refused(&format!("etcds://{at}?ca={ca}&cert={cert}"), &["Config"]);
    client.refused(&format!("etcds://{at}?ca={cert}"), &["Tls"]);
    client.connects(&format!("etcds://{at}?ca={ca}"));
    for (server, name) in
        [(&certificates.wrong_host, "wrong host"), (&certificates.expired, "expired")]
    {
        let etcd = Etcd::options().tls(Tls::new(&certificates).server(server)).start();
        println!("F-48 etcd: {name}");
        client.refused(&format!("etcds://{}?ca={ca}", etcd.authority()), &["Tls"]);
    }
    let plain = Etcd::one();
    client.refused(&format!("etcds://{}?ca={ca}", plain.authority()), &["Tls"]);
    client.is_discreet();
}

#[test]
fn f48_client_certificates() {
    let certificates = Certificates::new();
    let etcd = Etcd::options().tls(Tls::new(&certificates).require_client()).start();
    let (own, other) = (&certificates.client, &certificates.other_client);
    let mut client = Traced::new(WORKER, &[&body(&own.key), &body(&other.key)]);
    let url = format!("etcds://{}?ca={}", etcd.authority(), certificates.authority.display());
    client.refused(&url, &["Tls"]);
    let with = |identity: &coordination_tests::harness::Identity| {
        let (cert, key) = (identity.certificate.display(), identity.key.display());
        format!("{url}&cert={cert}&key={key}")
    };
    client.refused(&with(other), &["Tls"]);
    client
        .refused(&format!("{url}&cert={0}&key={0}", own.certificate.display()), &["Config", "Tls"]);
    client.connects(&with(own));
    client.is_discreet();
}
