//! What a step reads does not grow with what it has no use for.

use super::*;

const LIFE: Micros = 1_000_000_000;

/// So many items, all claimed.
fn claimed(count: u64) -> Fake {
    let mut fake = Fake::default();
    posted(&mut fake, count, LIFE, 0);
    while !fake.claim(&ask(500, LIFE / 2, 0, Some(9))).is_empty() {}
    fake
}

/// A claim of one item. It is in one of sixteen buckets, so that these have as many claims as otherwise all have of sixteen times as
/// many.
fn ask_one(holder: Option<u64>) -> Ask {
    in_buckets(16, ask(1, LIFE / 2, 0, holder))
}

/// How many bytes a claim of one item reads and writes, on average.
fn bytes_of_a_claim(fake: &mut Fake, holder: Option<u64>) -> (usize, usize) {
    const TIMES: usize = 100;
    let (mut read, mut written) = (0, 0);
    for _ in 0..TIMES {
        assert_eq!(fake.claim(&ask_one(holder)).len(), 1);
        (read, written) = (read + fake.heard, written + fake.length);
    }
    (read / TIMES, written / TIMES)
}

/// C8: also where each claimed item has a claim of its own.
#[test]
fn c8_a_claim_costs_the_same_beside_40_000_live_claims() {
    let mut fake = Fake::default();
    posted(&mut fake, 40_000 / 16 + 1_000, LIFE, 0);
    let few = bytes_of_a_claim(&mut fake, None);
    for _ in 0..40_000 / 16 {
        fake.claim(&ask_one(None));
    }
    let many = bytes_of_a_claim(&mut fake, None);
    let is_alike = |many: usize, few: usize| 2 * many < 3 * few;
    assert!(is_alike(many.0, few.0) && is_alike(many.1, few.1), "{many:?}, else {few:?}");
}

#[test]
fn a_list_passes_over_what_it_does_not_list() {
    let mut fake = claimed(20_000);
    posted(&mut fake, 10, LIFE, 0);
    let which = Which { after: None, limit: 10, claimed: false, delayed: false };
    let listed = fake.look(|draft| list(draft, which));
    assert_eq!(listed.len(), 10);
    assert!(fake.cost.2 <= 5, "{} rounds of reading", fake.cost.2);
    let which = Which { claimed: true, limit: 1_000, ..which };
    assert_eq!(fake.look(|draft| list(draft, which)).len(), 1_000);
    assert!(fake.cost.2 <= 5, "{} rounds of reading", fake.cost.2);
}

#[test]
fn items_that_became_due_together_are_counted_in_few_rounds() {
    let mut fake = Fake::default();
    posted(&mut fake, 20_000, LIFE, 10);
    fake.now += 20;
    assert_eq!(fake.look(stats).ready, 20_000);
    assert!(fake.cost.2 <= 2, "{} rounds of reading", fake.cost.2);
}

#[test]
fn claims_that_are_over_are_read_at_once() {
    let mut fake = Fake::default();
    posted(&mut fake, 300, LIFE, 0);
    for _ in 0..300 {
        fake.claim(&ask(1, 10, 0, None));
    }
    fake.now += 20 + REMEMBERED;
    fake.run(|draft| gc(draft, 100)).expect("never refused");
    assert!(fake.cost.2 <= 12, "{} rounds of reading", fake.cost.2);
}

#[test]
fn of_claims_that_are_over_only_some_are_read_if_only_some_are_removed() {
    let mut fake = Fake::default();
    posted(&mut fake, 640, LIFE, 0);
    for _ in 0..640 {
        fake.claim(&ask(1, 10, 0, None));
    }
    fake.now += 20 + REMEMBERED;
    let removed = fake.run(|draft| gc(draft, 10)).expect("never refused");
    assert_eq!(removed.claims, 10);
    // And eleven pages and groups of items whose claims are over.
    assert!(fake.cost.0 <= MOST_BESIDE + 11, "{} records read", fake.cost.0);
}

#[test]
fn what_a_dead_process_had_is_read_at_once() {
    let mut fake = Fake::default();
    posted(&mut fake, 500, LIFE, 0);
    for _ in 0..500 {
        fake.claim(&ask(1, LIFE / 2, 0, Some(9)));
    }
    let before = fake.version;
    fake.run(|draft| bring_back(draft, &[])).expect("never refused");
    let steps = (fake.version - before) as usize;
    assert!(fake.cost.2 <= 6 * steps, "{} rounds of reading in {steps} steps", fake.cost.2);
    assert_eq!(fake.look(stats).ready, 500);
}

#[test]
fn of_pages_that_are_due_only_those_are_read_that_are_needed() {
    let mut fake = Fake::default();
    posted(&mut fake, 4_096, LIFE, 100);
    fake.now += 200;
    assert_eq!(fake.claim(&ask(1, LIFE / 2, 0, None)).len(), 1);
    assert!(fake.cost.0 <= 6, "{} records read", fake.cost.0);
}

