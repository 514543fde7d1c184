//! A client's credentials and the certificates that it trusts, read anew for each connection: a file that the URL names may get
//! other contents, because passwords and certificates are replaced while clients live.
//!
//! There are two difficulties. First, a file may be read while it is being written, or when a certificate has been replaced and its
//! key has not been replaced yet. So if the contents of the files cannot be used, the credentials that were read before stay in
//! use. Second, a file may be replaced before the server knows the new contents. So if a server refuses the new credentials, those
//! with which a server last accepted us are tried. The same happens if it is the client that refuses the server, because no
//! authority in the files vouches for it: a new authority may be in its file before the server has its new certificate. So an
//! authority that was taken out of its file is trusted until a connection was made without it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::source::Source;
use super::tls::{Tls, TlsSources};
use crate::error::Result;
use crate::url::Secret;

/// If a call is refused, and the files hold new credentials, the connection is given up, and another one is made with the new
/// credentials. If a server has refused the new credentials, too, this is not done again until this time has passed.
const REFUSED: Duration = Duration::from_secs(3);

/// What a client shows to a server to prove who it is, and what it demands of the server's certificate.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Credentials {
    pub(crate) password: Option<Secret>,
    /// `Some` if TLS is used.
    pub(crate) tls: Option<Tls>,
}

/// The sources of the credentials, and the credentials in use.
#[derive(Debug)]
pub(crate) struct Access {
    sources: Sources,
    state: Mutex<State>,
}

/// The sources of the credentials.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(super) password: Option<Source>,
    /// `None`: TLS is not used.
    pub(super) tls: Option<TlsSources>,
    /// A further check of the password, for the one store (Consul) on which not every text can be a password.
    pub(super) check: Option<fn(&Secret) -> Result<()>>,
}

#[derive(Debug)]
struct State {
    /// The credentials with which a server last accepted us. Before a server has accepted us, those that were read first.
    used: Arc<Credentials>,
    /// The credentials from the last read that found usable ones.
    newest: Arc<Credentials>,
    /// The credentials that a server last refused, and when it did.
    refused: Option<(Instant, Arc<Credentials>)>,
    /// Whether a warning was logged that the files cannot be used, or that the server refuses their contents. It is not logged
    /// again until the files have other usable contents.
    is_told: bool,
}

impl Access {
    pub(super) fn new(sources: Sources) -> Result<Self> {
        let read = Arc::new(sources.read()?);
        let (used, newest) = (Arc::clone(&read), read);
        Ok(Self {
            sources,
            state: Mutex::new(State { used, newest, refused: None, is_told: false }),
        })
    }

    pub(crate) fn has_password(&self) -> bool {
        self.sources.password.is_some()
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.sources.tls.is_some()
    }

    /// The credentials with which a server last accepted us. Before a server has accepted us, those that were read first.
    pub(crate) fn used(&self) -> Arc<Credentials> {
        Arc::clone(&self.state().used)
    }

    /// Reads the credentials that the URL and its files have now, and returns them. If the files cannot be used, returns those that
    /// were read before.
    ///
    /// The files are small, so they are read on the calling thread: starting another thread could fail just when a connection is
    /// needed.
    pub(crate) fn newest(&self) -> Arc<Credentials> {
        if !self.sources.has_files() {
            return self.used();
        }
        let read = self.sources.read();
        let mut state = self.state();
        match read {
            Ok(read) if read == *state.newest => {}
            Ok(read) => {
                tracing::info!("the files that the URL names hold other credentials now");
                state.newest = Arc::new(read);
                state.is_told = false;
            }
            Err(error) => state.tell(&format!("{error}; what was there before is used")),
        }
        Arc::clone(&state.newest)
    }

    /// Notes that a server refused these credentials. Returns the credentials with which a server last accepted us, if they differ
    /// from the refused ones.
    pub(crate) fn instead_of(&self, refused: &Arc<Credentials>) -> Option<Arc<Credentials>> {
        let mut state = self.state();
        state.refused = Some((Instant::now(), Arc::clone(refused)));
        Some(Arc::clone(&state.used)).filter(|used| used != refused)
    }

    /// Notes that a server accepted us with these credentials.
    pub(crate) fn let_in(&self, with: &Arc<Credentials>) {
        let mut state = self.state();
        state.used = Arc::clone(with);
        if *with != state.newest {
            state.tell(
                "the server refuses what the URL's files hold now, or its certificate is of no authority in them; what was there before is used",
            );
        }
    }

