//! The thread of the proxy, which accepts connections and forwards each to its server.

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

/// Commands to the task that accepts connections. When the task has carried a command out, it sends on the command's
/// channel.
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

/// Runs on the proxy's thread until the proxy is dropped.
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

/// Accepts connections and carries out commands, until it gets the command to stop.
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
                // The task subscribes before the connection is in the list. So any code that finds the connection in
                // the list can be sure that its command to end reaches the task.
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

/// Shuts the listeners down. It would not be enough to close them: if another thread starts a process at this moment,
/// the new process has copies of all our sockets until its program begins. As long as such a copy of a listener exists,
/// the kernel would go on accepting connections.
fn stop_listening(listeners: &mut Vec<(TcpListener, SocketAddr)>) {
    for (listener, _) in listeners.drain(..) {
        shutdown(&listener, Shutdown::Read).expect("it listens");
    }
}

/// Waits for a connection on any of the listeners. Returns the connection, and the address of the server to which it is
/// to be forwarded.
async fn accept(listeners: &[(TcpListener, SocketAddr)]) -> (TcpStream, SocketAddr) {
    std::future::poll_fn(|context| {
        for (listener, target) in listeners {
            // Accepting fails if the client has gone already. Another client may be waiting, so this tries again.
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
