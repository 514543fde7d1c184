//! Names, templates and URLs: different names are independent, errors say what is wrong, and secrets are never shown.

use std::error::Error as _;
use std::future::Future;

use coordination::{Coordinator, Error, ErrorKind, LockGuard, NameError, Result, Template};
use coordination_tests::faults::identity::odd_names;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};
use serde_json::json;

const CANARY: &str = "s3cr3tCANARY";

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime").block_on(future)
}

/// Names that are likely to collide if any do: short ones, and ones of characters that an encoding might use.
fn any_name() -> impl Strategy<Value = String> {
    let name =
        prop_oneof![any::<String>(), "[a-cA-C]{1,2}", "[aA%/.~h2Ff5é_-]{1,6}", "[aé]{190,210}",];
    name.prop_filter("names have 1 to 1024 bytes", |name| (1..=1024).contains(&name.len()))
}

/// Connects to a store of this name; stores of one name share their locks, so each test has its own.
async fn memory(name: &str) -> Coordinator {
    let url = format!("memory://names-{name}");
    Coordinator::connect(&url).await.expect("memory needs no server")
}

async fn take(coordinator: &Coordinator, name: &str) -> Result<Option<LockGuard>> {
    coordinator.lock(name)?.try_acquire().await
}

fn name_error(error: &Error) -> Option<&NameError> {
    assert_eq!(error.kind(), ErrorKind::Name);
    error.source()?.downcast_ref()
}

/// Everything that an error shows, with its causes.
fn all_text(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?} {:?}", error.key());
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    text
}

async fn refused(url: &str) -> Error {
    match Coordinator::connect(url).await {
        Ok(_) => panic!("{url:?} was taken"),
        Err(error) => error,
    }
}

#[test]
fn every_pair_of_odd_names_is_held_at_once() -> Result<()> {
    block_on(async {
        let coordinator = memory("odd").await;
        let mut held = Vec::new();
        for name in odd_names() {
            let guard = take(&coordinator, &name).await?;
            assert_eq!(guard.as_ref().map(|guard| guard.name()), Some(name.as_str()));
            held.push(guard);
        }
        for name in odd_names() {
            assert!(take(&coordinator, &name).await?.is_none(), "{name:?} is held twice");
        }
        Ok(())
    })
}

#[test]
fn any_two_names_are_apart_and_equal_ones_are_not() {
    let config = ProptestConfig { cases: 10_000, failure_persistence: None, ..Default::default() };
    let pairs = (any_name(), any_name());
    block_on(async {
        let coordinator = memory("pairs").await;
        let handle = tokio::runtime::Handle::current();
        let check =
            move |(a, b): (String, String)| handle.block_on(check_pair(&coordinator, &a, &b));
        // Runs on another thread, because a worker thread of the runtime must not block on it.
        let run = tokio::task::spawn_blocking(move || TestRunner::new(config).run(&pairs, check));
        run.await.expect("the checks do not panic").expect("names are apart");
    });
}

async fn check_pair(coordinator: &Coordinator, a: &str, b: &str) -> TestCaseResult {
    let fail = |error: Error| TestCaseError::fail(error.to_string());
    let first = take(coordinator, a).await.map_err(fail)?;
    let second = take(coordinator, b).await.map_err(fail)?;
    let again = take(coordinator, a).await.map_err(fail)?;
    prop_assert!(first.is_some(), "{:?} was not free", a);
    prop_assert_eq!(second.is_some(), a != b);
    prop_assert!(again.is_none(), "{:?} was given twice", a);
    for guard in [first, second].into_iter().flatten() {
        guard.release().await.map_err(fail)?;
    }
    Ok(())
}

#[test]
fn a_name_has_1_to_1024_bytes() {
    block_on(async {
        let coordinator = memory("lengths").await;
        assert!(coordinator.lock("x".repeat(1024)).is_ok());
        let error = coordinator.lock("").expect_err("empty");
        assert_eq!(name_error(&error), Some(&NameError::Empty));
        for name in ["x".repeat(1025), "é".repeat(513), "x".repeat(1 << 20)] {
            let error = coordinator.lock(&name).expect_err("too long");
            let expected = NameError::TooLong { len: name.len(), max: 1024 };
            assert_eq!(name_error(&error), Some(&expected));
        }
    });
}

