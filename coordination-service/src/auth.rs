//! Who asks, and what that one may do: tokens, of which only hashes are kept, certificates, and rights on prefixes of names.

mod file;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use axum::http::{HeaderMap, header};
use data_encoding::{BASE64, HEXLOWER};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::watch;

use self::file::Everybody;
use crate::ids;
use crate::problem::{Code, Problem};

/// What can be allowed; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    /// To see who holds what.
    Read,
    /// To hold it.
    Use,
    /// To take it from others.
    Admin,
}

impl Right {
    fn text(self) -> &'static str {
        ["read", "use", "admin"][self as usize]
    }
}

/// Who asks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    /// The name that goes with the token or the certificate.
    pub(crate) name: String,
    /// Prefixes that end in `/`, whole names, or `*`, each with the most that is allowed there.
    spaces: Vec<(String, Right)>,
    /// What that was told by; none is asked of anybody, or none was needed.
    credential: Option<Credential>,
}

/// By what somebody is known.
#[derive(Debug, PartialEq, Eq)]
enum Credential {
    Token(Hash),
    /// A name in a certificate, as in [`Names`].
    Certificate(String),
}

type Hash = [u8; 32];

/// The names in the certificate that a client has shown, each with its kind: `uri:spiffe://example/billing`, `dns:host.example`.
pub(crate) type Names = Arc<[String]>;

impl Principal {
    fn anonymous() -> Self {
        let spaces = vec![("*".to_owned(), Right::Use)];
        Self { name: "anonymous".to_owned(), spaces, credential: None }
    }

    /// Who may do everything.
    pub(crate) fn administrator(name: String) -> Self {
        Self { name, spaces: vec![("*".to_owned(), Right::Admin)], credential: None }
    }

    /// Who is not asked for a token, and may do nothing that needs a right.
    pub(crate) fn nobody() -> Self {
        Self { name: String::new(), spaces: Vec::new(), credential: None }
    }

    /// Whether this is allowed on this name.
    pub(crate) fn may(&self, right: Right, name: &str) -> bool {
        let reaches = |space: &str| {
            space == "*" || space == name || (space.ends_with('/') && name.starts_with(space))
        };
        self.spaces.iter().any(|(space, allowed)| *allowed >= right && reaches(space))
    }

    /// The same on all names.
    pub(crate) fn may_everywhere(&self, right: Right) -> bool {
        self.spaces.iter().any(|(space, allowed)| *allowed >= right && space == "*")
    }

    /// An error unless this is allowed on this name.
    pub(crate) fn needs(&self, right: Right, name: &str) -> Result<(), Problem> {
        if self.may(right, name) {
            return Ok(());
        }
        let lacking = format!("{} on {name}", right.text());
        Err(Problem::new(Code::Forbidden, "the caller has no right to this").with("needs", lacking))
    }

    /// What it may do, for `/v1/info`.
    pub(crate) fn rights(&self) -> HashMap<&'static str, Vec<&str>> {
        let mut rights: HashMap<_, Vec<&str>> = HashMap::new();
        for (space, right) in &self.spaces {
            rights.entry(right.text()).or_default().push(space);
        }
        rights
    }
}

/// Who is known.
pub(crate) struct Auth {
    /// None: everybody is anonymous.
    known: RwLock<Option<Everybody>>,
    /// Whether clients can show certificates.
    shows: bool,
    /// Told whenever the file was looked at.
    looks: watch::Sender<()>,
}

impl Auth {
    /// Reads the file, if there is one; `shows` says whether clients can show certificates.
    pub(crate) fn new(file: Option<&Path>, shows: bool) -> Result<Self, String> {
        let known = file.map(|file| file::read(file, shows)).transpose()?;
        Ok(Self { known: RwLock::new(known), shows, looks: watch::Sender::new(()) })
    }

    /// Reads the file again; one that is wrong changes nothing.
    pub(crate) fn reload(&self, file: &Path) -> Result<(), String> {
        let known = file::read(file, self.shows)?;
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Ok(())
    }

    /// The file was looked at: whoever waits is [asked about](Self::refused) again, as tokens also end by themselves.
    pub(crate) fn look_again(&self) {
        self.looks.send_replace(());
    }

