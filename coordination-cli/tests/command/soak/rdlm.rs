//! H1: what the archive of rdlm 0.4.2 at PyPI has to test rdlm's own server with, at `coordination serve --rdlm`.
//!
//! The text of the tests stays as it is. They run a server within their process, by Tornado 2.4; `stand_in.py` sends what they ask
//! to the service instead.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use coordination_tests::harness::rerun_if_starved;

use super::clients::{python_with, succeeds};
use crate::http::Service;
use crate::{Store, output, stderr, stdout};

/// The archive, and what its loads import.
const INSTALL: &str = r#"
set -eu
python3 -m venv "$1"
. "$1/bin/activate"
pip install -q requests==2.34.2 setuptools wheel
echo "rdlm==0.4.2 --hash=sha256:e9440cc3859ca6f050969a8c5eb068f594688c32064662009a02666781a77c7e" >"$1/wanted"
pip download -q --no-deps --no-build-isolation -d "$1" -r "$1/wanted"
"#;
const IMPORTED: &str = r#"import requests, sys; open(sys.prefix + "/rdlm-0.4.2.tar.gz")"#;

const STAND_IN: &str = include_str!("rdlm/stand_in.py");

/// One of the passwords that `test_userpass` writes down is a token here.
const TOKENS: &str = r#"
[[token]]
name = "foo2"
sha256 = "844b7fdecda076337696db0dcac0ce9d838319ac00b24380d6c62d442d0680af"
admin = ["*"]
"#;
const CREDENTIALS: &str = "foo2:bar2";

/// Tests that pass with nothing but another server.
const PASSED: [&str; 18] = [
    "test_auth.AuthTestCase.test_no",
    "test_home.HelloTestCase.test_home",
    "test_lock.LockTestCase.test_acquire_lock",
    "test_lock.LockTestCase.test_delete_all",
    "test_lock.LockTestCase.test_delete_existing_lock",
    "test_lock.LockTestCase.test_delete_non_existing_lock",
    "test_lock.LockTestCase.test_delete_resource",
    "test_lock.LockTestCase.test_expired_lock",
    "test_lock.LockTestCase.test_get_existing_lock",
    "test_lock.LockTestCase.test_get_not_existing_lock",
    "test_lock.LockTestCase.test_get_resource",
    "test_lock.LockTestCase.test_get_resources",
    "test_lock.LockTestCase.test_multiple_waiters1",
    "test_lock.LockTestCase.test_multiple_waiters2",
    "test_lock.LockTestCase.test_not_acquired_lock_bad_json",
    "test_lock.LockTestCase.test_not_acquired_lock_empty_body",
    "test_lock.LockTestCase.test_not_acquired_lock_missing_field",
    "test_lock.LockTestCase.test_wait_timeout_lock",
];

/// All others: what becomes of them, and why.
const OTHERWISE: [(&str, &str, &str); 3] = [
    (
        "test_auth.AuthTestCase.test_userpass",
        "AssertionError: 204 != 401",
        "its last request: the password is the token, and no user's name beside it makes that wrong",
    ),
    (
        "test_auth.AuthTestCase.test_yes",
        "passed",
        "but with credentials, as what the tests of locks do after each test: nobody administers without",
    ),
    ("test_hal.py", "sends nothing", "it is about classes of rdlm's own server"),
];

/// A Python for the archive, and where its tests are now, which write files beside them.
fn unpacked(store: &Store) -> (PathBuf, PathBuf) {
    let python = python_with("rdlm-tests", IMPORTED, INSTALL);
    let environment = python.parent().and_then(Path::parent).expect("it has two parents");
    let archive = environment.join("rdlm-0.4.2.tar.gz");
    succeeds(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(store.path("")));
    (python, store.path("rdlm-0.4.2/tests"))
}

fn port(service: &Service) -> &str {
    service.rdlm.rsplit(':').next().expect("there is one piece at least")
}

#[test]
fn h1_rdlms_own_tests_run_as_they_are() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (python, tests) = unpacked(&store);
        let (tokens, stand_in) = (store.path("tokens.toml"), store.path("stand_in.py"));
        std::fs::write(&tokens, TOKENS).expect("a file");
        std::fs::set_permissions(&tokens, PermissionsExt::from_mode(0o600)).expect("it is ours");
        std::fs::write(&stand_in, STAND_IN).expect("a file");
        let open = Service::start(&store, "");
        let closed = Service::start(&store, &format!("--tokens {}", tokens.display()));
        let mut command = Command::new("timeout");
        command.arg("900").arg(python).arg(stand_in).arg(tests);
        command.args([port(&open), port(&closed), CREDENTIALS]);
        let done = output(&mut command);
        let (said, account) = (stdout(&done), stderr(&done));
        assert!(done.status.success(), "{said}{account}");
        let mut told: Vec<_> = said.lines().map(str::to_owned).collect();
        let passed = PASSED.iter().map(|test| format!("{test} passed"));
        let otherwise = OTHERWISE.iter().map(|(test, outcome, why)| {
            println!("{test} {outcome}: {why}");
            format!("{test} {outcome}")
        });
        let mut wanted: Vec<_> = passed.chain(otherwise).collect();
        told.sort();
        wanted.sort();
        assert_eq!(told, wanted, "{account}");
    });
}

/// Ten processes with ten thousand locks: first all of one name, then each of its own.
#[test]
fn h1_rdlms_own_loads_run_as_they_are() {
    rerun_if_starved(|| {
        let store = Store::file();
        let (python, tests) = unpacked(&store);
        let service = Service::start(&store, "");
        for load in ["bomb1.py", "bomb2.py"] {
            let load = tests.join(load);
            let text = std::fs::read_to_string(&load).expect("it is in the archive");
            // Where it asks is a part of its text.
            assert_eq!(text.matches(":8888").count(), 1, "{text}");
            let here = text.replace(":8888", &format!(":{}", port(&service)));
            std::fs::write(&load, here).expect("it is ours");
            succeeds(Command::new("timeout").arg("900").arg(&python).arg(load));
        }
    });
}
