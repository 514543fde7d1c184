//! What this thread logs in a test.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{self, DefaultGuard, NoSubscriber};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

type Texts = Arc<Mutex<Vec<String>>>;

/// The warnings that this thread has logged since.
pub(crate) struct Warnings {
    texts: Texts,
    _logging: DefaultGuard,
    /// With one subscriber only, `tracing` would ask the thread that reaches an event first whether the event is wanted, and that
    /// could be the thread of a test without a subscriber.
    _second: Dispatch,
}

impl Warnings {
    pub(crate) fn begin() -> Self {
        let (texts, _second) = (Texts::default(), Dispatch::new(NoSubscriber::default()));
        let _logging = subscriber::set_default(Log(Arc::clone(&texts)));
        Self { texts, _logging, _second }
    }

    pub(crate) fn told(&self) -> Vec<String> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Log(Texts);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").expect("a string takes everything");
    }
}