    fn known(&self) -> RwLockReadGuard<'_, Option<Everybody>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this one may still do what it might when it asked: for what goes on after that.
    pub(crate) fn knows(&self, who: &Principal) -> bool {
        let Some(credential) = &who.credential else { return true };
        let all = self.known();
        let now = all.as_ref().and_then(|all| all.get(credential));
        now.is_some_and(|now| now.is_valid() && *now.principal == *who)
    }

    /// An error unless this one, who was let in before, still has this right on this name. Unlike [`knows`](Self::knows) it lets other
    /// rights come and go: whoever waits would lose its place by that.
    pub(crate) fn still(&self, who: &Principal, right: Right, name: &str) -> Result<(), Problem> {
        let Some(credential) = &who.credential else { return Ok(()) };
        let all = self.known();
        let now = all.as_ref().and_then(|all| all.get(credential)).filter(|now| now.is_valid());
        let gone = || {
            let why = "nobody has this token any more, or this name in a certificate";
            Problem::new(Code::Unauthenticated, why)
        };
        now.ok_or_else(gone)?.principal.needs(right, name)
    }

    /// Waits until this check fails, by which whoever waits [still](Self::still) may. It is made whenever the file was looked at.
    pub(crate) async fn refused(&self, check: impl Fn() -> Result<(), Problem>) -> Problem {
        let mut looks = self.looks.subscribe();
        loop {
            if let Err(problem) = check() {
                return problem;
            }
            // The sender is our own.
            drop(looks.changed().await);
        }
    }

    /// Who has shown a certificate with these names, and sends no token.
    pub(crate) fn certified(&self, names: &[String]) -> Result<Arc<Principal>, Problem> {
        let all = self.known();
        let Some(all) = all.as_ref() else { return Ok(Arc::new(Principal::anonymous())) };
        let found = names.iter().filter_map(|name| all.certificates.get(name));
        let mut valid = found.filter(|known| known.is_valid());
        let refused = |why: &str| Err(Problem::new(Code::Unauthenticated, why));
        match (valid.next(), valid.next()) {
            (Some(known), None) => Ok(Arc::clone(&known.principal)),
            (None, _) => refused("no name in the certificate is the `san` of anybody"),
            // Nothing says whose rights are meant.
            (Some(_), Some(_)) => refused("the certificate has the names of two principals"),
        }
    }

    /// Who sends these headers.
    pub(crate) fn principal(&self, headers: &HeaderMap) -> Result<Arc<Principal>, Problem> {
        let refused = |why: &str| Problem::new(Code::Unauthenticated, why);
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (first, more) = (given.next(), given.next());
        if more.is_some() {
            return Err(refused("there are two credentials"));
        }
        let known = self.known();
        let (Some(known), Some(first)) = (known.as_ref(), first) else {
            return match known.is_some() {
                true => Err(refused("a token is wanted")),
                false => Ok(Arc::new(Principal::anonymous())),
            };
        };
        let token = first
            .to_str()
            .ok()
            .and_then(token)
            .ok_or_else(|| refused("Bearer or Basic is wanted"))?;
        let hash: Hash = Sha256::digest(token.as_bytes()).into();
        let found = known.tokens.get_key_value(&hash);
        let found = found.filter(|(known, _)| known.ct_eq(&hash).into());
        let valid = found.filter(|(_, known)| known.is_valid());
        valid
            .map(|(_, known)| Arc::clone(&known.principal))
            .ok_or_else(|| refused("nobody has this token"))
    }
}

