//! The clients of others, as they come from PyPI, at `coordination serve`.
//!
//! They are installed into a virtual environment under `target`, once.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use coordination_tests::harness::{Certificates, rerun_if_starved, wait_until};

use crate::http::{Service, ask};
use crate::{LONG, Store, output, stderr, stdout};

/// Installs both. `rdlm-py` cannot be built from its archive as it is: that lacks a file which its `setup.py` reads.
const INSTALL: &str = r#"
set -eu
python3 -m venv "$1"
. "$1/bin/activate"
mkdir "$1/sources"
pip install -q requests==2.34.2 setuptools wheel lockable-dev==0.1.2
TMPDIR="$1/sources" pip download -q --no-clean --no-deps --no-build-isolation -d "$1/sources" rdlm-py==0.2.0 >/dev/null 2>&1 || true
source=$(echo "$1"/sources/pip-download-*/rdlm-py_*)
touch "$source/pip-requirements.txt"
pip install -q --no-deps --no-build-isolation "$source"
"#;

/// Zaqar's client brings some sixty packages.
const INSTALL_ZAQAR: &str = r#"
set -eu
python3 -m venv "$1"
. "$1/bin/activate"
pip install -q python-zaqarclient==4.7.0
"#;

const ZAQAR: &str = r#"
import os; from zaqarclient.queues import client; from zaqarclient.transport import errors
q = client.Client("http://x:%s@127.0.0.1:%s" % (os.environ["USE"], os.environ["PORT"]), version=2, conf={"auth_opts": {"backend": "noauth"}}).queue("work")
assert len(q.post([{"ttl": 120, "body": {"n": n}} for n in range(3)])["resources"]) == 3
assert [x.body["n"] for x in q.messages(limit=2).stream()] == [0, 1, 2]
c = q.claim(ttl=60, grace=60, limit=2); m = list(c); assert [x.body["n"] for x in m] == [0, 1] and all(x.claim_id == c.id for x in m)
c.update(ttl=100, grace=60); assert c.age >= 0 and c.ttl == 100 and q.stats["messages"] == {"free": 1, "claimed": 2, "total": 3}
m[0].delete(); c.delete(); assert len(list(q.claim())) == 2   # the defaults are sent as null
assert q.claim(ttl=60, grace=60).id is None                   # 204
try: q.claim(id=c.id).age; assert False
except errors.ResourceNotFound: pass
"#;

const RDLM: &str = r#"
import os, time; from rdlmpy import *
c = RDLMClient(server="x:%s@127.0.0.1" % os.environ["USE"], port=int(os.environ["PORT"])); A = ("x", os.environ["ADMIN"])
u = c.lock_acquire("a b/ü", lifetime=60, wait=0); l = c.lock_get(u)
assert u.startswith("http://") and l.active and (l.lifetime, l.wait) == (60, 0) and "RDLMClient(0.2.0)" in l.title
try: t = time.time(); c.lock_acquire("a b/ü", wait=0.3); assert False
except RDLMLockWaitExceededException: assert 0.3 <= time.time() - t < 0.6
assert c.resource_get_all(*A) == ["a b/ü"] and [x.active for x in c.resource_get_all_locks("a b/ü", *A)] == [True]
assert c.lock_release(u) and not c.lock_release(u) and c.lock_get(u) is None
t = time.time(); c.lock_acquire("b", lifetime=0.3); v = c.lock_acquire("b", wait=2); assert 0.3 <= time.time() - t < 0.5
assert c.resource_delete("b", *A) and not c.resource_delete("b", *A) and not c.lock_release(v)
assert c.resource_get_all_locks("never", *A) == []
import threading; told = []
def wait():
    try: c.lock_acquire("d", wait=20)
    except RDLMLockDeletedException: told.append(1)
c.lock_acquire("d", lifetime=60, wait=0); t = threading.Thread(target=wait); t.start()
while len(c.resource_get_all_locks("d", *A)) < 2: time.sleep(0.01)
time.sleep(0.5); assert c.resource_delete("d", *A); t.join(); assert told == [1]
"#;

/// One of ten that take turns: each is alone while it has the file.
const TURNS: &str = r#"
import os, sys; from rdlmpy import *
c = RDLMClient(server="x:%s@127.0.0.1" % os.environ["USE"], port=int(os.environ["PORT"]))
for _ in range(int(sys.argv[1])):
    u = c.lock_acquire("turns", lifetime=60, wait=60)
    os.close(os.open(os.environ["INSIDE"], os.O_CREAT | os.O_EXCL))
    os.remove(os.environ["INSIDE"])
    assert c.lock_release(u)
"#;

/// Its client speaks HTTPS only.
const LOCKABLE: &str = r#"
import os; import lockable; lockable.client.LOCKABLE_DOMAIN = "localhost:" + os.environ["PORT"]
from lockable import Lock, CouldNotAcquireLockError; lost = []
with Lock("job", on_lock_loss=lambda: lost.append(1)):
    try: Lock("job", blocking=False).acquire(); assert False
    except CouldNotAcquireLockError: pass
