//! What an operator sees and does: `status`, `break`, `info`, and what shells and `man` are given.

use coordination::blocking;
use coordination_tests::harness::{Etcd, Redis, Server, rerun_if_starved, wait_until};
use serde_json::Value;

use super::terminal::Terminal;
use crate::{LONG, Store, Wrapper, output, plain, stderr, stdout};

#[test]
fn status_shows_who_holds_and_who_waits() {
    rerun_if_starved(|| {
        let store = Store::file();
        let empty = output(&mut store.coordination(["status"]));
        assert_eq!(stdout(&empty), "nobody holds anything or waits for it\n");
        let _held = [
            store.runs("--member-id one --lock vol-7"),
            store.runs("--member-id two --semaphore pool:3"),
            store.runs("--member-id three --singleton nightly"),
        ];
        let _leader = Wrapper::start(&mut store.coordination([
            "--member-id",
            "four",
            "elect",
            "boss",
            "--",
            "sleep",
            "60",
        ]));
        let _waits = store.start("--member-id five --lock vol-7 -- true");
        let json = || -> Vec<Value> {
            let all = output(&mut store.coordination(["status", "--json"]));
            serde_json::from_str(&stdout(&all)).expect("an array")
        };
        let are_there = || json().len() == 5;
        assert!(wait_until(crate::LONG, are_there), "{:?}", json());
        let seen: Vec<_> = json()
            .iter()
            .map(|row| ["recipe", "name", "state", "member"].map(|key| text(row, key)))
            .collect();
        let expected = [
            ["lock", "vol-7", "holds", "one"],
            ["lock", "vol-7", "waits", "five"],
            ["semaphore", "pool", "holds", "two"],
            ["limiter", "nightly", "works", "three"],
            ["election", "boss", "leads", "four"],
        ];
        assert_eq!(seen, expected.map(|row| row.map(str::to_owned)));
        assert!(
            json()
                .iter()
                .all(|row| row["token"].as_u64() > Some(0) && row["since"].as_f64() > Some(0.0))
        );

        // How many there are for all, of what has a number.
        let of: Vec<_> = json().iter().map(|row| row.get("of").and_then(Value::as_u64)).collect();
        assert_eq!(of, [None, None, Some(3), Some(1), None]);
        let table = stdout(&output(&mut store.coordination(["status", "pool"])));
        assert!(table.trim_end().ends_with("0 of 3"), "{table}");

        let table = stdout(&output(&mut store.coordination(["status", "vol-7"])));
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 3, "{table}");
        assert!(
            lines[0].starts_with("RECIPE")
                && lines[1].contains("holds")
                && lines[2].contains("five"),
            "{table}"
        );
    });
}

#[test]
fn status_shows_what_rates_allow() {
    rerun_if_starved(|| {
        let store = Store::file();
        let status = |words: &str| output(&mut store.coordination(words.split(' ')));
        assert_eq!(store.run("--rate api:2/1s -- true").status.code(), Some(0));
        let rates: Value =
            serde_json::from_str(&stdout(&status("status api --json"))).expect("an array");
        let expected = serde_json::json!([
            {"recipe": "rate", "name": "api", "limits": [[2, 1.0]], "margin": 0.0, "paced": false}
        ]);
        assert_eq!(rates, expected);
        let resized = output(&mut store.coordination(["resize", "--rate", "api:3/2s"]));
        assert_eq!(resized.status.code(), Some(0), "{}", stderr(&resized));
        let table = "RATE  SETTINGS\napi   3 per 2s, strict\n";
        for words in ["status", "status api"] {
            assert_eq!(stdout(&status(words)), table);
        }
        assert_eq!(stdout(&status("status other --json")), "[]\n");
        assert_eq!(status("status api --exit-code").status.code(), Some(1), "nobody holds it");
    });
}

#[test]
fn status_shows_what_is_stored() {
    rerun_if_starved(|| {
        let store = Store::file();
        assert_eq!(store.run("--lock backup --every 8784h -- true").status.code(), Some(0));
        let coordinator = blocking::Coordinator::connect(&store.url).expect("it is there");
        coordinator.counter("hits").expect("a name").add(17).expect("it is there");
        coordinator.value("limit").expect("a name").set(&3).expect("it is there");
        let status = |words: &[&str]| stdout(&output(&mut store.coordination(words)));
        assert_eq!(status(&["status"]), "nobody holds anything or waits for it\n");
        let rows: Vec<Value> =
            serde_json::from_str(&status(&["status", "--stored", "--json"])).expect("an array");
        let seen: Vec<_> =
            rows.iter().map(|row| ["recipe", "name"].map(|key| text(row, key))).collect();
        let expected = [["counter", "hits"], ["job", "backup"], ["value", "limit"]];
        assert_eq!(seen, expected.map(|row| row.map(str::to_owned)));
        assert_eq!(rows[0]["number"], 17);
        assert!(rows[1]["next"].as_f64() > rows[1]["claimed"].as_f64(), "{rows:?}");
        let table = status(&["status", "hits", "--stored"]);
        assert_eq!(table, "STORED   NAME  WHAT\ncounter  hits  17\n");
    });
}

