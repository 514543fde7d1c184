//! Items that were claimed too often, on their way to another queue.
//!
//! No step changes two queues. So an item leaves its queue as a letter, in the step that finds it; then it is posted in
//! the other queue, which remembers the number of the next letter that it expects from this one; and then the letter is
//! removed. Whoever is killed in between leaves letters to the next one who claims, and none is posted twice, as long as the other
//! queue has not [forgotten](forget_some) this one.
//!
//! Letters to one queue are in one outbox and go in their order. A queue that takes none keeps no other one from its letters. Nor does a
//! letter that somebody has changed so that it cannot be read keep those behind it: what is left of it becomes an item that cannot be
//! read.

use super::draft::{Draft, LetterPlace, Outcome, Step, Stop, letter_name};
use super::layout::{Item, Letter, Micros, Outbox, Received, Sender};
use super::post::{New, left_to_tidy, post};
use crate::error::ErrorKind;

/// How many letters are delivered at once, and ([`AT_ONCE`]) how many are read at once, as each may be long.
const BATCH: u64 = 16;
const AT_ONCE: u64 = 4;
/// How many bytes the bodies of these letters may have together; one letter is always delivered.
const LENGTH: usize = 192 * 1024;
/// About how long the record becomes of the queues that send letters here, and ([`OF_A_SENDER`]) how much each of them takes beside its
/// name. With names of 30 bytes, some fifty thousand are known in the 256 records together.
const LONG_RECEIVED: usize = 16 * 1024;
const OF_A_SENDER: usize = 48;
/// How much is kept of a letter that cannot be read: more than the longest one has.
const MOST_REMAINS: usize = 350 * 1024;
/// How long it lives: as long as an item can, as nobody knows how long it was to live.
const LIFE_OF_REMAINS: Micros = 14 * 24 * 3_600 * 1_000_000;

/// Makes a letter of an item.
pub(super) fn send(draft: &mut Draft<'_>, rank: u64, item: &Item, body: String) -> Step<()> {
    // Invariant: without a dead letter queue no item was claimed too often.
    let Some(poison) = draft.head.poison.clone() else { return Ok(()) };
    let next = draft.head.next_letter;
    let new = Outbox { began: next, first: next, end: next };
    let mut outbox = draft.head.outboxes.get(&poison.queue).copied().unwrap_or(new);
    let left = item.expires.saturating_sub(draft.now);
    let letter = Letter { body, claims: item.claims, ttl: poison.ttl.unwrap_or(left) };
    draft.set_letter((outbox.began, outbox.end), Some(letter))?;
    draft.remove(rank)?;
    outbox.end += 1;
    let head = draft.change();
    head.next_letter = head.next_letter.max(outbox.end);
    head.outboxes.insert(poison.queue, outbox);
    Ok(())
}

/// The letters that are to be delivered next.
#[derive(Debug, PartialEq)]
pub(super) struct Pending {
    /// Where they go.
    pub(super) queue: String,
    /// With their numbers.
    pub(super) letters: Vec<(u64, Letter)>,
    /// The numbers of those of which only remains are delivered.
    pub(super) unreadable: Vec<u64>,
    /// All letters to this queue up to this number are among these, or somebody else has removed their records.
    pub(super) upto: u64,
}

/// The next letters to the first queue to which some are on their way, of those that `is_left_out` does not hold for.
pub(super) fn pending(
    draft: &mut Draft<'_>,
    is_left_out: impl Fn(&str) -> bool,
) -> Step<Outcome<Option<Pending>>> {
    let mut all = draft.head.outboxes.iter();
    let next = all.find(|(queue, _)| !is_left_out(queue.as_str()));
    let next = next.map(|(queue, outbox)| (queue.clone(), *outbox));
    let Some((queue, outbox)) = next else { return Ok(Outcome::Done(None)) };
    let end = outbox.end.min(outbox.first.saturating_add(BATCH));
    let (mut letters, mut length): (Vec<(u64, Letter)>, _) = (Vec::new(), 0);
    let (mut unreadable, mut upto) = (Vec::new(), outbox.first);
    for number in outbox.first..end {
        if (number - outbox.first) % AT_ONCE == 0 {
            let some = number..end.min(number + AT_ONCE);
            draft.want(some.map(|number| letter_name((outbox.began, number))))?;
        }
        let (letter, is_whole) = read(draft, (outbox.began, number))?;
        if let Some(letter) = letter {
            length += letter.body.len();
            if !letters.is_empty() && length > LENGTH {
                break;
            }
            unreadable.extend((!is_whole).then_some(number));
            letters.push((number, letter));
        }
        upto = number;
    }
    Ok(Outcome::Done(Some(Pending { queue, letters, unreadable, upto })))
}

