//! The file of tokens: whose they are, whose certificates are known by which names, and what each of them may do.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER_PERMISSIVE;
use serde::Deserialize;
use toml::value::Datetime;

use super::{Credential, Hash, Principal, Right};

/// All that are known.
#[derive(Debug)]
pub(super) struct Everybody {
    pub(super) tokens: HashMap<Hash, Known>,
    /// By a name in the certificate, as `Names` have it.
    pub(super) certificates: HashMap<String, Known>,
}

/// Somebody who is known.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) principal: Arc<Principal>,
    expires: Option<SystemTime>,
}

impl Everybody {
    /// Who is known by this.
    pub(super) fn get(&self, credential: &Credential) -> Option<&Known> {
        match credential {
            Credential::Token(hash) => self.tokens.get(hash),
            Credential::Certificate(name) => self.certificates.get(name),
        }
    }
}

impl Known {
    pub(super) fn is_valid(&self) -> bool {
        self.expires.is_none_or(|end| SystemTime::now() < end)
    }
}

/// As it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    token: Vec<Token>,
    #[serde(default)]
    certificate: Vec<Certificate>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    name: String,
    sha256: String,
    #[serde(default)]
    read: Vec<String>,
    #[serde(default, rename = "use")]
    uses: Vec<String>,
    #[serde(default)]
    admin: Vec<String>,
    expires: Option<Datetime>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Certificate {
    name: String,
    san: String,
    #[serde(default)]
    read: Vec<String>,
    #[serde(default, rename = "use")]
    uses: Vec<String>,
    #[serde(default)]
    admin: Vec<String>,
    expires: Option<Datetime>,
}

