//! What a step writes is never more than every store takes.

use super::super::layout::Summary;
use super::*;

/// One item of each page is alive, and the others are dead.
fn sparse(pages: u64) -> Fake {
    let mut fake = Fake::default();
    for _ in 0..pages {
        let items: Vec<_> =
            (0..64).map(|nth| new(nth, if nth == 0 { 1_000_000 } else { 10 }, 0, 8)).collect();
        fake.post(&items);
    }
    fake.now += 20;
    fake
}

#[test]
fn what_a_dead_process_had_comes_back_in_several_steps() {
    let mut fake = sparse(160);
    while !fake.claim(&ask(30, 500_000, 0, Some(9))).is_empty() {}
    assert_eq!(fake.look(stats).claimed, 160);
    fake.run(|draft| bring_back(draft, &[])).expect("never refused");
    assert_eq!(fake.look(stats).ready, 160);
    assert_eq!(fake.head.live.holders.len(), 0);
}

#[test]
fn a_claim_of_many_items_is_written_in_one_step() {
    for (length, at_once) in [(8, 1_000), (32, 1_000), (256, 500)] {
        let mut fake = Fake::default();
        for _ in 0..8 {
            let items: Vec<_> = (0..800).map(|mark| new(mark, 1_000_000, 0, length)).collect();
            fake.post(&items);
        }
        let mut claimed = 0;
        loop {
            let ask = ask(1_000, 500_000, 0, Some(9));
            let items = fake.claim(&ask);
            if items.is_empty() {
                break;
            }
            assert!(items.len() >= at_once.min(6_400 - claimed), "{}", items.len());
            claimed += items.len();
            fake.run(|draft| renew(draft, ask.id, None, None)).expect("it is live");
            if claimed % 2 == 0 {
                assert_eq!(fake.run(|draft| ack(draft, &items, ask.id)).ok(), Some(items.len()));
            }
        }
        assert_eq!(claimed, 6_400);
        fake.run(|draft| bring_back(draft, &[])).expect("never refused");
    }
}

/// The head is as long as that of a queue of more than half a million items, and the last page is one of claimed items.
#[test]
fn what_is_written_fits_beside_a_long_head() {
    let mut fake = Fake::default();
    for group in 1_000..1_150 {
        let others = Summary { claimed: 4_096, until: Micros::MAX, ..Summary::NOTHING };
        fake.head.live.groups.insert(group, others);
    }
    let items: Vec<_> = (0..1_023).map(|mark| new(mark, 1_000_000, 0, 256)).collect();
    items.chunks(500).for_each(|items| drop(fake.post(items)));
    let held = ask(1_000, 500_000, 0, Some(9));
    let claimed = fake.claim(&held);
    assert!(claimed.len() > 300, "{}", claimed.len());
    fake.run(|draft| renew(draft, held.id, None, None)).expect("it is live");
    while !fake.claim(&ask(1_000, 500_000, 0, Some(9))).is_empty() {}
    // A body of 256 KiB.
    let item = fake.post(&[new(0, 1_000_000, 0, 349_526)]);
    assert_eq!(fake.claim(&ask(1, 500_000, 0, Some(9))), item);
    assert_eq!(fake.run(|draft| ack(draft, &claimed, held.id)).ok(), Some(claimed.len()));
}

