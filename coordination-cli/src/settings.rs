//! Which store, and with what settings: from the command line, the environment and a file.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use coordination::{Builder, Config, Coordinator, Template};
use serde::Serialize;

use crate::args::Store;
use crate::exit::{Failure, Outcome, say};

/// The environment's word for `--url`; a command that we start does not get it.
pub(crate) const URL: &str = "COORDINATION_URL";
/// The environment's word for `--config`.
const CONFIG: &str = "COORDINATION_CONFIG";
const SYSTEM_WIDE: &str = "/etc/coordination/config.toml";
const NO_URL: &str = "which store? Give --url, set COORDINATION_URL, or write `url = \"…\"` to \
                      ~/.config/coordination/config.toml or /etc/coordination/config.toml; for this host alone: \
                      --url file:///run/lock/coordination";
const SECRET: &str = "--url has a password, which everybody on this host can read by `ps`. Put the URL into \
                      COORDINATION_URL or a config file, or the password into a file that the URL's option \
                      `password_file` (Consul: `token_file`) names";

/// What a member id may be made of.
#[derive(Serialize)]
struct Here {
    host: String,
    pid: u32,
}

/// The settings, with the URL in them.
pub(crate) fn read(store: &Store) -> Outcome<Config> {
    let mut config = match file(store.config.as_deref())? {
        Some(path) => parse(&path)?,
        None => Config::default(),
    };
    if let Some(url) = &store.url {
        if has_password(url) {
            return Err(Failure::usage(SECRET));
        }
        config.url = Some(url.clone());
    } else if let Some(url) = env::var_os(URL)
        && !url.is_empty()
    {
        let url = url.into_string();
        config.url = Some(url.map_err(|_| Failure::usage(format!("{URL} is not UTF-8")))?);
    }
    if config.url.is_none() {
        return Err(Failure::usage(NO_URL));
    }
    if let Some(id) = &store.member_id {
        config.member_id = Some(id.clone());
    }
    if let Some(id) = &config.member_id {
        config.member_id = Some(Template::parse(id)?.render(&here())?);
    }
    // We never block our runtime, and a thread takes time to start.
    config.heartbeat_on_current_runtime = true;
    Ok(config)
}

/// Connects, with these settings.
pub(crate) async fn connect(config: Config) -> Outcome<Coordinator> {
    let url = config.url.clone().unwrap_or_default();
    Ok(Builder::from(config).connect(&url).await?)
}

/// The file to read: the one that is named, or the first that is there.
fn file(named: Option<&Path>) -> Outcome<Option<PathBuf>> {
    let by_environment = || env::var_os(CONFIG).filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = named.map(Path::to_owned).or_else(by_environment) {
        return Ok(Some(path));
    }
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".config"));
    let own =
        absolute("XDG_CONFIG_HOME").or_else(home).map(|dir| dir.join("coordination/config.toml"));
    Ok(own.into_iter().chain([PathBuf::from(SYSTEM_WIDE)]).find(|path| path.exists()))
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
    Here { host, pid: std::process::id() }
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
