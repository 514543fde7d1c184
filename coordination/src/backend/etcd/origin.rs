//! A channel of the client crate that connects to one address of a host, and whose requests name the host.

use etcd_client::{BalancedChannelBuilder, Channel};
use tokio::sync::mpsc::{self, Sender};
use tonic::transport::channel::Change;
use tonic::transport::{Channel as TonicChannel, Endpoint, Error, Uri};

/// The host's URL. Each request names it as its origin (`:authority`), whatever address the request is sent to, because a proxy
/// may serve several host names at one address.
pub(super) struct Origin(pub(super) Uri);

impl BalancedChannelBuilder for Origin {
    type Error = Error;

    /// Makes the crate's own channel, and sets the origin of each endpoint that the client adds to it.
    fn balanced_channel(
        self,
        buffer_size: usize,
    ) -> Result<(Channel, Sender<Change<Uri, Endpoint>>), Error> {
        let (channel, endpoints) = TonicChannel::balance_channel(buffer_size);
        let (sender, mut changes) = mpsc::channel(buffer_size);
        // The task ends when the client is dropped, because the client has the sender of `changes`.
        tokio::spawn(async move {
            while let Some(change) = changes.recv().await {
                let change = match change {
                    Change::Insert(key, endpoint) => Change::Insert(key, self.of(endpoint)),
                    removed @ Change::Remove(_) => removed,
                };
                if endpoints.send(change).await.is_err() {
                    return;
                }
            }
        });
        Ok((Channel::Tonic(channel), sender))
    }
}

impl Origin {
    fn of(&self, endpoint: Endpoint) -> Endpoint {
        endpoint.origin(self.0.clone())
    }
}
