//! A `coordination serve` of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use coordination_tests::harness::{Certificates, wait_until};
use rustls::ClientConfig;

use crate::client::{Api, Client, trusting};
use crate::{Bench, Outcome};

const ANY: &str = "127.0.0.1:0";
const LONG: Duration = Duration::from_secs(30);

/// One that runs, on free ports; killed with this value.
pub(crate) struct Instance {
    child: Child,
    native: String,
    rdlm: String,
    trusting: Option<Arc<ClientConfig>>,
    /// Open to its end, as it writes warnings.
    stderr: BufReader<ChildStderr>,
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Instance {
    /// On the store of this URL, when it is ready.
    pub(crate) fn start(bench: &Bench, url: &str) -> Outcome<Self> {
        Self::started(bench, url, None)
    }

    /// The same, encrypted.
    pub(crate) fn encrypted(
        bench: &Bench,
        url: &str,
        certificates: &Certificates,
    ) -> Outcome<Self> {
        Self::started(bench, url, Some(certificates))
    }

    fn started(bench: &Bench, url: &str, certificates: Option<&Certificates>) -> Outcome<Self> {
        let mut command = Command::new(&bench.program);
        command.args(["serve", "--url", url, "--listen", ANY, "--rdlm", ANY]);
        command.args(["--fresh", "--no-access-log"]);
        let mut authority = None;
        if let Some(certificates) = certificates {
            let server = &certificates.server;
            fs::set_permissions(&server.key, PermissionsExt::from_mode(0o600))?;
            command.arg("--tls-cert").arg(&server.certificate).arg("--tls-key").arg(&server.key);
            authority = Some(trusting(&certificates.authority)?);
        }
        // Cargo names directories in which the loader would look first for each library.
        for variable in ["LD_LIBRARY_PATH", "COORDINATION_CONFIG", "XDG_CONFIG_HOME", "HOME"] {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = bench.processors.there(|| Ok(command.spawn()?))?;
        let stderr = BufReader::new(child.stderr.take().ok_or("a pipe")?);
        let (native, rdlm) = (String::new(), String::new());
        let mut instance = Self { child, native, rdlm, trusting: authority, stderr };
        instance.listens()?;
        // Its listener is never encrypted.
        let mut client = Client::connect(&instance.rdlm)?;
        let is_ready = || client.ask("GET", "/readyz", "").is_ok_and(|told| told.status == 200);
        if wait_until(LONG, is_ready) { Ok(instance) } else { Err("it did not get ready".into()) }
    }

    /// Reads where it listens.
    fn listens(&mut self) -> Outcome {
        let (mut told, mut line) = (String::new(), String::new());
        while !line.contains(" on http") {
            line.clear();
            if self.stderr.read_line(&mut line)? == 0 {
                return Err(format!("it does not say where it listens: {told}").into());
            }
            told += &line;
        }
        let after = |mark: &str| {
            let (_, rest) = line.split_once(mark)?;
            Some(rest.split(',').next()?.trim().to_owned())
        };
        self.native = after("://").ok_or("no address")?;
        self.rdlm = after("rdlm on ").ok_or("no address of rdlm's API")?;
        Ok(())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where this API is.
    pub(crate) fn address(&self, api: Api) -> &str {
        match api {
            Api::Native => &self.native,
            Api::Rdlm => &self.rdlm,
        }
    }

    /// A client of its own API.
    pub(crate) fn client(&self) -> Outcome<Client> {
        match &self.trusting {
            Some(trusting) => Client::connect_encrypted(&self.native, trusting),
            None => Client::connect(&self.native),
        }
    }
}
