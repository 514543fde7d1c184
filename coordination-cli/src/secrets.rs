//! What is never printed: a URL's user and password, wherever among the arguments it was put by mistake.

/// The text without them.
pub(crate) fn masked(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // A quotation mark does not end it: a password may have one.
        let word = part.split(char::is_whitespace).next().unwrap_or(part);
        shown.push_str("://");
        match word.rfind('@') {
            Some(at) => {
                shown.push_str("***");
                shown.push_str(&part[at..]);
            }
            None => shown.push_str(part),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let text = "no argument 'redis://:p:@w@h1,h2/0' and etcd://u:pw@h; https://docs.rs a@b";
        let shown = "no argument 'redis://***@h1,h2/0' and etcd://***@h; https://docs.rs a@b";
        assert_eq!(masked(text), shown);
        assert_eq!(masked("nothing to hide: a@b"), "nothing to hide: a@b");
        assert_eq!(masked("redis://:é@"), "redis://***@");
        assert_eq!(masked("argument 'redis://:p'w@h' found"), "argument 'redis://***@h' found");
    }
}
