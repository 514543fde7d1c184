//! Rows of the fault matrix that are the same on each store on an SQL server. Here: what its administrator does to the tables and to
//! the user of a client that holds a lock. Each such store implements [`Faulty`] beside [`SqlServer`].

mod clock;
mod many;
mod parted;
mod restored;
mod rights;
mod space;

use std::fs;
use std::time::{Duration, Instant};

use coordination::{Coordinator, ErrorKind, LossReason};
use coordination_tests::harness::{Mounted, Scratch, WallClock};
use coordination_tests::must_hold;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

pub(crate) use self::clock::{
    f28_server_clock_set_back, f28_server_clock_set_back_after_a_death,
    f28_server_clock_set_forward, f28_server_clock_steps, f62_a_clock_that_was_ahead_is_set_right,
    f62_a_clock_that_was_behind_is_set_right,
};
pub(crate) use self::many::{
    f58_fifty_clients_after_restarts, f65_many_names_used_once, f65_ten_thousand_names_held,
    f65_ten_thousand_sessions_end_at_once,
};
pub(crate) use self::parted::f59_a_primary_is_cut_off_with_its_client;
pub(crate) use self::restored::{
    f61_the_server_comes_back_without_its_data, f68_a_watcher_goes_on_after_the_restore,
    f68_what_was_given_back_since_blocks_nobody,
};
pub(crate) use self::rights::{
    f56_what_the_user_may_is_taken_away_for_a_while, f73_each_right_is_missing,
};
pub(crate) use self::space::f36_what_is_held_is_kept_while_the_disk_is_full;
use super::{PATIENCE, SqlServer, ask, count, make, one, try_ask, url};

/// The timeout of waits; longer than any of them should take.
const LONG: Duration = Duration::from_secs(30);

/// A server of one SQL store whose clock, data, disk and replica can be broken.
pub(crate) trait Faulty: SqlServer {
    /// The time by the server's clock, as the tables have it.
    const NOW: &'static str;
    /// A query for the seconds since 1970 by the server's clock.
    const SECONDS: &'static str;
    /// Statements that add ten thousand sessions, `dead1` to `dead10000`, which live for minutes. Each has an entry in the queue of
    /// the only entry that there is, behind it.
    const CROWD: &'static str;
    /// A statement that leaves what the locks `used-1` to `used-20000` leave that were acquired and released.
    const USED: &'static str;

    /// Starts one server, which sees this clock.
    fn start_by(clock: &WallClock) -> Self;

    /// Copies the data of the first node, as they are at this moment. To be called once.
    fn save(&self);

    /// Kills the first node and starts it again with the data that were saved. It is ready on return.
    fn restore(&self);

    /// A small disk of its own for a database, and that database's URL. Only the tables are on that disk, and not the server's log.
    fn on_a_small_disk(&self) -> (Mounted, String);

    /// For each right that the user `app` needs: the statement that takes it away, the one that gives it back, and what the error has
    /// to name.
    fn each_right() -> Vec<[String; 3]>;

    /// Starts a primary, and a replica of it that has to confirm each commit before it is answered.
    fn confirmed() -> Self;

    /// From now on the replica receives nothing. When this returns, it has carried out all that it had confirmed.
    fn cut_off(&self);

    /// Makes the replica the primary.
    fn promote_replica(&self);
}

/// Makes a test of each row of the fault matrix that is the same on each store on an SQL server, on this server.
macro_rules! sql_rows {
    ($server:ty: $($row:ident)*) => {
        $(
            #[test]
            fn $row() {
                coordination_tests::harness::rerun_if_starved(crate::sql::faults::$row::<$server>);
            }
        )*
    };
    (on_threads $server:ty: $($row:ident)*) => {
        $(
            #[test]
            fn $row() {
                coordination_tests::harness::rerun_on_threads(crate::sql::faults::$row::<$server>);
            }
        )*
    };
    ($server:ty) => {
        crate::sql::faults::sql_rows! {
            $server:
            f28_server_clock_set_forward
            f28_server_clock_set_back
            f28_server_clock_set_back_after_a_death
            f28_server_clock_steps
            f59_a_primary_is_cut_off_with_its_client
            f61_the_server_comes_back_without_its_data
            f62_a_clock_that_was_behind_is_set_right
            f62_a_clock_that_was_ahead_is_set_right
            f68_what_was_given_back_since_blocks_nobody
        }
        crate::sql::faults::sql_rows! {
            on_threads $server:
            f24_all_is_dropped
            f36_what_is_held_is_kept_while_the_disk_is_full
            f49_a_user_is_shut_out
            f56_what_the_user_may_is_taken_away_for_a_while
            f58_fifty_clients_after_restarts
            f65_ten_thousand_names_held
            f65_ten_thousand_sessions_end_at_once
            f65_many_names_used_once
            f68_a_watcher_goes_on_after_the_restore
            f71_a_password_is_replaced
            f72_the_server_is_full
            f73_each_right_is_missing
        }
    };
}
pub(crate) use sql_rows;

/// Makes the tables, and the user `app`, who may use them. Returns his URL.
async fn make_app<S: SqlServer>(server: &S) -> String {
    make(server).await;
    ask(server, S::USER);
    let (too_few, missing) = S::RIGHTS;
    too_few.iter().chain([&missing]).for_each(|right| drop(ask(server, right)));
    let url = url(server);
    let (_, at) = url.split_once('@').expect("there is a user");
    format!("{}://app:secret@{at}", server.scheme())
}

