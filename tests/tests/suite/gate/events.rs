//! What the log of a program says of its locks, on the memory store.

use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use coordination::{Coordinator, Error, ErrorKind, synchronized};
use tokio::time::sleep;
use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

type Result<T = (), E = Error> = std::result::Result<T, E>;

const SECOND: Duration = Duration::from_secs(1);
/// The documentation page that shows such a log.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/watching.md");

/// Collects what `tracing` logs on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn begin() -> (Self, DefaultGuard) {
        Self::with(FmtSpan::NONE)
    }

    /// With a line for each of these events of spans.
    fn with(spans: FmtSpan) -> (Self, DefaultGuard) {
        // `tracing` remembers for each place that logs whether anybody listens to it. While the process has only one
        // subscriber, `tracing` asks only the thread that is the first to come to that place. If that thread belongs to
        // another check, `tracing` finds no subscriber there, and never logs that place. With a second subscriber in
        // the process, `tracing` asks all subscribers.
        static SECOND_SUBSCRIBER: LazyLock<Dispatch> =
            LazyLock::new(|| Dispatch::new(NoSubscriber::default()));
        LazyLock::force(&SECOND_SUBSCRIBER);
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .with_target(false)
            .without_time()
            .with_span_events(spans)
            .with_writer(log.clone());
        (log, tracing::subscriber::set_default(subscriber.finish()))
    }

    fn text(&self) -> String {
        let text = self.0.lock().expect("nobody panics").clone();
        String::from_utf8(text).expect("text")
    }

    /// The spans that were begun, if the log has a line for each.
    fn spans(&self) -> Vec<String> {
        let text = self.text();
        let begun = text.lines().filter_map(|line| line.trim().strip_suffix(": new"));
        begun.map(str::to_owned).collect()
    }

    /// The lines about grants, without the span in which they were written.
    fn lines(&self) -> Vec<String> {
        let text = self.text();
        let lines = text.lines().filter(|line| line.contains(" recipe="));
        let without_span = |line: &str| match line.split_once("}: ") {
            Some((span, rest)) => {
                let level = span.split("acquire{").next().unwrap_or_default();
                format!("{level}{rest}").trim().to_owned()
            }
            None => line.trim().to_owned(),
        };
        lines.map(without_span).collect()
    }

    /// The lines that begin with this level and text.
    fn of(&self, beginning: &str) -> Vec<String> {
        self.lines().into_iter().filter(|line| line.starts_with(beginning)).collect()
    }
}

impl Write for &Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nobody panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Log;

    fn make_writer(&'a self) -> &'a Log {
        self
    }
}

async fn connect(store: &str, member: &str) -> Result<Coordinator> {
    let settings = Coordinator::builder().member_id(member).heartbeat(SECOND);
    settings.connect(&format!("memory://events-{store}")).await
}

#[synchronized("vol-<id>", coordinator = coordinator)]
async fn resize(coordinator: &Coordinator, id: u32) -> Result {
    sleep(2 * SECOND).await;
    Ok(())
}

/// The log is exactly what the documentation page shows.
#[tokio::test(start_paused = true)]
async fn the_life_of_a_lock_is_as_the_page_shows_it() -> Result {
    let (log, _guard) = Log::begin();
    let one = connect("life", "host-1").await?;
    let other = connect("life", "host-2").await?;
    let (first, second) = tokio::join!(resize(&one, 7), async {
        sleep(SECOND / 10).await;
        let lock = other.lock("vol-7")?;
        let error = lock.acquire(Some(SECOND)).await.expect_err("it is held");
        assert_eq!(error.kind(), ErrorKind::Timeout);
        lock.acquire(None).await
    });
    first?;
    let held = second?;
    sleep(2 * SECOND).await;
    one.lock("vol-7")?.break_lock().await?.expect("it is held");
    held.lost().await;
    let page = std::fs::read_to_string(PAGE).expect("the page");
    let shown = page.split("```log\n").nth(1).and_then(|rest| rest.split("```").next());
    let shown: Vec<_> = shown.expect("a log").lines().map(str::to_owned).collect();
    let lines = with_small_tokens(&log.lines());
    assert_eq!(lines, shown, "{}", lines.join("\n"));
    Ok(())
}