/// A letter, and whether it is as it was written. If somebody has changed it so that it cannot be read, its remains are delivered, as an
/// item that cannot be read either: it does not hold up those behind it.
fn read(draft: &mut Draft<'_>, place: LetterPlace) -> Step<(Option<Letter>, bool)> {
    match draft.peek_letter(place) {
        Err(Stop::Fail(error)) if error.kind() == ErrorKind::Corrupt => {
            let body = draft.remains_of_letter(place, MOST_REMAINS);
            Ok((Some(Letter { body, claims: 0, ttl: LIFE_OF_REMAINS }), false))
        }
        letter => Ok((letter?, true)),
    }
}

/// Posts letters that have not come before. Answers how many pages that leaves to be [tidied](super::clear::tidy).
pub(super) fn receive(
    draft: &mut Draft<'_>,
    from: &str,
    letters: &[(u64, Letter)],
    marks: &[u64],
) -> Step<Outcome<usize>> {
    let expected = draft.received(from)?.get(from).map_or(0, |sender| sender.next);
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
        let received = draft.received(from)?;
        let newest = received.values().map(|sender| sender.came).max();
        let came = newest.map_or(0, |newest| newest.saturating_add(1));
        received.insert(from.to_owned(), Sender { next: last + 1, came });
        forget_some(received, from);
    }
    Ok(Outcome::Done(left_to_tidy(draft, &new)))
}

/// Forgets the queues whose last letters came longest ago, but for this one, if the record has become long. A letter of theirs comes twice
/// then, if whoever brought it died before its removal and nobody has claimed there since: while as many others have sent letters as
/// all these records know of.
fn forget_some(received: &mut Received, but: &str) {
    let length_of = |queue: &str| queue.len() + OF_A_SENDER;
    let mut length: usize = received.keys().map(|queue| length_of(queue)).sum();
    while length > LONG_RECEIVED {
        let others = received.iter().filter(|(queue, _)| *queue != but);
        let oldest = others.min_by_key(|(_, sender)| sender.came);
        let Some(oldest) = oldest.map(|(queue, _)| queue.clone()) else { return };
        received.remove(&oldest);
        length -= length_of(&oldest);
    }
}

/// Removes letters that this queue has received from the one of this id. If somebody has removed that one meanwhile, another one of its
/// name has letters of its own under the same numbers.
pub(super) fn delivered(
    draft: &mut Draft<'_>,
    id: u64,
    queue: &str,
    last: u64,
) -> Step<Outcome<()>> {
    draft.sets_no_time = true;
    if draft.head.id != id {
        return Ok(Outcome::Done(()));
    }
    let outbox = draft.head.outboxes.get(queue).copied();
    if let Some(mut outbox) = outbox {
        for number in outbox.first..outbox.end.min(last + 1) {
            draft.set_letter((outbox.began, number), None)?;
        }
        outbox.first = outbox.first.max(last + 1);
        let outboxes = &mut draft.change().outboxes;
        match outbox.first < outbox.end {
            true => drop(outboxes.insert(queue.to_owned(), outbox)),
            false => drop(outboxes.remove(queue)),
        }
    }
    // A store that was given back older data does not know that there were these letters, but the other queue has noted their
    // numbers: it would take the next letters of these numbers for the same, and they would be lost.
    let head = draft.change();
    head.next_letter = head.next_letter.max(last + 1);
    Ok(Outcome::Done(()))
}
