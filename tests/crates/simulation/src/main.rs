//! The program `simulate`.

use std::process::ExitCode;

#[cfg(coordination_internals)]
fn main() -> ExitCode {
    coordination_simulation::main()
}

#[cfg(not(coordination_internals))]
fn main() -> ExitCode {
    eprintln!("this build has no simulated world in it: use tests/simulate");
    ExitCode::from(69)
}
