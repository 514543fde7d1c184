//! What a body can run under: the guard of any recipe.

use std::future::Future;
use std::ops::Deref;

use super::grant::Grant;
use crate::error::Result;

/// A guard, whatever its token is.
#[cfg_attr(not(feature = "macros"), expect(unreachable_pub, reason = "`__private` shows it"))]
pub trait AnyGuard: Send + Sync + 'static {
    /// The grant whose loss is the guard's loss.
    fn grant(&self) -> &Grant;

    /// Releases it. If the future is dropped, the release goes on in the background.
    fn give_back(self) -> impl Future<Output = Result<()>> + Send;
}

impl<G: Deref<Target = Grant> + Send + Sync + 'static> AnyGuard for G {
    fn grant(&self) -> &Grant {
        self
    }

    async fn give_back(self) -> Result<()> {
        self.release().await
    }
}
