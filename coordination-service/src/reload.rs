//! Files that are read again when they have changed, or when somebody says so: tokens, the certificate and its key, and by what
//! clients' certificates are checked. Whoever waits is asked about again each time.

use std::iter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;

use crate::metrics;
use crate::service::Shared;
use crate::settings::ClientFiles;

/// How often it is looked whether a file has changed.
const LOOK: Duration = Duration::from_secs(10);

/// Some files that belong together.
struct Followed {
    files: Vec<PathBuf>,
    /// How they were when they were read last. Of those that were read at the start this is not known: they may have been changed just after
    /// that, so the first look reads them again.
    seen: Vec<Option<Seen>>,
    reload: fn(&Shared) -> Result<(), String>,
    /// What was wrong with them when they were tried last.
    wrong: Option<String>,
    /// What is said where they are wrong.
    kept: &'static str,
}

/// When a file was changed, its length, and which file it is: another one may have been put in its place.
type Seen = (SystemTime, u64, u64, u64);

/// Follows the files for as long as the service runs. `told` says to read all of them now.
pub(crate) async fn follow(service: Shared, mut told: mpsc::Receiver<()>) {
    let mut all = followed(&service);
    loop {
        let is_told = next(&mut told).await;
        // A file system that hangs is not to stop the thread that serves all.
        let (of, mut some) = (Arc::clone(&service), std::mem::take(&mut all));
        let follow = move || {
            some.iter_mut().for_each(|some| some.follow(&of, is_told));
            some
        };
        all = tokio::task::spawn_blocking(follow).await.unwrap_or_else(|_| followed(&service));
        if service.settings.tokens.is_some() {
            service.auth.look_again();
        }
    }
}

/// Waits for the next word, or until it is time for a look; whether it was a word.
async fn next(told: &mut mpsc::Receiver<()>) -> bool {
    // A sender may be dropped just after its word.
    let can_come = !told.is_closed() || !told.is_empty();
    tokio::select! {
        biased;
        said = told.recv(), if can_come => said.is_some(),
        () = tokio::time::sleep(LOOK) => false,
    }
}

fn followed(service: &Shared) -> Vec<Followed> {
    let settings = &service.settings;
    let tokens = settings.tokens.iter().map(|file| Followed {
        files: vec![file.clone()],
        seen: Vec::new(),
        wrong: None,
        reload: |service| service.settings.tokens.iter().try_for_each(|f| service.auth.reload(f)),
        kept: "the tokens stay as they were",
    });
    let tls = settings.tls.iter().map(|files| Followed {
        files: vec![files.certificate.clone(), files.key.clone()],
        seen: Vec::new(),
        wrong: None,
        reload: |service| service.tls.iter().try_for_each(|tls| tls.reload()),
        kept: "the certificate stays as it was",
    });
    let clients = settings.tls.iter().filter_map(|files| files.clients.as_ref());
    let clients = clients.map(|files| Followed {
        files: client_files(files),
        seen: Vec::new(),
        wrong: None,
        reload: |service| service.tls.iter().try_for_each(|tls| tls.reload_clients()),
        kept: "clients' certificates are checked as they were",
    });
    tokens.chain(tls).chain(clients).collect()
}

fn client_files(files: &ClientFiles) -> Vec<PathBuf> {
    iter::once(&files.authorities).chain(&files.revoked).cloned().collect()
}

impl Followed {
    fn look(&self) -> Vec<Option<Seen>> {
        self.files.iter().map(|file| seen(file)).collect()
    }

    fn follow(&mut self, service: &Shared, is_told: bool) {
        let now = self.look();
        if now == self.seen && !is_told {
            return;
        }
        // What is wrong is tried again: what mends it, such as a mode that is set, may change nothing else.
        match (self.reload)(service) {
            Ok(()) => (self.seen, self.wrong) = (now, None),
            Err(error) if self.wrong.as_ref() != Some(&error) || is_told => {
                metrics::reload_failed();
                tracing::warn!(error, "{}", self.kept);
                self.wrong = Some(error);
            }
            Err(_) => {}
        }
    }
}

fn seen(file: &Path) -> Option<Seen> {
    let there = std::fs::metadata(file).ok()?;
    Some((there.modified().ok()?, there.len(), there.dev(), there.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use axum::http::{HeaderMap, header};
    use tokio::time::timeout;

    use super::*;
    use crate::auth::{Auth, make_token};
    use crate::ids;
    use crate::service::Service;
    use crate::settings::{Cover, Settings};

    /// Else somebody whose token was taken out at that moment would be let in until the file is changed once more.
    #[tokio::test]
    async fn what_was_changed_before_anybody_followed_it_is_read() {
        let file = std::env::temp_dir().join(format!("coordination-{}", ids::letters(12)));
        let [(old, lines), (new, others)] =
            ["old", "new"].map(|name| make_token(name, &["*".to_owned()]));
        std::fs::write(&file, lines).expect("there is room");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("it is ours");
        let auth = Auth::new(Some(&file), false).expect("it is right");
        let settings = Settings { tokens: Some(file.clone()), ..Settings::default() };
        let service = Service::new(settings, Cover::Any, "memory".to_owned(), auth, None);
        std::fs::write(&file, others).expect("there is room");
        followed(&service).iter_mut().for_each(|some| some.follow(&service, false));
        let is_known = |token: &str| {
            let bearer = format!("Bearer {token}").parse().expect("a header");
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, bearer)]);
            service.auth.principal(&headers).is_ok()
        };
        assert!(is_known(&new) && !is_known(&old));
        drop(std::fs::remove_file(&file));
    }

    #[tokio::test]
    async fn a_word_is_heard_although_its_sender_is_gone() {
        let (sender, mut told) = mpsc::channel(1);
        sender.send(()).await.expect("it is read");
        drop(sender);
        assert_eq!(timeout(LOOK / 2, next(&mut told)).await, Ok(true), "before the next look");
        let later = timeout(LOOK / 100, next(&mut told)).await;
        assert!(later.is_err(), "nothing is looked at all the time because nobody is left");
    }
}
