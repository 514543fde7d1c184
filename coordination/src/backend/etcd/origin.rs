//! A channel of the client crate's to one address of a host, in which the host goes by its name.

use etcd_client::{BalancedChannelBuilder, Channel};
use tokio::sync::mpsc::{self, Sender};
use tonic::transport::channel::Change;
use tonic::transport::{Channel as TonicChannel, Endpoint, Error, Uri};

/// What a request says of whom it is for, whatever the address is: a proxy may have several names at one address.
pub(super) struct Origin(pub(super) Uri);

impl BalancedChannelBuilder for Origin {
    type Error = Error;

    /// The crate's own channel, to which each endpoint is handed on with its origin.
    fn balanced_channel(
        self,
        buffer_size: usize,
    ) -> Result<(Channel, Sender<Change<Uri, Endpoint>>), Error> {
        let (channel, endpoints) = TonicChannel::balance_channel(buffer_size);
        let (sender, mut changes) = mpsc::channel(buffer_size);
        // Ends with the client, which has the sender.
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
