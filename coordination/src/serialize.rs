//! How what the library lists and tells is written with serde: words for kinds and states, and numbers of seconds for times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serializer;

/// Gives an enum without fields a stable word for each of its variants, and writes it with serde as that word.
macro_rules! words {
    ($name:ident: $($variant:ident = $word:literal,)*) => {
        impl $name {
            /// One word in lower case: for logs, metrics and other programs. It stays the same from version to version, whereas texts
            /// for people may be improved.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        #[cfg(test)]
        impl $name {
            /// Each variant as Rust writes it, and its word.
            pub(crate) fn words() -> Vec<(String, &'static str)> {
                vec![$((format!("{:?}", Self::$variant), $word)),*]
            }
        }
    };
}

pub(crate) use words;

/// Text.
pub(crate) fn text<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(text)
}

/// A moment of the wall clock, as seconds since 1970 to the millisecond.
pub(crate) mod since {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        since: &Option<SystemTime>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match since.and_then(|since| since.duration_since(UNIX_EPOCH).ok()) {
            Some(since) => to.serialize_some(&(since.as_millis() as f64 / 1_000.0)),
            None => to.serialize_none(),
        }
    }
}

/// A duration, as seconds.
pub(crate) mod seconds {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(duration.as_secs_f64())
    }
}

/// Text that another process stored, as the JSON that it is; text that is no JSON, as text.
pub(crate) mod stored {
    use serde::Serialize;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
        match serde_json::from_str::<serde_json::Value>(text) {
            Ok(value) => value.serialize(to),
            Err(_) => to.serialize_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Durability, Effect, ErrorKind, Liveness, LossDetection, LossReason, Refusal, Scope, State,
    };

    /// Who reads a word in a log finds it in the documentation of the enum.
    #[test]
    fn each_word_is_the_name_of_its_variant() {
        let words = [
            Durability::words(),
            Effect::words(),
            ErrorKind::words(),
            Liveness::words(),
            LossDetection::words(),
            LossReason::words(),
            Scope::words(),
        ];
        for (variant, word) in words.concat() {
            let mut expected = String::new();
            for (at, letter) in variant.char_indices() {
                if letter.is_uppercase() && at > 0 {
                    expected.push('_');
                }
                expected.push(letter.to_ascii_lowercase());
            }
            assert_eq!(expected, word);
        }
    }

    #[test]
    fn states_and_refusals_are_words_with_what_belongs_to_them() {
        let lost = State::Lost(LossReason::ExpiredByServer);
        assert_eq!(lost.to_string(), "lost (the store ended the session)");
        assert_eq!(State::Connected.to_string(), "connected");
        let json = |value: &dyn erased::Json| value.json();
        assert_eq!(json(&lost), r#"{"lost":"expired_by_server"}"#);
        assert_eq!(json(&State::Suspended), r#""suspended""#);
        let waited = std::time::Duration::from_millis(1_500);
        assert_eq!(json(&Refusal::GaveUp { waited }), r#"{"gave_up":{"waited":1.5}}"#);
        assert_eq!(json(&Refusal::AllBusy), r#""all_busy""#);
    }

    mod erased {
        pub(super) trait Json {
            fn json(&self) -> String;
        }

        impl<T: serde::Serialize> Json for T {
            fn json(&self) -> String {
                serde_json::to_string(self).expect("it can be written")
            }
        }
    }
}
