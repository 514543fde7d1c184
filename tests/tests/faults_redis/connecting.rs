//! F-48, F-49 with what Redis has of its own: users, certificates, sockets, several addresses.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use coordination_tests::faults::connecting::Traced;
use coordination_tests::harness::{Certificates, Identity, Redis, Server, ports::free_address};

use super::{LONG, WORKER, site, with_url};

/// What a user needs: as the documentation says.
const RIGHTS: [&str; 15] = [
    "~{coordination}:*",
    "&{coordination}:*",
    "+info",
    "+subscribe",
    "+unsubscribe",
    "+publish",
    "+eval",
    "+evalsha",
    "+time",
    "+@hash",
    "+@sortedset",
    "+@string",
    "+del",
    "+exists",
    "+config|get",
];

/// What is between the first and the last line of a PEM file.
fn body(key: &Path) -> String {
    let pem = std::fs::read_to_string(key).expect("it was written");
    pem.lines().nth(1).unwrap_or_default().to_owned()
}

#[test]
fn f48_not_all_there() {
    let redis = Redis::one();
    let mut client = Traced::new(WORKER, &["canary-31"]);
    let nobody = free_address();
    client.refused(&format!("redis://user:canary-31@{nobody},{nobody}"), &["Refused"]);
    client.refused("redis://user@127.0.0.1:1", &["Config"]);
    client.refused("redis+unix:///nowhere/redis.sock", &["Refused"]);
    // One of two is enough.
    client.connects(&format!("redis://{nobody},{}", redis.authority()));
    client.is_discreet();
}

#[test]
fn f48_users() {
    let redis = Redis::one();
    let mut client = Traced::new(WORKER, &["canary-34", "right-canary"]);
    let at = redis.authority();
    redis.ask(&["ACL", "SETUSER", "ours", "on", ">right-canary-1"]);
    let mut rights = vec!["ACL", "SETUSER", "ours"];
    rights.extend(RIGHTS);
    redis.ask(&rights);
    client.refused(&format!("redis://ours:canary-34@{at}"), &["Auth"]);
    client.refused(&format!("redis://nobody:canary-34@{at}"), &["Auth"]);
    client.connects(&format!("redis://ours:right-canary-1@{at}"));
    // The user's rights end at the namespace.
    client
        .refused(&format!("redis://ours:right-canary-1@{at}?namespace=elsewhere"), &["Permission"]);
    redis.ask(&["ACL", "SETUSER", "default", "on", "resetpass", ">right-canary-2"]);
    client.refused(&format!("redis://{at}"), &["Auth"]);
    client.refused(&format!("redis://:canary-34@{at}"), &["Auth"]);
    client.connects(&format!("redis://:right-canary-2@{at}"));
    client.is_discreet();
}

/// F-49: the user is removed while it holds: kept until the deadline, then lost; few tries are made.
#[test]
fn f49_user_removed() {
    let (redis, there) = site(Redis::options(), "");
    redis.ask(&[
        "ACL",
        "SETUSER",
        "ours",
        "on",
        ">right-canary-1",
        "allkeys",
        "allchannels",
        "+@all",
    ]);
    let url = there.url.replace("redis://", "redis://ours:right-canary-1@");
    let site = with_url(there, url);
    let holder = site.process("holder");
    holder.acquire("x");
    holder.observe("x");
    redis.ask(&["ACL", "DELUSER", "ours"]);
    let lost = holder.lost(LONG);
    assert_eq!(lost.reason, "DeadlinePassed");
    let tries = || redis.request_counts().get("hello").copied().unwrap_or_default();
    let before = tries();
    sleep(Duration::from_secs(6));
    let tries = tries() - before;
    println!("F-49 redis: {tries} tries in 6 s");
    assert!(tries <= 3, "{tries} tries");
    let refused = holder.acquire_within("y", Duration::from_secs(2)).expect_err("no such user");
    println!("F-49 redis: {refused}");
}

#[test]
fn f48_certificates() {
    let certificates = Certificates::new();
    let redis = Redis::options().tls(&certificates, &certificates.server, false).start();
    let key = body(&certificates.client.key);
    let mut client = Traced::new(WORKER, &["canary-35", &key]);
    let at = redis.secure_address();
    let ca = certificates.authority.display();
    client.refused(&format!("redis://{at}"), &["Tls"]);
    client.refused(&format!("rediss://{at}"), &["Tls"]);
    let other = certificates.other_authority.display();
    client.refused(&format!("rediss://{at}?ca={other}"), &["Tls"]);
    client.refused(&format!("rediss://{at}?ca={ca}&server_name=elsewhere.example"), &["Tls"]);
    client.refused(&format!("rediss://{at}?ca=/missing"), &["Config"]);
    client.refused(&format!("redis://{at}?ca={ca}"), &["Config"]);
    let cert = certificates.client.certificate.display();
    client.refused(&format!("rediss://{at}?ca={ca}&cert={cert}"), &["Config"]);
    client.refused(&format!("rediss://{at}?ca={cert}"), &["Tls"]);
    client.connects(&format!("rediss://{at}?ca={ca}"));
    client.connects(&format!("rediss://{at}?ca={ca}&server_name=localhost"));
    for (server, name) in
        [(&certificates.wrong_host, "wrong host"), (&certificates.expired, "expired")]
    {
        let redis = Redis::options().tls(&certificates, server, false).start();
        println!("F-48 redis: {name}");
        client.refused(&format!("rediss://{}?ca={ca}", redis.secure_address()), &["Tls"]);
    }
    let plain = Redis::one();
    client.refused(&format!("rediss://{}?ca={ca}", plain.authority()), &["Tls"]);
    client.is_discreet();
}

#[test]
fn f48_client_certificates() {
    let certificates = Certificates::new();
    let redis = Redis::options().tls(&certificates, &certificates.server, true).start();
    let (own, other) = (&certificates.client, &certificates.other_client);
    let mut client = Traced::new(WORKER, &[&body(&own.key), &body(&other.key)]);
    let url =
        format!("rediss://{}?ca={}", redis.secure_address(), certificates.authority.display());
    client.refused(&url, &["Tls"]);
    let with = |identity: &Identity| {
        let (cert, key) = (identity.certificate.display(), identity.key.display());
        format!("{url}&cert={cert}&key={key}")
    };
    client.refused(&with(other), &["Tls"]);
    client
        .refused(&format!("{url}&cert={0}&key={0}", own.certificate.display()), &["Config", "Tls"]);
    client.connects(&with(own));
    client.is_discreet();
}

#[test]
fn f48_socket_and_database() {
    let redis = Redis::options().socket().start();
    let mut client = Traced::new(WORKER, &[]);
    client.connects(&format!("redis+unix://{}", redis.socket().display()));
    client.connects(&format!("unix://{}?db=3", redis.socket().display()));
    client.connects(&format!("redis://{}/3", redis.authority()));
    client.refused(&format!("redis://{}/99", redis.authority()), &["Config"]);
    // Another database is another store.
    let keys = redis.ask(&["DBSIZE"]);
    println!("{keys:?}");
}