/// With the fields that its lines have, whatever becomes of it. One that is granted on the caller's own thread needs none.
#[tokio::test(start_paused = true)]
async fn each_acquire_that_waits_is_a_span() -> Result {
    let (log, _guard) = Log::with(FmtSpan::NEW);
    let (one, other) = (connect("span", "host-1").await?, connect("span", "host-2").await?);
    let held = one.lock("vol-7")?.acquire(None).await?;
    assert!(log.spans().is_empty(), "{:?}", log.spans());
    let lock = other.lock("vol-7")?;
    let error = lock.acquire(Some(SECOND)).await.expect_err("it is held");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let release = async {
        sleep(SECOND).await;
        held.release().await
    };
    let (waited, released) = tokio::join!(lock.acquire(None), release);
    let (_waited, ()) = (waited?, released?);
    let span = r#"DEBUG acquire{name="vol-7" recipe="lock" store="memory" namespace=coordination member="host-2"}"#;
    assert_eq!(log.spans(), [span, span]);
    Ok(())
}

/// Replaces tokens by small numbers, as on the page. Real tokens are large, because they begin with the time at which
/// the queue was created.
fn with_small_tokens(lines: &[String]) -> Vec<String> {
    let mut text = lines.join("\n");
    let words: Vec<_> = text.split(|c: char| !c.is_ascii_digit()).map(str::to_owned).collect();
    let mut known: Vec<String> = Vec::new();
    for token in words.into_iter().filter(|word| word.len() >= 16) {
        if !known.contains(&token) {
            known.push(token.clone());
            text = text.replace(&token, &known.len().to_string());
        }
    }
    text.lines().map(str::to_owned).collect()
}

