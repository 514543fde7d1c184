//! Client processes whose wall clock is ahead. For this, a library is compiled here, and `LD_PRELOAD` loads it before
//! the C library. Its functions return a later time than those of the C library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Scratch;

const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int outcome = real(id, now);
    const char *ahead = getenv("CLOCK_AHEAD");
    if (outcome == 0 && id == CLOCK_REALTIME && ahead) {
        long nanos = now->tv_nsec + atol(ahead) % 1000 * 1000000;
        now->tv_sec += atol(ahead) / 1000 + nanos / 1000000000;
        now->tv_nsec = nanos % 1000000000;
    }
    return outcome;
}
"#;

/// A library for `LD_PRELOAD` that changes the wall clock which a process sees.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    _scratch: Scratch,
}

impl WallClock {
    /// Compiles the library.
    ///
    /// # Panics
    ///
    /// When there is no C compiler.
    pub fn new() -> Self {
        let scratch = Scratch::new("clock");
        let (source, library) = (scratch.join("clock.c"), scratch.join("clock.so"));
        fs::write(&source, CLOCK).expect("the directory is there");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl");
        assert!(compiler.status().expect("a C compiler").success());
        Self { library, _scratch: scratch }
    }

    /// The environment variables for a process that is to see a wall clock which is ahead by this much.
    pub fn ahead(&self, ahead: Duration) -> [(&'static str, String); 2] {
        let library = Path::display(&self.library).to_string();
        [("LD_PRELOAD", library), ("CLOCK_AHEAD", ahead.as_millis().to_string())]
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}
