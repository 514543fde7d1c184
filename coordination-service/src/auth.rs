//! Who asks, and what that one may do: tokens, of which only hashes are kept, and rights on prefixes of names.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, header};
use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

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
    /// The name that goes with the token.
    pub(crate) name: String,
    /// Prefixes that end in `/`, whole names, or `*`, each with the most that is allowed there.
    spaces: Vec<(String, Right)>,
    /// Of the token that was sent.
    token: Option<Hash>,
}

impl Principal {
    fn anonymous() -> Self {
        let spaces = vec![("*".to_owned(), Right::Use)];
        Self { name: "anonymous".to_owned(), spaces, token: None }
    }

    /// Who may do everything.
    pub(crate) fn administrator(name: String) -> Self {
        Self { name, spaces: vec![("*".to_owned(), Right::Admin)], token: None }
    }

    /// Who is not asked for a token, and may do nothing that needs a right.
    pub(crate) fn nobody() -> Self {
        Self { name: String::new(), spaces: Vec::new(), token: None }
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

/// The file of tokens.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    token: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    sha256: String,
    #[serde(default)]
    read: Vec<String>,
    #[serde(default, rename = "use")]
    uses: Vec<String>,
    #[serde(default)]
    admin: Vec<String>,
    expires: Option<toml::value::Datetime>,
}

type Hash = [u8; 32];

struct Known {
    principal: Arc<Principal>,
    hash: Hash,
    expires: Option<SystemTime>,
}

/// Who is known; `None` inside: everybody is anonymous.
pub(crate) struct Auth(RwLock<Option<HashMap<Hash, Known>>>);

impl Auth {
    /// Reads the file, if there is one.
    pub(crate) fn new(file: Option<&Path>) -> Result<Self, String> {
        Ok(Self(RwLock::new(file.map(read).transpose()?)))
    }

    /// Reads the file again; one that is wrong changes nothing.
    pub(crate) fn reload(&self, file: &Path) -> Result<(), String> {
        let known = read(file)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Ok(())
    }

    /// Whether this one may still do what it might when it asked: for what goes on after that.
    pub(crate) fn knows(&self, who: &Principal) -> bool {
        let Some(hash) = who.token else { return true };
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let now = all.as_ref().and_then(|all| all.get(&hash));
        now.is_some_and(|now| now.is_valid() && *now.principal == *who)
    }

    /// Who sends these headers.
    pub(crate) fn principal(&self, headers: &HeaderMap) -> Result<Arc<Principal>, Problem> {
        let refused = |why: &str| Problem::new(Code::Unauthenticated, why);
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (first, more) = (given.next(), given.next());
        if more.is_some() {
            return Err(refused("there are two credentials"));
        }
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
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
        let found = known.get(&hash).filter(|known| known.hash.ct_eq(&hash).into());
        let valid = found.filter(|known| known.is_valid());
        valid
            .map(|known| Arc::clone(&known.principal))
            .ok_or_else(|| refused("nobody has this token"))
    }
}

impl Known {
    fn is_valid(&self) -> bool {
        self.expires.is_none_or(|end| SystemTime::now() < end)
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

fn read(path: &Path) -> Result<HashMap<Hash, Known>, String> {
    let shown = path.display();
    let failed = |error: std::io::Error| format!("cannot read {shown}: {error}");
    let metadata = std::fs::metadata(path).map_err(failed)?;
    let owner = metadata.uid();
    if metadata.mode() & 0o077 != 0 || owner != rustix::process::geteuid().as_raw() {
        return Err(format!("{shown} can be read by others, or is another user's: chmod 600"));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    // Without what the parser quotes: it would be a part of the file.
    let file: File = toml::from_str(&text)
        .map_err(|error| format!("{shown} is not as it should be: {}", error.message()))?;
    let mut known = HashMap::new();
    for entry in file.token {
        let hash = HEXLOWER_PERMISSIVE.decode(entry.sha256.as_bytes()).ok();
        let hash: Hash = hash
            .and_then(|hash| hash.try_into().ok())
            .ok_or_else(|| format!("{shown}: a sha256 has 64 hexadecimal digits"))?;
        let expires = entry.expires.map(|at| moment(&at)).map(|at| at.ok_or(shown.to_string()));
        let expires = expires.transpose().map_err(|shown| {
            format!("{shown}: `expires` is a time in UTC, as in 2027-01-01T00:00:00Z")
        })?;
        let spaces =
            [(entry.read, Right::Read), (entry.uses, Right::Use), (entry.admin, Right::Admin)];
        let spaces = spaces
            .into_iter()
            .flat_map(|(names, right)| names.into_iter().map(move |name| (name, right)));
        let (name, spaces) = (entry.name, spaces.collect());
        let principal = Arc::new(Principal { name, spaces, token: Some(hash) });
        known.insert(hash, Known { principal, hash, expires });
    }
    Ok(known)
}

/// A time of a TOML file, which has to be in UTC.
fn moment(at: &toml::value::Datetime) -> Option<SystemTime> {
    let (date, time) = (at.date?, at.time?);
    let is_utc = match at.offset? {
        toml::value::Offset::Z => true,
        toml::value::Offset::Custom { minutes } => minutes == 0,
    };
    // Years that begin in March, in eras of 400, since 1970.
    let (year, month) = (u64::from(date.year), u64::from(date.month));
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + u64::from(date.day) - 1;
    let of_era = (year % 400) * 365 + (year % 400) / 4 - (year % 400) / 100 + of_year;
    let days = ((year / 400) * 146_097 + of_era).checked_sub(719_468)?;
    let seconds = u64::from(time.hour) * 3_600
        + u64::from(time.minute) * 60
        + time.second.map_or(0, u64::from);
    is_utc.then(|| UNIX_EPOCH + Duration::from_secs(days * 86_400 + seconds))
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
        let who = Principal { name: "ci".to_owned(), spaces, token: None };
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
    fn times_of_the_file_are_moments() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:34:56Z", Some(951_827_696)),
            ("2027-01-01T00:00:00Z", Some(1_798_761_600)),
            ("2027-01-01T00:00:00+01:00", None),
            ("2027-01-01", None),
        ] {
            let at: toml::value::Datetime = text.parse().expect("a time");
            assert_eq!(moment(&at), seconds.map(|s| UNIX_EPOCH + Duration::from_secs(s)), "{text}");
        }
    }

    #[test]
    fn a_made_token_is_known_by_its_lines() {
        let (token, lines) = make_token("c\"i", &["build/".to_owned()]);
        let file: File = toml::from_str(&lines).expect("as it was made");
        assert_eq!((file.token[0].name.as_str(), &file.token[0].uses[0][..]), ("c\"i", "build/"));
        assert!(token.len() == 55 && !lines.contains(&token));
    }
}
