//! Which store, and with what settings: from the command line, the environment and a file.

use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

use coordination::{Builder, Config, Coordinator, Error, ErrorKind, Template};
use serde::Serialize;

use crate::args::Store;
use crate::exit::{self, Failure, Outcome, say};
use crate::run::family::MARK;

/// The environment's word for `--url`; a command that we start does not get it.
pub(crate) const URL: &str = "COORDINATION_URL";
/// The environment's word for `--config`.
const CONFIG: &str = "COORDINATION_CONFIG";
/// The lists of this host's users and groups.
pub(crate) const USERS: &str = "/etc/passwd";
pub(crate) const GROUPS: &str = "/etc/group";
const SYSTEM_WIDE: &str = "/etc/coordination/config.toml";
const NO_URL: &str = "which store? Give --url, set COORDINATION_URL, or write `url = \"…\"` to \
                      ~/.config/coordination/config.toml or /etc/coordination/config.toml; for this host alone: \
                      --url file:///run/lock/coordination";
const SECRET: &str = "--url has a password, which everybody on this host can read by `ps`. Put the URL into \
                      COORDINATION_URL or a config file, or the password into a file that the URL's option \
                      `password_file` (Consul: `token_file`) names";

const WITHHELD: &str = "; the run around this one has not handed its URL on, as it has a password or an option of that kind: \
                        name the store in a config file, or the password in a file by `password_file`";
const SHARING: &str = "it belongs to whoever came first: give each user a directory of its own, or let users of a group \
                       share one, whose URLs all say `?mode=0770`; who only looks needs the same rights";
/// The library's `ttl`, where nobody names another one.
const DEFAULT_LEASE: Duration = Duration::from_secs(10);
/// Options of URLs whose values are no secrets.
const PLAIN: [&str; 28] = [
    "acl",
    "ca",
    "cert",
    "db",
    "dc",
    "durable",
    "heartbeat",
    "initial_reconnect_backoff",
    "key",
    "lock_delay",
    "long_wait",
    "max_reconnect_backoff",
    "mode",
    "namespace",
    "network_filesystem",
    "nodes",
    "parents",
    "password_file",
    "quarantine",
    "require",
    "schema",
    "sentinel",
    "server_name",
    "ssl-mode",
    "sslmode",
    "target_session_attrs",
    "token_file",
    "ttl",
];

/// How a run within finds the same store.
#[derive(Debug, Default)]
pub(crate) struct HandedOn {
    /// Without a secret.
    url: Option<String>,
    config: Option<PathBuf>,
}

impl HandedOn {
    /// What is in a config file that everybody finds need not be handed on.
    pub(crate) fn of(store: &Store) -> Self {
        let by_environment = || env::var(URL).ok().filter(|url| !url.is_empty());
        let url = store.url.clone().or_else(by_environment).filter(|url| !has_secret(url));
        let config = store.config.as_deref().and_then(|path| std::path::absolute(path).ok());
        Self { url, config }
    }

    pub(crate) fn apply(&self, command: &mut tokio::process::Command) {
        match &self.url {
            Some(url) => command.env(URL, url.trim()),
            None => command.env_remove(URL),
        };
        if let Some(path) = &self.config {
            command.env(CONFIG, path);
        }
    }
}

/// Whether there may be a secret in it: a password, or an option that is not known to be none.
fn has_secret(url: &str) -> bool {
    let options = url.split_once('?').map_or("", |(_, options)| options);
    let is_plain = |option: &str| {
        option.is_empty() || PLAIN.contains(&option.split('=').next().unwrap_or_default())
    };
    has_password(url) || !options.split('&').all(is_plain)
}

/// What others see of us where nothing else is said: it leads an operator to the process. By itself it would not be unique, as
/// containers have the same few numbers, and hosts are copied.
const MEMBER_ID: &str = "<host>-<pid>-<random>";

/// What a member id may be made of.
#[derive(Serialize)]
struct Here {
    host: String,
    pid: u32,
    random: String,
}