/// By its member id alone nobody can tell what one process holds from what another one of the same host holds.
#[test]
fn labels_are_shown_to_whoever_looks_or_waits() {
    const LABEL: &str = "nightly \"dump\"";
    rerun_if_starved(|| {
        let store = Store::file();
        let with_label = |words: &str, command: [&str; 3]| {
            let words = words.split(' ').chain(["--label", LABEL]).chain(command);
            Wrapper::start(&mut store.coordination(words))
        };
        let sleeps = ["--", "sleep", "60"];
        let _held = [
            with_label("--member-id one run --lock vol-7", sleeps),
            with_label("--member-id two run --semaphore pool:3", sleeps),
            with_label("--member-id three run --singleton nightly", sleeps),
            with_label("--member-id four elect boss", sleeps),
            with_label("--member-id five join web", sleeps),
        ];
        let rows = || -> Vec<Value> {
            let all = output(&mut store.coordination(["status", "--json"]));
            serde_json::from_str(&stdout(&all)).expect("an array")
        };
        assert!(wait_until(LONG, || rows().len() == 4), "{:?}", rows());
        assert!(rows().iter().all(|row| row["label"] == LABEL), "{:?}", rows());
        let table = stdout(&output(&mut store.coordination(["status", "vol-7"])));
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].ends_with("  LABEL") && lines[1].ends_with(LABEL), "{table}");

        let members = |words: &str| stdout(&output(&mut store.coordination(words.split(' '))));
        let is_there = || members("members web") == format!("five ({LABEL})  null\n");
        assert!(wait_until(LONG, is_there), "{}", members("members web"));
        let member: Value = serde_json::from_str(&members("members web --json")).expect("JSON");
        assert_eq!(member["label"], LABEL);

        let busy = output(&mut store.coordination("run --lock vol-7 --wait 0 -- true".split(' ')));
        assert!(stderr(&busy).contains(&format!("held by one ({LABEL})")), "{}", stderr(&busy));
        let broken = output(&mut store.coordination("break vol-7 --yes".split(' ')));
        assert!(stderr(&broken).contains(&format!("one ({LABEL})")), "{}", stderr(&broken));
    });
}

#[test]
fn a_bad_label_is_told_before_anything_is_held() {
    rerun_if_starved(|| {
        let store = Store::file();
        for words in ["run --lock x", "run --semaphore x:1", "run --singleton x", "elect x"] {
            for label in ["two\nlines", &"x".repeat(256)] {
                let words = words.split(' ').chain(["--label", label, "--", "echo", "ran"]);
                let refused = output(&mut store.coordination(words));
                assert_eq!(refused.status.code(), Some(64), "{}", stderr(&refused));
                assert!(stderr(&refused).contains("label") && stdout(&refused).is_empty());
            }
        }
        let words = "run --rate x:1/1s --label y -- true".split(' ');
        assert_eq!(output(&mut store.coordination(words)).status.code(), Some(64), "of what?");
    });
}

/// For scripts that ask no more than that.
#[test]
fn whether_anybody_has_it_is_told_by_the_code() {
    rerun_if_starved(|| {
        let store = Store::file();
        let code = |words: &str| output(&mut store.coordination(words.split(' '))).status.code();
        let names = ["lock", "semaphore", "singleton"];
        for name in names {
            assert_eq!(code(&format!("status {name} --exit-code")), Some(1), "{name}");
            assert_eq!(code(&format!("status {name}")), Some(0), "{name}");
        }
        let held = [
            store.runs("--lock lock"),
            store.runs("--semaphore semaphore:2"),
            store.runs("--singleton singleton"),
        ];
        for name in names {
            assert_eq!(code(&format!("status {name} --exit-code --json")), Some(0), "{name}");
        }
        assert_eq!(code("status --exit-code"), Some(64), "of what?");
        assert_eq!(code("status lock --exit-code --watch"), Some(64), "of when?");
        drop(held);
        assert!(wait_until(crate::LONG, || code("status lock --exit-code") == Some(1)));

        assert_eq!(code("members web --exit-code"), Some(1), "nobody has ever joined");
        let one = Wrapper::start(&mut store.coordination("join web -- sleep 60".split(' ')));
        assert!(wait_until(crate::LONG, || code("members web --exit-code") == Some(0)));
        drop(one);
        assert!(wait_until(crate::LONG, || code("members web --exit-code") == Some(1)));
        assert_eq!(code("members web"), Some(0));
    });
}

