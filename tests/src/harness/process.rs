//! The process of one server, which can be paused, killed, and started again with the same data at the same address.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::{Child, Launch};

/// One process of a server. A server may consist of several.
pub struct Node {
    name: String,
    address: SocketAddr,
    launch: Box<dyn Fn() -> Launch + Send + Sync>,
    state: Mutex<State>,
    /// Further processes. If this process is paused, resumed, killed or restarted, the same is done to each of them.
    others: OnceLock<Vec<Arc<Node>>>,
}

#[derive(Debug)]
struct State {
    child: Child,
    paused: bool,
}

impl Node {
    /// Starts the process that `launch` describes. Each restart calls `launch` again, which must describe the same
    /// command. When the server is ready, it serves clients at `address`.
    pub fn start(
        name: impl Into<String>,
        address: SocketAddr,
        launch: impl Fn() -> Launch + Send + Sync + 'static,
    ) -> Self {
        let child = launch().start();
        let state = Mutex::new(State { child, paused: false });
        let (name, launch) = (name.into(), Box::new(launch));
        Self { name, address, launch, state, others: OnceLock::new() }
    }

    /// From now on, whenever this process is paused, resumed, killed or restarted, the same is done to `others`. For a
    /// server that consists of several processes.
    pub fn stand_for(&self, others: Vec<Arc<Self>>) {
        self.others.set(others).expect("nobody has said so before");
    }

    fn others(&self) -> &[Arc<Self>] {
        self.others.get().map_or(&[], Vec::as_slice)
    }

    /// The name of this process, unique among the processes of the store.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address at which the process listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the process with SIGSTOP: its connections stay open, but it does not answer.
    pub fn pause(&self) {
        self.others().iter().for_each(|other| other.pause());
        let mut state = self.state();
        state.child.pause();
        state.paused = true;
    }

    /// Lets the process run again after a pause.
    pub fn resume(&self) {
        self.others().iter().for_each(|other| other.resume());
        let mut state = self.state();
        state.child.resume();
        state.paused = false;
    }

    /// Kills the process with SIGKILL. Its data stay, and its ports stay reserved.
    pub fn kill(&self) {
        self.others().iter().for_each(|other| other.kill());
        let mut state = self.state();
        state.child.kill();
        state.paused = false;
    }

    /// Starts the process again with the same data and ports. If it runs, it is killed first.
    ///
    /// Returns at once; [`Server::wait_ready`](super::Server::wait_ready) waits until the server serves clients.
    pub fn restart(&self) {
        self.kill();
        self.others().iter().for_each(|other| other.restart());
        self.state().child = (self.launch)().start();
    }

    /// Whether the process runs and is not paused.
    pub fn is_running(&self) -> bool {
        let state = self.state();
        !state.paused && state.child.is_running()
    }

    /// The output of the process so far.
    pub fn log(&self) -> String {
        self.state().child.log()
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.state().child.id()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        formatter.debug_struct("Node").field("name", &self.name).field("state", &*state).finish()
    }
}
