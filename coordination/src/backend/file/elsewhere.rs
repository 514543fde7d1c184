//! What stands for the store on systems that have no `flock`, or on which nobody has compiled it.

use std::sync::Arc;

use async_trait::async_trait;

use crate::backend::Store;
use crate::backend::descriptor::Connect;
use crate::config::Settings;
use crate::error::{Error, ErrorKind, Result};

/// Says that the store is not there.
pub(super) struct Elsewhere;

#[async_trait]
impl Connect for Elsewhere {
    async fn connect(self: Box<Self>, _settings: &Settings) -> Result<Arc<dyn Store>> {
        let message = "file:// works on Linux, macOS and FreeBSD, and not on this system; take memory:// for tests, and else a \
                       store with a server";
        Err(Error::new(ErrorKind::Unsupported, "connect", message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::url::{Authority, Url};

    #[tokio::test]
    async fn it_says_where_the_store_is() -> Result<()> {
        let mut url = Url::parse("file:///dir", Authority::Nothing)?;
        let settings = Settings::resolve(Config::default(), &mut url, None)?;
        let connected = Box::new(Elsewhere).connect(&settings).await;
        let error = connected.err().expect("it is not there");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for system in ["Linux", "macOS", "FreeBSD"] {
            assert!(error.to_string().contains(system), "{error}");
        }
        Ok(())
    }
}
