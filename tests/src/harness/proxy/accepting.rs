//! The proxy's thread: accepts connections and connects each to its server.

use std::{
    net::{SocketAddr, TcpListener as StdListener},
    sync::{Arc, atomic::Ordering, mpsc as std_mpsc},
    task::Poll,
};

use rustix::net::{Shutdown, shutdown};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};

use super::connection::{self, End, Ending};
use super::{Senders, Shared, lock};

/// Commands to the accepting task. The task sends on the channel when it has carried out the command.
pub(super) enum Order {
    Refuse(std_mpsc::Sender<()>),
    Accept(std_mpsc::Sender<()>),
    Stop,
}

/// Where the proxy listens, and to which server it forwards the connections from there.
pub(super) struct Route {
    pub(super) listener: StdListener,
    pub(super) address: SocketAddr,
    pub(super) target: SocketAddr,
}

/// The proxy's thread.
pub(super) fn run(
    routes: Vec<Route>,
    shared: &Arc<Shared>,
    orders: mpsc::UnboundedReceiver<Order>,
) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be built")
        .block_on(serve(routes, shared, orders));
}

/// Accepts connections and carries out commands until the command to stop.
async fn serve(
    routes: Vec<Route>,
    shared: &Arc<Shared>,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    let addresses: Vec<_> = routes.iter().map(|route| (route.address, route.target)).collect();
    let open = |route: Route| {
        route.listener.set_nonblocking(true).expect("a listener can be non-blocking");
        (TcpListener::from_std(route.listener).expect("we are in a runtime"), route.target)
    };
    let mut listeners: Vec<_> = routes.into_iter().map(open).collect();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            (accepted, target) = accept(&listeners) => {
                let sender = accepted.peer_addr().ok().map(|address| address.ip().to_string());
                let sender = sender.filter(|_| shared.senders == Senders::ByAddress);
                if sender.as_ref().is_some_and(|sender| lock(&shared.barred).contains(sender)) {
                    let _ = accepted.set_zero_linger();
                    continue;
                }
                let number = shared.accepted.fetch_add(1, Ordering::SeqCst) + 1;
                // Subscribes before the connection is in the list: code that finds a connection in the list can then
                // end it.
                let ending = shared.end.subscribe();
                shared.open().insert(number, sender);
                let shared = Arc::clone(shared);
                connections.spawn(async move {
                    connection::run(accepted, target, number, &shared, ending).await;
                    shared.open().remove(&number);
                });
            }
            order = orders.recv() => match order {
                Some(Order::Refuse(done)) => {
                    stop_listening(&mut listeners);
                    let _ = done.send(());
                }
                Some(Order::Accept(done)) => {
                    if listeners.is_empty() {
                        for (address, target) in &addresses {
                            let bound = TcpListener::bind(address).await;
                            listeners.push((bound.expect("the port is reserved for us"), *target));
                        }
                    }
                    let _ = done.send(());
                }
                Some(Order::Stop) | None => break,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    stop_listening(&mut listeners);
    let whose = shared.open().keys().copied().collect();
    shared.end.send_replace(Some(Ending { end: End::Reset, whose }));
    while connections.join_next().await.is_some() {}
}

/// Shuts the listeners down. Closing them would not be enough: if another thread starts a process at this moment, the
/// process has copies of all sockets until its program begins, and the kernel would go on accepting connections.
fn stop_listening(listeners: &mut Vec<(TcpListener, SocketAddr)>) {
    for (listener, _) in listeners.drain(..) {
        shutdown(&listener, Shutdown::Read).expect("it listens");
    }
}

/// Waits for a connection on any of the listeners; returns it with the server to which it leads.
async fn accept(listeners: &[(TcpListener, SocketAddr)]) -> (TcpStream, SocketAddr) {
    std::future::poll_fn(|context| {
        for (listener, target) in listeners {
            // Accepting fails if the client has gone already; another client may be waiting.
            while let Poll::Ready(accepted) = listener.poll_accept(context) {
                if let Ok((stream, _)) = accepted {
                    return Poll::Ready((stream, *target));
                }
            }
        }
        Poll::Pending
    })
    .await
}
