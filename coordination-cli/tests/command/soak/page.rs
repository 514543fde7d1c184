//! H12: the page of `coordination serve`, in Chromium.
//!
//! On a machine without it these tests do nothing. It is Debian's package `chromium`, which `tests/install` installs if it can.

use std::process::Command;
use std::time::Duration;

use coordination_tests::harness::{Redis, Server, rerun_if_starved, wait_until};
use rustix::process::Signal;
use serde_json::json;

use super::clients::{python_with, with_tokens};
use crate::browser::Browser;
use crate::http::{Kept, Service, ask, hold, send};
use crate::{LONG, Store, output, stderr, stdout};

/// What is listed now, line by line.
const LISTED: &str = "document.getElementById('rows').innerText";
const STATE: &str = "document.getElementById('state').innerText";

/// A package that has axe in it, as one text.
const INSTALL_AXE: &str = r#"
set -eu
python3 -m venv "$1"
. "$1/bin/activate"
pip install -q --no-deps axe-playwright-python==0.1.8
"#;
/// Where that is.
const AXE: &str = r#"
import importlib.util, pathlib
package = importlib.util.find_spec("axe_playwright_python").submodule_search_locations[0]
print(pathlib.Path(package) / "axe.min.js")
"#;
/// What axe has to say against the page as it is shown now.
const VIOLATIONS: &str = "axe.run().then((told) => told.violations.map((each) => each.id + ': ' + \
    each.nodes.map((node) => node.target.join(' ') + ': ' + node.failureSummary).join('; ')))";

/// The page of this service.
fn page(service: &Service) -> Browser {
    let mut browser = Browser::start(1_280, 800);
    browser.open(&format!("http://{}/", service.native));
    browser
}

fn shows(browser: &mut Browser, text: &str) {
    browser.until(&format!("{LISTED}.includes({text:?})"));
}

fn shows_no_more(browser: &mut Browser, text: &str) {
    browser.until(&format!("!{LISTED}.includes({text:?})"));
}

