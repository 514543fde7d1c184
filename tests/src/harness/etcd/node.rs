//! One etcd process, and the health and metrics that it reports.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::ops::Deref;

use super::super::{Launch, Node as Process, Scratch, http};
use super::EtcdOptions;

/// The addresses at which a node listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) client: SocketAddr,
    pub(super) peer: SocketAddr,
    /// The address at which other nodes reach `peer`: that of a proxy, or `peer` itself.
    pub(super) advertised: SocketAddr,
    pub(super) metrics: SocketAddr,
}

/// One member of the cluster.
#[derive(Debug)]
pub struct Node {
    process: Process,
    metrics: SocketAddr,
}

impl Node {
    pub(super) fn start(
        index: usize,
        cluster: &[Addresses],
        options: &EtcdOptions,
        scratch: &Scratch,
    ) -> Self {
        let name = name(index);
        let Addresses { client, metrics, .. } = cluster[index];
        let log = scratch.join(format!("{name}.log"));
        let mut flags = flags(&name, cluster[index], cluster, options);
        if let Some(key) = options.token_key {
            let file = scratch.join("token-key");
            fs::write(&file, key).expect("the scratch directory is writable");
            let how = "sign-method=HS256,ttl=5s";
            flags.push(format!("--auth-token=jwt,priv-key={},{how}", file.display()));
        }
        flags.push(format!("--data-dir={}", scratch.join(&name).display()));
        let launch = move || Launch::new("etcd", &log).clear_env().args(&flags);
        Self { process: Process::start(name, client, launch), metrics }
    }

    /// Whether the node answers a linearizable read. For that it has to run, and the cluster has to have a leader.
    pub fn is_healthy(&self) -> bool {
        self.ask("/health").is_some_and(|answer| answer.contains("\"health\":\"true\""))
    }

    /// Whether the node believes that it is the leader.
    pub fn is_leader(&self) -> bool {
        self.metrics().lines().any(|line| line == "etcd_server_is_leader 1")
    }

    /// How many calls of each gRPC method the node has begun to serve since it started.
    pub fn request_counts(&self) -> BTreeMap<String, u64> {
        self.metrics().lines().filter_map(parse_count).collect()
    }

    fn metrics(&self) -> String {
        self.ask("/metrics").unwrap_or_default()
    }

    /// The answer to `GET path`; `None` if the node does not run or does not answer.
    fn ask(&self, path: &str) -> Option<String> {
        if !self.is_running() {
            return None;
        }
        http::get(self.metrics, path).ok()
    }
}

impl Deref for Node {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

fn name(index: usize) -> String {
    format!("n{index}")
}

fn flags(name: &str, own: Addresses, cluster: &[Addresses], options: &EtcdOptions) -> Vec<String> {
    let members: Vec<_> = cluster
        .iter()
        .enumerate()
        .map(|(index, node)| format!("{}=http://{}", self::name(index), node.advertised))
        .collect();
    let scheme = match options.tls {
        Some(_) => "https",
        None => "http",
    };
    let mut listen = format!("{scheme}://{}", own.client);
    if let Some(address) = &options.also_at {
        listen += &format!(",{scheme}://{address}:{}", own.client.port());
    }
    let mut flags = vec![
        format!("--name={name}"),
        format!("--listen-client-urls={listen}"),
        format!("--advertise-client-urls={scheme}://{}", own.client),
        format!("--listen-peer-urls=http://{}", own.peer),
        format!("--initial-advertise-peer-urls=http://{}", own.advertised),
        format!("--initial-cluster={}", members.join(",")),
        format!("--listen-metrics-urls=http://{}", own.metrics),
        "--heartbeat-interval=50".to_owned(),
        "--election-timeout=500".to_owned(),
        "--logger=zap".to_owned(),
        "--log-level=error".to_owned(),
        // etcd checks the password once per connection. At the default cost, each check takes 50 ms of a processor that
        // all nodes share.
        "--bcrypt-cost=4".to_owned(),
    ];
    flags.extend(options.tls.iter().flat_map(super::Tls::flags));
    flags.extend(options.flags.iter().cloned());
    flags
}

/// Parses a line such as `grpc_server_started_total{grpc_method="Txn",grpc_service="…",grpc_type="…"} 3`.
fn parse_count(line: &str) -> Option<(String, u64)> {
    let labels = line.strip_prefix("grpc_server_started_total{")?;
    let (labels, count) = labels.split_once("} ")?;
    let (_, method) = labels.split_once("grpc_method=\"")?;
    let (method, _) = method.split_once('"')?;
    // etcd writes the number as a float: large ones look like `1e+06`.
    let count = count.parse::<f64>().ok()? as u64;
    (count > 0).then(|| (method.to_owned(), count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_counts() {
        let line = "grpc_server_started_total{grpc_method=\"Txn\",grpc_service=\"etcdserverpb.KV\",\
                    grpc_type=\"unary\"} 1.5e+06";
        assert_eq!(parse_count(line), Some(("Txn".to_owned(), 1_500_000)));
        assert_eq!(parse_count("etcd_server_is_leader 1"), None);
    }
}
