//! The examples of `examples/service`, as they stand there.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use coordination_tests::harness::{rerun_if_starved, wait_until};
use serde_json::{Value, json};

use super::safety::{made, tokens};
use crate::http::{Service, ask};
use crate::{LONG, Store, Wrapper, code, output, stderr, stdout};

fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/service").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(example(name)).expect("it is there")
}

/// The script at this instance, with these arguments.
fn deploy(service: &Service, arguments: &[&str]) -> Command {
    deploy_at(&service.native, arguments)
}

fn deploy_at(service: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.arg("90").arg(example("deploy.sh")).args(arguments);
    command.env("COORDINATION_SERVICE", format!("http://{service}"));
    command
}

#[test]
fn the_script_deploys_once_at_a_time_and_says_how_it_went() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let ran = output(&mut deploy(&service, &["web", "sh", "-c", "echo fence $FENCE"]));
        let (said, told) = (stdout(&ran), stderr(&ran));
        assert!(ran.status.success() && said.starts_with("fence "), "{said}{told}");
        assert!(
            said["fence ".len()..].trim().parse::<u64>().is_ok_and(|fence| fence > 0),
            "{said}"
        );
        assert_eq!(
            code(output(&mut deploy(&service, &["web", "sh", "-c", "exit 7"])).status),
            Some(7)
        );
        assert_eq!(service.get("/v1/locks").json()["names"], json!([]), "it is released");

        // Each of four adds one to a number, which takes a while.
        let number = store.path("number");
        std::fs::write(&number, "0").expect("a file");
        let script = "n=$(cat $0); sleep 0.1; echo $((n + 1)) >$0";
        let add = || deploy(&service, &["web", "sh", "-c", script, &number.display().to_string()]);
        let mut all: Vec<_> = (0..4).map(|_| Wrapper::start(&mut add())).collect();
        assert!(all.iter_mut().all(|one| one.code() == Some(0)));
        assert_eq!(std::fs::read_to_string(&number).expect("a file").trim(), "4");
    });
}

/// Who loses the lock has its command ended, within a few seconds.
#[test]
fn the_script_ends_its_command_when_the_lock_is_lost() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let mut deploying = deploy(&service, &["web", "sleep", "60"]);
        let mut deploying = Wrapper::start(&mut deploying);
        let entries = || service.get("/v1/locks/web").json()["entries"].clone();
        assert!(wait_until(LONG, || entries()[0]["state"] == "held"));
        let broken = output(&mut store.coordination(["break", "web", "--yes"]));
        assert!(broken.status.success(), "{}", stderr(&broken));
        assert_eq!(deploying.code(), Some(143), "its command is told to end");
    });
}

/// A script that is killed cannot release its lock: nobody goes on to renew it.
#[test]
fn the_lock_of_a_script_that_is_killed_ends() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        // Without `timeout` before it, which would be killed in its place.
        let mut command = Command::new(example("deploy.sh"));
        command.args(["web", "sleep", "120"]);
        command.env("COORDINATION_SERVICE", format!("http://{}", service.native));
        let mut deploying = Wrapper::start(&mut command);
        let entries = || service.get("/v1/locks/web").json()["entries"].clone();
        assert!(wait_until(LONG, || entries()[0]["state"] == "held"));
        deploying.signal(rustix::process::Signal::KILL);
        assert_eq!(deploying.code(), Some(137));
        // A turn of whoever renews, and the lease.
        assert!(wait_until(3 * LONG, || entries() == json!([])), "{}", entries());
    });
}

/// A service that is about to stop, or whose store is away, answers with what is left: the command has ended before the lock has.
#[test]
fn the_script_ends_its_command_before_a_lock_that_is_not_renewed() {
    rerun_if_starved(|| {
        let (lease, begun) = (Duration::from_secs(20), Instant::now());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let at = listener.local_addr().expect("it listens").to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let _ = stream.read(&mut [0; 4_096]);
                let left = 1_000 * lease.saturating_sub(begun.elapsed()).as_secs();
                let body = json!({ "id": "x", "fence": 1, "expires_in_ms": left }).to_string();
                let head = format!("Content-Length: {}\r\nConnection: close", body.len());
                let _ = write!(stream, "HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}");
            }
        });
        let mut deploying = Wrapper::start(&mut deploy_at(&at, &["web", "sleep", "60"]));
        assert_eq!(deploying.code(), Some(143), "its command is told to end");
        assert!(begun.elapsed() < lease, "{:?}", begun.elapsed());
    });
}