#[test]
fn letters_with_large_bodies_go_one_by_one() {
    let (mut from, mut to) = (Fake::default(), Fake::default());
    from.head.poison = Some(Poison { max_claims: 1, queue: "dead".into(), ttl: None });
    for mark in 0..5 {
        from.post(&[new(mark, 1_000_000, 0, 349_526)]);
        // A page of these is as long as one can be.
        from.post(&(0..12).map(|mark| new(mark, 1_000_000, 0, 256)).collect::<Vec<_>>());
    }
    let mut claimed = 0;
    while claimed < 65 {
        let ask = ask(100, 1, 0, None);
        claimed += from.claim(&ask).len();
    }
    from.now += 1;
    assert!(from.claim(&ask(3, 1, 0, None)).is_empty());
    let mut came = 0;
    loop {
        let letters = pending(&mut from);
        let Some((last, _)) = letters.last() else { break };
        let marks = vec![0; letters.len()];
        to.run(|draft| letters::receive(draft, "q", &letters, &marks)).expect("it has room");
        from.run(|draft| letters::delivered(draft, 0, "dead", *last)).expect("never refused");
        came += letters.len();
    }
    assert_eq!(came, 65);
    assert_eq!(to.look(stats).ready, 65);
}

#[test]
fn letters_come_from_any_number_of_queues() {
    let mut to = Fake::default();
    let letter = Letter { body: "x".into(), claims: 1, ttl: 1 };
    for queue in 0..20_000 {
        let (letters, from) = ([(0, letter.clone())], format!("queue-of-one-job-{queue}"));
        to.run(|draft| letters::receive(draft, &from, &letters, &[queue])).expect("it has room");
    }
    assert!(to.length < 40_000, "{} bytes for one letter", to.length);
}

/// Of queues that have sent letters and do not come back, no more is remembered than that. The clock stands still, as where each letter is
/// brought by a process that then ends.
#[test]
fn what_is_known_of_queues_that_send_letters_has_a_bound() {
    let mut to = Fake::default();
    let letter = Letter { body: "x".into(), claims: 1, ttl: 1_000_000 };
    let long = "q".repeat(1_000);
    let receive = |to: &mut Fake, queue: u64| {
        let (letters, from) = ([(0, letter.clone())], format!("{long}-{queue}"));
        to.run(|draft| letters::receive(draft, &from, &letters, &[queue])).expect("it has room");
        to.look(stats).ready
    };
    for queue in 0..8_000 {
        assert_eq!(receive(&mut to, queue), queue + 1);
    }
    let records = to.records.iter().filter(|(name, _)| name.starts_with("0m"));
    let longest = records.map(|(_, data)| data.len()).max();
    assert!(longest <= Some(20 * 1024), "{longest:?}");
    for queue in 7_000..8_000 {
        assert_eq!(receive(&mut to, queue), 8_000, "a letter is taken twice");
    }
}

#[test]
fn what_was_acknowledged_does_not_pile_up_in_the_head() {
    let mut fake = Fake::default();
    for mark in 0..4_000 {
        fake.post(&[new(mark, 1_000_000, 0, 300)]);
    }
    for _ in 0..20 {
        let ask = ask(1_000, 500_000, 0, None);
        let items = fake.claim(&ask);
        fake.run(|draft| ack(draft, &items, ask.id)).expect("it has them");
    }
    assert!(fake.head.litter.len() < 1_300, "{}", fake.head.litter.len());
}

/// A few items live for weeks, while thousands of others come and go between them.
#[test]
fn items_that_live_for_long_do_not_fill_the_head() {
    const LIFE: Micros = 1_000_000_000;
    let (mut fake, mut left) = (Fake::default(), Vec::new());
    for group in 0..3_000 {
        for page in [0, 5] {
            // The last one of a page.
            fake.head.rank = group * 4_096 + page * 64 + 63;
            left.extend(fake.post(&[new(group, LIFE, LIFE / 2, 8)]));
        }
    }
    let length = serde_json::to_string(&fake.head).expect("it can be written").len();
    assert!(length < 24 * 1024, "{length} bytes");
    assert_eq!(fake.look(stats).delayed, 6_000);
    fake.now += LIFE / 2;
    let mut came = Vec::new();
    while came.len() < left.len() {
        let ask = ask(1_000, 10, 0, None);
        let items = fake.claim(&ask);
        assert!(!items.is_empty(), "{} of {} came", came.len(), left.len());
        fake.run(|draft| ack(draft, &items, ask.id)).expect("it has them");
        came.extend(items);
    }
    assert_eq!(came, left);
    assert!(fake.head.live.groups.is_empty() && fake.head.live.joined.is_empty());
}