#[test]
fn a_template_names_a_lock() -> Result<()> {
    block_on(async {
        let coordinator = memory("template").await;
        let lock = coordinator.lock_for("share-{share.id}", &json!({ "share": { "id": 7 } }))?;
        assert_eq!(lock.name(), "share-7");
        let missing = coordinator.lock_for("share-<share.name>", &json!({ "share": { "id": 7 } }));
        let error = missing.expect_err("no such field");
        assert!(error.to_string().contains("it has id"), "{error}");
        let malformed = coordinator.lock_for("share-<share", &()).expect_err("not closed");
        assert!(matches!(name_error(&malformed), Some(NameError::Template { at: 6, .. })));
        Ok(())
    })
}

#[test]
fn an_unknown_scheme_lists_the_known_ones() {
    block_on(async {
        let error = refused(&format!("etdc://u:{CANARY}@h/{CANARY}?{CANARY}={CANARY}")).await;
        assert!(matches!(error.kind(), ErrorKind::Config | ErrorKind::Unsupported), "{error:?}");
        assert!(error.to_string().contains("memory"), "{error}");
        assert!(!all_text(&error).contains(CANARY), "{error:?}");
    });
}

#[test]
fn an_unknown_option_lists_the_known_ones() {
    block_on(async {
        let error = refused(&format!("memory://x?tttl={CANARY}")).await;
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = error.to_string();
        for expected in ["`tttl`", " ttl", "namespace", "heartbeat"] {
            assert!(text.contains(expected), "{text}");
        }
        assert!(!all_text(&error).contains(CANARY), "{error:?}");
    });
}

#[test]
fn no_part_of_a_refused_url_shows() {
    let urls = [
        "CANARY",
        "u:CANARY@h",
        "u:CANARY@memory://x",
        "memory:/CANARY",
        "://CANARY",
        "file://u:CANARY@h/x",
        "file://CANARY",
        "file:///tmp/names?token=CANARY",
        "file:///tmp/names#CANARY",
        "memory://u:CANARY@x",
        "memory://x?password=CANARY",
        "memory://x?a=1&password=CANARY&b=2",
        "memory://x?CANARY",
        "memory://x?=CANARY",
        "memory://x?a=%CANARY",
        "memory://x#CANARY",
        "memory://x?ttl=CANARY",
        "memory://x?heartbeat=-1CANARY",
        "nosuch://CANARY:CANARY@CANARY/CANARY?CANARY=CANARY#CANARY",
        "etcd://u:CANARY@h:port",
        "etcd://u:CANARY@h:0/CANARY",
        "etcd://u:CANARY@h1,,h2",
        "etcd://CANARY:CANARY",
        "etcd://u:1/CANARY@h",
        "etcd://u:1?CANARY@h",
        "etcd://u:p#CANARY@h",
        "etcd://u:CANARY%@h",
        "etcd://u:CANARY%FF@h",
        "etcd://u:CANARY@h?nosuch=CANARY",
        "etcd://u:CANARY@h/CANARY%00",
        "etcd://u:CANARY@h\n",
    ];
    block_on(async {
        for url in urls {
            let error = refused(&url.replace("CANARY", CANARY)).await;
            assert!(!all_text(&error).contains(CANARY), "{url:?}: {error:?}");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn doubled_brackets_are_literal(text in ".+") {
        let mut source = text.clone();
        for bracket in ["<", ">", "{", "}"] {
            source = source.replace(bracket, &bracket.repeat(2));
        }
        let name = Template::parse(&source).and_then(|template| template.render(&()));
        prop_assert_eq!(name.ok(), Some(text));
    }

    #[test]
    fn values_render_as_they_are(text in ".*", number in any::<i64>(), float in any::<f32>()) {
        let float = f64::from(float);
        prop_assume!(float.is_finite());
        let values = json!({ "a": { "b": [text] }, "n": number, "f": float });
        let template = Template::parse("<a.b[0]>/{n}/<f>").expect("a template");
        let name = template.render(&values).expect("scalars");
        prop_assert_eq!(name, format!("{text}/{number}/{float}"));
    }

    #[test]
    fn any_map_key_can_be_reached(key in "[^\\]]+", value in "[a-z]+") {
        let values = json!({ "map": { key.as_str(): value.as_str() } });
        for source in [format!("<map[{key}]>"), format!("{{map[{key}]}}")] {
            let name = Template::parse(&source).and_then(|template| template.render(&values));
            prop_assert_eq!(name.as_ref().ok(), Some(&value));
        }
    }
}
