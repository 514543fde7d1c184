//! The access log: a line of JSON for each request, at its end. A thread writes it, as whoever reads it may be slow.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// So many lines are kept for a reader that is slow; more are dropped.
const KEPT: usize = 10_000;

/// How long our end may be put off until all is written.
const FINISH: Duration = Duration::from_millis(500);

/// Lines that were taken and are not written yet.
static PENDING: AtomicUsize = AtomicUsize::new(0);
static WRITER: OnceLock<Option<SyncSender<String>>> = OnceLock::new();

/// Has a line written to standard output.
pub(crate) fn write(line: &Value) {
    let writer = WRITER.get_or_init(|| {
        let (lines, kept) = sync_channel::<String>(KEPT);
        let work = move || {
            let mut output = std::io::stdout();
            // The reader may be gone: then there is nobody to write for.
            while let Ok(line) = kept.recv() {
                if output.write_all(line.as_bytes()).is_err() {
                    return;
                }
                PENDING.fetch_sub(1, Ordering::Release);
            }
        };
        thread::Builder::new().name("access log".to_owned()).spawn(work).ok().map(|_| lines)
    });
    if let Some(lines) = writer {
        PENDING.fetch_add(1, Ordering::Relaxed);
        if lines.try_send(format!("{line}\n")).is_err() {
            // Full, or nobody reads it: the line is dropped.
            PENDING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// At our end: waits until all is written, but not for long.
pub(crate) async fn finish() {
    let end = Instant::now() + FINISH;
    while PENDING.load(Ordering::Acquire) > 0 && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
