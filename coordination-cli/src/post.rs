//! `coordination post`: items for a queue.

use std::io::{self, Read};

use coordination::NewItem;

use crate::args::{Post, Store};
use crate::exit::{Failure, Outcome, shown};
use crate::run::signals::until_stopped;
use crate::settings;

/// The most items of one post, and the most bytes that they take as they are stored.
const MOST: usize = 1_000;
const LONGEST: usize = 352 * 1024;
/// What an item takes beside its body.
const BESIDE: usize = 160;

/// Posts them, and prints their names.
pub(crate) async fn post(post: &Post, store: &Store) -> Outcome<u8> {
    let config = settings::read(store)?;
    let bodies = bodies(post)?;
    let coordinator = settings::connect(config).await?;
    let queue = coordinator.queue(&post.queue)?;
    let posting = async {
        let mut is_read = !store.quiet;
        let mut rest = bodies.as_slice();
        while !rest.is_empty() {
            let (part, after) = rest.split_at(fitting(rest));
            let item = |body: &Vec<u8>| NewItem::new(body.clone()).ttl(post.ttl).delay(post.delay);
            let items: Vec<_> = part.iter().map(item).collect();
            let posted = bodies.len() - rest.len();
            let names = queue.post(&items).await;
            let names = names.map_err(|error| cut_short(error.into(), posted, bodies.len()))?;
            if is_read {
                let names: String = names.iter().map(|name| format!("{name}\n")).collect();
                // Who has seen enough of the names still wants all items posted.
                let posted = posted + part.len();
                is_read =
                    shown(&names).map_err(|failure| cut_short(failure, posted, bodies.len()))?;
            }
            rest = after;
        }
        Ok(0)
    };
    until_stopped(&coordinator, posting).await
}

/// Why not all of them are posted: whoever posts them all again has to know which are there.
fn cut_short(failure: Failure, posted: usize, all: usize) -> Failure {
    match posted {
        0 => failure,
        _ => failure.after(format_args!("the first {posted} of {all} items are posted")),
    }
}

/// Each argument, or what comes on stdin: as a whole, or each of its lines.
fn bodies(post: &Post) -> Outcome<Vec<Vec<u8>>> {
    use std::os::unix::ffi::OsStrExt;
    if !post.bodies.is_empty() {
        return Ok(post.bodies.iter().map(|body| body.as_bytes().to_vec()).collect());
    }
    let mut text = Vec::new();
    let read = io::stdin().read_to_end(&mut text);
    read.map_err(|error| Failure::system("cannot read stdin", &error))?;
    match post.lines {
        true => Ok(lines(&text)),
        false => Ok(vec![text]),
    }
}

fn lines(text: &[u8]) -> Vec<Vec<u8>> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    match text.is_empty() {
        true => Vec::new(),
        false => text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect(),
    }
}

/// How many of them go with one post: one at least, which may be too long.
fn fitting(bodies: &[Vec<u8>]) -> usize {
    let mut length = 0;
    let fits = |body: &&Vec<u8>| {
        length += (body.len() * 4).div_ceil(3) + BESIDE;
        length <= LONGEST
    };
    bodies.iter().take(MOST).take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_items_and_many_are_posted_in_parts() {
        assert_eq!(lines(b"a\n\nb\n"), [&b"a"[..], b"", b"b"]);
        assert_eq!((lines(b"a"), lines(b"")), (vec![b"a".to_vec()], vec![]));
        assert_eq!(fitting(&vec![vec![0; 10]; 3_000]), MOST);
        assert_eq!(fitting(&vec![vec![0; 100_000]; 3]), 2);
        assert_eq!(fitting(&[vec![0; 1_000_000]]), 1);
    }
}
