//! What can be set, and which of it is refused together.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use coordination::Config;
use percent_encoding::percent_decode_str;

use crate::proxies::Network;

/// The lease that an instance asks its store for, unless the URL or the configuration says otherwise.
const TTL: Duration = Duration::from_secs(30);

/// How the service is to run; [`Settings::default`] is what `coordination serve` does without options.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the API and the page are, if they are at an address.
    pub listen: Option<SocketAddr>,
    /// The path of a Unix socket where they are, if they are at one.
    pub unix: Option<PathBuf>,
    /// Where the API of rdlm is, if anywhere.
    pub rdlm: Option<SocketAddr>,
    /// Where the API of lockable.dev is, if anywhere.
    pub lockable: Option<SocketAddr>,
    /// Where the API of Zaqar is, if anywhere.
    pub zaqar: Option<SocketAddr>,
    /// Where metrics are told without a token, and nothing else but health, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Names by which requests may call us, besides loopback names and the address that we listen on.
    pub hosts: Vec<String>,
    /// Proxies whose `X-Forwarded-For` says where a request comes from.
    pub trusted_proxies: Vec<Network>,
    /// The file with tokens, and with the names in clients' certificates; without one everybody is `anonymous`.
    pub tokens: Option<PathBuf>,
    /// What the listeners are encrypted with, but rdlm's, whose clients can do no TLS, and the Unix socket; without it nothing is.
    pub tls: Option<TlsFiles>,
    /// Whether an address that is not loopback may be listened on without tokens.
    pub allow_anonymous: bool,
    /// Whether an address that is not loopback may be listened on, though nothing is encrypted.
    pub allow_plaintext: bool,
    /// Prefixes of names whose leases may be longer than the store's, kept by promises.
    pub long: Vec<String>,
    /// How long holds can still be renewed and released after the first request to stop.
    pub drain: Duration,
    /// The lease of a lock that is taken by the API of lockable.dev.
    pub lockable_lease: Duration,
    /// Whether each request is written to standard output.
    pub access_log: bool,
    /// Whether `memory://` is accepted as a store, which knows nothing after a restart.
    pub fresh: bool,
    /// The most that may be held, may wait, or may be connected.
    pub limits: Limits,
}

/// Files in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Our certificate, and those of the authorities between it and one that clients know.
    pub certificate: PathBuf,
    /// Its private key, which nobody but us may read, or root's with a group that may.
    pub key: PathBuf,
    /// How clients' certificates are checked, if clients are asked for one.
    pub clients: Option<ClientFiles>,
}

/// By what clients' certificates are checked; files in PEM.
#[derive(Clone, Debug)]
pub struct ClientFiles {
    /// The authorities that have signed them.
    pub authorities: PathBuf,
    /// What these have revoked: lists of all authorities, those in between too. A list that is out of date lets nobody in.
    pub revoked: Option<PathBuf>,
    /// Whether whoever shows none is refused.
    pub required: bool,
}

/// Numbers beyond which requests are refused.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time; more are accepted when some have ended.
    pub connections: usize,
    /// Names that requests wait for, of all and of one principal: one for most requests, and each of several locks.
    pub waits: (usize, usize),
    /// Names that are held, of all and of one principal: one by most holds, and each of several locks.
    pub holds: (usize, usize),
    /// Event streams.
    pub streams: usize,
    /// How long a request is worked on, beside what it waits for others or for its own body.
    pub work: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            waits: (2_000, 1_000),
            holds: (20_000, 10_000),
            streams: 200,
            work: Duration::from_secs(30),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 8420))),
            unix: None,
            rdlm: None,
            lockable: None,
            zaqar: None,
            metrics: None,
            hosts: Vec::new(),
            trusted_proxies: Vec::new(),
            tokens: None,
            tls: None,
            allow_anonymous: false,
            allow_plaintext: false,
            long: vec!["rdlm/".to_owned(), "lockable/".to_owned()],
            drain: Duration::from_secs(30),
            lockable_lease: Duration::from_secs(60),
            access_log: true,
            fresh: false,
            limits: Limits::default(),
        }
    }
}