/// F-24: all tables are dropped while one client holds a lock and another one waits for it. The holder is told, the waiter is served
/// with tables that are made anew, and tokens go on rising.
pub(crate) async fn f24_all_is_dropped<S: SqlServer>() {
    let server = one::<S>();
    let holder = Coordinator::connect(&url(&*server)).await.expect("a server");
    let other = Coordinator::connect(&url(&*server)).await.expect("a server");
    let held = holder.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
    let lock = other.lock("x").expect("a name");
    let waiting = tokio::spawn(async move { lock.acquire(Some(LONG)).await });
    while count(&*server, "entries") != "2" {}
    let until = Instant::now() + LONG;
    // A step that runs may be in the way.
    while let Err(said) = try_ask(&*server, S::DROP) {
        assert!(Instant::now() < until, "{said}");
    }
    let reason = timeout(LONG, held.lost()).await.expect("it is told");
    println!("F-24 {}: {reason}", server.scheme());
    let next = waiting.await.expect("no panic").expect("served");
    must_hold!(next.token() > held.token(), "{} after {}", next.token(), held.token());
    next.release().await.expect("released");
    other.stop().await.expect("stopped");
    holder.stop().await.expect("stopped");
}

/// F-49: a user who holds a lock may not log in any more, and his connections are ended. He keeps the lock until his deadline and
/// makes few attempts to connect. When he may log in again, all goes on.
pub(crate) async fn f49_a_user_is_shut_out<S: SqlServer>() {
    let server = one::<S>();
    let proxy = block_in_place(|| server.proxy_to(0));
    let url = make_app(&*server).await;
    let url = url.replace(&server.authority(), &proxy.address().to_string());
    let coordinator = Coordinator::connect(&url).await.expect("he may log in");
    let lock = coordinator.lock("x").expect("a name");
    let held = lock.acquire(PATIENCE).await.expect("free");
    let (shut_out, let_in) = S::LOGIN;
    ask(&*server, shut_out);
    block_in_place(|| server.end_connections());
    let reason = timeout(LONG, held.lost()).await.expect("it is told");
    assert_eq!(reason, LossReason::DeadlinePassed);
    let before = proxy.connections();
    sleep(Duration::from_secs(6)).await;
    let tries = proxy.connections() - before;
    println!("F-49 {}: {tries} tries in 6 s", server.scheme());
    assert!(tries <= 3, "{tries} tries");
    let refused = lock.acquire(Some(Duration::from_secs(1))).await.expect_err("he may not log in");
    assert_eq!(refused.kind(), ErrorKind::Auth, "{refused}");
    ask(&*server, let_in);
    lock.acquire(Some(LONG)).await.expect("free").release().await.expect("released");
    coordinator.stop().await.expect("stopped");
}

/// F-71: the password is replaced, at the server and in the file that the URL names, and the user's connections are ended. The
/// session is kept, also while the file is being written.
pub(crate) async fn f71_a_password_is_replaced<S: SqlServer>() {
    let server = one::<S>();
    let scratch = Scratch::new("password");
    let file = scratch.join("password");
    let put = |password: &str| fs::write(&file, password).expect("the directory is ours");
    put("secret\n");
    let url = make_app(&*server).await.replace("app:secret@", "app@").replace("ttl=2s", "ttl=5s");
    let url = format!("{url}&password_file={}", file.display());
    let coordinator = Coordinator::connect(&url).await.expect("a server");
    let lock = |name| coordinator.lock(name).expect("a name");
    let held = lock("x").acquire(PATIENCE).await.expect("free");
    put("");
    block_in_place(|| server.end_connections());
    lock("y")
        .acquire(PATIENCE)
        .await
        .expect("the old one is good")
        .release()
        .await
        .expect("released");
    put("another\n");
    ask(&*server, &S::PASSWORD.replace("{}", "another"));
    block_in_place(|| server.end_connections());
    // Longer than the lease.
    sleep(Duration::from_secs(6)).await;
    assert!(held.is_held(), "the session was lost");
    lock("y")
        .acquire(PATIENCE)
        .await
        .expect("the new one is read")
        .release()
        .await
        .expect("released");
    held.release().await.expect("released");
    coordinator.stop().await.expect("stopped");
}

/// F-72: the server accepts no more connections of the user. Who is connected keeps his lock, and another client is told so in the
/// server's words. It connects when there is room again.
pub(crate) async fn f72_the_server_is_full<S: SqlServer>() {
    let server = one::<S>();
    let url = make_app(&*server).await;
    let coordinator = Coordinator::connect(&url).await.expect("there is room");
    let held = coordinator.lock("x").expect("a name").acquire(PATIENCE).await.expect("free");
    let (full, room, words) = S::FULL;
    ask(&*server, full);
    let refused = Coordinator::connect(&url).await.expect_err("there is no room");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains(words), "{refused}");
    assert!(held.is_held(), "the session was lost");
    ask(&*server, room);
    let other = Coordinator::connect(&url).await.expect("there is room again");
    other.stop().await.expect("stopped");
    held.release().await.expect("released");
    coordinator.stop().await.expect("stopped");
}
