//! Tests of [`Connections`], with servers that exist only in this file.

#[cfg(coordination_internals)]
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::Config;
use crate::backend::server::credentials::Sources;
use crate::backend::server::places::Place;
use crate::url::Url;

type Says = fn(Place) -> Result<&'static str, Failure>;

/// What a server says that says nothing: connecting to it never ends.
const SILENCE: ErrorKind = ErrorKind::Timeout;
/// What a server says that takes three calls' time for that.
const SLOW: &str = "slow";

/// The servers, and what each of them answers to a client that connects.
struct Servers {
    says: Vec<Says>,
    hosts: Vec<Host>,
    access: Access,
    asked: AtomicUsize,
}

impl Link for Servers {
    type Connection = &'static str;
    type Failed = Failure;

    const IN_FLIGHT: usize = 8;
    const SECURE: &'static str = "test+tls://";
    const WANTS_TLS: &'static str = "use test+tls://";

    fn hosts(&self) -> usize {
        self.hosts.len()
    }

    fn host(&self, nth: usize) -> Option<&Host> {
        self.hosts.get(nth)
    }

    fn shown(&self) -> String {
        "the servers".to_owned()
    }

    fn access(&self) -> &Access {
        &self.access
    }

    fn longest(&self, patience: Duration, is_urgent: bool) -> Duration {
        match is_urgent {
            true => 2 * patience,
            false => 5 * patience,
        }
    }

    async fn connect(
        connections: &Arc<Connections<Self>>,
        turn: Turn,
        _: &Credentials,
    ) -> Result<&'static str, Failure> {
        connections.link.asked.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        match connections.link.says[turn.place.host](turn.place) {
            Err(failure) if failure.error.kind() == SILENCE => std::future::pending().await,
            Ok(SLOW) => {
                tokio::time::sleep(3 * connections.patience).await;
                Ok(SLOW)
            }
            said => said,
        }
    }

    fn explain(&self, _operation: &'static str, failed: Failure) -> Failure {
        failed
    }
}

fn connections(says: &[Says]) -> Result<Arc<Connections<Servers>>> {
    at(hosts(says.len()), says)
}

fn at(hosts: Vec<Host>, says: &[Says]) -> Result<Arc<Connections<Servers>>> {
    let settings =
        Settings::resolve(Config::default(), &mut Url::parse_by_scheme("memory://")?, None)?;
    let access = Access::new(Sources::default())?;
    let servers = Servers { says: says.to_vec(), hosts, access, asked: AtomicUsize::new(0) };
    Ok(Arc::new(Connections::new(servers, &settings, Duration::from_millis(200))))
}

fn hosts(count: usize) -> Vec<Host> {
    let host = |nth| Host { name: format!("127.0.0.{}", nth + 1), port: Some(1) };
    (0..count).map(host).collect()
}

fn failed(kind: ErrorKind) -> Failure {
    Failure::broken(Error::new(kind, "connect", "no").with_effect(Effect::Unknown))
}

fn asked(connections: &Connections<Servers>) -> usize {
    connections.link.asked.load(Ordering::Relaxed)
}

#[tokio::test]
async fn one_connection_is_made_for_all() -> Result<()> {
    let connections = connections(&[|_| Ok("a")])?;
    let call = || connections.call("enter", |connection| async move { Ok(connection) });
    let (first, second, third) = tokio::join!(call(), call(), call());
    assert_eq!((first?, second?, third?), ("a", "a", "a"));
    assert_eq!(asked(&connections), 1);
    Ok(())
}

#[tokio::test]
async fn the_next_server_is_tried_and_a_call_that_was_not_made_has_no_effect() -> Result<()> {
    let refuses: Says = |_| Err(failed(ErrorKind::Refused));
    let connected = connections(&[refuses, |_| Ok("b")])?;
    assert_eq!(connected.reach_for("enter").await?.0, "b");
    let in_vain = connections(&[refuses, refuses])?;
    let error = in_vain.reach_for("enter").await.expect_err("nobody answers");
    assert_eq!((error.operation(), error.effect()), ("enter", Effect::None));
    assert_eq!(asked(&in_vain), 2);
    Ok(())
}

/// A name that has these addresses, as long as the file is there that is answered with it.
#[cfg(coordination_internals)]
fn named(letter: char, addresses: &str) -> (String, PathBuf) {
    let name = format!("{letter}{}.test", std::process::id());
    let directory = std::env::temp_dir().join("coordination-names");
    std::fs::create_dir_all(&directory).expect("it may be made");
    let file = directory.join(&name);
    std::fs::write(&file, addresses).expect("the file is ours");
    (name, file)
}

#[cfg(coordination_internals)]
#[tokio::test]
async fn a_host_whose_name_has_no_address_is_left() -> Result<()> {
    let (name, file) = named('n', "");
    let unknown = || Host { name: name.clone(), port: Some(1) };
    let two = at([vec![unknown()], hosts(1)].concat(), &[|_| Ok("a"), |_| Ok("b")])?;
    assert_eq!(two.reach_for("enter").await?.0, "b");
    let alone = at(vec![unknown()], &[|_| Ok("a")])?;
    let error = alone.reach_for("enter").await.expect_err("nobody knows it");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Dns, Effect::None));
    std::fs::remove_file(&file).expect("the file is ours");
    Ok(())
}