impl Settings {
    /// What is wrong with them together, in a sentence for who started us.
    pub(crate) fn refusal(&self, config: &Config) -> Option<String> {
        let listened = [self.listen, self.rdlm, self.lockable, self.zaqar];
        if let Some(open) = listened.into_iter().flatten().find(|at| !at.ip().is_loopback())
            && self.tokens.is_none()
            && !self.allow_anonymous
        {
            return Some(format!(
                "{open} can be reached by others, and there are no tokens: give --tokens FILE, or --allow-anonymous"
            ));
        }
        if let Some(open) = self.metrics.filter(|at| !at.ip().is_loopback())
            && !self.allow_anonymous
        {
            return Some(format!(
                "{open} can be reached by others, and asks nobody for a token: take a loopback address, have /metrics read with a token, or give --allow-anonymous"
            ));
        }
        let plain = match self.tls {
            Some(_) => vec![self.rdlm],
            None => listened.into_iter().chain([self.metrics]).collect(),
        };
        if let Some(open) = plain.into_iter().flatten().find(|at| !at.ip().is_loopback())
            && !self.allow_plaintext
        {
            let advice = match self.tls {
                Some(_) => "rdlm's clients can do no TLS: listen on a loopback address",
                None => "give --tls-cert FILE and --tls-key FILE",
            };
            return Some(format!(
                "{open} can be reached by others, and is not encrypted: {advice}, or give --allow-plaintext"
            ));
        }
        let is_memory = config.url.as_deref().is_some_and(|url| scheme(url) == "memory");
        (is_memory && !self.fresh).then(|| {
            "memory:// knows nothing of what was granted before a restart: give --fresh if that is no harm, or a store such as file:///var/lib/coordination"
                .to_owned()
        })
    }
}

/// With the lease that an instance asks for, and how long a hold outlives an instance that was killed.
pub(crate) fn leased(mut config: Config) -> (Config, Cover) {
    let url = config.url.clone().unwrap_or_default();
    let options = options(&url);
    // Of an option that is given twice the library takes the last one.
    let option =
        |name: &str| options.iter().rfind(|(key, _)| key == name).map(|(_, text)| text.as_str());
    let named = |name: &str| option(name).and_then(|text| coordination::parse_duration(text).ok());
    let ttl = config.ttl.or_else(|| named("ttl")).unwrap_or(TTL);
    if config.ttl.is_none() && option("ttl").is_none() {
        config.ttl = Some(TTL);
    }
    let heartbeat =
        config.heartbeat.or_else(|| named("heartbeat")).unwrap_or(Duration::from_secs(1));
    let cover = Cover::of(&scheme(&url), ttl, heartbeat.min(ttl / 3));
    (config, cover)
}

/// The scheme of a URL, in small letters, as the library reads it: `FILE:///x` is a directory.
pub(crate) fn scheme(url: &str) -> String {
    url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase()).unwrap_or_default()
}

/// The options of a URL, in their order, decoded as the library decodes them.
fn options(url: &str) -> Vec<(String, String)> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let options = url.split_once('?').map_or("", |(_, options)| options).split('&');
    let options = options.filter_map(|option| option.split_once('='));
    options.map(|(key, text)| (decoded(key), decoded(text))).collect()
}

/// How long a lease may be that holds even if the instance is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cover {
    /// So long: the store keeps what a session holds until its own lease ends.
    Lease(Duration),
    /// Not at all: on `file://` a process' holds end with it.
    Nothing,
    /// Any: in memory, nobody else is there.
    Any,
}

