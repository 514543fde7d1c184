//! rdlm's own server, 0.4.2, of 2014, with the Tornado that it asks for.
//!
//! Tornado 2.4.1 is written in Python 2, and becomes Python 3 while it is installed, by a step that setuptools 58 has given up. That
//! works with Python 3.11 and older; where it fails, rdlm is not measured.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use coordination_tests::harness::{ports::free_port, wait_until};

use crate::client::Client;
use crate::{Bench, Outcome};

const INSTALL: &str = r#"
set -eu
python3 -m venv "$1"
. "$1/bin/activate"
pip install -q 'setuptools<58' wheel
pip install -q --no-build-isolation tornado==2.4.1 rdlm==0.4.2
"#;
const LONG: Duration = Duration::from_secs(20);

/// A Python that has rdlm, in a virtual environment under `target`, where it stays.
pub(crate) fn python() -> Outcome<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rdlm-server");
    let python = directory.join("bin/python3");
    let has_it = || Command::new(&python).args(["-c", "import rdlm.main"]).output();
    if has_it().is_ok_and(|done| done.status.success()) {
        return Ok(python);
    }
    let _ = std::fs::remove_dir_all(&directory);
    let done = Command::new("sh").args(["-c", INSTALL, "sh"]).arg(&directory).output()?;
    if done.status.success() && has_it()?.status.success() {
        return Ok(python);
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(format!("it cannot be installed: {}", said.lines().last().unwrap_or_default()).into())
}

/// One that runs; killed with this value.
pub(crate) struct Rdlm {
    child: Child,
    pub(crate) at: String,
}

impl Drop for Rdlm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rdlm {
    /// Without a log, as our service has none here.
    pub(crate) fn start(bench: &Bench, python: &Path) -> Outcome<Self> {
        let port = free_port();
        let mut command = Command::new(python);
        command.arg(python.with_file_name("rdlm-daemon.py"));
        command.args([format!("--port={port}"), "--logging=none".to_owned()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = bench.processors.there(|| Ok(command.spawn()?))?;
        let rdlm = Self { child, at: format!("127.0.0.1:{port}") };
        let is_ready = || {
            let client = Client::connect(&rdlm.at);
            client.is_ok_and(|mut client| {
                client.ask("GET", "/", "").is_ok_and(|told| told.status == 200)
            })
        };
        if wait_until(LONG, is_ready) { Ok(rdlm) } else { Err("rdlm does not answer".into()) }
    }
}