#[test]
fn each_job_of_a_queue_is_done_by_one_of_the_workers() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let project = [("X-Project-Id", "example")];
        let queue = |method: &str, path: &str, body: &str| {
            ask(&service.zaqar, method, &format!("/v2/queues/mails{path}"), &project, body)
        };
        for first in [0, 20] {
            let messages: Vec<_> =
                (first..first + 20).map(|n| json!({ "body": { "n": n } })).collect();
            let posted = queue("POST", "/messages", &json!({ "messages": messages }).to_string());
            assert_eq!(posted.status, 201, "{posted:?}");
        }
        let done: Vec<_> = std::thread::scope(|scope| {
            let work = || {
                let mut command = Command::new("timeout");
                command.args(["90", "python3"]).arg(example("worker.py"));
                command.env("COORDINATION_SERVICE", format!("http://{}", service.zaqar));
                let done = output(command.args(["mails", "--until-empty"]));
                assert!(done.status.success(), "{}", stderr(&done));
                stdout(&done)
            };
            let workers = [scope.spawn(work), scope.spawn(work), scope.spawn(work)];
            workers.map(|worker| worker.join().expect("it works")).into()
        });
        let done: Vec<Value> = done
            .iter()
            .flat_map(|said| said.lines())
            .map(|line| serde_json::from_str(line).expect("it is JSON"))
            .collect();
        let mut numbers: Vec<_> = done.iter().map(|done| done["job"]["n"].as_u64()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..40).map(Some).collect::<Vec<_>>());
        assert!(done.iter().all(|done| done["fence"].as_u64() > Some(0)), "{done:?}");
        let left = queue("GET", "/stats", "").json()["messages"]["total"].clone();
        assert_eq!(left, 0);
    });
}

/// A worker that finds no service, or one that answers with an error, has not come to the end of its queue.
#[test]
fn a_worker_does_not_take_an_error_for_an_empty_queue() {
    rerun_if_starved(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let at = listener.local_addr().expect("it listens");
        let mut command = Command::new("timeout");
        command.args(["90", "python3"]).arg(example("worker.py"));
        command.env("COORDINATION_SERVICE", format!("http://{at}"));
        let mut working = Wrapper::start(command.args(["mails", "--until-empty"]));
        // A connection that is closed, an error, and then a queue that is empty.
        for answer in ["", "503 Service Unavailable", "204 No Content"] {
            let (mut stream, _) = listener.accept().expect("a connection");
            assert!(working.is_running(), "it has ended before: {answer}");
            let _ = stream.read(&mut [0; 4_096]);
            if !answer.is_empty() {
                let head = "Content-Length: 0\r\nConnection: close";
                let _ = write!(stream, "HTTP/1.1 {answer}\r\n{head}\r\n\r\n");
            }
        }
        assert_eq!(working.code(), Some(0));
    });
}

