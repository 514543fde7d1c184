//! G3, G4: members that come back after a loss, and capabilities that change.

use super::super::tools::drop_after_polls;
use super::*;

/// G3: after a loss, a `rejoining` membership comes back as a new incarnation, with its last capabilities.
pub async fn g3_back_as_a_new_incarnation(store: &TestStore) -> Result<()> {
    let (_one, here) = with_group(store, "one").await?;
    let there = group(&store.connect("other").await?);
    let mut watch = there.watch().await?;
    let mut membership = here.join(&0).await?.rejoining();
    let GroupEvent::Joined(mut last) = next(&mut watch).await? else { panic!("it has joined") };
    assert_eq!(membership.presence(), Presence::Member(last.incarnation));
    for round in 1..=3 {
        membership.update(&round).await?;
        let event = next(&mut watch).await?;
        let GroupEvent::Updated(member) = &event else { panic!("{event:?}") };
        assert_eq!(member.incarnation, last.incarnation);
        sleep(2 * MOMENT).await;
        if round == 1 || store.backend().is_in_process() {
            there.remove("one").await?;
        } else {
            store.end_session("one");
        }
        let event = next(&mut watch).await?;
        let GroupEvent::Left(member) = &event else { panic!("{event:?}") };
        assert_eq!(member.incarnation, last.incarnation);
        let event = next(&mut watch).await?;
        let GroupEvent::Joined(member) = event else { panic!("{event:?}") };
        assert!(member.incarnation > last.incarnation, "a silent continuation");
        assert_eq!(member.capabilities.parse::<i32>()?, round);
        until_presence(&mut membership, Presence::Member(member.incarnation)).await;
        last = member;
    }
    membership.leave().await?;
    assert_eq!(short(&next(&mut watch).await?), "-one");
    Ok(())
}

async fn until_presence(membership: &mut RejoiningMembership, wanted: Presence) {
    let come = async {
        while membership.presence() != wanted {
            membership.changed().await.expect("it has not ended");
        }
    };
    let outcome = timeout(PATIENCE, come).await;
    assert!(outcome.is_ok(), "{wanted:?} expected, and it is {:?}", membership.presence());
}

/// Waits until a watch reports that this member is in the group (`is_in`), or that it is not. Returns the member if it
/// is in the group. A `Resync` may come first, because ZooKeeper, when it drops the connection of one client, may stop
/// reading from the connection of another.
async fn until_told(watch: &mut GroupWatch, id: &str, is_in: bool) -> Result<Option<Member>> {
    loop {
        let event = next(watch).await?;
        let member = watch.members().iter().find(|member| *member.id == *id).cloned();
        if member.is_some() == is_in {
            return Ok(member);
        }
        assert!(matches!(event, GroupEvent::Resync(_)), "{event:?}");
    }
}

/// G3: after an outage that cost the session, a `rejoining` membership comes back. Capabilities that were updated
/// during the outage are those of the new incarnation.
pub async fn g3_back_after_an_outage(store: &TestStore) -> Result<()> {
    let (_one, here) = with_group(store, "one").await?;
    let cut_off = store.connect_by_proxy("cut-off").await?;
    let mut membership = group(&cut_off).join("before").await?.rejoining();
    let Presence::Member(first) = membership.presence() else { panic!("it has joined") };
    let mut watch = here.watch().await?;
    store.proxy().set_both(Mode::Blackhole);
    let told = timeout(PATIENCE, membership.changed()).await.expect("told");
    assert_eq!(told, Some(Presence::Away(LossReason::DeadlinePassed)));
    membership.update("after").await?;
    assert_eq!(until_told(&mut watch, "cut-off", false).await?, None);
    store.proxy().heal();
    let member = until_told(&mut watch, "cut-off", true).await?.expect("it is back");
    assert!(member.incarnation > first);
    assert_eq!(member.capabilities.parse::<String>()?, "after");
    until_presence(&mut membership, Presence::Member(member.incarnation)).await;

    // In a second outage the group is deleted, so the member cannot come back.
    store.proxy().set_both(Mode::Blackhole);
    assert_eq!(until_told(&mut watch, "cut-off", false).await?, None);
    here.delete().await?;
    store.proxy().heal();
    assert_eq!(ended(&mut membership).await, ErrorKind::GroupMissing);
    assert!(!here.exists().await?);
    Ok(())
}

