//! What a store's tests bring along: the way to it, and the means to disturb that.

use std::time::Duration;

/// Where a store is.
pub trait StoreAccess: Sync {
    /// The URL of a namespace that only one check uses.
    fn url(&self) -> String;

    /// What lies between a client and the store; `None`: the store is carried out in this process, and nothing can come
    /// between.
    fn proxy(&self) -> Option<&dyn Proxy> {
        None
    }

    /// Does something as the client that comes by the proxy, or as one that does not. For a store whose URL means
    /// whichever client is running.
    fn as_client(&self, _by_proxy: bool, work: &mut dyn FnMut()) {
        work();
    }
}

/// What lies between a client and its store, and can be disturbed.
pub trait Proxy: Sync {
    /// The URL of the same namespace by this proxy.
    fn url(&self) -> String;

    /// Keeps back, from now on, whatever clients send, until [`let_go`](Self::let_go).
    fn hold(&self);

    /// The clients' connections break, and what they had sent stays kept back. What is sent from now on, on new
    /// connections, passes.
    fn part(&self);

    /// What was kept back goes to the store, though its client is gone.
    fn let_go(&self);

    /// How long that takes to arrive, at the most.
    fn arrival(&self) -> Duration {
        Duration::from_millis(300)
    }

    /// Neither requests nor answers arrive, and nobody is told: connections stay, and new ones are taken.
    fn silence(&self);

    /// Connections break, and new ones are refused.
    fn cut(&self);

    /// New connections work again. What was lost stays lost: connections that lost something need not work.
    fn heal(&self);
}
