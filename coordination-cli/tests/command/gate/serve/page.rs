//! The page, as far as it can be tested without a browser: what it is sent with, and the events that it follows.

use std::io::Read;
use std::process::Command;
use std::time::Duration;

use coordination_tests::harness::rerun_if_starved;

use crate::http::{Service, hold, send};
use crate::{Store, output, stderr, stdout};

#[test]
fn the_page_may_load_nothing_else() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let page = service.get("/");
        assert_eq!(page.status, 200);
        let policy = page.header("content-security-policy").expect("it has one");
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        assert_eq!(page.header("x-frame-options"), Some("DENY"));
        assert!(page.body.contains("<title>") && page.body.ends_with("</html>\n"));
    });
}

#[test]
fn the_page_is_told_of_each_change() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let before = service.acquire("before", r#"{"title":"one"}"#);
        let mut events = send(&service.native, "GET", "/v1/events", &[], "");
        let mut text = String::new();
        let mut until = |wanted: &str| {
            let mut bytes = [0; 4096];
            // To the end of an event: its data may come later than its name.
            while !text.split_once(wanted).is_some_and(|(_, after)| after.contains("\n\n")) {
                let count = events.read(&mut bytes).expect("it goes on");
                assert!(count > 0, "it ended without {wanted}: {text}");
                text.push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
            std::mem::take(&mut text)
        };
        let snapshot = until("event: live");
        assert!(
            snapshot.contains("\"state\":\"connected\"") && snapshot.contains("\"title\":\"one\""),
            "{snapshot}"
        );
        assert!(!snapshot.contains(before["id"].as_str().expect("an id")), "ids are secret");
        let after = service.acquire("after", "");
        until("\"name\":\"after\"");
        // Somebody who does not go through the service.
        let _held = store.runs("--member-id cron --lock by-command");
        until("\"who\":\"cron\"");
        assert_eq!(service.delete(&hold(&after)).status, 204);
        let gone = until("event: gone");
        assert!(gone.contains("after"), "{gone}");
    });
}

/// The streams of several recipes: each tells of its own only, and a name of one is no name of another.
#[test]
fn a_stream_is_of_the_recipes_that_were_asked_for() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let post = |path: &str, body: &str| {
            let answer = service.post(path, body);
            assert_eq!(answer.status, 201, "{path}: {answer:?}");
            answer.json()
        };
        let lock = post("/v1/locks/x", r#"{"title":"of the lock"}"#);
        let leads = post("/v1/elections/x", r#"{"value":"one"}"#);
        post("/v1/groups/x", r#"{"member":"m"}"#);
        let permit = post("/v1/semaphores/x", r#"{"permits":2,"title":"of the semaphore"}"#);
        let path = "/v1/events?kinds=semaphore,election";
        let mut events = send(&service.native, "GET", path, &[], "");
        let mut text = String::new();
        let mut told = String::new();
        let mut until = |wanted: &str| {
            let mut bytes = [0; 4096];
            // To the end of an event: its data may come later than its name.
            while !text.split_once(wanted).is_some_and(|(_, after)| after.contains("\n\n")) {
                let count = events.read(&mut bytes).expect("it goes on");
                assert!(count > 0, "it ended without {wanted}: {text}");
                text.push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
            told.push_str(&text);
            std::mem::take(&mut text)
        };
        until("of the semaphore");
        assert_eq!(service.delete(&hold(&lock)).status, 204);
        assert_eq!(service.put(&hold(&leads), r#"{"value":"two"}"#).status, 200);
        until("\"value\":\"two\"");
        assert_eq!(service.delete(&hold(&permit)).status, 204);
        let gone = until("event: gone");
        assert!(gone.contains("\"kind\":\"semaphore\",\"name\":\"x\""), "{gone}");
        assert!(!told.contains("\"lock\"") && !told.contains("\"group\""), "{told}");
        for wrong in ["x", "", "lock,", "locks"] {
            let refused = service.get(&format!("/v1/events?kinds={wrong}"));
            assert_eq!((refused.status, refused.code()), (400, "invalid".to_owned()), "{wrong}");
        }
    });
}

/// Who has never seen the service: the commands of the README, as they stand there, and the page.
#[test]
fn the_first_minute_is_as_in_the_readme() {
    rerun_if_starved(|| {
        let readme = include_str!("../../../../../README.md");
        let (_, section) = readme.split_once("## A service\n").expect("there is one");
        let block = section.split("```").nth(1).expect("there is one");
        let commands: Vec<_> = block.lines().skip(1).filter(|line| !line.is_empty()).collect();
        let [serve, commands @ ..] = commands.as_slice() else { panic!("{block}") };
        let serve = serve.split('#').next().unwrap_or_default().trim();
        assert_eq!(serve, "coordination serve --url file:///run/lock/coordination");
        let store = Store::file();
        let service = Service::start(&store, "");
        let mut told = String::new();
        for command in commands {
            let command = command.replace("localhost:8420", &service.native);
            let ran = output(Command::new("timeout").args(["60", "sh", "-euc", &command]));
            assert!(ran.status.success(), "{command}\n{}{}", stdout(&ran), stderr(&ran));
            told.push_str(&stdout(&ran));
        }
        assert!(told.contains("\"fence\":") && told.contains("\"state\":\"held\""), "{told}");
        assert_eq!((commands.len(), service.get("/").status), (2, 200));
    });
}

/// The examples of the page of docs, as they stand there, at this instance.
#[test]
fn the_examples_of_the_page_run() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let page = include_str!("../../../../../docs/service.md");
        let mut count = 0;
        for (language, program) in [("sh", "sh"), ("python", "python3")] {
            for block in page.split(&format!("```{language} run\n")).skip(1) {
                let example = block.split("```").next().unwrap_or_default();
                let example = example.replace("localhost:8420", &service.native);
                let mut command = Command::new("timeout");
                let ran = output(command.args([
                    "60",
                    program,
                    if program == "sh" { "-euc" } else { "-c" },
                    &example,
                ]));
                assert!(ran.status.success(), "{example}\n{}{}", stdout(&ran), stderr(&ran));
                count += 1;
            }
        }
        assert!(count >= 3, "only {count} examples");
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(
            service.get("/v1/locks").json()["names"],
            serde_json::json!([]),
            "they leave nothing"
        );
    });
}
