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

/// Writes an enum of [`words`] as its word, for enums that have no better text for people.
macro_rules! shown_as_word {
    ($($name:ident),*) => {
        $(
            impl std::fmt::Display for $name {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.pad(self.as_str())
                }
            }
        )*
    };
}

pub(crate) use shown_as_word;

/// Text.
pub(crate) fn text<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(text)
}

/// A moment of the wall clock, as seconds since 1970 to the millisecond.
pub(crate) mod since {
    use super::*;

    /// A moment that there is in any case.
    pub(crate) struct Written(pub(crate) SystemTime);

    impl serde::Serialize for Written {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            serialize(&Some(self.0), to)
        }
    }

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

/// Whether something was confirmed: nothing, or the error's text.
pub(crate) mod confirmed {
    use super::*;
    use crate::error::Error;

    pub(crate) fn serialize<S: Serializer>(
        confirmed: &Result<(), Error>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match confirmed {
            Ok(()) => to.serialize_none(),
            Err(error) => to.collect_str(error),
        }
    }
}

/// Text that another process stored, as the JSON that it is; text that is no JSON, as text.
pub(crate) mod stored {
    use serde::Serialize;

    use super::*;

    /// Such a text.
    pub(crate) struct Written<'a>(pub(crate) &'a str);

    impl Serialize for Written<'_> {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            serialize(self.0, to)
        }
    }

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
        Ack, Durability, Effect, ErrorKind, FencingToken, Liveness, LossDetection, LossReason,
        Presence, Recipe, Refusal, Scope, Standing, State,
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
            Recipe::words(),
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

    #[test]
    fn states_and_outcomes_have_a_text_for_people() {
        let member = FencingToken::new(7).map(Presence::Member).expect("not zero");
        let waited = std::time::Duration::from_millis(1_500);
        let texts: [(&dyn std::fmt::Display, &str); 13] = [
            (&Scope::Hosts, "hosts"),
            (&Durability::NotApplicable, "not_applicable"),
            (&Liveness::Lease, "lease"),
            (&LossDetection::Watch, "watch"),
            (&Recipe::Lock, "lock"),
            (&member, "member, as incarnation 7"),
            (
                &Presence::Away(LossReason::EntryDeleted),
                "away (its entry was removed from the store)",
            ),
            (&Presence::Ended(ErrorKind::GroupMissing), "ended (group_missing)"),
            (&Refusal::GaveUp { waited }, "no slot was free within 1.5s"),
            (&Refusal::AllBusy, "all slots are taken"),
            (&Standing::Working(3), "working in slot 3"),
            (&Standing::Standby, "on standby"),
            (&Ack::AlreadyGone, "already gone"),
        ];
        for (value, expected) in texts {
            assert_eq!(value.to_string(), expected);
        }
        assert_eq!(format!("{:>6}", Scope::Hosts), " hosts");
    }

    /// What is held or was found, as a service hands it on.
    #[cfg(feature = "memory")]
    #[tokio::test]
    async fn what_recipes_return_can_be_written() -> crate::Result<()> {
        use std::time::Duration;

        use serde_json::{Value, json};

        use crate::{Attempt, ClaimId, ClaimOptions, NewItem};

        fn written(value: impl serde::Serialize) -> Value {
            serde_json::to_value(value).expect("it can be written")
        }
        let coordinator = crate::Coordinator::connect("memory://written").await?;
        let api = coordinator.rate_limiter("api", 1, Duration::from_secs(60))?;
        let granted = written(api.try_acquire(1).await?);
        assert!(granted["granted"]["slot"].is_f64() && granted["granted"]["usable_for"].is_null());
        let denied = written(api.try_acquire(1).await?);
        assert!(denied["denied"]["retry_after"].as_f64() > Some(0.0), "{denied}");
        let retry_after = Duration::from_millis(500);
        assert_eq!(
            written(Attempt::Denied { retry_after }),
            json!({"denied": {"retry_after": 0.5}})
        );

        let hourly = coordinator.once_per("report", Duration::from_secs(3_600))?;
        let claim = written(hourly.try_claim().await?.expect("nobody has claimed it"));
        assert_eq!(claim["name"], "report");
        assert!(
            claim["token"].is_u64() && claim["next"].as_f64() > claim["at"].as_f64(),
            "{claim}"
        );

        let jobs = coordinator.queue("jobs")?;
        let bodies =
            [NewItem::json(&("vol-7", 20))?, NewItem::new("text"), NewItem::new([0xff_u8])];
        jobs.post(&bodies).await?;
        let view = jobs.claim_as(ClaimId::random(), ClaimOptions::default()).await?;
        let view = written(view.expect("three are ready"));
        assert_eq!((&view["ttl"], &view["grace"]), (&json!(300.0), &json!(60.0)));
        let body = |item: usize| view["items"][item]["body"].clone();
        assert_eq!([body(0), body(1)], [json!(["vol-7", 20]), json!("text")]);
        let item = &view["items"][2];
        assert_eq!((&item["body_base64"], &item["claims"]), (&json!("/w"), &json!(1)));

        let guard = coordinator.lock("vol-7")?.acquire(None).await?;
        let token = guard.token().value();
        let stopped = written(coordinator.stop_within(Duration::ZERO).await);
        let cut_off = json!([{"recipe": "lock", "name": "vol-7", "token": token}]);
        assert_eq!(stopped, json!({"cut_off": cut_off, "error": null}));
        Ok(())
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
