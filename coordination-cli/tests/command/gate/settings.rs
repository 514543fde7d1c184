//! Where the store's URL and its settings come from, and who may use a store.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use coordination_tests::harness::{copy_program, rerun_if_starved};
use rustix::process::geteuid;

use crate::{Store, output, plain, stderr};

/// Two users besides root, and a group of both.
const USERS: [u32; 2] = [65_533, 65_534];
const GROUP: u32 = 4_242;

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
}

/// A store in a directory where all may go, with the program in it.
fn for_all() -> Store {
    let store = Store::file();
    copy_program(env!("CARGO_BIN_EXE_coordination"), &store.path("coordination"));
    set_mode(&store.path("."), 0o755);
    store
}

/// As another user, with a umask.
fn as_user(store: &Store, user: u32, umask: &str, words: &str) -> Output {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={user}")]);
    command.args([format!("--groups={GROUP}"), "--".to_owned()]);
    let program = store.path("coordination").display().to_string();
    command.args(["sh", "-c", &format!("umask {umask}; exec {program} {words}")]);
    command.env("COORDINATION_URL", "").env("HOME", store.path("home"));
    output(&mut command)
}

/// Needs other users: root is any of them.
#[test]
fn users_of_a_group_share_a_directory_whatever_their_umask() {
    if !geteuid().is_root() {
        return;
    }
    rerun_if_starved(|| {
        for umask in ["000", "022", "027", "077"] {
            let store = for_all();
            // As systemd-tmpfiles makes it.
            let locks = store.path("shared");
            std::fs::create_dir(&locks).expect("the directory is there");
            chown(&locks, None, Some(GROUP)).expect("we are root");
            set_mode(&locks, 0o2770);
            let url = format!("--url 'file://{}?mode=0770'", locks.display());
            for round in 0..2 {
                for user in USERS {
                    for words in ["run --lock x -- true", "status", "info"] {
                        let ended = as_user(&store, user, umask, &format!("{url} {words}"));
                        let said = stderr(&ended);
                        assert_eq!(
                            ended.status.code(),
                            Some(0),
                            "{umask} {round} {user} {words}: {said}"
                        );
                    }
                }
            }
            // One who holds keeps the other out.
            let [one, other] = USERS;
            let hold = format!("{url} run --lock x -- sleep 2");
            std::thread::scope(|scope| {
                let holder = scope.spawn(|| as_user(&store, one, umask, &hold));
                let is_busy = || {
                    let words = format!("{url} run --lock x --wait 0 -- true");
                    as_user(&store, other, umask, &words).status.code() == Some(75)
                };
                assert!(coordination_tests::harness::wait_until(crate::LONG, is_busy), "{umask}");
                assert_eq!(holder.join().expect("no panic").status.code(), Some(0));
            });
        }
    });
}

#[test]
fn another_users_directory_is_told_with_what_to_do() {
    if !geteuid().is_root() {
        return;
    }
    rerun_if_starved(|| {
        for umask in ["000", "022", "027", "077"] {
            let store = for_all();
            let locks = store.path("shared");
            std::fs::create_dir(&locks).expect("the directory is there");
            set_mode(&locks, 0o1777);
            let url = format!("--url file://{}", locks.display());
            let codes = USERS.map(|user| {
                let ended = as_user(&store, user, umask, &format!("{url} run --lock x -- true"));
                (ended.status.code(), stderr(&ended))
            });
            assert_eq!(codes[0], (Some(0), String::new()), "{umask}");
            assert_eq!(codes[1].0, Some(69), "{umask}");
            assert!(codes[1].1.contains("mode=0770"), "{}", codes[1].1);
        }
    });
}

