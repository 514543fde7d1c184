//! The label of an acquisition: a text for people, by which they tell apart what one process holds.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// The longest label in bytes.
const MAX_LABEL_BYTES: usize = 255;

/// The label, as an entry has it; `None`: the text is empty, so there is none.
pub(crate) fn checked(text: &str) -> Result<Option<Arc<str>>> {
    let refused = |message: String| Err(Error::new(ErrorKind::Input, "label", message));
    if text.len() > MAX_LABEL_BYTES {
        let length = text.len();
        return refused(format!(
            "the label has {length} bytes, and at most {MAX_LABEL_BYTES} are allowed"
        ));
    }
    if text.chars().any(char::is_control) {
        return refused(format!("the label {text:?} has a control character, and none is allowed"));
    }
    Ok((!text.is_empty()).then(|| text.into()))
}

/// The method by which a recipe with a field `queue` is given a label.
macro_rules! labelled {
    ($recipe:ident, $acquired:literal, $listed:literal $(, $(#[$example:meta])*)?) => {
        impl $recipe {
            #[doc = concat!("Gives ", $acquired, " by this handle from now on a label: a text for people, by which they can tell")]
            /// apart what one process holds. An empty one is none.
            ///
            #[doc = concat!($listed, " shows it, and so does `coordination status`.")]
            /// Nothing is decided by it, and two may have the same. The store keeps it with the entry for as long as that is
            /// there; without a label nothing is kept. Programs that read the store can read it, so it is no place for secrets.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Input`](crate::ErrorKind::Input): the label is longer than 255 bytes, or has a control character.
            /// Nothing is asked of the store.
            $($(#[$example])*)?
            pub fn label(mut self, label: impl AsRef<str>) -> crate::Result<Self> {
                self.queue = self.queue.labelled(label.as_ref())?;
                Ok(self)
            }
        }
    };
}

pub(crate) use labelled;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_one_line_that_is_not_too_long() {
        let kind = |text: &str| checked(text).err().map(|error| error.kind());
        for good in ["a", "nightly on h1", "né \"\\ 日本", &"x".repeat(255)] {
            assert_eq!(checked(good).ok().flatten().as_deref(), Some(good));
        }
        assert_eq!(checked("").ok(), Some(None));
        for bad in ["a\nb", "\0", "\x7f", "\u{85}", &"x".repeat(256), &"é".repeat(128)] {
            assert_eq!(kind(bad), Some(ErrorKind::Input), "{bad:?}");
        }
    }
}