#[tokio::test(start_paused = true)]
async fn a_timeout_tells_how_long_it_waited_and_who_has_it() -> Result {
    let (log, _guard) = Log::begin();
    let (one, other) = (connect("timeout", "a\nb").await?, connect("timeout", "c").await?);
    let held = one.lock("vol-7")?.acquire(None).await?;
    let error = other.lock("vol-7")?.acquire(Some(5 * SECOND)).await.expect_err("it is held");
    let told =
        format!(r#"it was not free within 5s; member "a\nb" has it, with token {}"#, held.token());
    assert!(error.to_string().contains(&told), "{error}");
    let [line] = &log.of("DEBUG timed out")[..] else { panic!("{:?}", log.lines()) };
    assert!(line.contains("waited=5") && line.contains(r#"member="c""#), "{line}");
    // The waiter's warning about a semaphore names one of the members that have its permits.
    let _permit = one.semaphore("uploads", 1)?.acquire(None).await?;
    let waited = other.semaphore("uploads", 1)?.acquire(Some(SECOND)).await;
    let error = waited.expect_err("it is taken").to_string();
    assert!(error.contains(r#"member "a\nb" has it"#), "{error}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn who_has_it_is_told_with_its_label() -> Result {
    let (log, _guard) = Log::begin();
    let one = connect("label", "one").await?;
    let settings = Coordinator::builder().member_id("other").long_wait(5 * SECOND);
    let other = settings.connect("memory://events-label").await?;
    let held = one.lock("vol-7")?.label(r#"the "nightly" one"#)?.acquire(None).await?;
    let waited = other.lock("vol-7")?.acquire(Some(10 * SECOND)).await;
    let error = waited.expect_err("it is held").to_string();
    let told =
        format!(r#"member "one" ("the \"nightly\" one") has it, with token {}"#, held.token());
    assert!(error.contains(&told), "{error}");
    let [line] = &log.of("WARN still waiting")[..] else { panic!("{:?}", log.lines()) };
    assert!(line.contains(r#"holder="one" holder_label="the \"nightly\" one" "#), "{line}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_is_warned_of_once_with_who_has_it() -> Result {
    let (log, _guard) = Log::begin();
    let one = connect("long", "one").await?;
    let settings = Coordinator::builder().member_id("other").long_wait(5 * SECOND);
    let other = settings.connect("memory://events-long").await?;
    let held = one.lock("vol-7")?.acquire(None).await?;
    let lock = other.lock("vol-7")?;
    let release = async {
        sleep(4 * SECOND).await;
        assert!(log.of("WARN").is_empty(), "{:?}", log.lines());
        sleep(60 * SECOND).await;
        held.release().await
    };
    let (waited, released) = tokio::join!(lock.acquire(None), release);
    let (waited, ()) = (waited?, released?);
    let [line] = &log.of("WARN still waiting")[..] else { panic!("{:?}", log.lines()) };
    for part in
        [r#"holder="one""#, "own_session=false", "contenders=2", "waited=5", r#"name="vol-7""#]
    {
        assert!(line.contains(part), "{part}: {line}");
    }
    // If a session waits for a lock that it holds itself, the warning says so.
    let waits = tokio::time::timeout(6 * SECOND, lock.acquire(None)).await;
    assert!(waits.is_err());
    let [_, line] = &log.of("WARN still waiting")[..] else { panic!("{:?}", log.lines()) };
    assert!(line.contains("own_session=true"), "{line}");
    drop(waited);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_itself_is_warned_at_once() -> Result {
    let (log, _guard) = Log::begin();
    let one = connect("itself", "one").await?;
    let lock = one.lock("vol-7")?;
    let same = lock.clone();
    let task = tokio::spawn(async move {
        let _held = same.acquire(None).await?;
        let error = same.acquire(Some(SECOND)).await.expect_err("it is held");
        assert_eq!(error.kind(), ErrorKind::Timeout);
        Ok::<(), Error>(())
    });
    task.await.expect("it does not panic")?;
    assert_eq!(
        log.of("WARN a task waits for what it has taken itself").len(),
        1,
        "{:?}",
        log.lines()
    );
    // Another task of the same session may wait for the lock without a warning.
    let held = lock.acquire(None).await?;
    let other = tokio::spawn(async move { lock.acquire(Some(SECOND)).await.map(drop) });
    assert_eq!(
        other.await.expect("it does not panic").expect_err("held").kind(),
        ErrorKind::Timeout
    );
    assert_eq!(log.of("WARN").len(), 1, "{:?}", log.lines());
    drop(held);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_is_told_for_each_that_it_held() -> Result {
    let (log, _guard) = Log::begin();
    let one = connect("lost", "one").await?;
    let mut held = Vec::new();
    for name in ["a", "b", "c"] {
        held.push(one.lock(name)?.acquire(None).await?);
    }
    held.pop().expect("three").release().await?;
    one.stop().await?;
    let lines = log.of("DEBUG lost");
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, name) in lines.iter().zip(["a", "b"]) {
        assert!(line.contains(&format!("name={name:?}")) && line.contains("reason="), "{line}");
    }
    assert_eq!(
        log.of("DEBUG released").len(),
        1,
        "what was lost is not released: {:?}",
        log.lines()
    );
    Ok(())
}

/// A name may be any text, but cannot forge a line of the log.
#[tokio::test(start_paused = true)]
async fn a_name_forges_no_line() -> Result {
    let (log, _guard) = Log::begin();
    let one = connect("forged", "one").await?;
    one.lock("a\nWARN lost recipe=\"lock\"")?.acquire(None).await?.release().await?;
    assert!(log.of("WARN").is_empty(), "{:?}", log.lines());
    assert_eq!(log.lines().len(), 2, "{:?}", log.lines());
    Ok(())
}