/// G3: a membership ends for good when it is left or dropped, also while it is rejoining.
pub async fn g3_leaving_is_for_good(store: &TestStore) -> Result<()> {
    let (_one, here) = with_group(store, "one").await?;
    let there = group(&store.connect("other").await?);
    for is_told in [true, false] {
        for round in 0..store.rounds(15, 5) {
            let membership = here.join(&()).await?.rejoining();
            if round % 3 > 0 {
                there.remove("one").await?;
                sleep(Duration::from_millis(4) * u32::try_from(round).unwrap_or_default()).await;
            }
            match is_told {
                true => {
                    membership.leave().await?;
                    assert!(there.members().await?.is_empty(), "still there in round {round}");
                    sleep(Duration::from_millis(5)).await;
                    assert!(there.members().await?.is_empty(), "back in round {round}");
                }
                // A join that is in progress when the membership is dropped is undone in the background, so the test
                // waits for that.
                false => {
                    drop(membership);
                    until_members(&there, &[]).await;
                }
            }
        }
    }
    // No member comes back later.
    sleep(2 * store.heartbeat() + MOMENT).await;
    assert!(there.members().await?.is_empty());
    there.delete().await
}

#[derive(Serialize, Deserialize)]
struct Twice {
    number: u32,
    again: Vec<u32>,
}

impl Twice {
    fn new(number: u32) -> Self {
        Self { number, again: vec![number; 100] }
    }

    fn check(self) -> u32 {
        assert_eq!(self.again, [self.number; 100], "half an update");
        self.number
    }
}

/// G4: readers see capabilities as they were before an update or after it, and never an older state after a newer one.
///
/// Tooz: corresponds to these tests of the Python library Tooz: `test_update_capabilities`,
/// `test_update_capabilities_with_group_id_nonexistent` (here only a member can update, and its group exists).
pub async fn g4_capabilities_change_at_once(store: &TestStore) -> Result<()> {
    let (_one, here) = with_group(store, "one").await?;
    let other = store.connect("other").await?;
    let (there, mut watch) = (group(&other), group(&other).watch().await?);
    let rounds = u32::try_from(store.rounds(200, 60)).expect("small");
    let membership = here.join(&Twice::new(0)).await?;
    let incarnation = membership.incarnation();
    let updating = tokio::spawn(async move {
        for number in 1..=rounds {
            membership.update(&Twice::new(number)).await?;
        }
        Ok::<_, Error>(membership)
    });
    let (mut read, mut reads) = (0, 0);
    while read < rounds {
        let member = there.member("one").await?;
        let number = member.capabilities.parse::<Twice>()?.check();
        assert!(number >= read, "{number} after {read}");
        assert_eq!(member.incarnation, incarnation);
        (read, reads) = (number, reads + 1);
    }
    let membership = updating.await.expect("no panic")?;
    let mut told = None;
    while told < Some(rounds) {
        let event = next(&mut watch).await?;
        let (GroupEvent::Joined(member) | GroupEvent::Updated(member)) = event else {
            panic!("nobody left, but {event:?} was told after {told:?}")
        };
        let number = member.capabilities.parse::<Twice>()?.check();
        assert!(told < Some(number), "{number} told after {told:?}");
        told = Some(number);
    }
    eprintln!("G4: {reads} reads over {rounds} updates");
    // If updates are dropped on their way, the last update prevails.
    for number in 0..10_usize {
        drop_after_polls(membership.update(&number), number % 3).await;
    }
    membership.update(&json!("last")).await?;
    assert_eq!(there.member("one").await?.capabilities.parse::<Value>()?, json!("last"));
    membership.leave().await
}