/// An operator who sees that finds the process, and two of a container's first processes are not the same.
#[test]
fn who_names_himself_not_is_known_by_host_and_process() {
    rerun_if_starved(|| {
        let store = Store::file();
        let members: Vec<_> = ["x", "y"]
            .map(|name| {
                let held = store.runs(&format!("--lock {name}"));
                let status = stdout(&output(&mut store.coordination(["status", name, "--json"])));
                let rows: Value = serde_json::from_str(&status).expect("an array");
                (held, text(&rows[0], "member"))
            })
            .into();
        let host = rustix::system::uname();
        let host = host.nodename().to_str().expect("a name");
        let mut chance = Vec::new();
        for (held, member) in &members {
            let ours = format!("{host}-{}-", held.0.id());
            let rest = member.strip_prefix(&ours);
            let rest = rest.unwrap_or_else(|| panic!("{member} does not begin with {ours}"));
            assert!(rest.len() >= 8, "{member}");
            chance.push(rest);
        }
        assert_ne!(chance[0], chance[1]);
    });
}

#[test]
fn a_watched_status_is_drawn_again() {
    rerun_if_starved(|| {
        let store = Store::file();
        let terminal = Terminal::new();
        let mut watching = terminal.starts(&store, "status --watch");
        terminal.sees("\x1b[H\x1b[Jnobody holds anything");
        let held = store.runs("--member-id one --lock vol-7");
        terminal.sees("vol-7  holds  one");
        terminal.clear();
        terminal.sees("0 s");
        drop(held);
        terminal.sees("nobody holds anything");
        let mut terminal = terminal;
        terminal.types("\x03");
        assert_eq!(watching.code(), Some(130));
    });
}

#[test]
fn breaking_asks_first() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut held = store.runs("--member-id stuck --lock x");
        let unasked = output(&mut store.coordination(["break", "x"]));
        assert_eq!(unasked.status.code(), Some(64));
        assert!(stderr(&unasked).contains("--yes"), "{}", stderr(&unasked));
        let mut terminal = Terminal::new();
        let mut asks = terminal.starts(&store, "break x");
        terminal.sees("Break \"x\", held by stuck with token");
        terminal.types("n\n");
        assert_eq!(asks.code(), Some(1));
        assert!(held.is_running());
        let mut asks = terminal.starts(&store, "break x");
        terminal.clear();
        terminal.sees("[y/N]");
        terminal.types("y\n");
        assert_eq!(asks.code(), Some(0));
        assert_eq!(held.code(), Some(70), "its command was stopped");
        let free = output(&mut store.coordination(["break", "x", "--yes"]));
        assert_eq!((free.status.code(), stderr(&free).contains("nobody holds")), (Some(0), true));
    });
}

#[test]
fn breaking_may_only_ask_the_holders() {
    rerun_if_starved(|| {
        let store = Store::file();
        let asks = || output(&mut store.coordination(["break", "x", "--ask"]));
        let free = asks();
        assert_eq!((free.status.code(), stderr(&free).contains("nobody holds")), (Some(1), true));
        let mut held = store.runs("--member-id busy --lock x");
        let asked = asks();
        assert_eq!(asked.status.code(), Some(0), "{}", stderr(&asked));
        let shown = stderr(&asked);
        assert!(shown.contains("asked to let go: \"x\", held by busy with token"), "{shown}");
        assert!(held.is_running(), "nothing was taken away");

        let coordinator = blocking::Coordinator::connect(&store.url).expect("it is there");
        let guard = coordinator.lock("y").expect("a name").acquire(None).expect("it is free");
        let asked = output(&mut store.coordination(["break", "y", "--ask", "--quiet"]));
        assert_eq!((asked.status.code(), stderr(&asked)), (Some(0), String::new()));
        assert!(wait_until(LONG, || guard.is_release_requested()), "the holder is told");
        assert!(guard.is_held());
    });
}