/// The settings, with the URL in them.
pub(crate) fn read(store: &Store) -> Outcome<Config> {
    let mut config = match file(store.config.as_deref())? {
        Some((path, is_named)) => read_file(&path, is_named)?,
        None => Config::default(),
    };
    if let Some(url) = &store.url {
        if has_password(url) {
            return Err(Failure::usage(SECRET));
        }
        // A blank at the end would be a part of the path, and another store.
        config.url = Some(url.trim().to_owned());
    } else if let Some(url) = env::var_os(URL)
        && !url.is_empty()
    {
        let url = url.into_string();
        let url = url.map_err(|_| Failure::usage(format!("{URL} is not UTF-8")))?;
        config.url = Some(url.trim().to_owned());
    }
    let Some(url) = &config.url else {
        let is_within = env::var_os(MARK).is_some_and(|marks| !marks.is_empty());
        return Err(Failure::usage(format!("{NO_URL}{}", if is_within { WITHHELD } else { "" })));
    };
    warn_of_open_files(url);
    if let Some(id) = &store.member_id {
        config.member_id = Some(id.clone());
    }
    let id = config.member_id.as_deref().unwrap_or(MEMBER_ID);
    config.member_id = Some(Template::parse(id)?.render(&here())?);
    // We never block our runtime, and a thread takes time to start.
    config.heartbeat_on_current_runtime = true;
    Ok(config)
}

/// The lease that is asked for with these settings; `None`: the store has none.
pub(crate) fn lease(config: &Config) -> Option<Duration> {
    let (scheme, rest) = config.url.as_deref()?.split_once(':')?;
    if ["file", "memory"].iter().any(|none| scheme.eq_ignore_ascii_case(none)) {
        return None;
    }
    let options = rest.split_once('?').map_or("", |(_, options)| options);
    let option = options.split('&').find_map(|option| option.strip_prefix("ttl="));
    let by_url = option.and_then(|text| coordination::parse_duration(text).ok());
    Some(config.ttl.or(by_url).unwrap_or(DEFAULT_LEASE))
}

/// Connects, with these settings.
pub(crate) async fn connect(config: Config) -> Outcome<Coordinator> {
    try_connect(&config).await.map_err(|error| not_connected(&config, error))
}

/// The same for who has more to do about an error than to tell it.
pub(crate) async fn try_connect(config: &Config) -> Result<Coordinator, Error> {
    let url = config.url.as_deref().unwrap_or_default();
    Builder::from(config.clone()).connect(url).await
}

/// How it is told that there is no connection.
pub(crate) fn not_connected(config: &Config, error: Error) -> Failure {
    let path = config.url.as_deref().and_then(|url| url.strip_prefix("file://"));
    match path.filter(|_| error.kind() == ErrorKind::Permission) {
        Some(path) => Failure::new(exit::UNAVAILABLE, format!("{error}; {}", sharing(path))),
        None => error.into(),
    }
}

/// What to do about a directory that may not be used: by whoever only looks, too.
fn sharing(path: &str) -> String {
    let (directory, options) = path.split_once('?').unwrap_or((path, ""));
    if !options.contains("mode=") {
        return SHARING.to_owned();
    }
    use std::os::unix::fs::MetadataExt;
    // Of the parents one may be closed to us as well.
    let group = fs::metadata(directory).map(|of| name_of(GROUPS, of.gid()));
    let group =
        group.map_or_else(|_| "its group".to_owned(), |group| format!("its group, {group}"));
    format!(
        "it is for users of {group}, and who only looks needs the same rights: usermod -aG, and log in again"
    )
}

/// The name and the number of a user or a group; only the number, if the list has no name for it.
pub(crate) fn name_of(list: &str, id: u32) -> String {
    let list = fs::read_to_string(list).unwrap_or_default();
    let name = list.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id.to_string()).then(|| name.to_owned())
    });
    name.map_or_else(|| id.to_string(), |name| format!("{name} ({id})"))
}

