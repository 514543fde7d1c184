//! Items that were claimed too often, on their way to another queue.
//!
//! No step changes two queues. So an item leaves its queue as a letter, in the step that finds it; then it is posted in
//! the other queue, which remembers the number of the next letter that it expects from this one; and then the letter is
//! removed. Whoever is killed in between leaves letters to the next one who claims, and none is posted twice.

use super::draft::{Draft, Outcome, Step, letter_name};
use super::layout::{Item, Letter};
use super::post::{New, left_to_tidy, post};
use super::select::letter_of;

/// How many letters are delivered at once, and ([`AT_ONCE`]) how many are read at once, as each may be long.
const BATCH: u64 = 16;
const AT_ONCE: u64 = 4;
/// How many bytes the bodies of these letters may have together; one letter is always delivered.
const LENGTH: usize = 192 * 1024;

/// Makes a letter of an item.
pub(super) fn send(draft: &mut Draft<'_>, rank: u64, item: &Item, body: String) -> Step<()> {
    let letter = letter_of(draft, item, body);
    let number = draft.head.letters.1;
    *draft.letter(number)? = letter;
    draft.remove(rank)?;
    draft.change().letters.1 = number + 1;
    Ok(())
}

/// The next letters, with their numbers.
#[derive(Debug, PartialEq)]
pub(super) struct Pending {
    /// They all go to one queue.
    pub(super) letters: Vec<(u64, Letter)>,
    /// The last number that was looked at; `None`: there are no letters. If `letters` is empty, the records of all letters up to
    /// this number are missing: somebody else has removed them.
    pub(super) upto: Option<u64>,
}

/// The next letters on their way.
pub(super) fn pending(draft: &mut Draft<'_>) -> Step<Outcome<Pending>> {
    let (first, end) = draft.head.letters;
    let end = end.min(first.saturating_add(BATCH));
    let (mut letters, mut length): (Vec<(u64, Letter)>, _) = (Vec::new(), 0);
    let mut upto = None;
    for number in first..end {
        if (number - first) % AT_ONCE == 0 {
            draft.want((number..end.min(number + AT_ONCE)).map(letter_name))?;
        }
        let letter = draft.peek_letter(number)?;
        upto = Some(number);
        let Some(letter) = letter else { continue };
        length += letter.body.len();
        let goes_elsewhere = |(_, other): &(u64, Letter)| other.queue != letter.queue;
        if letters.first().is_some_and(|first| goes_elsewhere(first) || length > LENGTH) {
            break;
        }
        letters.push((number, letter));
    }
    Ok(Outcome::Done(Pending { letters, upto }))
}

/// Posts letters that have not come before. Answers how many pages that leaves to be [tidied](super::clear::tidy).
pub(super) fn receive(
    draft: &mut Draft<'_>,
    from: &str,
    letters: &[(u64, Letter)],
    marks: &[u64],
) -> Step<Outcome<usize>> {
    let expected = draft.received(from)?.get(from).copied().unwrap_or_default();
    let new = letters.iter().zip(marks).filter(|((number, _), _)| *number >= expected);
    let new = new.map(|((_, letter), mark)| New {
        body: letter.body.clone(),
        ttl: letter.ttl,
        delay: 0,
        claims: letter.claims,
        mark: *mark,
    });
    let new: Vec<_> = new.collect();
    if new.is_empty() {
        return Ok(Outcome::Done(0));
    }
    post(draft, &new)?;
    if let Some((last, _)) = letters.last() {
        draft.received(from)?.insert(from.to_owned(), last + 1);
    }
    Ok(Outcome::Done(left_to_tidy(draft, &new)))
}

/// Removes letters that the other queue has received.
pub(super) fn delivered(draft: &mut Draft<'_>, last: u64) -> Step<Outcome<()>> {
    draft.sets_no_time = true;
    let (first, end) = draft.head.letters;
    for number in first..end.min(last + 1) {
        *draft.letter(number)? = None;
    }
    let letters = &mut draft.change().letters;
    letters.0 = letters.0.max(last + 1);
    // A store that was given back older data does not know that there were these letters, but the other queue has noted their
    // numbers: it would take the next letters of these numbers for the same, and they would be lost.
    letters.1 = letters.1.max(letters.0);
    Ok(Outcome::Done(()))
}