/// Whatever it is of which somebody holds something.
#[test]
fn breaking_takes_away_what_status_shows() {
    rerun_if_starved(|| {
        let store = Store::file();
        let breaks = |words: &str| {
            let words = format!("break x --yes {words}");
            output(&mut store.coordination(words.split(' ')))
        };
        let mut leads = Wrapper(
            store.coordination(["elect", "x", "--", "sleep", "60"]).spawn().expect("it was built"),
        );
        let mut works = store.runs("--singleton x");
        let mut first = store.runs("--member-id first --semaphore x:2");
        let status = || -> Vec<Value> {
            let all = output(&mut store.coordination(["status", "x", "--json"]));
            serde_json::from_str(&stdout(&all)).expect("an array")
        };
        assert!(wait_until(LONG, || status().len() == 3), "{:?}", status());
        let mut second = store.runs("--member-id second --semaphore x:2");
        let of = |member: &str| {
            let row = status().into_iter().find(|row| row["member"] == member);
            row.expect("it holds a permit")["token"].as_u64().expect("a number")
        };
        let unsure = breaks("--recipe semaphore");
        assert_eq!(unsure.status.code(), Some(64));
        assert!(stderr(&unsure).contains("--token"), "{}", stderr(&unsure));
        let token = of("second");
        let one = breaks(&format!("--recipe semaphore --token {token}"));
        assert_eq!(one.status.code(), Some(0), "{}", stderr(&one));
        assert_eq!(second.code(), Some(70), "its command was stopped");
        assert!(first.is_running());
        for (recipe, process) in [("semaphore", &mut first), ("limiter", &mut works)] {
            let broken = breaks(&format!("--recipe {recipe}"));
            assert_eq!(broken.status.code(), Some(0), "{}", stderr(&broken));
            assert_eq!(process.code(), Some(70), "{recipe}");
        }
        assert_eq!(breaks("--recipe election").status.code(), Some(0));
        assert_eq!(leads.code(), Some(70));
        assert!(stderr(&breaks("--recipe election")).contains("nobody holds"));
    });
}

#[test]
fn what_was_taken_away_is_remembered() {
    rerun_if_starved(|| {
        let store = Store::file();
        let history = |words: &str| {
            let mut command = store.coordination(["status", "--history"]);
            stdout(&output(command.args(words.split_whitespace())))
        };
        let breaks = |words: &[&str]| {
            let mut command = store.coordination(["--member-id", "operator", "break", "x"]);
            output(command.arg("--yes").args(words))
        };
        assert_eq!(breaks(&[]).status.code(), Some(0));
        assert_eq!(history(""), "nobody has taken anything away\n");
        let mut held = store.runs("--member-id stuck --lock x");
        let broken = breaks(&["--reason", "hangs on nfs"]);
        assert_eq!(broken.status.code(), Some(0), "{}", stderr(&broken));
        assert_eq!(held.code(), Some(70), "its command was stopped");
        let all: Vec<Value> = serde_json::from_str(&history("--json")).expect("an array");
        assert_eq!(all.len(), 1, "{all:?}");
        for (key, expected) in [
            ("by", "operator"),
            ("recipe", "lock"),
            ("name", "x"),
            ("member", "stuck"),
            ("reason", "hangs on nfs"),
        ] {
            assert_eq!(text(&all[0], key), expected);
        }
        assert!(all[0]["token"].as_u64() > Some(0) && all[0]["when"].as_f64() > Some(0.0));
        let table = history("x");
        assert!(table.lines().count() == 2 && table.ends_with("hangs on nfs\n"), "{table}");
        assert_eq!(history("y --json"), "[]\n");
        let long = breaks(&["--reason", &"x".repeat(256)]);
        assert_eq!(long.status.code(), Some(64), "{}", stderr(&long));
    });
}

/// Not whoever has followed the one that was seen.
#[test]
fn breaking_may_mean_one_grant_only() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut held = store.runs("--lock x");
        let status = || -> Vec<Value> {
            let all = output(&mut store.coordination(["status", "x", "--json"]));
            serde_json::from_str(&stdout(&all)).expect("an array")
        };
        let token = status()[0]["token"].as_u64().expect("a number");
        let breaks = |token: u64| {
            let words = format!("break x --yes --token {token}");
            output(&mut store.coordination(words.split(' ')))
        };
        let missed = breaks(token + 1);
        assert_eq!(missed.status.code(), Some(0));
        assert!(stderr(&missed).contains("nobody holds \"x\" with token"), "{}", stderr(&missed));
        assert!(held.is_running());
        assert!(stderr(&breaks(token)).contains("broken"));
        assert_eq!(held.code(), Some(70));
        let mut next = store.runs("--lock x --wait 30s");
        breaks(token);
        assert!(next.is_running() && status()[0]["state"] == "holds");
    });
}

