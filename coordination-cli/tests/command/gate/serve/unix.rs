//! A Unix socket as the place where the service listens.

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use coordination_tests::harness::{rerun_if_starved, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use super::safety::{made, tokens};
use crate::{LONG, Store, Wrapper, output, stderr};

/// The status and the body of an answer.
fn ask(at: &Path, method: &str, path: &str, headers: &str) -> Option<(u16, Value)> {
    let mut stream = UnixStream::connect(at).ok()?;
    stream.set_read_timeout(Some(LONG)).expect("a socket");
    let head = "Host: localhost\r\nConnection: close\r\nContent-Length: 0\r\n";
    write!(stream, "{method} {path} HTTP/1.1\r\n{head}{headers}\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}

fn start(store: &Store, at: &Path, words: &[&str]) -> Wrapper {
    let listen = format!("unix:{}", at.display());
    let mut command = store.coordination(["serve", "--listen", &listen]);
    command.args(words);
    started(command, at)
}

/// Starts this, and waits until it serves.
fn started(mut command: Command, at: &Path) -> Wrapper {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let process = Wrapper(command.spawn().expect("it was built"));
    let is_ready = || ask(at, "GET", "/readyz", "").is_some_and(|(status, _)| status == 200);
    assert!(wait_until(LONG, is_ready), "not ready");
    process
}

fn socket(store: &Store) -> PathBuf {
    store.path("s")
}

/// Root and our own user are administrators there; all others are asked for what they are asked for elsewhere.
#[test]
fn a_unix_socket_is_for_who_runs_the_service() {
    rerun_if_starved(|| {
        let store = Store::file();
        let at = socket(&store);
        let user = made(&store, "user", "in/", "use");
        let file = tokens(&store, std::slice::from_ref(&user));
        let mut process = start(&store, &at, &["--tokens", &file.display().to_string()]);
        let there = std::fs::symlink_metadata(&at).expect("it is there");
        assert!(there.file_type().is_socket());
        assert_eq!(there.mode() & 0o777, 0o660);
        let asked = |method: &str, path: &str, headers: &str| {
            ask(&at, method, path, headers).expect("an answer")
        };
        let name = format!("uid:{}", there.uid());
        let (status, info) = asked("GET", "/v1/info", "");
        assert_eq!((status, &info["principal"]), (200, &name.as_str().into()), "{info}");
        let (status, held) = asked("POST", "/v1/locks/x", "");
        assert_eq!((status, &held["client"]), (201, &name.as_str().into()), "{held}");
        let (status, broken) = asked("DELETE", &format!("/v1/locks/x?fence={}", held["fence"]), "");
        assert_eq!(status, 200, "{broken}");
        // A token counts where one is given.
        let bearer = format!("Authorization: Bearer {}\r\n", user.0);
        assert_eq!(asked("GET", "/v1/info", &bearer).1["principal"], "user");
        assert_eq!(asked("POST", "/v1/locks/out", &bearer).0, 403);
        assert_eq!(asked("GET", "/v1/info", "Authorization: Bearer wrong\r\n").0, 401);
        process.signal(Signal::TERM);
        assert_eq!(process.code(), Some(0));
        assert!(!at.exists(), "it is removed");
        let left = std::fs::read_dir(at.parent().expect("a directory")).expect("a directory");
        let names: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
        assert!(!names.iter().any(|name| name.to_string_lossy().starts_with('.')), "{names:?}");
    });
}

/// What a crash has left is replaced, and what somebody uses is not.
#[test]
fn a_unix_socket_is_taken_over_from_the_dead_only() {
    rerun_if_starved(|| {
        let store = Store::file();
        let at = socket(&store);
        let mut dead = start(&store, &at, &[]);
        dead.signal(Signal::KILL);
        dead.0.wait().expect("it is ours");
        assert!(at.exists());
        let _process = start(&store, &at, &[]);
        let listen = format!("unix:{}", at.display());
        let refused = output(&mut store.coordination(["serve", "--listen", &listen]));
        assert_eq!(refused.status.code(), Some(71), "{}", stderr(&refused));
        let file = store.path("file");
        std::fs::write(&file, "of somebody").expect("a file");
        let listen = format!("unix:{}", file.display());
        let refused = output(&mut store.coordination(["serve", "--listen", &listen]));
        assert_eq!(refused.status.code(), Some(71), "{}", stderr(&refused));
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), "of somebody");
        assert_eq!(ask(&at, "GET", "/livez", "").map(|(status, _)| status), Some(200));
        for words in [["unix:a", "unix:b"], ["127.0.0.1:0", "127.0.0.1:0"], ["unix:", "unix:a"]] {
            let words = ["serve", "--listen", words[0], "--listen", words[1]];
            let refused = output(&mut store.coordination(words));
            assert_eq!(refused.status.code(), Some(64), "{words:?}: {}", stderr(&refused));
        }
    });
}

/// An address and a path are two ways to the same holds.
#[test]
fn a_service_listens_at_an_address_and_at_a_path() {
    rerun_if_starved(|| {
        let store = Store::file();
        let at = socket(&store);
        let words = format!("--listen unix:{}", at.display());
        let service = crate::http::Service::start(&store, &words);
        let held = service.acquire("x", "");
        let (status, row) = ask(&at, "GET", "/v1/locks/x", "").expect("an answer");
        assert_eq!((status, &row["entries"][0]["fence"]), (200, &held["fence"]), "{row}");
        assert!(wait_until(LONG, || service.written().contains("\"peer\":\"uid:")));
    });
}

/// H8: a shell and systemd let a program have fewer descriptors at first than there may be connections.
#[test]
fn h8_idle_connections_take_no_descriptor_from_the_store() {
    rerun_if_starved(|| {
        let store = Store::file();
        let at = socket(&store);
        let listen = format!("unix:{}", at.display());
        let command = store.coordination(["serve", "--listen", &listen]);
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -Sn 256 && exec \"$0\" \"$@\""]);
        limited.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => limited.env(name, value),
                None => limited.env_remove(name),
            };
        }
        let mut process = started(limited, &at);
        let idle: Vec<_> = (0..400).map(|_| UnixStream::connect(&at)).collect();
        assert!(idle.iter().all(Result::is_ok));
        let (status, hold) = ask(&at, "POST", "/v1/locks/x", "").expect("an answer");
        assert_eq!(status, 201, "{hold}");
        let path = format!("/v1/holds/{}", hold["id"].as_str().expect("an id"));
        assert_eq!(ask(&at, "DELETE", &path, "").map(|(status, _)| status), Some(204));
        drop(idle);
        process.signal(Signal::TERM);
        assert_eq!(process.code(), Some(0));
    });
}
