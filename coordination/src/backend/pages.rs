//! Lists of names, a page at a time.
//!
//! Each store uses one of the two kinds of cursors: only a build with both can say that something here is used by none.
#![cfg_attr(not(all(feature = "memory", feature = "file")), allow(dead_code))]

use std::sync::Arc;

use crate::error::Result;

/// How many names, or keys that tell of names, a page of a list has at most.
pub(crate) const PAGE: usize = 250;

/// A part of a list of names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) names: Vec<String>,
    /// Where the next part begins; `None`: this is the last one.
    pub(crate) next: Option<Cursor>,
}

/// How far a list was read. What it means is for the store that made it.
#[derive(Clone, Debug)]
pub(crate) enum Cursor {
    /// To this.
    To(Arc<[u8]>),
    /// To the beginning of what is left.
    Left(Left),
}

impl Cursor {
    pub(crate) fn to(place: &[u8]) -> Self {
        Self::To(place.into())
    }

    /// The place in the list; empty: its beginning.
    pub(crate) fn place(from: Option<&Self>) -> &[u8] {
        match from {
            Some(Self::To(place)) => place,
            Some(Self::Left(_)) | None => &[],
        }
    }
}

/// A list that a store tells only at once, and what of it was not gone through.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    all: Arc<[String]>,
    from: usize,
}

impl Left {
    /// What is left from here; at the beginning, all.
    pub(crate) async fn from(
        cursor: Option<&Cursor>,
        all: impl Future<Output = Result<Vec<String>>>,
    ) -> Result<Self> {
        match cursor {
            Some(Cursor::Left(left)) => Ok(left.clone()),
            Some(Cursor::To(_)) | None => Ok(Self { all: all.await?.into(), from: 0 }),
        }
    }

    /// A page of it, and where the next one begins.
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