/// It has no command that could go on. It queues again when whom it waits for has ended.
#[test]
fn breaking_one_that_waits_sends_it_to_the_end_of_the_queue() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut held = store.runs("--member-id holds --lock x");
        let mut waits = store.start("--member-id waits --lock x -- true");
        let token = || -> Option<u64> {
            let all = output(&mut store.coordination(["status", "x", "--json"]));
            let all: Vec<Value> = serde_json::from_str(&stdout(&all)).expect("an array");
            all.iter().find(|row| row["member"] == "waits")?["token"].as_u64()
        };
        assert!(wait_until(LONG, || token().is_some()));
        let first = token().expect("it waits").to_string();
        let broken =
            output(&mut store.coordination(["break", "x", "--yes", "--token", first.as_str()]));
        let said = stderr(&broken);
        assert_eq!(broken.status.code(), Some(0), "{said}");
        assert!(said.contains("waited for by waits with token"), "{said}");
        assert!(said.contains("the end of the queue") && !said.contains("may go on"), "{said}");
        assert_ne!(token().map(|token| token.to_string()), Some(first), "it has its place no more");
        assert!(held.is_running() && waits.is_running());
        drop(held);
        assert_eq!(waits.code(), Some(0));
    });
}

#[test]
fn every_command_has_the_same_version() {
    rerun_if_starved(|| {
        let [all, run, status] =
            [&["--version"][..], &["run", "--version"], &["status", "--version"]]
                .map(|words| stdout(&output(plain().args(words))));
        assert!(all.starts_with("coordination ") && all.lines().count() == 1, "{all}");
        assert_eq!([&run, &status], [&all, &all]);
    });
}

/// What is said of a code may be shorter in the help.
#[test]
fn the_help_has_the_exit_codes_of_the_page() {
    let help = stdout(&output(plain().args(["run", "--help"]).env("COLUMNS", "120")));
    let (_, codes) = help.split_once("\nExit codes:\n").expect("they are there");
    let lines = codes.lines().map_while(|line| line.strip_prefix("  ")?.split_at_checked(9));
    let of_help: Vec<_> = lines.map(|(code, told)| (code.trim_end(), told)).collect();
    let page = include_str!("../../../../docs/cli.md");
    let (_, table) = page.split_once("\n## Exit codes\n\n").expect("they are there");
    let rows = table.lines().map_while(|line| line.strip_prefix("| ")?.split_once(" | "));
    let of_page: Vec<_> = rows.collect();
    let ours = |all: &[(&str, &str)]| -> Vec<String> {
        let all = all.iter().skip_while(|(code, _)| *code != "64");
        all.map(|(code, _)| (*code).to_owned()).collect()
    };
    assert_eq!(ours(&of_help), ["64", "69", "70", "71", "75", "126, 127", "128 + n"]);
    assert_eq!(ours(&of_help), ours(&of_page));
    for (code, told) in of_help.into_iter().chain(of_page) {
        let is_whole = told.contains("or may have outlived it");
        assert_eq!(is_whole, code == "70", "{code}: {told}");
    }
}

#[test]
fn prune_removes_what_nobody_uses() {
    rerun_if_starved(|| {
        let store = Store::file();
        let mut held = store.runs("--lock held");
        assert_eq!(store.run("--lock used -- true").status.code(), Some(0));
        let young = output(&mut store.coordination(["prune"]));
        assert!(stderr(&young).contains("0 unused names removed"), "{}", stderr(&young));
        let pruned = output(&mut store.coordination(["prune", "--unused", "0s"]));
        assert_eq!(pruned.status.code(), Some(0));
        // The lock's, and that of the command that had it.
        assert!(stderr(&pruned).contains("2 unused names removed"), "{}", stderr(&pruned));
        assert!(held.is_running());
    });
}