    /// Whether the files hold other credentials than those in use, and no server has refused the files' credentials within the last
    /// [`REFUSED`].
    pub(crate) fn are_others(&self) -> bool {
        let newest = self.newest();
        let state = self.state();
        let is_refused = |(at, refused): &(Instant, Arc<Credentials>)| {
            *refused == newest && at.elapsed() < REFUSED
        };
        newest != state.used && !state.refused.as_ref().is_some_and(is_refused)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl State {
    /// Logs this warning, but only if no warning was logged since the files last got other contents that could be used.
    fn tell(&mut self, message: &str) {
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::warn!("{message}");
        }
    }
}

impl Sources {
    fn has_files(&self) -> bool {
        let tls = self.tls.iter().flat_map(TlsSources::each);
        self.password.iter().chain(tls).any(|source| matches!(source, Source::File { .. }))
    }

    /// Reads all sources. Fails if the contents of a source cannot be used, or if the private key does not belong to the
    /// certificate.
    fn read(&self) -> Result<Credentials> {
        let password = self.password.as_ref().map(Source::password).transpose()?;
        if let (Some(password), Some(check)) = (&password, self.check) {
            check(password)?;
        }
        let tls = self.tls.as_ref().map(TlsSources::read).transpose()?;
        Ok(Credentials { password, tls })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn access(path: &Path) -> Result<Access> {
        let password = Source::named("password_file", path.to_str().unwrap_or_default())?;
        Access::new(Sources { password: Some(password), ..Sources::default() })
    }

    fn password(credentials: &Credentials) -> &str {
        credentials.password.as_ref().map_or("", Secret::expose)
    }

    #[test]
    fn a_file_is_read_anew_and_what_is_of_no_use_changes_nothing() -> Result<()> {
        let folder = tempfile::tempdir().expect("there is room");
        let file = folder.path().join("password");
        let write = |text: &str| fs::write(&file, text).expect("the folder is ours");
        write("one\n");
        let access = access(&file)?;
        assert_eq!(password(&access.newest()), "one");
        assert!(!access.are_others());
        write("");
        assert_eq!(password(&access.newest()), "one", "it is being written");
        write("two");
        assert!(access.are_others());
        assert_eq!((password(&access.newest()), password(&access.used())), ("two", "one"));
        fs::remove_file(&file).expect("it is there");
        assert_eq!(password(&access.newest()), "two");
        let newest = access.newest();
        access.let_in(&newest);
        assert!(!access.are_others());
        Ok(())
    }

    #[test]
    fn what_a_server_refuses_is_tried_again_later_and_the_last_good_one_meanwhile() -> Result<()> {
        let folder = tempfile::tempdir().expect("there is room");
        let file = folder.path().join("password");
        fs::write(&file, "one").expect("the folder is ours");
        let access = access(&file)?;
        let first = access.newest();
        assert_eq!(access.instead_of(&first), None);
        fs::write(&file, "two").expect("the folder is ours");
        let second = access.newest();
        assert_eq!(access.instead_of(&second).as_deref().map(password), Some("one"));
        assert!(!access.are_others(), "the server has refused it just now");
        assert_eq!(password(&access.newest()), "two", "for the next connection");
        Ok(())
    }

    /// Whoever has the key of an authority that was taken out can stand in for the server until then, so the log tells of it.
    #[cfg(all(coordination_internals, feature = "memory"))]
    #[test]
    fn what_was_taken_out_is_used_until_a_connection_was_made_without_it() -> Result<()> {
        let warnings = crate::session::logged::Warnings::begin();
        let folder = tempfile::tempdir().expect("there is room");
        let file = folder.path().join("password");
        fs::write(&file, "one").expect("the folder is ours");
        let access = access(&file)?;
        let first = access.newest();
        fs::write(&file, "two").expect("the folder is ours");
        let second = access.newest();
        for _ in 0..2 {
            assert_eq!(access.instead_of(&second), Some(Arc::clone(&first)));
            access.let_in(&first);
        }
        let told = warnings.told();
        assert!(told.len() == 1 && told[0].contains("of no authority in them"), "{told:?}");
        access.let_in(&second);
        assert_eq!(access.instead_of(&second), None);
        Ok(())
    }

    #[test]
    fn what_comes_by_a_pipe_is_read_once() -> Result<()> {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        let (reader, mut writer) = std::io::pipe().expect("there are descriptors");
        writer.write_all(b"one\n").expect("there is room");
        drop(writer);
        let access = access(Path::new(&format!("/proc/self/fd/{}", reader.as_raw_fd())))?;
        drop(reader);
        assert_eq!(password(&access.newest()), "one");
        assert!(!access.are_others());
        Ok(())
    }
}
