/*
 * What is settled before Rust's runtime begins, as nobody can ask for it, or change it, afterwards without unsafe code:
 * src/run/started.rs.
 *
 * The runtime ignores SIGPIPE before `main`, so how that signal was treated is forgotten by then. The standard library gives each
 * process that it starts an empty signal mask and the default for SIGPIPE.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LAST 64

static unsigned long long ignored(int number) {
    struct sigaction now;
    int is_ignored = sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
    return is_ignored ? 1ULL << (number - 1) : 0;
}

/* Becomes the command, with what whoever started us had set. */
static void become(const char *state, char **words) {
    unsigned long long blocked = 0, to_ignore = 0;
    sigset_t mask;
    sscanf(state, "%llx:%llx", &blocked, &to_ignore);
    unsetenv("COORDINATION_BECOME");
    sigemptyset(&mask);
    for (int number = 1; number <= LAST; number++) {
        if (blocked >> (number - 1) & 1)
            sigaddset(&mask, number);
        if (to_ignore >> (number - 1) & 1)
            signal(number, SIG_IGN);
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
    execv(words[0], words + 1);
    int reason = errno;
    if (reason == ENOEXEC) {
        /* A script without a first line that says who reads it. The words are the program, and what it is called. */
        words[1] = words[0];
        words[0] = "sh";
        execv("/bin/sh", words);
    }
    dprintf(STDERR_FILENO, "coordination: %s: %s\n", words[1], strerror(reason));
    _exit(reason == ENOENT ? 127 : 126);
}

/* Dies of a signal, as the command has. The core is the command's. */
static void die(int number) {
    sigset_t none;
    prctl(PR_SET_DUMPABLE, 0);
    signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    raise(number);
    /* Nothing kills the first process of a container in this way. */
    _exit(128 + number);
}

/* What the watch has open, or the holder of a script's lock, somebody might wait for: a lock of the kernel's, the end of a pipe. */
static void close_inherited(void) {
    if (syscall(SYS_close_range, 3, ~0U, 0) == 0)
        return;
    DIR *files = opendir("/proc/self/fd");
    for (struct dirent *file; files && (file = readdir(files));) {
        int number = atoi(file->d_name);
        if (number > 2 && number != dirfd(files))
            close(number);
    }
    if (files)
        closedir(files);
}

__attribute__((constructor)) static void begin(int count, char **words, char **environment) {
    (void)environment;
    const char *state = getenv("COORDINATION_BECOME");
    if (state && count > 2)
        become(state, words + 1);
    if (count > 2 && strcmp(words[1], "__die") == 0)
        die(atoi(words[2]));
    if (count > 1 && (strcmp(words[1], "__watch") == 0 || strcmp(words[1], "__hold") == 0))
        close_inherited();
    sigset_t ours, was;
    sigemptyset(&ours);
    /* It would stop us, and all of our group, when we take the terminal back from the command: src/run/child/terminal.rs. */
    sigaddset(&ours, SIGTTOU);
    if (sigprocmask(SIG_SETMASK, &ours, &was) != 0)
        return;
    unsigned long long blocked = 0, ignores = ignored(SIGPIPE) | ignored(SIGCHLD);
    for (int number = 1; number <= LAST; number++)
        if (sigismember(&was, number) == 1)
            blocked |= 1ULL << (number - 1);
    unsetenv("COORDINATION_STARTED");
    if (blocked || ignores) {
        char text[40];
        snprintf(text, sizeof text, "%llx:%llx", blocked, ignores);
        setenv("COORDINATION_STARTED", text, 1);
    }
}
