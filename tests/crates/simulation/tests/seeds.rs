//! The gate runs these seeds of the simulation. `tests/simulate` runs any number of other seeds.
#![cfg(coordination_internals)]

use std::process::Command;

#[test]
fn five_hundred_seeds() {
    let run = Command::new(env!("CARGO_BIN_EXE_simulate")).args(["--seeds", "500"]).output();
    let run = run.expect("it was built beside this test");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));
    println!("{said}");
}
