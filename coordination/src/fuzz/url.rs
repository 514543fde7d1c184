//! The URL, with the settings in it and beside it.

use std::error::Error as StdError;

use coordination_fuzzing::{Mutants, run};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use serde_json::json;

use crate::backend::registry::Target;
use crate::characteristics::Requirement;
use crate::config::Config;
use crate::duration;
use crate::error::{Error, ErrorKind};
use crate::url::Url;

/// A text in the place of a secret, which no error may show.
const CANARY: &str = "CANARY";

const URLS: [&str; 8] = [
    "memory://",
    "memory://a:b,c%20d/?ttl=1",
    "file:///srv/a@b%3F?durable=true&network_filesystem=allow",
    "etcd://us%20er:p:%40+@h1:2379,h_2,[::1]:80/ns?ttl=5s&heartbeat=500ms",
    "etcds://h?namespace=a.b-c_d&require=survives_crash,fair&server_name=x",
    "etcd3+http://h?initial_reconnect_backoff=0.1&max_reconnect_backoff=2m",
    "etcd3+https://user:pw@[fe80::1]/ns?ca=/nonexistent/ca.pem",
    "redis://:pw@h",
];

const URL_TOKENS: [&str; 16] =
    ["://", "@", ":", "/", "?", "#", "%", "%0A", "%FF", "%2F", "&", "=", ",", "[", "]", CANARY];

const DURATIONS: [&str; 8] =
    ["500ms", "5s", "2m", "1h", "0.25", "10", "18446744073709551615", "0.000000001"];

const CONFIG: &str = r#""member_id":"m","prefix":"p-","namespace":"ns","ttl":"10s","heartbeat":0.5,
    "initial_reconnect_backoff":null,"max_reconnect_backoff":60,"long_wait":"30s","require":["fair"],
    "max_name_bytes":1024,"heartbeat_on_current_runtime":false"#;

const CONFIG_TOKENS: [&str; 12] =
    ["\"", "{", "}", "[", "]", ",", ":", "null", "true", "1e999", "\"ttl\":", "\\u0000"];

#[derive(Clone, Debug)]
enum Input {
    Url(String),
    /// A URL, or an option, in which [`CANARY`] stands in the place of each secret and nowhere else.
    Secret(String),
    /// What follows the URL in a configuration.
    Config(String),
    Duration(String),
}

fn inputs() -> impl Strategy<Value = Input> {
    let config = Mutants::of([CONFIG]).with_tokens(&CONFIG_TOKENS).text();
    prop_oneof![
        3 => Mutants::of(URLS).with_tokens(&URL_TOKENS).text().prop_map(Input::Url),
        2 => secret_url().prop_map(Input::Secret),
        2 => config.prop_map(Input::Config),
        1 => Mutants::of(DURATIONS).with_tokens(&["ms", "h", ".", "e"]).text().prop_map(Input::Duration),
    ]
}

fn secret_url() -> impl Strategy<Value = String> {
    let scheme = select(&["etcd", "etcds", "etcd3+http", "file", "memory", "redis"][..]);
    // A `?`, `/` or `@` in a password ends it for a reader of URLs.
    let around = "[a1@:/?#%&=,.\\[é ]{0,6}";
    let user = prop_oneof!["[a1:%]{0,3}", Just(CANARY.to_owned())];
    let option = select(&["ca", "cert", "key", "password_file", "password", "token", "ttl2"][..]);
    // With a `=` it would be the name of an option, which is shown.
    let value = "[a1@:/?%,.é+]{0,4}";
    let host = prop_oneof![Just("h:1,h2".to_owned()), "[a1:,.\\[\\]]{0,4}"];
    (scheme, user, [around; 2], host, option, [value; 2]).prop_map(
        |(scheme, user, [before, after], host, option, [left, right])| {
            format!("{scheme}://{user}:{before}{CANARY}{after}@{host}/ns?ttl=5s&{option}={left}{CANARY}{right}")
        },
    )
}