#[test]
fn info_says_what_a_store_does_not_promise() {
    rerun_if_starved(|| {
        let on_file = stdout(&output(&mut Store::file().coordination(["info"])));
        let (promises, others) =
            on_file.split_once("It does not promise:").expect("a file does not promise all");
        assert!(promises.contains("who came first is served first"), "{on_file}");
        assert!(others.contains("many hosts"), "{on_file}");
        let json = stdout(&output(&mut Store::file().coordination(["info", "--json"])));
        let json: Value = serde_json::from_str(&json).expect("an object");
        assert_eq!(text(&json, "scope"), "processes");
        assert_eq!(json["fifo"], true);
        let server = Etcd::one();
        let store = Store::at(format!("etcd://{}", server.node(0).address()));
        let on_etcd = stdout(&output(&mut store.coordination(["info"])));
        assert!(on_etcd.contains("exclusion among the processes of many hosts"), "{on_etcd}");
    });
}

#[test]
fn the_doctor_tries_what_others_need() {
    rerun_if_starved(|| {
        let on_file = Store::file();
        let well = output(&mut on_file.coordination(["doctor"]));
        let said = stdout(&well);
        assert_eq!(well.status.code(), Some(0), "{said}");
        for wanted in [
            "ok      connected to file",
            "and has mode 0700\n",
            "ok      100 locks",
            "ok      a group",
            "mind    not promised: ",
        ] {
            assert!(said.contains(wanted), "{wanted} is missing from {said}");
        }
        let json = stdout(&output(&mut on_file.coordination(["doctor", "--json"])));
        let findings: Vec<Value> = serde_json::from_str(&json).expect("an array");
        for (finding, wanted) in [("ok", "100 locks"), ("mind", "not promised: ")] {
            let is_told = |row: &Value| {
                text(row, "finding") == finding && text(row, "text").starts_with(wanted)
            };
            assert!(findings.iter().any(is_told), "{wanted} is missing from {json}");
        }
        let empty = output(&mut on_file.coordination(["status", "--json"]));
        assert_eq!(stdout(&empty), "[]\n", "it leaves nothing");
        let pruned = output(&mut on_file.coordination(["prune", "--unused", "0s"]));
        let pruned = stderr(&pruned);
        assert!(pruned.contains("0 unused names removed"), "nor a file: {pruned}");

        let server = Etcd::one();
        let well = Store::at(format!("etcd://{}/doctor", server.node(0).address()));
        let said = stdout(&output(&mut well.coordination(["doctor"])));
        assert!(said.contains("ok      the server's version is 3."), "{said}");

        // A user who may only read.
        let server = Etcd::options().users("/elsewhere/").start();
        let url = format!("etcd://{}{}/doctor", Etcd::user_information(), server.node(0).address());
        let ill = output(&mut Store::at(url).coordination(["doctor"]));
        assert_eq!(ill.status.code(), Some(69), "{}{}", stdout(&ill), stderr(&ill));
    });
}

#[test]
fn the_doctor_knows_what_passes_and_what_others_may_do() {
    rerun_if_starved(|| {
        let server = Redis::one();
        let url = format!("redis://{}?quarantine=1h", server.node(0).address());
        let new = output(&mut Store::at(url).coordination(["doctor"]));
        let said = stdout(&new);
        assert_eq!(new.status.code(), Some(69), "{said}{}", stderr(&new));
        assert!(said.contains("BROKEN  a lock") && said.contains("it passes by itself"), "{said}");
        assert!(said.contains("ok      the server's version is "), "{said}");
        assert!(
            said.contains("ok      the server's clock and this host's show the same"),
            "{said}"
        );

        let store = Store::file();
        let directory = store.path("locks");
        std::fs::create_dir(&directory).expect("it is new");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        std::fs::set_permissions(&directory, mode).expect("it is ours");
        let open = output(&mut store.coordination(["doctor"]));
        let (said, wanted) = (stdout(&open), "has mode 1777: everybody may write there");
        let line = said.lines().find(|line| line.contains(wanted));
        assert!(line.is_some_and(|line| line.starts_with("mind    ")), "{said}");
    });
}

#[test]
fn shells_and_man_are_served() {
    rerun_if_starved(|| {
        let bash = output(plain().args(["completions", "bash"]));
        assert!(stdout(&bash).contains("_coordination()"), "{}", stderr(&bash));
        let man = stdout(&output(plain().arg("man")));
        for wanted in [".TH coordination", "COORDINATION RUN", "\\-\\-lock", "COORDINATION STATUS"]
        {
            assert!(man.contains(wanted), "{wanted} is missing");
        }
        let help = stdout(&output(plain().args(["help", "run"])));
        assert!(help.contains("Exit codes:") && help.contains("75"), "{help}");
    });
}

fn text(row: &Value, key: &str) -> String {
    row[key].as_str().unwrap_or_default().to_owned()
}