#[test]
fn h12_the_page_shows_what_is_held_and_each_change() {
    if !Browser::is_installed() {
        return;
    }
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let post = |path: &str, body: &str| {
            let answer = service.post(path, body);
            assert_eq!(answer.status, 201, "{path}: {answer:?}");
            answer.json()
        };
        let lock = post("/v1/locks/backup", r#"{"lease_ms":600000,"title":"nightly"}"#);
        let _waits =
            send(&service.native, "POST", "/v1/locks/backup", &[], r#"{"wait_ms":600000}"#);
        let markup = r#"{"lease_ms":600000,"title":"<b>bold</b>"}"#;
        post("/v1/locks/%3Cimg%20src=x%20onerror=alert(1)%3E", markup);
        // What ends a line for JavaScript, and not in a stream of events.
        let lines = r#"{"lease_ms":600000,"title":"one\u2028line"}"#;
        post("/v1/locks/no%E2%80%A9end", lines);
        post("/v1/semaphores/uploads", r#"{"lease_ms":600000,"permits":3,"count":2}"#);
        post("/v1/limiters/render", r#"{"lease_ms":600000,"slots":2}"#);
        post("/v1/elections/leader", r#"{"lease_ms":600000,"value":{"at":"h1:9000"}}"#);
        post("/v1/groups/workers", r#"{"lease_ms":600000,"member":"worker-1"}"#);
        let mut browser = page(&service);
        let markup = ["<img src=x onerror=alert(1)>", "<b>bold</b>"];
        for text in ["nightly", "1, longest", "line"].into_iter().chain(markup) {
            shows(&mut browser, text);
        }
        let tabs = "document.getElementById('tabs').innerText.replace(/\\s+/g, ' ')";
        let counted = "All 7 Locks 3 Semaphores 1 Limiters 1 Elections 1 Groups 1";
        browser.until(&format!("{tabs}.trim() === {counted:?}"));

        let after = post("/v1/locks/after", r#"{"title":"by hand"}"#);
        shows(&mut browser, "by hand");
        let _held = store.runs("--member-id cron --lock by-command");
        shows(&mut browser, "cron");
        // Programs of the library, and clients of another instance.
        let _labelled = store.runs("--member-id h7 --label dump --lock labelled");
        shows(&mut browser, "h7 · dump");
        let elsewhere = Service::start(&store, "");
        let body = r#"{"lease_ms":600000,"title":"at another instance"}"#;
        assert_eq!(elsewhere.post("/v1/locks/elsewhere", body).status, 201);
        shows(&mut browser, "at another instance");
        assert_eq!(service.delete(&hold(&after)).status, 204);
        shows_no_more(&mut browser, "by hand");
        assert_eq!(service.delete(&hold(&lock)).status, 204);
        shows_no_more(&mut browser, "nightly");

        for (tab, text) in [
            ("semaphore", "0, 1: "),
            ("semaphore", "2 of 3"),
            ("limiter", "1: "),
            ("limiter", "1 of 2"),
            ("election", r#"{"at":"h1:9000"}"#),
            ("group", "worker-1 came"),
        ] {
            browser.value(&format!("document.getElementById('tab-{tab}').click()"));
            shows(&mut browser, text);
        }
        assert_eq!(browser.value("document.images.length"), 0);
        assert!(browser.told().is_empty(), "{:?}", browser.told());
        let own = format!("http://{}/", service.native);
        let asked = browser.asked();
        assert!(asked.len() >= 3 && asked.iter().all(|url| url.starts_with(&own)), "{asked:?}");
    });
}

/// A row is written once: whoever opens the page later is told the same, and counts from when it was read.
#[test]
fn h12_a_page_that_is_opened_later_shows_what_is_left_by_then() {
    if !Browser::is_installed() {
        return;
    }
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        service.acquire("aging", r#"{"lease_ms":110000}"#);
        let mut first = page(&service);
        shows(&mut first, "aging");
        std::thread::sleep(Duration::from_secs(10));
        let mut later = page(&service);
        shows(&mut later, "aging");
        let left = later.value("parseInt(document.querySelector('#rows .c-lease').innerText)");
        let left = left.as_u64().expect("a number of seconds");
        assert!(left <= 100, "{left} s of 110 s are left after 10 s");
        drop(first);
    });
}

/// With nothing but the keyboard, from the token to the end of somebody's lock.
#[test]
fn h12_an_administrator_takes_a_lock_away() {
    if !Browser::is_installed() {
        return;
    }
    rerun_if_starved(|| {
        let store = Store::file();
        let tokens = with_tokens(&store);
        let authorization = format!("Bearer {}", tokens.admin);
        let credentials = [("Authorization", authorization.as_str())];
        let native = tokens.service.native.clone();
        let body = r#"{"lease_ms":600000,"title":"it hangs"}"#;
        let held = ask(&native, "POST", "/v1/locks/taken", &credentials, body);
        assert_eq!(held.status, 201, "{held:?}");

        let mut browser = page(&tokens.service);
        browser.until("document.activeElement.id === 'token'");
        browser.enter("co_wrong");
        browser.press_enter();
        browser.until("document.getElementById('lacking').innerText !== ''");
        browser.enter(&tokens.admin);
        browser.press_enter();
        shows(&mut browser, "it hangs");
        assert_eq!(browser.value("location.href"), format!("http://{native}/"));

        tab_to(&mut browser, "name");
        browser.press_enter();
        browser.until("document.activeElement.id === 'detail'");
        tab_to(&mut browser, "danger");
        browser.press_enter();
        browser.until("document.activeElement.id === 'cancel'");
        let asked = browser.value("document.getElementById('ask').innerText").to_string();
        assert!(asked.contains("taken") && asked.contains("it hangs"), "{asked}");
        browser.press("Tab", 9, None);
        browser.press_enter();
        shows_no_more(&mut browser, "it hangs");
        let is_free = || {
            let looked = ask(&native, "GET", "/v1/locks/taken", &credentials, "").json();
            looked["entries"].as_array().is_some_and(Vec::is_empty)
        };
        assert!(wait_until(LONG, is_free), "it is held");
        browser.until("document.getElementById('past').innerText.includes('broken')");
    });
}

/// What an administrator has not taken away, the page does not say to be: who holds it has changed, or the right is gone.
#[test]
fn h12_a_break_that_is_not_done_says_why() {
    if !Browser::is_installed() {
        return;
    }
    rerun_if_starved(|| {
        let store = Store::file();
        let tokens = with_tokens(&store);
        let authorization = format!("Bearer {}", tokens.admin);
        let credentials = [("Authorization", authorization.as_str())];
        let native = tokens.service.native.clone();
        let asked =
            |method: &str, path: &str, body: &str| ask(&native, method, path, &credentials, body);
        let held = asked("POST", "/v1/locks/taken", r#"{"lease_ms":600000,"title":"it hangs"}"#);
        assert_eq!(held.status, 201, "{held:?}");
        let mut browser = page(&tokens.service);
        browser.until("document.activeElement.id === 'token'");
        browser.enter(&tokens.admin);
        browser.press_enter();
        shows(&mut browser, "it hangs");
        tab_to(&mut browser, "name");
        browser.press_enter();
        browser.until("document.activeElement.id === 'detail'");
        tab_to(&mut browser, "danger");
        browser.press_enter();
        browser.until("document.getElementById('ask').open");
        assert_eq!(asked("DELETE", &hold(&held.json()), "").status, 204);
        let next = r#"{"lease_ms":600000,"title":"the next one"}"#;
        assert_eq!(asked("POST", "/v1/locks/taken", next).status, 201);
        // It may be disabled for a moment, while the service is asked anew.
        let sure = "(() => { const sure = document.getElementById('sure'); \
            if (sure.disabled) return false; sure.click(); return true; })()";
        browser.until(sure);
        let says =
            |text: &str| format!("document.getElementById('note').innerText.includes({text:?})");
        let changed = ["it had ended before", "the next one"].map(says).join(" && ");
        browser.until(&changed);

        shows(&mut browser, "the next one");
        tab_to(&mut browser, "danger");
        browser.press_enter();
        browser.until("document.getElementById('ask').open");
        let file = store.path("tokens.toml");
        let all = std::fs::read_to_string(&file).expect("it is there");
        std::fs::write(&file, all.replace("admin =", "read =")).expect("there is room");
        tokens.service.process.signal(Signal::HUP);
        let is_read = || asked("DELETE", "/v1/locks/taken?fence=1", "").status == 403;
        assert!(wait_until(LONG, is_read), "the file is read");
        browser.until(sure);
        browser.until(&says("you lack the right “admin on taken”"));
        let looked = asked("GET", "/v1/locks/taken", "").json();
        assert_eq!(looked["entries"][0]["title"], "the next one", "{looked}");
    });
}

/// Presses Tab until something of this class has the focus.
fn tab_to(browser: &mut Browser, class: &str) {
    let is_there = format!("document.activeElement.classList.contains({class:?})");
    for _ in 0..40 {
        if browser.value(&is_there) == true {
            return;
        }
        browser.press("Tab", 9, None);
    }
    panic!("no Tab leads to {class}");
}

#[test]
fn h12_the_page_says_when_the_store_or_the_service_is_away() {
    if !Browser::is_installed() {
        return;
    }
    rerun_if_starved(|| {
        let redis = Redis::one();
        let url = format!("redis://{}?ttl=40s&quarantine=0", redis.node(0).address());
        let store = Store::at(url);
        let mut service = Service::start(&store, "");
        service.acquire("kept", r#"{"lease_ms":35000,"title":"kept"}"#);
        let mut browser = page(&service);
        shows(&mut browser, "kept");
        browser.until(&format!("{STATE} === 'redis: connected'"));

        redis.node(0).pause();
        browser.until(&format!("{STATE} === 'redis: store away'"));
        browser.until("/is good for \\d+ s more/.test(document.getElementById('since').innerText)");
        browser.until("document.querySelectorAll('#rows .stale').length === 1");
        redis.node(0).resume();
        browser.until(&format!("{STATE} === 'redis: connected'"));
        browser.until("document.querySelectorAll('#rows .stale').length === 0");

        service.process.0.kill().expect("it runs");
        service.process.status();
        browser.until(&format!("{STATE} === 'No word from the service'"));
        shows(&mut browser, "kept");
    });
}

/// A thousand locks on a telephone: all of them are shown without a way to the side, and are searched and sorted; what changes meanwhile takes
/// the focus from nobody.
#[test]
fn h12_a_thousand_locks_are_shown_searched_and_sorted() {
    if !Browser::is_installed() {
        return;
    }
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "--no-access-log");
        let mut open = Kept::open(&service.native);
        for number in 0..1_000 {
            let path = format!("/v1/locks/many/{number:04}");
            let body = json!({ "lease_ms": 3_600_000, "title": format!("title-{}", 999 - number) });
            // One try may take too long on a busy machine.
            let is_granted = || open.ask("POST", &path, &body.to_string()).status == 201;
            assert!(wait_until(LONG, is_granted), "{path}");
        }
        let mut browser = page(&service);
        browser.resize(360, 740);
        let count = "document.getElementById('count').innerText";
        browser.until(&format!("{count} === '1000 of 1000 names'"));
        let first = "document.querySelector('#rows .name').textContent";
        browser.until(&format!("{first} === 'many/0000'"));
        let whole = "document.documentElement.scrollWidth === document.documentElement.clientWidth";
        assert_eq!(browser.value(whole), true);
        browser.value(
            "{ const by = document.getElementById('by'); by.value = 'who'; by.dispatchEvent(new Event('change')); }",
        );
        browser.until(&format!("{first} === 'many/0999'"));

        // By the title, the keyboard alone.
        browser.press("/", 191, Some("/"));
        browser.until("document.activeElement.id === 'search'");
        browser.enter("title-500");
        browser.until(&format!("{count} === '1 of 1000 names' && {first} === 'many/0499'"));
        browser.value("document.querySelector('#rows .name').focus()");
        // It comes above the one that has the focus.
        let body = r#"{"lease_ms":600000,"title":"and title-500"}"#;
        assert!(wait_until(LONG, || service.post("/v1/locks/late", body).status == 201));
        browser.until(&format!("{count} === '2 of 1001 names'"));
        assert_eq!(browser.value(first), "late");
        assert_eq!(browser.value("document.activeElement.textContent"), "many/0499");
        assert!(browser.told().is_empty(), "{:?}", browser.told());
    });
}

/// What axe, the usual judge of pages for people who see or hear little, says of each part of the page: nothing, in light and in dark, on a
/// wide screen and on a narrow one.
#[test]
fn h12_axe_has_nothing_to_say() {
    if !Browser::is_installed() {
        return;
    }
    rerun_if_starved(|| {
        let imported = "import importlib.util as u; assert u.find_spec('axe_playwright_python')";
        let python = python_with("axe", imported, INSTALL_AXE);
        let told = output(Command::new(python).args(["-c", AXE]));
        assert!(told.status.success(), "{}", stderr(&told));
        let axe = std::fs::read_to_string(stdout(&told).trim()).expect("it is installed");

        let store = Store::file();
        let tokens = with_tokens(&store);
        let authorization = format!("Bearer {}", tokens.admin);
        let credentials = [("Authorization", authorization.as_str())];
        let native = tokens.service.native.clone();
        for name in ["hangs", "other"] {
            let body = r#"{"lease_ms":600000,"title":"it hangs"}"#;
            let path = format!("/v1/locks/{name}");
            let held = || ask(&native, "POST", &path, &credentials, body).status == 201;
            assert!(wait_until(LONG, held), "{path}");
        }
        let _waits =
            send(&native, "POST", "/v1/locks/hangs", &credentials, r#"{"wait_ms":600000}"#);

        let mut browser = page(&tokens.service);
        browser.until("document.activeElement.id === 'token'");
        browser.value(&format!("{axe}\n;0"));
        says_nothing(&mut browser, "the form for a token");
        browser.value("document.getElementById('token').focus()");
        browser.enter(&tokens.admin);
        browser.press_enter();
        shows(&mut browser, "1, longest");
        says_nothing(&mut browser, "the list");
        browser.value("document.querySelector('#rows .name').click()");
        browser.until("document.querySelectorAll('#queue .danger').length > 0");
        says_nothing(&mut browser, "the detail");
        browser.value("document.querySelector('#queue .danger').click()");
        browser.until("document.activeElement.id === 'cancel'");
        says_nothing(&mut browser, "the question");
    });
}

fn says_nothing(browser: &mut Browser, what: &str) {
    for (scheme, width) in [("light", 1_280), ("dark", 1_280), ("dark", 360), ("light", 360)] {
        browser.prefers(scheme);
        browser.resize(width, 800);
        let said = browser.value(VIOLATIONS);
        assert_eq!(said, json!([]), "{what}, {scheme}, {width} pixels wide");
    }
}
