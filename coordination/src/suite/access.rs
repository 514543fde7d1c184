//! What the tests of a store supply: how to reach the store, and how to disturb the connection to it.

use std::time::Duration;

/// How to reach a store.
pub trait StoreAccess: Sync {
    /// The URL of a namespace that only one check uses.
    fn url(&self) -> String;

    /// What lies between a client and the store; `None`: the store is carried out in this process, and nothing lies between.
    fn proxy(&self) -> Option<&dyn Proxy> {
        None
    }

    /// Runs `work` as the client that connects by the proxy, or as one that does not. Only a store needs this that has one URL for
    /// both, and takes the client from the running thread.
    fn as_client(&self, _by_proxy: bool, work: &mut dyn FnMut()) {
        work();
    }
}

/// What lies between a client and its store. It can be disturbed.
pub trait Proxy: Sync {
    /// The URL of the same namespace by this proxy.
    fn url(&self) -> String;

    /// Keeps back, from now on, whatever clients send, until [`let_go`](Self::let_go).
    fn hold(&self);

    /// Breaks the clients' connections; what they had sent stays kept back. What is sent from now on, on new connections, passes.
    fn part(&self);

    /// Delivers to the store what was kept back, although its client is gone.
    fn let_go(&self);

    /// How long this delivery takes, at most.
    fn arrival(&self) -> Duration {
        Duration::from_millis(300)
    }

    /// From now on neither requests nor answers arrive, and nobody gets an error: connections stay open, and new ones are accepted.
    fn silence(&self);

    /// Breaks all connections, and refuses new ones.
    fn cut(&self);

    /// Lets new connections work again. Connections that have lost something need not work.
    fn heal(&self);
}