/// Reads the file, which nobody else may read; `shows` says whether clients can show certificates.
pub(super) fn read(path: &Path, shows: bool) -> Result<Everybody, String> {
    let shown = path.display();
    let failed = |error: std::io::Error| format!("cannot read {shown}: {error}");
    let metadata = std::fs::metadata(path).map_err(failed)?;
    let owner = metadata.uid();
    if metadata.mode() & 0o077 != 0 || owner != rustix::process::geteuid().as_raw() {
        return Err(format!("{shown} can be read by others, or is another user's: chmod 600"));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let all = parse(&text).map_err(|why| format!("{shown}: {why}"))?;
    if !shows && !all.certificates.is_empty() {
        return Err(format!("{shown}: nobody can show a [[certificate]] without --client-ca FILE"));
    }
    Ok(all)
}

/// What the file's text says.
pub(super) fn parse(text: &str) -> Result<Everybody, String> {
    // Without what the parser quotes: it would be a part of the file.
    let file: File = toml::from_str(text)
        .map_err(|error| format!("it is not as it should be: {}", error.message()))?;
    let mut all = Everybody { tokens: HashMap::new(), certificates: HashMap::new() };
    for Token { name, sha256, read, uses, admin, expires } in file.token {
        let hash = HEXLOWER_PERMISSIVE.decode(sha256.as_bytes()).ok();
        let hash: Hash = hash
            .and_then(|hash| hash.try_into().ok())
            .ok_or_else(|| "a sha256 has 64 hexadecimal digits".to_owned())?;
        let known = known(name, Credential::Token(hash), [read, uses, admin], expires)?;
        all.tokens.insert(hash, known);
    }
    for Certificate { name, san, read, uses, admin, expires } in file.certificate {
        let in_it = name_in_certificate(&san).ok_or_else(|| {
            format!(
                "no certificate has the `san` {san}: it is uri: and a URI, or dns: and the name of one host, as in uri:spiffe://example/billing"
            )
        })?;
        let credential = Credential::Certificate(in_it.clone());
        let known = known(name, credential, [read, uses, admin], expires)?;
        match all.certificates.entry(in_it) {
            Entry::Vacant(place) => place.insert(known),
            Entry::Occupied(_) => return Err(format!("the `san` {san} is there twice")),
        };
    }
    Ok(all)
}

/// Who is known by this, with what that one may read, use and administer.
fn known(
    name: String,
    credential: Credential,
    [read, uses, admin]: [Vec<String>; 3],
    expires: Option<Datetime>,
) -> Result<Known, String> {
    let expires = expires.map(|at| {
        let why = "`expires` is a time in UTC, as in 2027-01-01T00:00:00Z";
        moment(&at).ok_or_else(|| why.to_owned())
    });
    let expires = expires.transpose()?;
    let spaces = [(read, Right::Read), (uses, Right::Use), (admin, Right::Admin)];
    let spaces = spaces
        .into_iter()
        .flat_map(|(names, right)| names.into_iter().map(move |name| (name, right)));
    let spaces = spaces.collect();
    let principal = Arc::new(Principal { name, spaces, credential: Some(credential) });
    Ok(Known { principal, expires })
}

/// A name in a certificate, as it is looked up. None: it is of no kind that is looked at, no certificate has it, or it has a `*`,
/// and so would be many clients' at once.
fn name_in_certificate(san: &str) -> Option<String> {
    let (kind, name) = san.split_once(':')?;
    match kind {
        "uri" => {
            let allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'*';
            let is_uri = name.contains(':') && name.bytes().all(allowed);
            is_uri.then(|| san.to_owned())
        }
        "dns" => {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            let is_label = |label: &str| {
                let is_bounded = !label.starts_with('-') && !label.ends_with('-');
                (1..=63).contains(&label.len()) && is_bounded && label.bytes().all(allowed)
            };
            let is_address = |last: &str| last.bytes().all(|byte| byte.is_ascii_digit());
            let is_host = name.len() <= 253
                && name.split('.').all(is_label)
                && !name.rsplit('.').next().is_some_and(is_address);
            is_host.then(|| san.to_ascii_lowercase())
        }
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_file_are_moments() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:34:56Z", Some(951_827_696)),
            ("2027-01-01T00:00:00Z", Some(1_798_761_600)),
            ("2027-01-01T00:00:00+01:00", None),
            ("2027-01-01", None),
        ] {
            let at: Datetime = text.parse().expect("a time");
            assert_eq!(moment(&at), seconds.map(|s| UNIX_EPOCH + Duration::from_secs(s)), "{text}");
        }
    }

    #[test]
    fn a_san_is_a_name_that_a_certificate_can_have() {
        let long = format!("dns:{}.example", "a".repeat(64));
        for (san, in_it) in [
            ("uri:spiffe://example/Billing", Some("uri:spiffe://example/Billing")),
            ("dns:A.example", Some("dns:a.example")),
            ("dns:host_1", Some("dns:host_1")),
            ("dns:*.example", None),
            ("dns:a.example.", None),
            ("dns:", None),
            ("dns:10.0.0.1", None),
            ("dns:a-.example", None),
            ("dns:3com.example", Some("dns:3com.example")),
            (&long[..], None),
            ("uri:spiffe://example/*", None),
            ("uri:", None),
            ("uri:billing", None),
            ("uri:spiffe://example/a b", None),
            ("spiffe://example/billing", None),
            ("DNS:a.example", None),
            ("email:a@b.example", None),
            ("billing", None),
        ] {
            assert_eq!(name_in_certificate(san).as_deref(), in_it, "{san}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_certificate_is_said() {
        let refused = |lines: &str| parse(lines).expect_err("it is wrong");
        let entry = |san: &str| format!("[[certificate]]\nname = \"x\"\nsan = \"{san}\"\n");
        assert!(parse(&entry("dns:a.example")).is_ok());
        assert!(refused(&entry("billing")).contains("uri:"));
        let twice = format!("{}{}", entry("dns:a.example"), entry("dns:A.example"));
        assert!(refused(&twice).contains("twice"));
        assert!(refused("[[certificate]]\nname = \"x\"\n").contains("san"));
        let hash = format!("{}sha256 = \"00\"\n", entry("dns:a.example"));
        assert!(refused(&hash).contains("sha256"), "that is a token's");
    }
}
