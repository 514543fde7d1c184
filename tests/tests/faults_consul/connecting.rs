//! F-48 with what Consul has of its own: several agents, tokens, datacenters and certificates; and F-49.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use coordination_tests::faults::connecting::Traced;
use coordination_tests::faults::{LONG, Site};
use coordination_tests::harness::consul::{MASTER, TOKEN};
use coordination_tests::harness::ports::free_address;
use coordination_tests::harness::{Certificates, Consul, ConsulTls, Identity, Server};

use super::WORKER;

/// What is between the first and the last line of a PEM file.
fn body(key: &Path) -> String {
    let pem = std::fs::read_to_string(key).expect("it was written");
    pem.lines().nth(1).unwrap_or_default().to_owned()
}

#[test]
fn f48_not_all_there() {
    let consul = Consul::one();
    let mut client = Traced::new(WORKER, &["canary-31"]);
    let nobody = free_address();
    client.refused(&format!("consul://:canary-31@{nobody},{nobody}"), &["Refused"]);
    client.refused("consul://user:canary-31@127.0.0.1:1", &["Config"]);
    client.refused(&format!("consul://{}?dc=nowhere", consul.authority()), &["Config"]);
    // One of two is enough.
    client.connects(&format!("consul://{nobody},{}", consul.authority()));
    client.is_discreet();
}

#[test]
fn f48_a_lease_that_is_too_short() {
    let consul = Consul::options().with("session_ttl_min", "10s".into()).start();
    let mut client = Traced::new(WORKER, &[]);
    client.refused(&format!("consul://{}", consul.authority()), &["Config"]);
}

#[test]
fn f48_tokens() {
    let consul = Consul::options().acl("coordination").start();
    let wrong = "11111111-2222-3333-4444-canary555555";
    let mut client = Traced::new(WORKER, &[wrong, TOKEN, MASTER]);
    let at = consul.authority();
    client.refused(&format!("consul://:{wrong}@{at}"), &["Auth"]);
    client.refused(&format!("consul://{at}"), &["Permission"]);
    // The token's rights end at its prefix.
    client.refused(&format!("consul://:{TOKEN}@{at}/elsewhere"), &["Permission"]);
    client.connects(&format!("consul://:{TOKEN}@{at}"));
    let file = consul.directory().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).expect("the directory is ours");
    client.connects(&format!("consul://{at}?token_file={}", file.display()));
    client.is_discreet();
    // Where there are no ACLs nobody looks at a token.
    let open = Consul::one();
    client.connects(&format!("consul://:{wrong}@{}", open.authority()));
    client.is_discreet();
}

#[test]
fn f49_token_revoked_while_held() {
    let consul = Arc::new(Consul::options().acl("coordination").start());
    let site = Site::on(consul.clone(), WORKER);
    let site = site.at(format!(":{TOKEN}@{}", consul.authority()));
    let holder = site.process("holder");
    holder.acquire("it");
    holder.observe("it");
    consul.revoke_token();
    thread::sleep(site.lease() / 4);
    holder.keeps("it");
    let refused = holder.acquire_within("new", Duration::from_secs(1)).expect_err("no rights");
    assert!(["Auth", "Permission"].contains(&refused["kind"].as_str().unwrap_or("")), "{refused}");
    holder.not_held(LONG);
    // By then it backs off.
    thread::sleep(2 * site.lease());
    let before: u64 = consul.request_counts().values().sum();
    thread::sleep(Duration::from_secs(12));
    let asked = consul.request_counts().values().sum::<u64>() - before;
    println!("F-49 consul: {asked} requests within 12 s with a revoked token");
    // Two for each try to open a session, and back-off may begin with several short ones.
    assert!(asked <= 40, "{asked} requests");
}

#[test]
fn f48_certificates() {
    let certificates = Certificates::new();
    let consul = Consul::options().tls(ConsulTls::new(&certificates)).start();
    let key = body(&certificates.client.key);
    let mut client = Traced::new(WORKER, &["canary-35", &key]);
    let at = consul.authority();
    let ca = certificates.authority.display();
    client.refused(&format!("consul://{at}"), &["Tls"]);
    client.refused(&format!("consul+https://{at}"), &["Tls"]);
    let other = certificates.other_authority.display();
    client.refused(&format!("consul+https://{at}?ca={other}"), &["Tls"]);
    client.refused(&format!("consul+https://{at}?ca={ca}&server_name=elsewhere.example"), &["Tls"]);
    client.refused(&format!("consul+https://{at}?ca=/missing"), &["Config"]);
    client.refused(&format!("consul://{at}?ca={ca}"), &["Config"]);
    let cert = certificates.client.certificate.display();
    client.refused(&format!("consul+https://{at}?ca={ca}&cert={cert}"), &["Config"]);
    client.refused(&format!("consul+https://{at}?ca={cert}"), &["Tls"]);
    client.connects(&format!("consul+https://{at}?ca={ca}"));
    client.connects(&format!("consul+https://{at}?ca={ca}&server_name=localhost"));
    for (server, name) in
        [(&certificates.wrong_host, "wrong host"), (&certificates.expired, "expired")]
    {
        let consul = Consul::options().tls(ConsulTls::new(&certificates).server(server)).start();
        println!("F-48 consul: {name}");
        client.refused(&format!("consul+https://{}?ca={ca}", consul.authority()), &["Tls"]);
    }
    let plain = Consul::one();
    client.refused(&format!("consul+https://{}?ca={ca}", plain.authority()), &["Tls"]);
    client.is_discreet();
}

#[test]
fn f48_client_certificates() {
    let certificates = Certificates::new();
    let consul = Consul::options().tls(ConsulTls::new(&certificates).require_client()).start();
    let (own, other) = (&certificates.client, &certificates.other_client);
    let mut client = Traced::new(WORKER, &[&body(&own.key), &body(&other.key)]);
    let url =
        format!("consul+https://{}?ca={}", consul.authority(), certificates.authority.display());
    client.refused(&url, &["Tls"]);
    let with = |identity: &Identity| {
        let (cert, key) = (identity.certificate.display(), identity.key.display());
        format!("{url}&cert={cert}&key={key}")
    };
    client.refused(&with(other), &["Tls"]);
    let cert = own.certificate.display();
    client.refused(&format!("{url}&cert={cert}&key={cert}"), &["Config", "Tls"]);
    client.connects(&with(own));
    client.is_discreet();
}