#[cfg(coordination_internals)]
#[tokio::test]
async fn each_address_of_a_name_is_tried_and_the_name_is_asked_again() -> Result<()> {
    let (name, file) = named('c', "10.0.0.1\n10.0.0.2\n10.0.0.3");
    let answers: Says = |place| match place.address.map(|address| address.to_string()) {
        Some(address) if address == "10.0.0.3:7" => Ok("c"),
        Some(address) if address == "10.0.0.4:7" => Ok("d"),
        _ => Err(failed(ErrorKind::Unavailable)),
    };
    let connections = at(vec![Host { name, port: Some(7) }], &[answers])?;
    let (found, epoch) = connections.reach().await.map_err(|failure| failure.error)?;
    assert_eq!((found, asked(&connections)), ("c", 3));
    // The server gets another address while the client is connected.
    std::fs::write(&file, "10.0.0.4").expect("the file is ours");
    connections.rotation.give_up(epoch);
    connections.rotation.give_up(epoch + 1);
    connections.rotation.give_up(epoch + 2);
    assert_eq!(connections.reach_for("enter").await?.0, "d");
    std::fs::remove_file(&file).expect("the file is ours");
    Ok(())
}

#[tokio::test]
async fn a_call_that_broke_its_connection_is_not_made_again() -> Result<()> {
    let connections = connections(&[|_| Ok("a"), |_| Ok("b")])?;
    let broken = async |_| Err::<(), _>(failed(ErrorKind::Unavailable));
    let error = connections.call("enter", broken).await.expect_err("it broke");
    assert_eq!(error.effect(), Effect::Unknown);
    let next = connections.call("enter", async |connection| Ok(connection)).await?;
    assert_eq!(next, "b");
    Ok(())
}

#[tokio::test]
async fn a_refusal_is_believed_for_a_while() -> Result<()> {
    let connections = connections(&[|_| Err(failed(ErrorKind::Auth))])?;
    connections.state().first = None;
    for _ in 0..3 {
        let error = connections.reach_for("enter").await.expect_err("we are not let in");
        assert_eq!(error.kind(), ErrorKind::Auth);
    }
    assert_eq!(asked(&connections), 1);
    Ok(())
}

/// The second of three servers refuses everybody. After its refusal, the third server is asked.
#[tokio::test]
async fn r1_one_server_that_refuses_keeps_nobody_from_the_next_one() -> Result<()> {
    let connections = connections(&[|_| Ok("a"), |_| Err(failed(ErrorKind::Auth)), |_| Ok("c")])?;
    for (found, asked_by_then) in [("a", 1), ("c", 3), ("a", 4), ("c", 5)] {
        let (connection, epoch) = connections.reach_for("enter").await?;
        assert_eq!((connection, asked(&connections)), (found, asked_by_then));
        connections.rotation.give_up(epoch);
    }
    Ok(())
}

/// The second server is just starting, and the third one refuses us. If the refusal were returned, the caller would give up. While a server
/// starts, nobody may listen at its address yet, or its host may have no address.
#[tokio::test]
async fn an_error_that_passes_is_told_rather_than_a_refusal() -> Result<()> {
    let starts: Says = |_| Err(failed(ErrorKind::Unavailable));
    let listens_not: Says = |_| Err(failed(ErrorKind::Refused));
    let has_no_address: Says = |_| Err(failed(ErrorKind::Dns));
    for (says, kind) in [
        (starts, ErrorKind::Unavailable),
        (listens_not, ErrorKind::Refused),
        (has_no_address, ErrorKind::Dns),
    ] {
        let connections = connections(&[|_| Ok("a"), says, |_| Err(failed(ErrorKind::Auth))])?;
        let (_, epoch) = connections.reach_for("enter").await?;
        // From now on the first server counts as one that has refused us.
        let place = connections.rotation.turn().place;
        connections.state().refusals.note(place, &failed(ErrorKind::Auth), |_| false);
        connections.rotation.give_up(epoch);
        let error = connections.reach_for("enter").await.expect_err("nobody lets us in");
        assert_eq!(error.kind(), kind);
        assert!(error.message().contains("another server refuses us"), "{error}");
    }
    Ok(())
}

