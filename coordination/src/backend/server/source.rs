//! Where one part of a client's credentials comes from: the URL, or a file that it names.

use std::fs;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::url::Secret;

/// The source of one part of the credentials.
#[derive(Debug)]
pub(super) enum Source {
    /// The URL itself has this part.
    Fixed(Secret),
    /// Was read when the URL was parsed, because the option names something that can be read only once, for instance a pipe.
    Once { option: &'static str, contents: Secret },
    /// A file, which the option names. It is read anew for each connection.
    File { option: &'static str, path: PathBuf },
}

impl Source {
    /// The source at `path`, which is the value of this option: a file that may be replaced, or something that can be read only
    /// once. A path that is relative is relative to the working directory of now, where the file is found again when that is another one.
    pub(super) fn named(option: &'static str, path: &str) -> Result<Self> {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
        let file = Self::File { option, path: absolute };
        match fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            true => Ok(Self::Once { option, contents: file.text()? }),
            false => Ok(file),
        }
    }

    pub(super) fn read(&self) -> Result<Vec<u8>> {
        match self {
            Self::Fixed(contents) | Self::Once { contents, .. } => {
                Ok(contents.expose().as_bytes().to_vec())
            }
            Self::File { option, path } => fs::read(path).map_err(|error| {
                // The message leaves out the path: somebody may have written the secret itself into the option, in place of a path.
                let kind = error.kind();
                let message =
                    format!("option `{option}`: the file it names cannot be read: {kind}");
                Error::config(message).with_source(error)
            }),
        }
    }

    pub(super) fn text(&self) -> Result<Secret> {
        String::from_utf8(self.read()?)
            .map(Secret::new)
            .map_err(|_| Error::config(format!("option `{}`: the file is not text", self.option())))
    }

    /// The password. Line breaks at the end of a file are ignored.
    pub(super) fn password(&self) -> Result<Secret> {
        let text = self.text()?;
        let (Self::File { option, .. } | Self::Once { option, .. }) = self else {
            return Ok(text);
        };
        let password = text.expose().trim_end_matches(['\r', '\n']);
        match password.is_empty() {
            true => Err(Error::config(format!("option `{option}`: the file is empty"))),
            false => Ok(Secret::new(password.to_owned())),
        }
    }

    fn option(&self) -> &'static str {
        match self {
            Self::Fixed(_) => "password",
            Self::File { option, .. } | Self::Once { option, .. } => option,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_wherever_the_program_goes() -> Result<()> {
        let Source::File { path, .. } = Source::named("password_file", "no-such-file")? else {
            panic!("it may come to be");
        };
        assert!(path.is_absolute() && path.ends_with("no-such-file"), "{path:?}");
        Ok(())
    }
}