impl Cover {
    fn of(scheme: &str, ttl: Duration, heartbeat: Duration) -> Self {
        let heartbeats = match scheme.split('+').next().unwrap_or_default() {
            "memory" => return Self::Any,
            "file" => return Self::Nothing,
            "zookeeper" | "zk" | "kazoo" => 4,
            _ => 2,
        };
        let left = (ttl.mul_f64(0.985)).saturating_sub(heartbeat * heartbeats);
        let hundreds = u64::try_from(left.as_millis() / 100).unwrap_or(u64::MAX);
        Self::Lease(Duration::from_millis(hundreds.saturating_mul(100)))
    }

    /// The longest lease without a promise.
    pub(crate) fn longest(self) -> Option<Duration> {
        match self {
            Self::Lease(cover) => Some(cover),
            Self::Nothing => Some(Duration::ZERO),
            Self::Any => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Config {
        let mut config = Config::default();
        config.url = Some(url.to_owned());
        config
    }

    fn cover(url: &str) -> (Option<Duration>, Cover) {
        let (config, cover) = leased(config(url));
        (config.ttl, cover)
    }

    #[test]
    fn a_lease_is_covered_by_the_stores_own() {
        let ms = Duration::from_millis;
        assert_eq!(cover("etcd://h/x"), (Some(TTL), Cover::Lease(ms(27_500))));
        assert_eq!(cover("zookeeper+tls://h/x"), (Some(TTL), Cover::Lease(ms(25_500))));
        assert_eq!(cover("redis://h?ttl=9s&heartbeat=500ms"), (None, Cover::Lease(ms(7_800))));
        assert_eq!(cover("redis://h?ttl=3s&heartbeat=2s"), (None, Cover::Lease(ms(900))));
        assert_eq!(cover("file:///x").1, Cover::Nothing);
        assert_eq!(cover("memory://").1, Cover::Any);
    }

    /// If it were read in another way, clients would be told of a cover that is not there: on `file://` there is none.
    #[test]
    fn a_url_is_read_as_the_library_reads_it() {
        let ms = Duration::from_millis;
        assert_eq!(cover("FILE:///x").1, Cover::Nothing);
        assert_eq!(cover("Memory://x").1, Cover::Any);
        assert_eq!(cover("ZK+TLS://h/x"), (Some(TTL), Cover::Lease(ms(25_500))));
        for url in ["redis://h?ttl=60s&ttl=9s", "redis://h?t%74l=9%73", "redis://h?ttl=%39s&"] {
            assert_eq!(cover(url), (None, Cover::Lease(ms(6_800))), "{url}");
        }
    }

    #[test]
    fn what_others_can_reach_needs_tokens_and_a_word_on_plain_text() {
        let file = config("file:///x");
        let refusal = |settings: &Settings| settings.refusal(&file).unwrap_or_default();
        let mut settings = Settings::default();
        assert_eq!(refusal(&settings), "");
        settings.rdlm = Some(SocketAddr::from(([0, 0, 0, 0], 8888)));
        assert!(refusal(&settings).contains("no tokens"));
        settings.tokens = Some("tokens.toml".into());
        assert!(refusal(&settings).contains("encrypted"));
        settings.allow_plaintext = true;
        assert_eq!(refusal(&settings), "");
        // rdlm's clients can do no TLS.
        let (certificate, key) = ("cert.pem".into(), "key.pem".into());
        let files = TlsFiles { certificate, key, clients: None };
        settings = Settings { tls: Some(files), allow_plaintext: false, ..settings };
        assert!(refusal(&settings).contains("rdlm"));
        settings.listen = settings.rdlm.take();
        assert_eq!(refusal(&settings), "");
        settings.tls = None;
        assert!(refusal(&settings).contains("--tls-cert"));
        settings = Settings { metrics: settings.listen.take(), ..settings };
        assert!(refusal(&settings).contains("asks nobody for a token"));
        settings.allow_anonymous = true;
        assert!(refusal(&settings).contains("--tls-cert"));
        settings.allow_plaintext = true;
        assert_eq!(refusal(&settings), "");
        for url in ["memory://", "MEMORY://x"] {
            assert!(
                settings.refusal(&config(url)).is_some_and(|why| why.contains("--fresh")),
                "{url}"
            );
        }
    }
}
