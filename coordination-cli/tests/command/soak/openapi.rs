//! H11: requests made from the service's own description (`/openapi.json`) by schemathesis, which looks at each answer.

use std::process::Command;

use coordination_tests::harness::{rerun_if_starved, wait_until};

use super::clients::{python_with, with_tokens};
use crate::http::ask;
use crate::{LONG, Store, output, stderr, stdout};

const INSTALL: &str = r#"
set -eu
python3 -m venv "$1"
. "$1/bin/activate"
pip install -q schemathesis==4.32.5
"#;

/// What it makes may wait for an hour. And what it has made is not to be held for a day.
const HOOKS: &str = r#"
import schemathesis

def smaller(body, field, most):
    if isinstance(body, dict) and isinstance(body.get(field), int) and body[field] > most:
        body[field] = most

@schemathesis.hook
def before_call(context, case, kwargs):
    smaller(case.body, "wait_ms", 50)
    if case.operation.path != "/v1/renew" and case.method == "POST":
        smaller(case.body, "lease_ms", 2000)
    if case.headers:
        case.headers.pop("Prefer", None)
"#;

/// What it looks at. Not whether each request that fits the description is taken: what is held, and what a name was used with before, is
/// in no description.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
    response_headers_conformance,response_schema_conformance,negative_data_rejection,unsupported_method";

/// For so many seconds.
const SECONDS: &str = "300";

#[test]
fn h11_requests_made_from_the_description_are_answered_as_it_says() {
    rerun_if_starved(|| {
        let store = Store::file();
        let tokens = with_tokens(&store);
        let at = &tokens.service.native;
        let python = python_with("schemathesis", "import schemathesis", INSTALL);
        let hooks = store.path("hooks.py");
        std::fs::write(&hooks, HOOKS).expect("a file");
        let bearer = format!("Bearer {}", tokens.admin);
        let mut command = Command::new("timeout");
        command.args(["900", &python.with_file_name("schemathesis").display().to_string()]);
        command.args(["--no-color", "run", &format!("http://{at}/openapi.json")]);
        command.args(["--header", &format!("Authorization: {bearer}"), "--max-time", SECONDS]);
        command.args(["--checks", CHECKS, "--request-timeout", "20", "--continue-on-failure"]);
        // A stream does not end.
        command.args(["--exclude-path-regex", "events$", "--generation-database", "none"]);
        command.current_dir(store.path("")).env("SCHEMATHESIS_HOOKS", "hooks");
        command.env("PYTHONPATH", store.path(""));
        let done = output(&mut command);
        let (said, told) = (stdout(&done), stderr(&done));
        println!("{said}");
        assert!(done.status.success(), "{said}{told}");
        // It has left nothing that does not end.
        let headers = [("Authorization", bearer.as_str())];
        let free = || ask(at, "POST", "/v1/locks/after", &headers, "{}").status == 201;
        assert!(wait_until(LONG, free));
    });
}
