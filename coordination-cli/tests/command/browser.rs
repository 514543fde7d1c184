//! Chromium without a window, told what to do by its DevTools protocol. It reads that from a pipe and not from a WebSocket, so that
//! nothing is needed but JSON.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;

use coordination_tests::harness::{Scratch, wait_until};
use serde_json::{Value, json};

use crate::LONG;

/// It takes messages at descriptor 3 and answers at 4. What it prints is of no use to a test.
const BEGIN: &str = r#"exec chromium "$@" 3<&0 4>&1 >/dev/null 2>/dev/null </dev/null"#;
/// The pages are our own, and root's Chromium has no sandbox.
const OPTIONS: [&str; 7] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--remote-debugging-pipe",
];

/// A browser with one page; ended when dropped.
pub(crate) struct Browser {
    process: Child,
    requests: Option<ChildStdin>,
    messages: mpsc::Receiver<Value>,
    /// What the page has told so far: exceptions, and what came to its console.
    told: Vec<String>,
    /// The URLs that the page has asked for.
    asked: Vec<String>,
    session: Value,
    last: u64,
    // Declared last, so that the process ends before its directory is removed.
    _profile: Scratch,
}

impl Browser {
    /// Whether there is one on this machine. If not, this is said, and its checks do nothing.
    pub(crate) fn is_installed() -> bool {
        let version = Command::new("chromium").arg("--version").output();
        let is_there = version.is_ok_and(|version| version.status.success());
        if !is_there {
            println!("skipped: without chromium nothing is shown; tests/install installs it");
        }
        is_there
    }

    /// Begins with an empty page of this size.
    pub(crate) fn start(width: u32, height: u32) -> Self {
        let profile = Scratch::new("browser");
        let mut command = Command::new("sh");
        command.args(["-c", BEGIN, "sh"]).args(OPTIONS);
        command.arg(format!("--user-data-dir={}", profile.join("profile").display()));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = child.expect("there is a shell");
        let messages = messages(&mut process);
        let requests = process.stdin.take();
        let (told, asked) = (Vec::new(), Vec::new());
        let mut browser = Self {
            process,
            requests,
            messages,
            told,
            asked,
            session: Value::Null,
            last: 0,
            _profile: profile,
        };
        let page = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let page = json!({ "targetId": page["targetId"], "flatten": true });
        browser.session = browser.ask("Target.attachToTarget", page)["sessionId"].take();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser.resize(width, height);
        browser
    }

    /// Makes the page so large.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.ask("Emulation.setDeviceMetricsOverride", size);
    }

    /// Is that of somebody who prefers this, `dark` or `light`, and nothing that moves.
    pub(crate) fn prefers(&mut self, scheme: &str) {
        let features = json!([
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.ask("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Goes to this page.
    pub(crate) fn open(&mut self, url: &str) {
        self.ask("Page.navigate", json!({ "url": url }));
    }

    /// The value of an expression on the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let asked =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        self.ask("Runtime.evaluate", asked)["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let is_so = wait_until(LONG, || self.value(expression) == true);
        let shown = "document.body.innerText";
        assert!(is_so, "never {expression}: {} {:?}", self.value(shown), self.told);
    }

    /// Presses and releases a key that has this name and this number, and types this text, if it types one.
    pub(crate) fn press(&mut self, key: &str, number: u32, text: Option<&str>) {
        let mut event =
            json!({ "type": "rawKeyDown", "key": key, "windowsVirtualKeyCode": number });
        if let Some(text) = text {
            event["type"] = "keyDown".into();
            event["text"] = text.into();
        }
        self.ask("Input.dispatchKeyEvent", event.clone());
        event["type"] = "keyUp".into();
        self.ask("Input.dispatchKeyEvent", event);
    }

    pub(crate) fn press_enter(&mut self) {
        self.press("Enter", 13, Some("\r"));
    }

    /// Types a text where the focus is.
    pub(crate) fn enter(&mut self, text: &str) {
        self.ask("Input.insertText", json!({ "text": text }));
    }

    /// Exceptions, and what came to the console, until now.
    pub(crate) fn told(&mut self) -> &[String] {
        // All that was told before the answer is there with it.
        self.value("0");
        &self.told
    }

    /// The URLs that the page has asked for, until now.
    pub(crate) fn asked(&mut self) -> &[String] {
        self.value("0");
        &self.asked
    }

    /// Sends a request and waits for its answer.
    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut request = json!({ "id": self.last, "method": method, "params": parameters });
        if !self.session.is_null() {
            request["sessionId"] = self.session.clone();
        }
        let requests = self.requests.as_mut().expect("it runs");
        requests.write_all(format!("{request}\0").as_bytes()).expect("it reads");
        loop {
            let told = self.messages.recv_timeout(LONG);
            let mut told = told.unwrap_or_else(|_| panic!("no answer to {method}"));
            if told["id"] == self.last {
                assert!(told["error"].is_null(), "{method}: {told}");
                return told["result"].take();
            }
            self.note(&told);
        }
    }

    /// Keeps what an event says, if it is one of those that count.
    fn note(&mut self, event: &Value) {
        let of = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => self.told.push(of["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled" => self.told.push(of["args"].to_string()),
            "Log.entryAdded" => self.told.push(of["entry"].to_string()),
            "Network.requestWillBeSent" => {
                let url = of["request"]["url"].as_str().unwrap_or_default();
                self.asked.push(url.to_owned());
            }
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // With the end of what it reads it ends, and all its processes.
        self.requests = None;
        if !wait_until(LONG, || !matches!(self.process.try_wait(), Ok(None))) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// What it says, message by message.
fn messages(process: &mut Child) -> mpsc::Receiver<Value> {
    let (sender, messages) = mpsc::channel();
    let mut output = BufReader::new(process.stdout.take().expect("a pipe"));
    std::thread::spawn(move || {
        let mut text = Vec::new();
        while output.read_until(0, &mut text).is_ok_and(|count| count > 0) {
            text.pop();
            let message = serde_json::from_slice(&text).unwrap_or_default();
            if sender.send(message).is_err() {
                return;
            }
            text.clear();
        }
    });
    messages
}
