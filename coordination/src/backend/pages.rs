//! Lists of names, which a store returns a page at a time.
//!
//! Each store uses only one of the two kinds of [`Cursor`]. So the compiler can find unused code only in a build that has stores of
//! both kinds; in all other builds the lint is off.
#![cfg_attr(not(all(feature = "memory", feature = "file")), allow(dead_code))]

use std::sync::Arc;

use crate::error::Result;

/// The largest number of names on a page. On stores that find the names in keys: the largest number of keys that are read for one
/// page.
pub(crate) const PAGE: usize = 250;

/// One page of a list of names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) names: Vec<String>,
    /// The cursor with which the caller asks for the next page; `None`: this is the last page.
    pub(crate) next: Option<Cursor>,
}

/// How far a caller has come in a list. Only the store that made the cursor can use it.
#[derive(Clone, Debug)]
pub(crate) enum Cursor {
    /// How far the store has read the list: the last key or name that was read, or a cursor of the store's own.
    To(Arc<[u8]>),
    /// For a list that the store returned as a whole: the list, and which part of it is still to be returned.
    Left(Left),
}

impl Cursor {
    pub(crate) fn to(place: &[u8]) -> Self {
        Self::To(place.into())
    }

    /// What is in [`To`](Self::To): how far the store has read the list. Empty: nothing was read yet.
    pub(crate) fn place(from: Option<&Self>) -> &[u8] {
        match from {
            Some(Self::To(place)) => place,
            Some(Self::Left(_)) | None => &[],
        }
    }
}

/// A list that the store returned as a whole, and the index up to which its names were returned in pages.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    all: Arc<[String]>,
    from: usize,
}

impl Left {
    /// The list that is in the cursor. If there is no cursor, the caller asks for the first page, and this function reads the whole
    /// list by `all`.
    pub(crate) async fn from(
        cursor: Option<&Cursor>,
        all: impl Future<Output = Result<Vec<String>>>,
    ) -> Result<Self> {
        match cursor {
            Some(Cursor::Left(left)) => Ok(left.clone()),
            Some(Cursor::To(_)) | None => Ok(Self { all: all.await?.into(), from: 0 }),
        }
    }

    /// The names of the next page, and the cursor for the page after it.
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