/// The file to read, and whether it is one that was named, or only the first that is there.
fn file(named: Option<&Path>) -> Outcome<Option<(PathBuf, bool)>> {
    let by_environment = || env::var_os(CONFIG).filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = named.map(Path::to_owned).or_else(by_environment) {
        return Ok(Some((path, true)));
    }
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".config"));
    let own =
        absolute("XDG_CONFIG_HOME").or_else(home).map(|dir| dir.join("coordination/config.toml"));
    let mut files = own.into_iter().chain([PathBuf::from(SYSTEM_WIDE)]);
    Ok(files.find(|path| path.exists()).map(|path| (path, false)))
}

/// One that nobody has named and that we may not read is somebody else's affair: it says so, and goes on without.
fn read_file(path: &Path, is_named: bool) -> Outcome<Config> {
    let is_denied = |error: std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    if !is_named && fs::File::open(path).is_err_and(is_denied) {
        say(format_args!("warning: {} is left out, as we may not read it", path.display()));
        return Ok(Config::default());
    }
    parse(path)
}

fn parse(path: &Path) -> Outcome<Config> {
    let shown = path.display();
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read {shown}: {error}")))?;
    let config: Config = toml::from_str(&text).map_err(|error| {
        // The error's own text quotes the line, and the line may have a password.
        let line =
            error.span().map(|span| text.get(..span.start).unwrap_or(&text).lines().count().max(1));
        let line = line.map(|line| format!(" line {line}")).unwrap_or_default();
        Failure::usage(format!("{shown}{line}: {}", error.message()))
    })?;
    if config.url.as_deref().is_some_and(has_password) && is_open(path) {
        say(format_args!(
            "warning: {shown} has a password, and others may read it: chmod 600 {shown}"
        ));
    }
    Ok(config)
}

/// The password of a URL may be in a file of its own, which others should not read either.
fn warn_of_open_files(url: &str) {
    let options = url.split_once('?').map_or("", |(_, options)| options).split('&');
    let files = options.filter_map(|option| {
        option.strip_prefix("password_file=").or_else(|| option.strip_prefix("token_file="))
    });
    for path in files.map(Path::new).filter(|path| is_open(path)) {
        let shown = path.display();
        say(format_args!(
            "warning: others may read {shown}, which has a password: chmod 600 {shown}"
        ));
    }
}

fn is_open(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0)
}

/// Whether there is anything between a colon and an `@` before the host.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit_once('@').is_some_and(|(credentials, _)| credentials.contains(':'))
}

fn here() -> Here {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let pid = std::process::id();
    // Its keys are the system's random numbers.
    let random = format!("{:016x}", RandomState::new().hash_one(pid));
    Here { host, pid, random }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_seen() {
        for url in ["redis://:pw@h", "etcd://u:pw@h1,h2/ns", "redis://u:p@w@h/0", "etcd://u:@h"] {
            assert!(has_password(url), "{url}");
        }
        for url in ["redis://h:6379/0", "etcd://u@h:2379", "file:///a@b:c", "redis://h?x=a:b@c"] {
            assert!(!has_password(url), "{url}");
        }
    }

    #[test]
    fn what_may_be_secret_is_not_handed_on() {
        for url in
            ["redis://:pw@h", "consul://h?token=x", "etcd://h?ttl=2s&password=x", "x://h?ttl"]
        {
            assert_eq!(has_secret(url), url != "x://h?ttl", "{url}");
        }
        for url in [
            "file:///a",
            "etcd://u@h/ns?ttl=2s&password_file=/p",
            "redis://h/0?",
            "postgres://u@h/d?sslmode=disable&schema=s",
            "mysql://u@h/d?ssl-mode=disabled",
        ] {
            assert!(!has_secret(url), "{url}");
        }
    }

    #[test]
    fn what_is_wrong_in_a_file_is_said_without_its_text() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config.toml");
        fs::write(&path, "ttl = \"10s\"\nurl = \"redis://:canary@h\nprefix = \"x\"\n")
            .expect("a file");
        let error = format!("{:?}", parse(&path).expect_err("no end of the text"));
        assert!(error.contains("line 2") && !error.contains("canary"), "{error}");
        fs::write(&path, "urll = \"redis://:canary@h\"\n").expect("a file");
        let error = format!("{:?}", parse(&path).expect_err("no such field"));
        assert!(error.contains("urll") && !error.contains("canary"), "{error}");
    }
}
