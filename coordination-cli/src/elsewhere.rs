//! What stands for `run` and all that runs a command where the system is not Linux: they are refused.
//!
//! On Linux a command and all that it has started end when its wrapper is killed. That stands on what only Linux has: the adoption of
//! orphans, `/proc`, and signals at the death of a parent. Without that a command could go on without its lock.

use crate::args::{Run, Store};
use crate::exit::{Failure, Outcome};

pub(crate) async fn run(_run: &Run, _store: &Store) -> Outcome<u8> {
    refused("run")
}

fn refused(what: &str) -> Outcome<u8> {
    let message = format!(
        "`{what}` works on Linux only: elsewhere nothing ends a command whose wrapper is killed, so it could go on without its lock"
    );
    Err(Failure::usage(message))
}

pub(crate) mod elect {
    use crate::args::{Elect, Store};
    use crate::exit::Outcome;

    pub(crate) async fn elect(_elect: &Elect, _store: &Store) -> Outcome<u8> {
        crate::elsewhere::refused("elect")
    }
}

pub(crate) mod join {
    use crate::args::{Join, Store};
    use crate::exit::Outcome;

    pub(crate) async fn join(_join: &Join, _store: &Store) -> Outcome<u8> {
        crate::elsewhere::refused("join")
    }
}

pub(crate) mod work {
    use crate::args::{Store, Work};
    use crate::exit::Outcome;

    pub(crate) async fn work(_work: &Work, _store: &Store) -> Outcome<u8> {
        crate::elsewhere::refused("work")
    }
}

pub(crate) mod acquire {
    use crate::args::{Acquire, Store};
    use crate::exit::{Failure, Outcome};

    pub(crate) fn acquire(_asked: &Acquire, _store: &Store) -> Outcome<u8> {
        let message =
            "`acquire` works on Linux only: elsewhere nothing tells that a script has ended";
        Err(Failure::usage(message))
    }
}

pub(crate) mod handle {
    use crate::args::Release;
    use crate::exit::{Failure, Outcome};

    pub(crate) fn release(_asked: &Release) -> Outcome<u8> {
        Err(Failure::usage("`release` works on Linux only, as `acquire` does"))
    }
}

pub(crate) mod holder {
    use std::ffi::OsString;
    use std::process::ExitCode;

    use crate::exit;

    pub(crate) const HOLD: &str = "__hold";

    /// Nobody starts one.
    pub(crate) fn hold(_words: impl Iterator<Item = OsString>) -> ExitCode {
        ExitCode::from(exit::USAGE)
    }
}

pub(crate) mod watch {
    use std::ffi::OsStr;
    use std::process::ExitCode;

    use crate::exit;

    pub(crate) const WATCH: &str = "__watch";

    /// Nobody starts one.
    pub(crate) fn watch(_mark: &OsStr) -> ExitCode {
        ExitCode::from(exit::USAGE)
    }
}

pub(crate) mod started {
    /// Nobody has asked for it: there the code says it.
    pub(crate) fn die(_number: i32) {}
}

pub(crate) mod family {
    pub(crate) const MARK: &str = "COORDINATION_RUN";
}

pub(crate) mod alive {
    /// Where a process stands among others.
    pub(crate) struct Place {
        pub(crate) group: i32,
    }

    impl Place {
        pub(crate) fn of_us() -> Option<Self> {
            Some(Self { group: rustix::process::getpgrp().as_raw_nonzero().get() })
        }
    }
}

pub(crate) mod signals {
    use coordination::Coordinator;
    use tokio::signal::unix::{SignalKind, signal};

    use crate::exit::{Failure, Outcome};

    /// What only looks, until it ends or is ended by a signal; the coordinator is stopped then.
    pub(crate) async fn until_stopped(
        coordinator: &Coordinator,
        work: impl Future<Output = Outcome<u8>>,
    ) -> Outcome<u8> {
        let receive =
            |kind| signal(kind).map_err(|error| Failure::system("cannot receive signals", &error));
        let mut hangup = receive(SignalKind::hangup())?;
        let mut interrupt = receive(SignalKind::interrupt())?;
        let mut terminate = receive(SignalKind::terminate())?;
        let by_signal = |kind: SignalKind| Failure::by_signal(kind.as_raw_value());
        let outcome = tokio::select! {
            _ = hangup.recv() => Err(by_signal(SignalKind::hangup())),
            _ = interrupt.recv() => Err(by_signal(SignalKind::interrupt())),
            _ = terminate.recv() => Err(by_signal(SignalKind::terminate())),
            outcome = work => outcome,
        };
        let _ = coordinator.stop().await;
        outcome
    }
}