#[test]
fn items_that_died_unclaimed_do_not_pile_up() {
    let mut fake = Fake::default();
    for _ in 0..10 {
        posted(&mut fake, 4_096, 10, 0);
        fake.now += 20;
    }
    for mark in 0..700 {
        fake.post(&[new(mark, LIFE, 0, 8)]);
        assert!(fake.cost.0 <= 8, "{} records read", fake.cost.0);
        let ask = ask(1, LIFE / 2, 0, None);
        let items = fake.claim(&ask);
        fake.run(|draft| ack(draft, &items, ask.id)).expect("it has them");
    }
    let pages = fake.records.keys().filter(|name| name.contains('p')).count();
    assert!(pages < 20, "{pages} pages");
    assert!(fake.head.live.groups.len() <= 2, "{} groups", fake.head.live.groups.len());
}

#[test]
fn dead_items_do_not_pile_up_behind_one_that_lives() {
    let mut fake = Fake::default();
    for group in 0..10 {
        // It lives for long, and nobody can claim it yet.
        fake.post(&[new(group, LIFE, LIFE / 2, 8)]);
        posted(&mut fake, 4_095, 10, 0);
        fake.now += 20;
    }
    for mark in 0..700 {
        fake.post(&[new(mark, 10, 0, 8)]);
        assert!(fake.cost.0 <= 8, "{} records read", fake.cost.0);
        fake.now += 20;
    }
    let pages = fake.records.keys().filter(|name| name.contains('p')).count();
    assert!(pages < 40, "{pages} pages");
    assert_eq!(fake.look(stats).delayed, 10);
}

#[test]
fn a_claim_that_finds_nothing_ready_reads_only_the_head() {
    let mut fake = claimed(200);
    assert!(fake.claim(&ask(1, LIFE / 2, 0, Some(9))).is_empty());
    assert_eq!(fake.cost.0, 0, "records read");
}

#[test]
fn the_dead_are_found_behind_thousands_that_are_only_due() {
    let mut fake = Fake::default();
    posted(&mut fake, 4_096, LIFE, 10);
    posted(&mut fake, 64, 5, 0);
    fake.now += 20;
    assert_eq!(fake.run(|draft| gc(draft, 100)).expect("never refused").items, 64);
    assert_eq!(fake.look(stats).ready, 4_096);
    let removed = fake.run(|draft| gc(draft, 100)).expect("never refused");
    assert_eq!((removed.items, removed.claims), (0, 0));
}

#[test]
fn what_was_posted_by_the_hundreds_and_died_does_not_pile_up() {
    let mut fake = Fake::default();
    for _ in 0..100 {
        posted(&mut fake, 500, 10, 0);
        fake.now += 20;
    }
    let pages = fake.records.keys().filter(|name| name.contains('p')).count();
    assert!(pages < 60, "{pages} pages");
}

#[test]
fn long_bodies_of_the_dead_do_not_pile_up() {
    let mut fake = Fake::default();
    for mark in 0..700 {
        fake.post(&[new(mark, 10, 0, 60_000)]);
        fake.now += 20;
    }
    assert!(fake.records.len() < 150, "{} records", fake.records.len());
}

/// Of each group one page lives, of which nobody can claim anything yet, and nobody has looked at the others since they died.
fn dead_beside_one_that_lives(groups: u64) -> Fake {
    let mut fake = Fake::default();
    for _ in 0..groups {
        let delayed: Vec<_> = (0..PAGE).map(|mark| new(mark, LIFE, LIFE / 2, 8)).collect();
        fake.run(|draft| post(draft, &delayed)).expect("it has room");
        posted(&mut fake, 4_096 - PAGE, 100, 0);
    }
    fake.now += 200;
    fake
}

#[test]
fn c8_a_claim_costs_the_same_behind_dead_items_beside_one_that_lives() {
    let mut plain = Fake::default();
    posted(&mut plain, 10, 1_000_000, 0);
    let few = usual_cost(&mut plain);
    let mut fake = dead_beside_one_that_lives(5);
    // No post removes anything.
    let items: Vec<_> = (0..200).map(|mark| new(mark, LIFE, 0, 8)).collect();
    fake.run(|draft| post(draft, &items)).expect("it has room");
    for _ in 0..70 {
        cost_of_a_claim(&mut fake);
    }
    let many = usual_cost(&mut fake);
    assert!(many.0 <= few.0 + 1, "{many:?}, else {few:?}");
}

#[test]
fn a_claim_that_finds_only_the_dead_tells_the_others() {
    let mut fake = dead_beside_one_that_lives(50);
    assert!(fake.claim(&ask(1, LIFE / 4, 0, Some(9))).is_empty());
    assert!(fake.cost.2 < 20, "{} rounds of reading", fake.cost.2);
    assert!(fake.claim(&ask(1, LIFE / 4, 0, Some(9))).is_empty());
    assert_eq!(fake.cost.0, 0, "records read");
    assert_eq!(fake.look(stats).delayed, 50 * PAGE);
    fake.now += LIFE / 2;
    assert!(!fake.claim(&ask(100, 10, 0, None)).is_empty());
}
