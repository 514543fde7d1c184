//! One ZooKeeper process: its configuration and how it is started.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use super::super::{Launch, Proxy, Scratch};
use super::{JARS, ZookeeperOptions};

/// The jars that a server needs. A start would take longer if all installed jars were on the class path.
const CLASS_PATH: [&str; 15] = [
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "slf4j-simple",
    "netty-all",
    "netty-common",
    "netty-handler",
    "netty-transport",
    "netty-buffer",
    "netty-codec",
    "netty-resolver",
    "netty-transport-native-epoll",
    "netty-transport-native-unix-common",
    "snappy-java",
    "metrics-core",
];

/// The addresses at which a node listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) client: SocketAddr,
    pub(super) secure: Option<SocketAddr>,
    /// The address at which followers connect to this node while it leads.
    pub(super) quorum: SocketAddr,
    pub(super) election: SocketAddr,
}

/// The proxy by which one node connects to another one.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) proxy: Proxy,
    /// Whether the link was cut, or has lost packets, since it last worked.
    pub(super) is_cut: AtomicBool,
}

/// Returns a function that describes how to start a node. Each start uses the same data.
pub(super) fn launch(
    index: usize,
    ensemble: &[Addresses],
    links: &[Link],
    options: &ZookeeperOptions,
    scratch: &Scratch,
) -> impl Fn() -> Launch + Send + Sync + use<> {
    let directory = scratch.join(format!("n{index}"));
    fs::create_dir_all(&directory).expect("the directory is writable");
    fs::write(directory.join("myid"), format!("{}", index + 1)).expect("it is writable");
    let mut lines = vec![
        format!("dataDir={}", directory.display()),
        format!("clientPort={}", ensemble[index].client.port()),
        "tickTime=200".to_owned(),
        "maxSessionTimeout=120000".to_owned(),
        "initLimit=25".to_owned(),
        "syncLimit=5".to_owned(),
        "maxClientCnxns=0".to_owned(),
        "admin.enableServer=false".to_owned(),
        "4lw.commands.whitelist=*".to_owned(),
        // At the default size, each log file would have 64 MiB from the beginning, and the scratch directory is in
        // memory.
        "preAllocSize=1024".to_owned(),
    ];
    if options.also_at.is_none() {
        lines.push("clientPortAddress=127.0.0.1".to_owned());
    }
    if ensemble.len() > 1 {
        for (other, at) in ensemble.iter().enumerate() {
            let link = links.iter().find(|link| link.from == index && link.to == other);
            let quorum = link.map_or(at.quorum, |link| link.proxy.address());
            let (quorum, election) = (quorum.port(), at.election.port());
            lines.push(format!("server.{}=127.0.0.1:{quorum}:{election}", other + 1));
        }
    }
    lines.extend(secure(index, ensemble, options, scratch));
    lines.extend(options.lines.iter().cloned());
    let configuration = scratch.join(format!("n{index}.cfg"));
    fs::write(&configuration, lines.join("\n") + "\n").expect("the directory is writable");
    let log = scratch.join(format!("n{index}.log"));
    let properties: Vec<_> = options.properties.iter().map(|one| format!("-D{one}")).collect();
    let jars = CLASS_PATH.map(|jar| format!("{JARS}/{jar}.jar")).join(":");
    move || {
        Launch::new("java", &log).clear_env().args(&properties).args([
            // With these flags Java uses little memory, and does little work before the server is ready.
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            // At the default, a node that has not found the others for a while would look for them only once a minute.
            "-Dzookeeper.fastleader.maxNotificationInterval=800",
            // Without this, Netty would load its own copy of OpenSSL, which is not installed.
            "-Dio.netty.handler.ssl.noOpenSsl=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-cp",
            &jars,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            &configuration.display().to_string(),
        ])
    }
}

/// The path of the file that has a node's certificate and key.
pub(super) fn key_store(scratch: &Scratch, index: usize) -> PathBuf {
    scratch.join(format!("n{index}.pem"))
}

/// The lines of the configuration for TLS.
fn secure(
    index: usize,
    ensemble: &[Addresses],
    options: &ZookeeperOptions,
    scratch: &Scratch,
) -> Vec<String> {
    let (Some(tls), Some(address)) = (&options.tls, ensemble[index].secure) else {
        return Vec::new();
    };
    // ZooKeeper reads the certificate and the key from one file, which it calls the key store.
    let store = key_store(scratch, index);
    super::Zookeeper::write_key_store(&store, &tls.server);
    let required = if tls.client_required { "need" } else { "none" };
    vec![
        format!("secureClientPort={}", address.port()),
        "secureClientPortAddress=127.0.0.1".to_owned(),
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
        format!("ssl.keyStore.location={}", store.display()),
        "ssl.keyStore.type=PEM".to_owned(),
        format!("ssl.trustStore.location={}", tls.authority.display()),
        "ssl.trustStore.type=PEM".to_owned(),
        format!("ssl.clientAuth={required}"),
        "ssl.hostnameVerification=false".to_owned(),
        "ssl.clientHostnameVerification=false".to_owned(),
    ]
}