/// Those who only look among them.
#[test]
fn whoever_may_not_use_a_directory_is_told_plainly() {
    if !geteuid().is_root() {
        return;
    }
    rerun_if_starved(|| {
        for umask in ["000", "022", "027", "077"] {
            let store = for_all();
            let [own, shared] = ["own", "shared"].map(|name| store.path(name));
            std::fs::create_dir(&own).expect("the directory is there");
            chown(&own, Some(USERS[0]), None).expect("we are root");
            set_mode(&own, 0o700);
            std::fs::create_dir(&shared).expect("the directory is there");
            chown(&shared, None, Some(GROUP + 1)).expect("we are root");
            set_mode(&shared, 0o2770);
            for (url, advice) in [
                (format!("file://{}", own.display()), "a directory of its own".to_owned()),
                (
                    format!("file://{}?mode=0770", shared.display()),
                    format!("its group, {}", GROUP + 1),
                ),
            ] {
                for words in
                    ["status", "info", "members g", "leader e", "doctor", "run --lock x -- true"]
                {
                    let words = format!("--url '{url}' {words}");
                    let refused = as_user(&store, USERS[1], umask, &words);
                    let said = stderr(&refused);
                    assert_eq!(refused.status.code(), Some(69), "{umask} {words}: {said}");
                    assert!(
                        said.contains(&advice) && said.contains("who only looks"),
                        "{words}: {said}"
                    );
                }
            }
            for words in ["status", "info", "run --lock x -- true"] {
                let words = format!("--url file://{} {words}", own.display());
                let allowed = as_user(&store, USERS[0], umask, &words);
                assert_eq!(allowed.status.code(), Some(0), "{umask} {words}: {}", stderr(&allowed));
            }
        }
    });
}

#[test]
fn a_config_file_that_nobody_named_and_that_may_not_be_read_is_left_out() {
    if !geteuid().is_root() {
        return;
    }
    rerun_if_starved(|| {
        let store = for_all();
        let file = store.path("home/.config/coordination/config.toml");
        std::fs::create_dir_all(file.parent().expect("it has one"))
            .expect("the directory is there");
        std::fs::write(&file, "url = \"redis://:canary@h\"\n").expect("the directory is there");
        set_mode(&file, 0o600);
        let locks = store.path("own");
        std::fs::create_dir(&locks).expect("the directory is there");
        chown(&locks, Some(USERS[0]), None).expect("we are root");
        let words = format!("--url file://{} run --lock x -- true", locks.display());
        let unnamed = as_user(&store, USERS[0], "022", &words);
        assert_eq!(unnamed.status.code(), Some(0), "{}", stderr(&unnamed));
        assert!(stderr(&unnamed).contains("is left out"), "{}", stderr(&unnamed));
        let named =
            as_user(&store, USERS[0], "022", &format!("--config {} {words}", file.display()));
        assert_eq!(named.status.code(), Some(64), "{}", stderr(&named));
    });
}

#[test]
fn a_blank_at_the_end_of_a_url_is_no_other_store() {
    rerun_if_starved(|| {
        let store = Store::file();
        let _holder = store.runs("--lock x");
        for url in [format!("{} ", store.url), format!("{}\n", store.url)] {
            let words = ["run", "--lock", "x", "--wait", "0", "--", "true"];
            let by_environment = output(plain().env("COORDINATION_URL", &url).args(words));
            let by_argument = output(plain().args(["--url", &url]).args(words));
            for ended in [by_environment, by_argument] {
                assert_eq!(ended.status.code(), Some(75), "{}", stderr(&ended));
            }
        }
    });
}

#[test]
fn a_password_file_that_others_may_read_is_told() {
    rerun_if_starved(|| {
        let store = Store::file();
        let file = store.path("password");
        std::fs::write(&file, "canary\n").expect("the directory is there");
        let url = format!("redis://127.0.0.1:1/0?password_file={}", file.display());
        for (mode, warned) in [(0o644, true), (0o640, true), (0o600, false)] {
            set_mode(&file, mode);
            let ended = output(plain().args(["--url", &url, "status"]));
            assert_eq!(
                stderr(&ended).contains("chmod 600"),
                warned,
                "{mode:o}: {}",
                stderr(&ended)
            );
        }
    });
}

/// The system has no `/proc`, or lets no file grow: that is what is said, and not that something is wrong with the command.
#[test]
fn what_the_system_lacks_is_named() {
    rerun_if_starved(|| {
        let store = Store::file();
        let run = format!(
            "exec {} run --url {} --lock x -- true",
            env!("CARGO_BIN_EXE_coordination"),
            store.url
        );
        let small = output(Command::new("sh").args(["-c", &format!("ulimit -f 0; {run}")]));
        assert_eq!(small.status.code(), Some(69), "{}", stderr(&small));
        assert!(stderr(&small).contains("File too large"), "{}", stderr(&small));
        if geteuid().is_root() {
            let words = format!("umount -l /proc && {run}");
            let bare = output(Command::new("unshare").args(["--mount", "sh", "-c", &words]));
            assert_eq!(bare.status.code(), Some(71), "{}", stderr(&bare));
            assert!(stderr(&bare).contains("/proc is not there"), "{}", stderr(&bare));
        }
    });
}
