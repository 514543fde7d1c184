//! A wall clock that a test can set, for servers and for client processes.
//!
//! A library is compiled here, and `LD_PRELOAD` loads it before the C library. Its functions add a number of milliseconds, which they
//! read from a file, to the time that those of the C library return. They call nothing that a signal handler may not call, because
//! servers ask for the time there, too.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Scratch, write_script};

const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *set;

__attribute__((constructor)) static void open_clock(void) {
    struct timespec now;
    struct timeval too;
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *set, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) set = mapped;
    close(file);
    clock_gettime(CLOCK_REALTIME, &now);
    gettimeofday(&too, NULL);
}

static void add(long long milliseconds, time_t *seconds, long *rest, long unit) {
    *seconds += milliseconds / 1000;
    *rest += milliseconds % 1000 * (unit / 1000);
    if (*rest < 0) { *rest += unit; *seconds -= 1; }
    if (*rest >= unit) { *rest -= unit; *seconds += 1; }
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int outcome = real(id, now);
    if (outcome == 0 && set && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        add(*set, &now->tv_sec, &now->tv_nsec, 1000000000);
    return outcome;
}

int gettimeofday(struct timeval *now, void *zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int outcome = real(now, zone);
    if (outcome == 0 && set) add(*set, &now->tv_sec, &now->tv_usec, 1000000);
    return outcome;
}

time_t time(time_t *into) {
    struct timeval now;
    gettimeofday(&now, NULL);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec there = *until;
    if (set) add(-*set, &there.tv_sec, &there.tv_nsec, 1000000000);
    return real(condition, mutex, &there);
}
"#;

/// A wall clock that the test can set. Programs that see it go on measuring how long something takes by the right clock.
#[derive(Debug)]
pub struct WallClock {
    library: PathBuf,
    offset: PathBuf,
    scratch: Scratch,
}

impl WallClock {
    /// A clock that is right.
    ///
    /// # Panics
    ///
    /// When there is no C compiler.
    pub fn new() -> Self {
        let scratch = Scratch::new("clock");
        // Some servers run as another user.
        fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).expect("it is ours");
        let (source, library) = (scratch.join("clock.c"), scratch.join("clock.so"));
        fs::write(&source, CLOCK).expect("the directory is there");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).arg("-ldl");
        assert!(compiler.status().expect("a C compiler").success());
        let offset = scratch.join("offset");
        File::create(&offset).expect("the directory is there");
        let clock = Self { library, offset, scratch };
        clock.set(0);
        clock
    }

    /// Sets the clock this number of milliseconds ahead of the right time.
    ///
    /// # Panics
    ///
    /// When the clock's file cannot be written.
    pub fn set(&self, milliseconds: i64) {
        // The file is never shorter than it was, because programs have mapped it.
        let file = File::options().write(true).open(&self.offset).expect("the file is ours");
        file.write_all_at(&milliseconds.to_ne_bytes(), 0).expect("there is room for a number");
    }

    /// Sets the clock ahead of the right time by this much.
    ///
    /// # Panics
    ///
    /// When the clock's file cannot be written.
    pub fn set_ahead(&self, by: Duration) {
        self.set(by.as_millis().try_into().expect("no clock is so far ahead"));
    }

    /// The environment variables for a process that is to see this clock.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        let path = |path: &Path| path.display().to_string();
        [("LD_PRELOAD", path(&self.library)), ("CLOCK_OFFSET", path(&self.offset))]
    }

    /// The path of a script that runs this program with this clock.
    ///
    /// # Panics
    ///
    /// When the script cannot be written.
    pub fn program(&self, program: &str) -> String {
        let script = self.scratch.join("program.sh");
        let set = self.environment().map(|(name, value)| format!("{name}={value}")).join(" ");
        write_script(&script, &format!("#!/bin/sh\n{set} exec {program} \"$@\"\n"));
        script.display().to_string()
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}
