//! What a name that is not known was probably meant to be.

/// ` (did you mean ..?)`, if one of these names is close to it, else nothing.
pub(crate) fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let nearest = nearest(name, known);
    nearest.map_or_else(String::new, |nearest| format!(" (did you mean `{nearest}`?)"))
}

/// The nearest of these names, the first of several: at most a third of the longer name's letters are wrong, or one letter.
fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name: Vec<char> = name.chars().collect();
    let close = known.into_iter().filter_map(|known| {
        let letters: Vec<char> = known.chars().collect();
        let limit = (name.len().max(letters.len()) / 3).max(1);
        if name.len().abs_diff(letters.len()) > limit {
            return None;
        }
        let distance = distance(&name, &letters);
        // Where no letter of a name is right, it is not near.
        (distance <= limit && distance < letters.len()).then_some((distance, known))
    });
    close.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// How many letters have to be added, left out, replaced, or exchanged with the next one, to get from one to the other.
fn distance(one: &[char], other: &[char]) -> usize {
    // In row `i`, the distances of the first `i` letters of `one` to each beginning of `other`.
    let mut rows = vec![(0..=other.len()).collect::<Vec<_>>()];
    for (i, letter) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, wanted) in other.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(letter != wanted);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == other[j - 1] && one[i - 1] == *wanted {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_the_least() {
        for (one, other, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("timeout", "timeout", 0),
            ("timeot", "timeout", 1),
            ("kitten", "sitting", 3),
            ("gaurd", "guard", 1),
            ("größe", "grosse", 3),
        ] {
            let (first, second): (Vec<_>, Vec<_>) =
                (one.chars().collect(), other.chars().collect());
            assert_eq!(distance(&first, &second), expected, "{one} {other}");
            assert_eq!(distance(&second, &first), expected, "{other} {one}");
        }
    }

    #[test]
    fn what_is_close_is_named_and_nothing_else() {
        let known = ["guard", "map_err", "timeout", "x", "id", "self"];
        for (name, expected) in [
            ("timeot", Some("timeout")),
            ("time_out", Some("timeout")),
            ("gaurd", Some("guard")),
            ("guards", Some("guard")),
            ("maperr", Some("map_err")),
            ("idd", Some("id")),
            ("y", None),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
    }
}
