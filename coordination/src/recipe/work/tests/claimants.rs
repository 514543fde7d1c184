//! Claims as an operator sees them.

use super::super::claimants::{live_claims, take_away};
use super::*;

#[test]
fn a_claim_is_known_by_its_token_and_taken_away_once() {
    let mut fake = Fake::default();
    posted(&mut fake, 5, 1_000_000, 0);
    let (first, second) = (ask(2, 1_000, 0, None), ask(2, 2_000, 0, Some(7)));
    assert_eq!((fake.claim(&first).len(), fake.claim(&second).len()), (2, 2));
    fake.now += 100;
    let all = fake.look(live_claims);
    let seen = all.iter().map(|live| (live.id, live.holder, live.items, live.age, live.expires_in));
    let expected = [(first.id, None, 2, 100, 900), (second.id, Some(7), 2, 100, 1_900)];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
    let fence = all[0].fence;
    assert!(fence < all[1].fence);

    let mut takes =
        |fence| fake.run(|draft| take_away(draft, first.id, fence)).expect("it is never refused");
    assert!(!takes(fence + 1), "that is not its token");
    assert!(takes(fence));
    assert!(!takes(fence), "it is over");
    assert_eq!(fake.look(live_claims), all[1..].to_vec());
    assert_eq!(fake.claim(&ask(5, 1_000, 0, None)).len(), 3);
    fake.now += 2_000;
    assert_eq!(fake.look(live_claims), []);
}