/// The token of a header: as it is, or Basic's password, or its user if that is empty.
fn token(header: &str) -> Option<String> {
    let (scheme, rest) = header.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(BASE64.decode(rest.trim().as_bytes()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some(if password.is_empty() { user } else { password }.to_owned())
}

/// A new token, and the lines of the file that make it known.
pub fn make_token(name: &str, uses: &[String]) -> (String, String) {
    let token = format!("co_{}", ids::letters(52));
    let hash = HEXLOWER.encode(&Sha256::digest(token.as_bytes()));
    let list = |names: &[String]| {
        let quoted: Vec<_> = names.iter().map(|name| toml_text(name)).collect();
        quoted.join(", ")
    };
    let lines = format!(
        "[[token]]\nname = {}\nsha256 = \"{hash}\"\nuse = [{}]\n",
        toml_text(name),
        list(uses)
    );
    (token, lines)
}

/// As TOML has texts: JSON's escapes are among its own.
fn toml_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_reaches_as_far_as_its_space() {
        let spaces = [("build/", Right::Use), ("deploy", Right::Admin), ("*", Right::Read)];
        let spaces = spaces.map(|(space, right)| (space.to_owned(), right)).into();
        let who = Principal { name: "ci".to_owned(), spaces, credential: None };
        assert!(who.may(Right::Use, "build/x") && !who.may(Right::Use, "build"));
        assert!(who.may(Right::Admin, "deploy") && !who.may(Right::Use, "deploy/x"));
        assert!(who.may(Right::Read, "anything") && !who.may(Right::Admin, "build/x"));
        assert!(who.may_everywhere(Right::Read) && !who.may_everywhere(Right::Use));
    }

    #[test]
    fn tokens_come_as_bearer_or_basic() {
        assert_eq!(token("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(token(&format!("Basic {}", BASE64.encode(b"x:abc"))).as_deref(), Some("abc"));
        assert_eq!(token(&format!("basic {}", BASE64.encode(b"abc:"))).as_deref(), Some("abc"));
        assert_eq!(token("Digest abc"), None);
        assert_eq!(token("Basic !"), None);
    }

    #[test]
    fn a_made_token_is_known_by_its_lines() {
        let (token, lines) = make_token("c\"i", &["build/".to_owned()]);
        let known = file::parse(&lines).expect("as it was made");
        let hash: Hash = Sha256::digest(token.as_bytes()).into();
        let who = &known.tokens[&hash].principal;
        assert_eq!(who.name, "c\"i");
        assert!(who.may(Right::Use, "build/x") && !who.may(Right::Admin, "build/x"));
        assert!(token.len() == 55 && !lines.contains(&token));
    }

    #[test]
    fn h9_a_certificate_is_whoever_has_its_name() {
        let lines = r#"
            [[certificate]]
            name = "billing"
            san = "uri:spiffe://example/billing"
            use = ["build/"]
            [[certificate]]
            name = "billing"
            san = "dns:Old.example"
            expires = 2020-01-01T00:00:00Z
            [[certificate]]
            name = "boss"
            san = "dns:Boss.example"
            admin = ["*"]
        "#;
        let known = RwLock::new(Some(file::parse(lines).expect("it is right")));
        let auth = Auth { known, shows: true, looks: watch::Sender::new(()) };
        let who = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            auth.certified(&names)
        };
        let billing = who(&["dns:a.example", "uri:spiffe://example/billing"]).expect("it is known");
        assert_eq!(billing.name, "billing");
        assert!(billing.may(Right::Use, "build/x") && !billing.may(Right::Read, "x"));
        assert!(auth.knows(&billing));
        assert!(who(&["dns:boss.example"]).expect("it is known").may(Right::Admin, "x"));
        let refused: [(&[&str], &str); 6] = [
            (&[], "nobody"),
            (&["uri:spiffe://example/billing/x"], "another one"),
            (&["dns:spiffe://example/billing"], "of another kind"),
            (&["dns:*.example"], "of many hosts"),
            (&["dns:old.example"], "over"),
            (&["dns:boss.example", "uri:spiffe://example/billing"], "two"),
        ];
        for (names, why) in refused {
            let refused = who(names).map_err(|problem| problem.code);
            assert_eq!(refused.map(drop), Err(Code::Unauthenticated), "{why}");
        }
        let still =
            |name: &str| auth.still(&billing, Right::Use, name).map_err(|problem| problem.code);
        assert_eq!(still("build/x"), Ok(()));
        let is_now = |lines: &str| {
            *auth.known.write().expect("nobody panicked") = file::parse(lines).ok();
        };
        is_now(&lines.replace("\"build/\"", "\"build/\", \"other/\""));
        assert!(!auth.knows(&billing), "its rights are others now");
        assert_eq!(still("build/x"), Ok(()), "it has more of them");
        is_now(&lines.replace("build/", "other/"));
        assert_eq!(still("build/x"), Err(Code::Forbidden));
        is_now("");
        assert_eq!(still("build/x"), Err(Code::Unauthenticated));
    }
}
