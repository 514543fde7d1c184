//! F-48, F-49, F-71: what only Redis has in these rows of the fault matrix, namely users, certificates and sockets.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use coordination_tests::faults::connecting::Traced;
use coordination_tests::faults::tls::{self, Started};
use coordination_tests::harness::{Redis, Scratch, Server, rerun_if_starved};

use super::{LONG, site, with_url};
use crate::WORKER;

/// The rights that a user needs, according to the documentation.
const RIGHTS: [&str; 16] = [
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
    "+pexpire",
    "+config|get",
];

#[test]
fn f48_users() {
    rerun_if_starved(|| {
        let redis = Redis::one();
        let mut client = Traced::new(WORKER, &["canary-34", "right-canary"]);
        let at = redis.authority();
        redis.ask(&["ACL", "SETUSER", "ours", "on", ">right-canary-1"]);
        let mut rights = vec!["ACL", "SETUSER", "ours"];
        rights.extend(RIGHTS);
        redis.ask(&rights);
        client.refused(&format!("redis://ours:canary-34@{at}"), &["Auth"]);
        client.refused(&format!("redis://nobody:canary-34@{at}"), &["Auth"]);
        client.connects(&format!("redis://ours:right-canary-1@{at}?quarantine=off"));
        // The user has rights on its namespace only.
        client.refused(
            &format!("redis://ours:right-canary-1@{at}?namespace=elsewhere"),
            &["Permission"],
        );
        redis.ask(&["ACL", "SETUSER", "default", "on", "resetpass", ">right-canary-2"]);
        client.refused(&format!("redis://{at}"), &["Auth"]);
        client.refused(&format!("redis://:canary-34@{at}"), &["Auth"]);
        client.connects(&format!("redis://:right-canary-2@{at}?quarantine=off"));
        client.is_discreet();
    });
}

/// F-73: in each round, one of the rights that the documentation lists is missing. Some of these rights are categories
/// of commands. Further rounds forbid single commands of these categories that the library uses.
#[test]
fn f73_each_right_is_missing() {
    rerun_if_starved(|| {
        let redis = Redis::one();
        let at = redis.authority();
        let url = format!("redis://ours:right-canary-1@{at}?quarantine=off");
        let mut client = Traced::new(WORKER, &[]);
        let of_categories = ["-hset", "-hscan", "-zadd", "-zscore", "-get", "-set"];
        let optional = ["+config|get"];
        let rights = RIGHTS.iter().filter(|right| !optional.contains(right));
        for missing in rights.chain(&of_categories) {
            redis.ask(&["ACL", "SETUSER", "ours", "reset", "on", ">right-canary-1"]);
            let mut given = vec!["ACL", "SETUSER", "ours"];
            given.extend(RIGHTS.iter().filter(|right| *right != missing));
            given.extend(of_categories.iter().filter(|right| *right == missing));
            redis.ask(&given);
            // If a category is missing, the error names the category's first command that the library uses.
            let named = match *missing {
                "+@hash" => "hget",
                "+@sortedset" => "zadd",
                "+@string" => "get",
                right if right.starts_with('~') => "key",
                right if right.starts_with('&') => "channel",
                right => right.trim_start_matches(['+', '-']),
            };
            println!("F-73 redis: without {missing}");
            client.refused_with(&url, &["Permission"], named);
        }
        redis.ask(&["ACL", "SETUSER", "ours", "reset", "on", ">right-canary-1"]);
        let mut given = vec!["ACL", "SETUSER", "ours"];
        given.extend(RIGHTS);
        redis.ask(&given);
        client.connects(&url);
        // The failed attempts to connect have left no key.
        assert_eq!(redis.ask(&["EXISTS", "{coordination}:nowhere"]).text().as_deref(), Some("0"));
    });
}

/// F-49: the user is removed while a client holds a lock. The client holds the lock until its deadline, and then
/// loses it. It makes few attempts to connect.
#[test]
fn f49_user_removed() {
    rerun_if_starved(|| {
        let (redis, there) = site(Redis::options());
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
    });
}

#[test]
fn f48_certificates() {
    rerun_if_starved(|| {
        tls::f48_certificates(WORKER, true, |certificates, shown| match shown {
            Some(shown) => secured(Redis::options().tls(certificates, shown, false).start()),
            None => {
                let redis = Redis::one();
                let at = redis.authority();
                (Arc::new(redis), at)
            }
        });
    });
}

#[test]
fn f48_client_certificates() {
    rerun_if_starved(|| {
        tls::f48_client_certificates(WORKER, |certificates| {
            secured(Redis::options().tls(certificates, &certificates.server, true).start())
        });
    });
}

#[test]
fn f71_certificates_replaced() {
    rerun_if_starved(|| {
        tls::f71_certificates_replaced(
            WORKER,
            |certificates| {
                secured(Redis::options().tls(certificates, &certificates.server, true).start())
            },
            |_| {},
        );
    });
}

/// F-71: the password is replaced in the file that the URL names and in the server's file, and the server restarts.
#[test]
fn f71_password_replaced() {
    rerun_if_starved(|| {
        let scratch = Scratch::new("users");
        let (users, file) = (scratch.join("users.acl"), scratch.join("password"));
        let put = |password: &str, at_the_server: &str| {
            let user = format!(
                "user ours on >{at_the_server} ~* &* +@all\nuser default on nopass ~* &* +@all\n"
            );
            std::fs::write(&users, user).expect("the directory is ours");
            std::fs::write(&file, format!("{password}\n")).expect("the directory is ours");
        };
        put("one", "one");
        let (redis, there) = site(Redis::options().flag("aclfile", users.display().to_string()));
        let url = there.url.replace("redis://", "redis://ours@");
        let separator = if url.contains('?') { '&' } else { '?' };
        let site = with_url(there, format!("{url}{separator}password_file={}", file.display()));
        let holder = site.process("holder");
        holder.acquire("x");
        holder.observe("x");
        // In the last round, the file already has the new password while the server still has the old one.
        for (password, at_the_server) in [("two", "two"), ("", "two"), ("three", "two")] {
            put(password, at_the_server);
            redis.node(0).restart();
            redis.wait_ready();
            sleep(2 * site.lease());
            holder.keeps("x");
        }
        holder.acquire("y");
    });
}

fn secured(redis: Redis) -> Started {
    let at = redis.secure_address().to_string();
    (Arc::new(redis), at)
}

#[test]
fn f48_socket_and_database() {
    rerun_if_starved(|| {
        let redis = Redis::options().socket().start();
        let mut client = Traced::new(WORKER, &[]);
        client.refused("redis+unix:///nowhere/redis.sock", &["Refused"]);
        client.connects(&format!("redis+unix://{}?quarantine=off", redis.socket().display()));
        client.connects(&format!("unix://{}?db=3&quarantine=off", redis.socket().display()));
        client.connects(&format!("redis://{}/3?quarantine=off", redis.authority()));
        client.refused(&format!("redis://{}/99", redis.authority()), &["Config"]);
        // Printed for information only: how many keys the default database has. Database 3, which is another store,
        // is not included.
        let keys = redis.ask(&["DBSIZE"]);
        println!("{keys:?}");
    });
}
