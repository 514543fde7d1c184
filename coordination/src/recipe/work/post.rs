//! Posting items.

use super::clear::{join_groups, left_of_post, remove_dead_pages};
use super::draft::{Draft, HEAVY, Outcome, Step};
use super::ids::ItemId;
use super::layout::{Bodies, Body, Item, MOST_LITTER, Micros, PAGE};

/// Up to how many bytes, in base64, a body stands with its item; a longer one stands in a record of bodies.
const SHORT: usize = 256;
/// About how long a record of bodies becomes.
const LONG: usize = 48 * 1024;

/// An item that is to be posted, with what is random about it.
#[derive(Clone, Debug)]
pub(super) struct New {
    pub(super) body: String,
    pub(super) ttl: Micros,
    pub(super) delay: Micros,
    pub(super) claims: u32,
    pub(super) mark: u64,
}

/// Appends items; they have the ids that this answers, in order.
pub(super) fn post(draft: &mut Draft<'_>, items: &[New]) -> Step<Outcome<Vec<ItemId>>> {
    draft.adds = true;
    let first = match length_of(items) <= HEAVY {
        true => draft.head.rank,
        // With a page of others it would be more than some store takes at once.
        false => draft.head.rank.next_multiple_of(PAGE),
    };
    let ranks: Vec<_> = (first..).take(items.len()).collect();
    let pages = ranks.iter().map(|rank| rank / PAGE);
    let names = pages.flat_map(|page| [draft.page_name(page), draft.group_name(page)]);
    let names: Vec<_> = names.collect();
    draft.want(names)?;
    let now = draft.now;
    let (mut bodies, mut length) = ((first, Bodies::new()), 0);
    for (rank, new) in ranks.iter().zip(items) {
        let is_long = length + new.body.len() > LONG && length > 0;
        if is_long || rank % PAGE == 0 {
            store(draft, &mut bodies, *rank);
            length = 0;
        }
        let body = match new.body.len() <= SHORT {
            true => Body::Here(new.body.clone()),
            false => {
                length += new.body.len();
                bodies.1.insert(*rank, new.body.clone());
                Body::There(bodies.0, new.body.len() as u64)
            }
        };
        let item = Item {
            mark: new.mark,
            made: now,
            expires: now.saturating_add(new.ttl),
            not_before: now.saturating_add(new.delay),
            claim: None,
            claims: new.claims,
            body,
        };
        draft.page_mut(rank / PAGE)?.insert(*rank, item);
    }
    let next = first + items.len() as u64;
    store(draft, &mut bodies, next);
    draft.change().rank = next;
    if is_short(items) && draft.head.litter.len() < MOST_LITTER / 2 {
        remove_dead_pages(draft)?;
        if first / PAGE < next / PAGE {
            join_groups(draft)?;
        }
    }
    Ok(Outcome::Done(
        ranks.iter().zip(items).map(|(rank, new)| ItemId::new(*rank, new.mark)).collect(),
    ))
}

/// Whether there is room in the step that posts these items for what is done beside.
fn is_short(items: &[New]) -> bool {
    length_of(items) <= LONG
}

fn length_of(items: &[New]) -> usize {
    items.iter().map(|new| new.body.len()).sum()
}

/// How many pages are left to be tidied, see [`tidy`](super::clear::tidy), after the step that has posted these items.
pub(super) fn left_to_tidy(draft: &Draft<'_>, items: &[New]) -> usize {
    left_of_post(draft, items.len(), is_short(items))
}

/// The bodies so far become a record; those from this rank on are for the next one.
fn store(draft: &mut Draft<'_>, bodies: &mut (u64, Bodies), next: u64) {
    let (number, bodies) = std::mem::replace(bodies, (next, Bodies::new()));
    if !bodies.is_empty() {
        draft.new_bodies(number, bodies);
    }
}
