//! Lists of names, a page at a time.
//!
//! A store uses one of the two kinds of cursors, so the compiler can tell unused code only in a build with both kinds.
#![cfg_attr(not(all(feature = "memory", feature = "file")), allow(dead_code))]

use std::sync::Arc;

use crate::error::Result;

/// The largest number of names, or of keys from which names are found, on a page.
pub(crate) const PAGE: usize = 250;

/// A part of a list of names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) names: Vec<String>,
    /// Where the next page begins; `None`: this is the last one.
    pub(crate) next: Option<Cursor>,
}

/// How far a list has been read. Only the store that made a cursor understands it.
#[derive(Clone, Debug)]
pub(crate) enum Cursor {
    /// The point up to which the store has read the list: a key or a name, or the store's own cursor.
    To(Arc<[u8]>),
    /// A list that was read as a whole, and how much of it is left.
    Left(Left),
}

impl Cursor {
    pub(crate) fn to(place: &[u8]) -> Self {
        Self::To(place.into())
    }

    /// The point up to which the list was read (see [`To`](Self::To)); empty: nothing was read yet.
    pub(crate) fn place(from: Option<&Self>) -> &[u8] {
        match from {
            Some(Self::To(place)) => place,
            Some(Self::Left(_)) | None => &[],
        }
    }
}

/// A list that the store returns only as a whole, and how far the pages have come.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    all: Arc<[String]>,
    from: usize,
}

impl Left {
    /// What the list has left at this cursor; without a cursor, the whole list, which `all` reads.
    pub(crate) async fn from(
        cursor: Option<&Cursor>,
        all: impl Future<Output = Result<Vec<String>>>,
    ) -> Result<Self> {
        match cursor {
            Some(Cursor::Left(left)) => Ok(left.clone()),
            Some(Cursor::To(_)) | None => Ok(Self { all: all.await?.into(), from: 0 }),
        }
    }

    /// The next page, and where the page after that begins.
    pub(crate) fn page(&self) -> (&[String], Option<Cursor>) {
        let left = self.all.get(self.from..).unwrap_or_default();
        match left.split_at_checked(PAGE) {
            Some((page, rest)) if !rest.is_empty() => {
                let next = Self { all: Arc::clone(&self.all), from: self.from + PAGE };
                (page, Some(Cursor::Left(next)))
            }
            _ => (left, None),
        }
    }
}
