//! Parses a URL into a typed configuration.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::url::Url;

/// The options of a `file` URL.
#[derive(Clone, Debug)]
#[cfg_attr(not(file_store), expect(dead_code, reason = "the store is not there"))]
pub(crate) struct Config {
    /// The directory of the store, as an absolute path.
    pub(super) directory: PathBuf,
    /// Whether tokens and values survive a loss of power. If so, every grant and every write waits until the disk has its data.
    /// Default: false.
    pub(super) durable: bool,
    /// Whether the directory may be on a network file system. There, inotify does not report what other hosts change, and on some
    /// network file systems `flock` does not exclude processes of other hosts. Default: false.
    pub(super) network_allowed: bool,
    /// Whether all users of the directory's group share the directory. Default: false, only its owner uses it.
    pub(super) is_for_group: bool,
}

impl Config {
    pub(crate) fn parse(url: &mut Url) -> Result<Self> {
        let durable = match url.take_option("durable").as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(Error::config("option `durable` is `true` or `false`")),
        };
        let network_allowed = match url.take_option("network_filesystem").as_deref() {
            None | Some("refuse") => false,
            Some("allow") => true,
            Some(_) => {
                return Err(Error::config("option `network_filesystem` is `refuse` or `allow`"));
            }
        };
        let is_for_group = match url.take_option("mode").as_deref() {
            None | Some("0700" | "700") => false,
            Some("0770" | "770" | "2770" | "02770") => true,
            Some(_) => {
                let message =
                    "option `mode` is `0700`, for one user, or `0770`, for those of a group";
                return Err(Error::config(message));
            }
        };
        Ok(Self { directory: PathBuf::from(&url.path), durable, network_allowed, is_for_group })
    }
}