/// The unit starts what there is, waits for its end long enough, and is as the page shows it; systemd has nothing to say, if it is here.
#[test]
fn the_unit_is_what_systemd_takes() {
    let unit = text("coordination.service");
    let value = |key: &str| {
        let mut values = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.next().unwrap_or_else(|| panic!("no {key}")).to_owned()
    };
    assert_eq!([value("Type"), value("NoNewPrivileges")], ["notify", "yes"]);
    // The drain, and the longest lease by default.
    assert!(value("TimeoutStopSec").parse::<u64>().is_ok_and(|seconds| seconds >= 30 + 28));
    let start = value("ExecStart");
    let words = start.strip_prefix("/usr/local/bin/coordination ").expect("the command");
    assert!(is_understood(words), "{words}");
    let page = include_str!("../../../../../docs/service.md");
    let (_, shown) = page.split_once("```ini\n").expect("it shows a unit");
    for line in shown.split("```").next().unwrap_or_default().lines() {
        assert!(unit.lines().any(|own| own == line.trim()), "{line} is not in the unit");
    }
    let store = Store::file();
    let copy = store.path("coordination.service");
    let here = unit.replace("/usr/local/bin/coordination", env!("CARGO_BIN_EXE_coordination"));
    std::fs::write(&copy, here).expect("a file");
    let Ok(told) = Command::new("systemd-analyze").arg("verify").arg(&copy).output() else {
        return;
    };
    let about: Vec<_> = [stdout(&told), stderr(&told)]
        .concat()
        .lines()
        .filter(|line| line.contains("coordination.service"))
        .map(str::to_owned)
        .collect();
    assert!(about.is_empty(), "{about:?}");
}

/// Whether the command takes these words.
fn is_understood(words: &str) -> bool {
    let store = Store::file();
    let mut command = store.coordination(words.split(' ').chain(["--help"]));
    output(&mut command).status.success()
}

/// The image is of versions that are named, runs as nobody in particular, and starts the service with options that it takes.
#[test]
fn the_container_file_starts_the_service() {
    let file = text("Containerfile");
    let known =
        ["FROM", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"];
    let lines = file.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let steps: Vec<_> = lines.map(|line| line.split_once(' ').expect("two words")).collect();
    assert!(steps.iter().all(|(word, _)| known.contains(word)), "{steps:?}");
    let of =
        |word: &'static str| steps.iter().filter(move |step| step.0 == word).map(|step| step.1);
    for image in of("FROM") {
        let (name, tag) =
            image.split(' ').next().and_then(|image| image.split_once(':')).expect("a tag");
        assert!(name.starts_with("docker.io/") && tag != "latest", "{image}");
    }
    assert!(of("USER").next_back().is_some_and(|user| user != "root" && !user.starts_with("0")));
    let version =
        include_str!("../../../../../Cargo.toml").split_once("rust-version = \"").expect("one").1;
    let version = version.split('"').next().expect("it ends");
    assert!(of("FROM").next().is_some_and(|image| image.contains(&format!("rust:{version}-"))));
    let list = |word: &'static str| -> Vec<String> {
        let step = of(word).next_back().expect("it is there");
        serde_json::from_str(step).unwrap_or_else(|error| panic!("{step}: {error}"))
    };
    assert_eq!(list("ENTRYPOINT"), ["/usr/local/bin/coordination", "serve"]);
    let exposed = of("EXPOSE").next_back().expect("a port");
    let words = list("CMD");
    assert!(words.contains(&format!("0.0.0.0:{exposed}")), "{words:?}");

    rerun_if_starved(|| serves_in_a_container(&words, exposed));
}

/// The service starts with these words, at a free port in the place of this one.
fn serves_in_a_container(words: &[String], exposed: &str) {
    // With files of our own in the place of those that are mounted.
    let store = Store::file();
    let certificates = coordination_tests::harness::Certificates::new();
    let server = &certificates.server;
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&server.key, private).expect("it is ours");
    let file = tokens(&store, &[made(&store, "one", "*", "use")]);
    let here = words.iter().map(|word| match word.as_str() {
        "/etc/coordination/tokens.toml" => file.display().to_string(),
        "/etc/coordination/cert.pem" => server.certificate.display().to_string(),
        "/etc/coordination/key.pem" => server.key.display().to_string(),
        other => other.replace(&format!(":{exposed}"), ":0"),
    });
    let mut command = store.coordination(["serve".to_owned()].into_iter().chain(here));
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("it was built");
    let told = crate::http::lines(&mut child);
    let _process = Wrapper(child);
    let mut written = String::new();
    let serves = wait_until(LONG, || {
        written.extend(told.try_iter());
        written.contains(" on https://0.0.0.0:")
    });
    assert!(serves, "it does not start: {written}");
}
