//! In which record a claim stands.
//!
//! Claims are spread over 256 buckets by the last byte of their names. A bucket is one record at first. Whoever makes a claim and
//! finds its record long adds a part to the bucket, a record of its own, which takes about half of the claims of another part:
//! of each part in turn, so that only two records change (linear hashing). So no record grows with the number of claims.

use super::ids::ClaimId;
use super::layout::{Claims, Contents};

/// From about how many bytes on a record is long.
const LONG: usize = 4 * 1024;
/// About what a claim takes, and ([`OF_AN_ITEM`]) each item that it was made of.
const OF_A_CLAIM: usize = 128;
const OF_AN_ITEM: usize = 8;

/// The number of a record of claims: of which bucket it is, and, times 256, which part of that.
pub(super) type Bucket = u16;

impl Contents {
    /// The record of a claim.
    pub(super) fn bucket_of(&self, claim: ClaimId) -> Bucket {
        let parts = u128::from(self.parts_in(claim.bucket()));
        let all = parts.next_power_of_two();
        let part = claim.rest() % all;
        // Those of a part that is not there yet stand in the part that will be divided for it.
        let part = if part < parts { part } else { part - all / 2 };
        numbered(claim.bucket(), part as u8)
    }

    /// All records that there may be: a part may have no claims, and no record.
    pub(super) fn all_buckets(&self) -> Vec<Bucket> {
        self.buckets.iter().flat_map(|bucket| self.records_of(*bucket)).collect()
    }

    /// The records of the first buckets that have several parts: of one, and of others as long as they are no more than so many
    /// together.
    pub(super) fn divided_buckets(&self, most: usize) -> Vec<Vec<Bucket>> {
        let records = self.parts.keys().map(|bucket| self.records_of(*bucket).collect());
        let mut all = 0;
        let has_room = |records: &Vec<Bucket>| {
            let is_first = all == 0;
            all += records.len();
            is_first || all <= most
        };
        records.take_while(has_room).collect()
    }

    /// The part that is to be divided next of the bucket to which a record belongs, and the part that this adds; `None`: it has as
    /// many parts as it may have.
    pub(super) fn next_division(&self, of: Bucket) -> Option<(Bucket, Bucket)> {
        let [bucket, _] = of.to_le_bytes();
        let parts = self.parts_in(bucket);
        let from = parts - (1 << parts.ilog2());
        (parts < u8::MAX).then(|| (numbered(bucket, from), numbered(bucket, parts)))
    }

    /// Adds that part.
    pub(super) fn divide_bucket(&mut self, of: Bucket) {
        let [bucket, _] = of.to_le_bytes();
        self.parts.insert(bucket, self.parts_in(bucket) + 1);
    }

    /// Notes which buckets there are, after some records were changed; `is_empty` tells of a record whether it is known to have no
    /// claims.
    pub(super) fn note_buckets(&mut self, changed: &[Bucket], is_empty: impl Fn(Bucket) -> bool) {
        for [bucket, _] in changed.iter().map(|record| record.to_le_bytes()) {
            if self.records_of(bucket).all(&is_empty) {
                self.remove_bucket(bucket);
            } else {
                self.buckets.insert(bucket);
            }
        }
    }

    /// Forgets the buckets that [`divided_buckets`](Self::divided_buckets) tells.
    pub(super) fn remove_divided_buckets(&mut self, most: usize) {
        let buckets = self.parts.keys().copied().take(self.divided_buckets(most).len());
        for bucket in buckets.collect::<Vec<_>>() {
            self.remove_bucket(bucket);
        }
    }

    fn remove_bucket(&mut self, bucket: u8) {
        self.buckets.remove(&bucket);
        self.parts.remove(&bucket);
    }

    fn parts_in(&self, bucket: u8) -> u8 {
        self.parts.get(&bucket).copied().unwrap_or(1)
    }

    fn records_of(&self, bucket: u8) -> impl Iterator<Item = Bucket> + use<> {
        (0..self.parts_in(bucket)).map(move |part| numbered(bucket, part))
    }
}

fn numbered(bucket: u8, part: u8) -> Bucket {
    Bucket::from_le_bytes([bucket, part])
}

/// Whether a record of claims is to be divided.
pub(super) fn is_long(claims: &Claims) -> bool {
    let items = claims.values().map(|claim| claim.ranks.len()).sum::<usize>();
    claims.len() > 1 && claims.len() * OF_A_CLAIM + items * OF_AN_ITEM > LONG
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_divided_between_itself_and_the_new_one() {
        let mut queue = Contents::default();
        let claims: Vec<_> = (0..2_000).map(|_| ClaimId::random()).collect();
        let own: Vec<_> = claims.iter().filter(|claim| claim.bucket() < 8).collect();
        for _ in 1..u8::MAX {
            let before: Vec<_> = own.iter().map(|claim| queue.bucket_of(**claim)).collect();
            let (from, to) = queue.next_division(5).expect("it may have more");
            queue.divide_bucket(5);
            for (claim, before) in own.iter().zip(before) {
                let now = queue.bucket_of(**claim);
                assert!(now == before || (before, now) == (from, to), "{before} {now}");
                assert!(claim.bucket() == 5 || now == u16::from(claim.bucket()));
            }
        }
        assert_eq!(queue.next_division(5), None);
        let all = queue.divided_buckets(1).concat();
        assert_eq!(all.len(), usize::from(u8::MAX));
        assert!(all.iter().all(|record| record % 256 == 5));
    }
}
