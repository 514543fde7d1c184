//! What the runs hold that this one runs in. Whoever waits for one of these would wait for itself, for ever.

use std::env;

use serde::{Deserialize, Serialize};

/// The variable in the command's environment that says what it runs under, as JSON, the outermost first.
pub(super) const HELD: &str = "COORDINATION_HELD";

/// Something that is held. Whoever finds it at the store knows it by member and token: no other store has that pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) recipe: String,
    pub(super) name: String,
    pub(super) member: String,
    pub(super) token: u64,
}

/// What is held around us; what a daemon has kept of a run that has ended is at no store any more.
pub(super) fn held() -> Vec<Held> {
    env::var(HELD).map(|text| read(&text)).unwrap_or_default()
}

/// What is held around a command that runs under this, for its environment.
pub(super) fn with(own: Vec<Held>) -> String {
    let mut all = held();
    all.extend(own);
    serde_json::to_string(&all).unwrap_or_default()
}

/// Anybody may write there: what is no text of ours names nothing.
fn read(text: &str) -> Vec<Held> {
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_of_ours_names_nothing() {
        for text in ["", "x", "{}", "[1]", "[{\"recipe\": \"lock\"}]"] {
            assert_eq!(read(text), []);
        }
        let (recipe, name) = ("lock".to_owned(), "a:b \"c\"".to_owned());
        let held = Held { recipe, name, member: "me".to_owned(), token: 7 };
        assert_eq!(read(&with(vec![held.clone()])).pop(), Some(held));
    }
}
