//! Settings of etcd that are harder for clients: tokens that expire, rights that change, or a proxy between client and
//! server.

use super::super::restless::Restless;
use super::super::{Launch, Node as Process, ports::free_address, wait_until};
use super::{Etcd, EtcdOptions, READY, ROOT, ROOT_PASSWORD, USER};

/// The key with which etcd signs the tokens (JWT).
const TOKEN_KEY: &str = "signs-tokens-of-tests-only-7d20";

impl EtcdOptions {
    /// Applies one of the settings in which all checks have to pass. The empty string changes nothing.
    ///
    /// * `tokens`: clients are users, and their tokens expire after three seconds without use.
    /// * `jwt`: clients are users, and their tokens expire after five seconds. All tokens also expire whenever any
    ///   right changes, and a thread changes a right each second.
    /// * `proxy`: clients connect to a `grpc-proxy`, which assigns its own ids to watches.
    ///
    /// # Panics
    ///
    /// If there is no setting of this name.
    pub fn in_setting(self, setting: &str) -> Self {
        match setting {
            "" => self,
            "tokens" => self.users("").flag("--auth-token-ttl=3"),
            "jwt" => Self { is_restless: true, ..self.users("").signed_tokens() },
            "proxy" => Self { by_grpc_proxy: true, ..self },
            _ => panic!("etcd has no setting {setting:?}"),
        }
    }

    /// Makes the users' tokens JWT. Such tokens expire after five seconds, even if they are used.
    pub fn signed_tokens(self) -> Self {
        Self { token_key: Some(TOKEN_KEY), ..self }
    }
}

/// Starts a `grpc-proxy` in front of the first node.
pub(super) fn start_front(etcd: &Etcd) -> Process {
    let (address, node) = (free_address(), etcd.node(0).address());
    let (log, data) = (etcd.scratch.join("proxy.log"), etcd.scratch.join("proxy"));
    let flags = [
        "grpc-proxy".to_owned(),
        "start".to_owned(),
        format!("--endpoints={node}"),
        format!("--listen-addr={address}"),
        format!("--advertise-client-url={address}"),
        format!("--data-dir={}", data.display()),
    ];
    let launch = move || Launch::new("etcd", &log).clear_env().args(&flags);
    let front = Process::start("proxy", address, launch);
    let is_up = || std::net::TcpStream::connect(address).is_ok();
    assert!(wait_until(READY, is_up), "the proxy does not listen:\n{}", front.log());
    front
}

/// Starts a thread that grants or revokes a right each second. Each change makes all tokens of users invalid.
pub(super) fn change_rights(etcd: &Etcd) -> Restless {
    let user = format!("--user={ROOT}:{ROOT_PASSWORD}");
    let endpoints = format!("--endpoints={}", etcd.client_urls().join(","));
    let mut turns = ["grant", "revoke"].iter().cycle();
    Restless::start(move || {
        let verb = turns.next().expect("it has no end");
        let mut arguments = vec!["role".to_owned(), format!("{verb}-permission"), USER.to_owned()];
        arguments.extend((*verb == "grant").then(|| "read".to_owned()));
        arguments.push("another-key".to_owned());
        let _ = std::process::Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args([&user, &endpoints])
            .args(&arguments)
            .output();
    })
}