/// A name has two addresses. The server at the first address refuses everybody.
#[cfg(coordination_internals)]
#[tokio::test]
async fn r1_one_address_that_refuses_keeps_nobody_from_the_other_one() -> Result<()> {
    let (name, file) = named('r', "10.0.0.1\n10.0.0.2");
    let answers: Says = |place| match place.address.map(|address| address.to_string()) {
        Some(address) if address == "10.0.0.2:7" => Ok("b"),
        _ => Err(failed(ErrorKind::Auth)),
    };
    let connections = at(vec![Host { name, port: Some(7) }], &[answers])?;
    for _ in 0..5 {
        let (connection, epoch) = connections.reach_for("enter").await?;
        assert_eq!(connection, "b");
        connections.rotation.give_up(epoch);
        // Next the other address is tried, and refuses us. Now all addresses have failed, so the name is looked up anew.
        drop(connections.reach().await);
        let (_, epoch) = connections.reach_for("enter").await?;
        connections.rotation.give_up(epoch);
    }
    std::fs::remove_file(&file).expect("the file is ours");
    Ok(())
}

#[tokio::test]
async fn a_server_that_hangs_up_may_want_something_else() -> Result<()> {
    let hangs_up: Says = |_| Err(Failure { is_hang_up: true, ..failed(ErrorKind::Unavailable) });
    let connections = connections(&[hangs_up])?;
    let greeted = connections.greet(async |connection| Ok(connection)).await;
    let error = greeted.expect_err("it never answers");
    assert!(error.kind() == ErrorKind::Tls && error.to_string().contains("test+tls://"));
    assert_eq!(asked(&connections), GREETINGS);
    Ok(())
}

#[tokio::test]
async fn silence_ends_in_time() -> Result<()> {
    let connections = connections(&[|_| Ok("a")])?;
    let (_, epoch) = connections.reach_for("enter").await?;
    let silent = connections.on_epoch("enter", epoch, std::future::pending::<Result<(), _>>());
    assert!(timeout(connections.patience, silent).await.is_err());
    assert!(connections.rotation.connected().is_none(), "silence condemns it");
    Ok(())
}

/// A server has fallen silent, and a call on the connection to it was left before its time was over. The session may still be saved
/// at the next server.
#[tokio::test(start_paused = true)]
async fn r1_a_server_that_may_be_silent_is_not_waited_for_long() -> Result<()> {
    static IS_SILENT: AtomicBool = AtomicBool::new(false);
    let connections = connections(&[
        |_| match IS_SILENT.load(Ordering::Relaxed) {
            true => Err(failed(SILENCE)),
            false => Ok("a"),
        },
        |_| Ok("b"),
    ])?;
    let (_, epoch) = connections.reach_for("enter").await?;
    IS_SILENT.store(true, Ordering::Relaxed);
    connections.rotation.leave_unanswered(epoch);
    let next = timeout(3 * connections.patience, connections.reach_for("enter")).await;
    assert_eq!(next.expect("the next one answers")?.0, "b");
    Ok(())
}

/// Where no other server is to be tried, a server that is slow to let us in has as much time as ever.
#[tokio::test(start_paused = true)]
async fn a_slow_server_without_another_has_its_time() -> Result<()> {
    let connections = connections(&[|_| Ok(SLOW)])?;
    let (_, epoch) = connections.reach_for("enter").await?;
    connections.rotation.leave_unanswered(epoch);
    assert_eq!(connections.reach_for("enter").await?.0, SLOW);
    Ok(())
}

/// The server that may be written to is far away, so that it always takes that long to let us in. The session can be saved only there.
#[tokio::test(start_paused = true)]
async fn r1_a_slow_server_has_its_time_beside_another_one() -> Result<()> {
    let connections = connections(&[|_| Ok(SLOW), |_| Err(failed(ErrorKind::Refused))])?;
    for _ in 0..3 {
        let (connection, epoch) = connections.reach_for("enter").await?;
        assert_eq!(connection, SLOW);
        connections.rotation.leave(epoch);
    }
    Ok(())
}

/// The server in use is gone, and the next one does not answer at all. The session may still be saved at the third one.
#[tokio::test(start_paused = true)]
async fn r1_a_silent_server_keeps_nobody_for_long_from_the_next_one() -> Result<()> {
    let connections = connections(&[|_| Ok("a"), |_| Err(failed(SILENCE)), |_| Ok("c")])?;
    let (_, epoch) = connections.reach_for("enter").await?;
    connections.rotation.give_up(epoch);
    let next = timeout(3 * connections.patience, connections.reach_for("enter")).await;
    assert_eq!(next.expect("the third one answers")?.0, "c");
    Ok(())
}

/// All slots are taken. A call that finds out whether something was lost does not wait, and a second one waits for the first only.
#[tokio::test]
async fn a_look_for_a_loss_does_not_wait_behind_other_calls() -> Result<()> {
    let connections = connections(&[|_| Ok("a")])?;
    let mut taken = Vec::new();
    for _ in 0..Servers::IN_FLIGHT {
        taken.push(connections.ready("enter").await?);
    }
    let look = connections.ready_soon("watch").await?;
    assert!(connections.ready("enter").await.is_err(), "there is no slot");
    assert!(connections.ready_soon("watch").await.is_err(), "one at a time");
    drop(look);
    let look = connections.ready_soon("watch").await?;
    taken.pop();
    drop((connections.ready_soon("watch").await?, look));
    Ok(())
}
