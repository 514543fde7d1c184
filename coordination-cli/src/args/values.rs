//! Values of options, as people write them.

#[cfg(feature = "serve")]
use std::net::SocketAddr;
#[cfg(feature = "serve")]
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use coordination::parse_duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Permits {
    pub(crate) name: String,
    pub(crate) count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) name: String,
    pub(crate) count: u32,
    pub(crate) window: Duration,
}

/// Where a service listens.
#[cfg(feature = "serve")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    Address(SocketAddr),
    /// A Unix socket at this path.
    Unix(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IfBusy {
    Fail,
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    Term,
    Kill,
    Ignore,
}

/// What is sent to whom a lock is held for, when it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Notice {
    Ignore,
    Hup,
    Int,
    Term,
    Kill,
    Usr1,
    Usr2,
}

/// What can be taken away from its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Broken {
    Lock,
    Semaphore,
    #[value(alias = "singleton")]
    Limiter,
    Election,
    Queue,
}

/// `None`: for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wait(pub(crate) Option<Duration>);

#[cfg(feature = "serve")]
pub(super) fn listen(text: &str) -> Result<Listen, String> {
    match text.strip_prefix("unix:") {
        Some("") => Err("a path is wanted after `unix:`".to_owned()),
        Some(path) => Ok(Listen::Unix(path.into())),
        None => text.parse().map(Listen::Address).map_err(|_| {
            "an address with a port is wanted, such as 127.0.0.1:8420, or unix:PATH".to_owned()
        }),
    }
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

pub(super) fn json(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Why something is done: it is kept at the store, and shown in a line.
pub(super) fn reason(text: &str) -> Result<String, String> {
    match text.len() {
        0..=255 => Ok(text.to_owned()),
        length => Err(format!("it has {length} bytes, and may have 255")),
    }
}

pub(super) fn wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait(None)),
        _ => duration(text)
            .map(|limit| Wait(Some(limit)))
            .map_err(|error| format!("{error}; or `forever`")),
    }
}

pub(super) fn semaphore(text: &str) -> Result<Permits, String> {
    const WANTED: &str = "a name, a colon and the number of permits, as in encode:3";
    let (name, count) = text.rsplit_once(':').ok_or(WANTED)?;
    Ok(Permits { name: name.to_owned(), count: count.parse().map_err(|_| WANTED)? })
}

pub(super) fn rate(text: &str) -> Result<Rate, String> {
    const WANTED: &str =
        "a name, a colon, the number of starts, a slash and the window, as in api:5/1s";
    let (name, rest) = text.rsplit_once(':').ok_or(WANTED)?;
    let (count, window) = rest.split_once('/').ok_or(WANTED)?;
    let (count, window) = (count.parse().map_err(|_| WANTED)?, duration(window)?);
    Ok(Rate { name: name.to_owned(), count, window })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        assert_eq!(semaphore("a:b:3"), Ok(Permits { name: "a:b".to_owned(), count: 3 }));
        let window = Duration::from_millis(500);
        assert_eq!(rate("api:5/500ms"), Ok(Rate { name: "api".to_owned(), count: 5, window }));
        assert_eq!((wait("forever"), wait("0")), (Ok(Wait(None)), Ok(Wait(Some(Duration::ZERO)))));
        for text in ["x", "x:", "x:-1", "x:1/"] {
            assert!(rate(text).is_err() && (text == "x:1/" || semaphore(text).is_err()), "{text}");
        }
    }
}
