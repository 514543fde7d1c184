//! F-48, F-71: what only ZooKeeper has in these rows of the fault matrix, namely users and certificates, read-only
//! servers, and silent hosts.

use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use std::thread::sleep;

use coordination::Coordinator;
use coordination_tests::faults::Site;
use coordination_tests::faults::connecting::Traced;
use coordination_tests::faults::tls::{self, Started};
use coordination_tests::harness::{Server, Zookeeper, rerun_if_starved};
use tokio::task::{JoinSet, block_in_place};

use crate::WORKER;

/// A server accepts any password; only the access control lists of the nodes distinguish users.
#[test]
fn f48_users() {
    rerun_if_starved(|| {
        let zookeeper = Zookeeper::one();
        let mut client = Traced::new(WORKER, &["canary-34", "canary-35"]);
        let at = zookeeper.authority();
        client.connects(&format!("zookeeper://tester:canary-34@{at}/private/locks"));
        client.connects(&format!("zookeeper://tester:canary-34@{at}/private/others"));
        client
            .refused(&format!("zookeeper://tester:canary-35@{at}/private/locks"), &["Permission"]);
        client
            .refused(&format!("zookeeper://nobody:canary-34@{at}/private/locks"), &["Permission"]);
        client.refused(&format!("zookeeper://{at}/private/locks"), &["Permission"]);
        client.connects(&format!("zookeeper://tester:canary-34@{at}/public?acl=open"));
        client.connects(&format!("zookeeper://{at}/public"));
        client.is_discreet();
    });
}

#[test]
fn f48_certificates() {
    rerun_if_starved(|| {
        tls::f48_certificates(WORKER, false, |certificates, shown| match shown {
            Some(shown) => secured(Zookeeper::options().tls(certificates, shown).start()),
            None => {
                let zookeeper = Zookeeper::one();
                let at = zookeeper.authority();
                (Arc::new(zookeeper), at)
            }
        });
    });
}

#[test]
fn f48_client_certificates() {
    rerun_if_starved(|| {
        tls::f48_client_certificates(WORKER, |certificates| {
            secured(
                Zookeeper::options()
                    .tls(certificates, &certificates.server)
                    .require_client()
                    .start(),
            )
        });
    });
}

#[test]
fn f71_certificates_replaced() {
    rerun_if_starved(|| {
        let store = Arc::new(OnceLock::new());
        let told = Arc::clone(&store);
        tls::f71_certificates_replaced(
            WORKER,
            |certificates| {
                let options = Zookeeper::options().tls(certificates, &certificates.server);
                let long = options.line("maxSessionTimeout=10000");
                let zookeeper = long.require_client().start();
                let _ = store.set(zookeeper.key_store(0));
                secured(zookeeper)
            },
            |certificates| {
                let store = told.get().expect("it was started");
                Zookeeper::write_key_store(store, &certificates.server);
            },
        );
    });
}

/// F-71: first, a new password is written to the file that the URL names. Then an operator gives the nodes to the user
/// with the new password.
#[test]
fn f71_password_replaced() {
    rerun_if_starved(|| {
        let zookeeper = Arc::new(Zookeeper::one());
        let file = zookeeper.directory().join("password");
        let put = |password: &str| std::fs::write(&file, password).expect("the directory is ours");
        put("one");
        let mut site = Site::on(zookeeper.clone(), WORKER);
        let at = zookeeper.authority();
        site.url = format!("zookeeper://tester@{at}/private?password_file={}", file.display());
        let holder = site.process("holder");
        holder.acquire("it");
        holder.observe("it");
        put("two\n");
        zookeeper.give("/private/lock", "tester:one", "tester:two");
        holder.acquire("new");
        zookeeper.node(0).restart();
        zookeeper.await_ready();
        sleep(2 * site.lease());
        holder.keeps("it");
        holder.acquire("another");
    });
}

fn secured(zookeeper: Zookeeper) -> Started {
    let at = zookeeper.authority();
    (Arc::new(zookeeper), at)
}

/// The library does not use a server that is cut off from the others and only serves reads.
#[test]
fn f48_a_server_that_only_reads() {
    rerun_if_starved(|| {
        // The switch is a Java property; ZooKeeper makes a property of this line of the configuration.
        let line = "readonlymode.enabled=true";
        let zookeeper = Zookeeper::options().nodes(3).line(line).start();
        zookeeper.node(1).kill();
        zookeeper.node(2).kill();
        let mut client = Traced::new(WORKER, &["canary-36"]);
        let url = format!("zookeeper://tester:canary-36@{}", zookeeper.node(0).address());
        client.refused(&url, &["Unavailable"]);
        client.is_discreet();
    });
}

/// Two hosts of three accept connections and never answer. In whatever order the client tries them, it reaches the
/// third one in time.
#[tokio::test(flavor = "multi_thread")]
async fn silent_hosts() {
    let zookeeper = block_in_place(Zookeeper::one);
    let silent = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("there are free ports"));
    let [one, two] = silent.each_ref().map(|host| host.local_addr().expect("it is bound"));
    let url = format!("zookeeper://{one},{two},{}", zookeeper.authority());
    let mut connecting = JoinSet::new();
    for _ in 0..20 {
        let url = url.clone();
        connecting.spawn(async move { Coordinator::connect(&url).await });
    }
    for connected in connecting.join_all().await {
        connected.expect("one answers").stop().await.expect("it goes on answering");
    }
}
