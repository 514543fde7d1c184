//! A server's process: paused, killed and started again with the same data, at the same address.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Child, Launch};

/// One server, alone or of several.
pub struct Node {
    name: String,
    address: SocketAddr,
    launch: Box<dyn Fn() -> Launch + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Child,
    paused: bool,
}

impl Node {
    /// Starts it as `launch` says, which says the same each time it is started again; it serves clients at
    /// `address` when it is ready.
    pub fn start(
        name: impl Into<String>,
        address: SocketAddr,
        launch: impl Fn() -> Launch + Send + Sync + 'static,
    ) -> Self {
        let child = launch().start();
        let state = Mutex::new(State { child, paused: false });
        Self { name: name.into(), address, launch: Box::new(launch), state }
    }

    /// Its name among the others.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it serves clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the process with SIGSTOP: connections stay open, nothing answers.
    pub fn pause(&self) {
        let mut state = self.state();
        state.child.pause();
        state.paused = true;
    }

    /// Lets the process run on.
    pub fn resume(&self) {
        let mut state = self.state();
        state.child.resume();
        state.paused = false;
    }

    /// Kills the process with SIGKILL. Its data and its ports stay.
    pub fn kill(&self) {
        let mut state = self.state();
        state.child.kill();
        state.paused = false;
    }

    /// Starts the process again with the same data and ports, killing it first if it runs.
    ///
    /// Returns at once; [`Server::wait_ready`](super::Server::wait_ready) waits until it serves.
    pub fn restart(&self) {
        self.kill();
        self.state().child = (self.launch)().start();
    }

    /// Whether the process runs and is not paused.
    pub fn is_running(&self) -> bool {
        let state = self.state();
        !state.paused && state.child.is_running()
    }

    /// What it has logged.
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
