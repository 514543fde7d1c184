//! F-48 with what ZooKeeper has of its own: several addresses, users and certificates, servers that only read.

use std::path::Path;

use coordination_tests::{
    faults::connecting::Traced,
    harness::{Certificates, Server, Zookeeper, ports::free_address},
};

use super::WORKER;

/// What is between the first and the last line of a PEM file.
fn body(key: &Path) -> String {
    let pem = std::fs::read_to_string(key).expect("it was written");
    pem.lines().nth(1).unwrap_or_default().to_owned()
}

#[test]
fn f48_not_all_there() {
    let zookeeper = Zookeeper::one();
    let mut client = Traced::new(WORKER, &["canary-31"]);
    let nobody = free_address();
    client.refused(&format!("zookeeper://user:canary-31@{nobody},{nobody}"), &["Refused"]);
    client.refused("zookeeper://user@127.0.0.1:1", &["Config"]);
    // One of two is enough.
    client.connects(&format!("zookeeper://{nobody},{}", zookeeper.authority()));
    client.is_discreet();
}

/// A server takes any password: what counts is whom the nodes let in.
#[test]
fn f48_users() {
    let zookeeper = Zookeeper::one();
    let mut client = Traced::new(WORKER, &["canary-34", "canary-35"]);
    let at = zookeeper.authority();
    client.connects(&format!("zookeeper://tester:canary-34@{at}/private/locks"));
    client.connects(&format!("zookeeper://tester:canary-34@{at}/private/others"));
    client.refused(&format!("zookeeper://tester:canary-35@{at}/private/locks"), &["Permission"]);
    client.refused(&format!("zookeeper://nobody:canary-34@{at}/private/locks"), &["Permission"]);
    client.refused(&format!("zookeeper://{at}/private/locks"), &["Permission"]);
    client.connects(&format!("zookeeper://tester:canary-34@{at}/public?acl=open"));
    client.connects(&format!("zookeeper://{at}/public"));
    client.is_discreet();
}

#[test]
fn f48_certificates() {
    let certificates = Certificates::new();
    let zookeeper = Zookeeper::options().tls(&certificates, &certificates.server).start();
    let key = body(&certificates.client.key);
    let mut client = Traced::new(WORKER, &["canary-35", &key]);
    let at = zookeeper.authority();
    let ca = certificates.authority.display();
    client.refused(&format!("zookeeper://{at}"), &["Tls"]);
    client.refused(&format!("zookeeper+tls://{at}"), &["Tls"]);
    let other = certificates.other_authority.display();
    client.refused(&format!("zookeeper+tls://{at}?ca={other}"), &["Tls"]);
    client.refused(&format!("zookeeper+tls://{at}?ca={ca}&server_name=a.example"), &["Config"]);
    client.refused(&format!("zookeeper+tls://{at}?ca=/missing"), &["Config"]);
    client.refused(&format!("zookeeper://{at}?ca={ca}"), &["Config"]);
    let cert = certificates.client.certificate.display();
    client.refused(&format!("zookeeper+tls://{at}?ca={ca}&cert={cert}"), &["Config"]);
    client.refused(&format!("zookeeper+tls://{at}?ca={cert}"), &["Tls"]);
    client.connects(&format!("zookeeper+tls://{at}?ca={ca}"));
    for (server, name) in
        [(&certificates.wrong_host, "wrong host"), (&certificates.expired, "expired")]
    {
        let zookeeper = Zookeeper::options().tls(&certificates, server).start();
        println!("F-48 zookeeper: {name}");
        let url = format!("zookeeper+tls://{}?ca={ca}", zookeeper.authority());
        client.refused(&url, &["Tls"]);
    }
    let plain = Zookeeper::one();
    client.refused(&format!("zookeeper+tls://{}?ca={ca}", plain.authority()), &["Tls"]);
    client.is_discreet();
}

#[test]
fn f48_client_certificates() {
    let certificates = Certificates::new();
    let options = Zookeeper::options().tls(&certificates, &certificates.server);
    let zookeeper = options.require_client().start();
    let (own, other) = (&certificates.client, &certificates.other_client);
    let mut client = Traced::new(WORKER, &[&body(&own.key), &body(&other.key)]);
    let (at, ca) = (zookeeper.authority(), certificates.authority.display());
    let url = format!("zookeeper+tls://{at}?ca={ca}");
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

/// A server without the others that lets clients read is none for us.
#[test]
fn f48_a_server_that_only_reads() {
    // The switch is a property of the Java machine, and the line of the configuration becomes one.
    let line = "readonlymode.enabled=true";
    let zookeeper = Zookeeper::options().nodes(3).line(line).start();
    zookeeper.node(1).kill();
    zookeeper.node(2).kill();
    let mut client = Traced::new(WORKER, &["canary-36"]);
    let url = format!("zookeeper://tester:canary-36@{}", zookeeper.node(0).address());
    client.refused(&url, &["Unavailable"]);
    client.is_discreet();
}
