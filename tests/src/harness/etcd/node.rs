//! One etcd process: paused, killed and started again on its own ports and data.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    super::{Child, Launch, Scratch, http},
    EtcdOptions,
};

/// Where a node listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) client: SocketAddr,
    pub(super) peer: SocketAddr,
    /// Where the other nodes reach `peer`.
    pub(super) advertised: SocketAddr,
    pub(super) metrics: SocketAddr,
}

/// One member of the cluster.
#[derive(Debug)]
pub struct Node {
    name: String,
    addresses: Addresses,
    flags: Vec<String>,
    log: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Child,
    paused: bool,
}

impl Node {
    pub(super) fn start(
        index: usize,
        cluster: &[Addresses],
        options: &EtcdOptions,
        scratch: &Scratch,
    ) -> Self {
        let name = name(index);
        let addresses = cluster[index];
        let log = scratch.join(format!("{name}.log"));
        let mut flags = flags(&name, addresses, cluster, options);
        flags.push(format!("--data-dir={}", scratch.join(&name).display()));
        let child = launch(&flags, &log);
        Self { name, addresses, flags, log, state: Mutex::new(State { child, paused: false }) }
    }

    /// Its name in the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it serves clients.
    pub fn address(&self) -> SocketAddr {
        self.addresses.client
    }

    /// Stops the process with SIGSTOP: connections stay open, nothing answers.
    pub fn pause(&self) {
        let mut state = self.state();
        state.child.pause();
        state.paused = true;
    }

    /// Lets the process run on.
    pub fn resume(&self) {
        let mut state = self.state();
        state.child.resume();
        state.paused = false;
    }

    /// Kills the process with SIGKILL. Its data and its ports stay.
    pub fn kill(&self) {
        let mut state = self.state();
        state.child.kill();
        state.paused = false;
    }

    /// Starts the process again with the same data and ports, killing it first if it runs.
    ///
    /// Returns at once; [`Etcd::wait_ready`](super::Etcd::wait_ready) waits until it serves.
    pub fn restart(&self) {
        self.kill();
        self.state().child = launch(&self.flags, &self.log);
    }

    /// Whether the process runs and is not paused.
    pub fn is_running(&self) -> bool {
        let state = self.state();
        !state.paused && state.child.is_running()
    }

    /// Whether it answers a linearizable read: it runs and the cluster has a leader.
    pub fn is_healthy(&self) -> bool {
        self.ask("/health").is_some_and(|answer| answer.contains("\"health\":\"true\""))
    }

    /// Whether it says it leads.
    pub fn is_leader(&self) -> bool {
        self.metrics().lines().any(|line| line == "etcd_server_is_leader 1")
    }

    /// How many calls of each gRPC method it has started to serve since it started.
    pub fn request_counts(&self) -> BTreeMap<String, u64> {
        self.metrics().lines().filter_map(parse_count).collect()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        self.state().child.log()
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.state().child.id()
    }

    fn metrics(&self) -> String {
        self.ask("/metrics").unwrap_or_default()
    }

    /// The answer to `GET path`; none when it does not run, or fails to answer.
    fn ask(&self, path: &str) -> Option<String> {
        if !self.is_running() {
            return None;
        }
        http::get(self.addresses.metrics, path).ok()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name(index: usize) -> String {
    format!("n{index}")
}

fn launch(flags: &[String], log: &PathBuf) -> Child {
    Launch::new("etcd", log).clear_env().args(flags).start()
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
        // Passwords are checked once per connection; the usual cost takes 50 ms of a shared core.
        "--bcrypt-cost=4".to_owned(),
    ];
    flags.extend(options.tls.iter().flat_map(super::Tls::flags));
    flags.extend(options.flags.iter().cloned());
    flags
}

/// Parses `grpc_server_started_total{grpc_method="Txn",grpc_service="…",grpc_type="…"} 3`.
fn parse_count(line: &str) -> Option<(String, u64)> {
    let labels = line.strip_prefix("grpc_server_started_total{")?;
    let (labels, count) = labels.split_once("} ")?;
    let (_, method) = labels.split_once("grpc_method=\"")?;
    let (method, _) = method.split_once('"')?;
    // Written as a float: large counts look like `1e+06`.
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