/// The same where hundreds are posted at once, and all others die unclaimed.
#[test]
fn an_item_of_thousands_that_lives_for_long_needs_no_group_of_its_own() {
    const GROUPS: u64 = 60;
    let mut fake = Fake::default();
    for group in 0..GROUPS {
        let of_post = |nth: u64| {
            move |mark| {
                let ttl = if nth == 0 && mark == 0 { 1_000_000 } else { 10 };
                new(mark, ttl, ttl / 2, 128)
            }
        };
        for nth in 0..8 {
            fake.post(&(0..512).map(of_post(nth)).collect::<Vec<_>>());
        }
        fake.now += 20;
        assert_eq!(fake.head.rank, (group + 1) * 4_096);
    }
    assert_eq!(fake.look(stats).delayed, GROUPS);
    let groups = fake.head.live.groups.len();
    assert!(groups < 25, "{groups} groups");
}

#[test]
fn queues_that_were_deleted_do_not_pile_up_in_the_head() {
    let mut fake = Fake::default();
    for _ in 0..200 {
        fake.post(&(0..9).map(|mark| new(mark, 1_000_000, 0, 300)).collect::<Vec<_>>());
        fake.claim(&ask(1, 500_000, 0, Some(9)));
        fake.run(delete_queue).expect("never refused");
    }
    assert!(fake.head.trash.len() < 10, "{}", fake.head.trash.len());
    fake.run(clean).expect("never refused");
    assert_eq!(fake.records.len(), 0);
}

#[test]
fn the_head_names_few_of_the_bodies_that_a_deleted_queue_had() {
    let mut fake = Fake::default();
    for mark in 0..1_500 {
        fake.post(&[new(mark, 1_000_000, 0, 300)]);
    }
    fake.run(delete_queue).expect("never refused");
    while !(fake.head.trash.is_empty() && fake.head.litter.is_empty()) {
        fake.once(&mut |draft| clean(draft)).expect("never refused");
        assert!(fake.head.litter.len() < 700, "{} names", fake.head.litter.len());
    }
    assert_eq!(fake.records.len(), 0);
}

/// Also if it had more records of claims than buckets.
#[test]
fn a_queue_that_was_deleted_is_removed_in_few_steps() {
    const LIFE: Micros = 1_000_000_000;
    let mut fake = Fake::default();
    posted(&mut fake, 2_500, LIFE, 0);
    for _ in 0..2_500 {
        fake.claim(&in_buckets(64, ask(1, LIFE / 2, 0, None)));
    }
    let divided = fake.head.live.parts.len();
    assert!(divided > 32, "{divided} buckets have several parts");
    fake.run(delete_queue).expect("never refused");
    let (records, before) = (fake.records.len(), fake.version);
    fake.run(clean).expect("never refused");
    let steps = (fake.version - before) as usize;
    // Each one removes 40 records.
    assert!(steps <= records / 40 + 10, "{steps} steps for {records} records");
    assert_eq!(fake.records.len(), 0);
}

#[test]
fn claims_of_many_dead_processes_are_forgotten_in_several_steps() {
    let mut fake = Fake::default();
    posted(&mut fake, 100, 1_000_000_000, 0);
    for holder in 0..100 {
        // All in one bucket.
        let id: ClaimId =
            format!("{:032x}", (holder + 1) << 8).parse().unwrap_or_else(|no| match no {});
        let ask = Ask { id, ..ask(1, 10, 0, Some(holder as u64)) };
        assert_eq!(fake.claim(&ask).len(), 1);
    }
    fake.now += 20 + REMEMBERED;
    for _ in 0..10 {
        fake.run(|draft| gc(draft, 100)).expect("never refused");
    }
    assert_eq!(fake.head.live.holders.len(), 0);
}