#[test]
fn fuzz_url() {
    run("fuzz_url", &inputs(), |input| match input {
        Input::Url(text) => a_url_is_read_or_refused(&text),
        Input::Secret(text) => no_secret_is_shown(&text),
        Input::Config(text) => a_configuration_is_read_or_refused(&text),
        Input::Duration(text) => a_duration_is_read_or_refused(&text),
    });
}

/// All that a failure may show, of its sources too.
fn all_text(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(" {error} {error:?}"));
        source = error.source();
    }
    text
}

fn a_url_is_read_or_refused(text: &str) -> TestCaseResult {
    let shown = match Url::parse_by_scheme(text) {
        Ok(url) => format!("{url}{url:?}"),
        Err(error) => {
            let shown = all_text(&error);
            prop_assert_eq!(error.kind(), ErrorKind::Config);
            prop_assert!(!shown.contains(CANARY), "{shown}");
            shown
        }
    };
    prop_assert!(!shown.contains(char::is_control), "it can forge a line of a log: {shown:?}");
    let _ = text.parse::<Requirement>();
    // Options may name files, which would then be read. Devices and the system's own files are left out.
    if ["/dev", "/proc", "/sys"].iter().any(|place| text.contains(place)) {
        return Ok(());
    }
    match Target::parse(text, Config::default()) {
        Ok((_, settings)) => {
            let namespace = settings.namespace;
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            prop_assert!(namespace.chars().all(allowed) && (1..=200).contains(&namespace.len()));
            prop_assert!(settings.ttl.as_millis() >= 100 && settings.heartbeat.as_millis() >= 1);
            prop_assert!(settings.ttl.as_secs() <= 86_400);
        }
        Err(error) => prop_assert!(
            matches!(error.kind(), ErrorKind::Config | ErrorKind::Unsupported),
            "{error:?}"
        ),
    }
    Ok(())
}

fn no_secret_is_shown(text: &str) -> TestCaseResult {
    let mut shown = match Url::parse_by_scheme(text) {
        Ok(url) => format!("{url} {url:?}"),
        Err(error) => all_text(&error),
    };
    shown += &match Target::parse(text, Config::default()) {
        Ok((target, settings)) => format!("{target} {settings:?}"),
        Err(error) => all_text(&error),
    };
    prop_assert!(!shown.contains(CANARY), "{shown}");
    Ok(())
}

fn a_configuration_is_read_or_refused(rest: &str) -> TestCaseResult {
    let text = format!(r#"{{"url":"etcd://u:{CANARY}@h",{rest}}}"#);
    match serde_json::from_str::<Config>(&text) {
        Err(error) => {
            let shown = format!("{error} {error:?}");
            prop_assert!(!shown.contains(CANARY), "{shown}");
        }
        Ok(config) => {
            let shown = format!("{config:?} {config:#?}");
            prop_assert!(!shown.contains(CANARY), "{shown}");
            let written = serde_json::to_string(&config).expect("plain data");
            prop_assert!(!written.contains(CANARY), "{written}");
            let again: Config = serde_json::from_str(&written).expect("as it was written");
            prop_assert_eq!(format!("{again:?}"), format!("{config:?}"));
            prop_assert_eq!(again.url.as_deref(), Some("etcd://u:***@h"));
            let _ = Target::parse("memory://", config);
        }
    }
    Ok(())
}

fn a_duration_is_read_or_refused(text: &str) -> TestCaseResult {
    let parsed = duration::parse(text);
    let given = serde_json::from_value::<Config>(json!({ "ttl": text }));
    match (parsed, given) {
        (Ok(parsed), Ok(given)) => {
            prop_assert_eq!(given.ttl, Some(parsed));
            let written = serde_json::to_string(&given).expect("plain data");
            let again: Config = serde_json::from_str(&written).expect("as it was written");
            prop_assert_eq!(again.ttl, Some(parsed));
        }
        (Err(problem), Err(_)) => prop_assert!(text.len() < 8 || !problem.contains(text)),
        (parsed, given) => prop_assert!(false, "{parsed:?}, {given:?}"),
    }
    Ok(())
}