assert not lost and lockable.client.try_heartbeat("job", os.environ["LOCKABLE_AUTH_TOKEN"]) is False
with Lock("job"): assert lockable.client.try_acquire("job", os.environ["LOCKABLE_AUTH_TOKEN"]) is False
assert lockable.client.try_acquire("job", os.environ["OTHER"]) is True   # another token: another lock
lockable.client.try_release("job", os.environ["OTHER"])
"#;

/// A Python that has the clients of rdlm and lockable.
fn python() -> PathBuf {
    python_with("service-clients", "import rdlmpy, lockable.client", INSTALL)
}

/// A Python of this name, in which that can be imported.
pub(super) fn python_with(name: &str, imported: &str, install: &str) -> PathBuf {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let python = directory.join("bin/python3");
    let mut has_them = Command::new(&python);
    has_them.args(["-c", imported]).env("LOCKABLE_AUTH_TOKEN", "x");
    if !has_them.output().is_ok_and(|done| done.status.success()) {
        let _ = std::fs::remove_dir_all(&directory);
        let done = output(Command::new("sh").args(["-c", install, "sh"]).arg(&directory));
        assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    }
    python
}

/// An instance with tokens that may use all names and administer all names.
pub(super) struct Tokens {
    pub(super) service: Service,
    used: Vec<String>,
    pub(super) admin: String,
}

pub(super) fn with_tokens(store: &Store) -> Tokens {
    with_tokens_and(store, "")
}

/// The same with further options.
fn with_tokens_and(store: &Store, words: &str) -> Tokens {
    let make = |name: &str| {
        let words = ["serve", "--make-token", name, "--use", "*"];
        let made = stdout(&output(&mut store.coordination(words)));
        let token = made.lines().next().and_then(|line| line.rsplit(' ').next());
        (token.expect("a token").to_owned(), made)
    };
    let (one, other, boss) = (make("one"), make("other"), make("boss"));
    let file = store.path("tokens.toml");
    let text = [one.1, other.1, boss.1.replace("use =", "admin =")].concat();
    std::fs::write(&file, text).expect("a file");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("it is ours");
    let service = Service::begin(store, &format!("--tokens {} {words}", file.display()));
    // Its listener is never encrypted.
    let is_ready = || ask(&service.rdlm, "GET", "/readyz", &[], "").status == 200;
    assert!(wait_until(LONG, is_ready), "not ready");
    Tokens { service, used: vec![one.0, other.0], admin: boss.0 }
}

impl Tokens {
    fn python(&self, listener: &str, program: &str, arguments: &[&str]) -> Command {
        self.run(&python(), listener, program, arguments)
    }

    fn run(&self, python: &Path, listener: &str, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg("900").arg(python).args(["-c", program]).args(arguments);
        command.env("PORT", listener.rsplit(':').next().unwrap_or_default());
        command.env("USE", &self.used[0]).env("ADMIN", &self.admin);
        command.env("LOCKABLE_AUTH_TOKEN", &self.used[0]).env("OTHER", &self.used[1]);
        command
    }
}

pub(super) fn succeeds(command: &mut Command) {
    let done = output(command);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
}

/// H1: `rdlm-py` 0.2.0.
#[test]
fn h1_rdlms_client_runs_as_it_is() {
    rerun_if_starved(|| {
        let store = Store::file();
        let tokens = with_tokens(&store);
        succeeds(&mut tokens.python(&tokens.service.rdlm, RDLM, &[]));
    });
}

/// H1: ten processes that acquire and release one name, each a thousand times.
#[test]
fn h1_rdlms_clients_never_overlap() {
    rerun_if_starved(|| {
        let store = Store::file();
        let tokens = with_tokens(&store);
        std::thread::scope(|scope| {
            for _ in 0..10 {
                let mut command = tokens.python(&tokens.service.rdlm, TURNS, &["1000"]);
                command.env("INSIDE", store.path("inside"));
                scope.spawn(move || succeeds(&mut command));
            }
        });
    });
}

/// H1: `python-zaqarclient` 4.7.0.
#[test]
fn h1_zaqars_client_runs_as_it_is() {
    rerun_if_starved(|| {
        let store = Store::file();
        let tokens = with_tokens(&store);
        let python = python_with("zaqar-client", "import zaqarclient.queues.client", INSTALL_ZAQAR);
        succeeds(&mut tokens.run(&python, &tokens.service.zaqar, ZAQAR, &[]));
    });
}

/// H1: `lockable-dev` 0.1.2.
#[test]
fn h1_lockables_client_runs_as_it_is() {
    rerun_if_starved(|| {
        let store = Store::file();
        let certificates = Certificates::new();
        let server = &certificates.server;
        std::fs::set_permissions(&server.key, PermissionsExt::from_mode(0o600))
            .expect("it is ours");
        let (certificate, key) = (server.certificate.display(), server.key.display());
        let words = format!("--tls-cert {certificate} --tls-key {key}");
        let tokens = with_tokens_and(&store, &words);
        let mut command = tokens.python(&tokens.service.lockable, LOCKABLE, &[]);
        command.env("REQUESTS_CA_BUNDLE", &certificates.authority);
        succeeds(&mut command);
    });
}
