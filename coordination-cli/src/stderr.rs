//! What is written to stderr, by a thread of its own: its reader may have stopped, and no lock is to wait for that.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::termios::{LocalModes, tcgetattr, tcgetpgrp};

use crate::run::alive::Place;

/// So many texts are kept for a reader that has stopped; later ones are dropped.
const KEPT: usize = 100;
/// How long our end may be put off until all is written.
const FINISH: Duration = Duration::from_secs(1);
/// How often it is looked whether a terminal may be written to.
const LOOK: Duration = Duration::from_millis(100);

/// What is to be written.
struct Queue {
    texts: VecDeque<String>,
    is_writing: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { texts: VecDeque::new(), is_writing: false });
static CHANGED: Condvar = Condvar::new();
/// Whether there is a thread that writes.
static WRITER: OnceLock<bool> = OnceLock::new();

impl Queue {
    fn is_idle(&self) -> bool {
        !self.is_writing && self.texts.is_empty()
    }
}

/// Has a text written, without waiting for that.
pub(crate) fn write(text: String) {
    let writer = || thread::Builder::new().name("stderr".to_owned()).spawn(write_all);
    WRITER.get_or_init(|| writer().is_ok());
    let mut queue = queue();
    if queue.texts.len() < KEPT {
        queue.texts.push_back(text);
        CHANGED.notify_all();
    }
}

/// Whether all is written.
pub(crate) fn is_idle() -> bool {
    queue().is_idle()
}

/// Waits until all is written, but not for longer than this.
pub(crate) fn flush(limit: Duration) {
    let _ = CHANGED.wait_timeout_while(queue(), limit, |queue| !queue.is_idle());
}

/// At our end, when nothing depends on us any more.
pub(crate) fn finish() {
    if WRITER.get() == Some(&false) {
        // The system had no thread for us.
        return std::mem::take(&mut queue().texts).iter().for_each(|text| put(text.as_bytes()));
    }
    flush(FINISH);
}

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_all() {
    loop {
        let waiting = CHANGED.wait_while(queue(), |queue| queue.texts.is_empty());
        let mut queue = waiting.unwrap_or_else(PoisonError::into_inner);
        let text = queue.texts.pop_front().unwrap_or_default();
        queue.is_writing = true;
        drop(queue);
        while would_stop_us() {
            thread::sleep(LOOK);
        }
        put(text.as_bytes());
        self::queue().is_writing = false;
        CHANGED.notify_all();
    }
}

/// Not by the standard library's handle: whoever panics would wait for its mutex.
fn put(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match rustix::io::write(io::stderr(), bytes) {
            Ok(count @ 1..) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            // Nobody may be there to read it.
            _ => return,
        }
    }
}

/// Whether the terminal stops who writes in the background: that would be all of us, and not one thread.
fn would_stop_us() -> bool {
    let stops = |modes: LocalModes| modes.contains(LocalModes::TOSTOP);
    tcgetattr(io::stderr()).is_ok_and(|terminal| stops(terminal.local_modes)) && is_in_background()
}

/// Whether the terminal is another job's, who may have a prompt there, or a page.
pub(crate) fn is_in_background() -> bool {
    tcgetpgrp(io::stderr()).is_ok_and(|foreground| {
        Place::of_us().is_some_and(|us| us.group != foreground.as_raw_nonzero().get())
    })
}
