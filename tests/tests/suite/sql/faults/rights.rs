//! F-56, F-73: what the user may do is taken away, for a while or from the beginning.

use std::time::Duration;

use coordination::{Coordinator, ErrorKind, LossReason};
use coordination_tests::must_hold;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use super::super::{PATIENCE, SqlServer, ask, count, one};
use super::{Faulty, LONG, make_app};

/// What is taken from the user `app`: the statement, the one that gives it back, and whether he may log in without it.
fn taken<S: SqlServer>() -> [(String, String, bool); 3] {
    let owned = |(taken, given): (&str, &str)| (taken.to_owned(), given.to_owned(), false);
    let password = |password| S::PASSWORD.replace("{}", password);
    let (_, right) = S::RIGHTS;
    let revoked = right.replace("GRANT", "REVOKE").replace(" TO ", " FROM ");
    [
        owned(S::LOGIN),
        (password("another"), password("secret"), false),
        (revoked, right.to_owned(), true),
    ]
}

/// F-56: the user may not log in for a while, has another password, or lacks rights, and his connections are ended. Who holds a lock
/// keeps it, and who waits for one goes on waiting, and is served.
pub(crate) async fn f56_what_the_user_may_is_taken_away_for_a_while<S: Faulty>() {
    let server = one::<S>();
    let url = make_app(&*server).await.replace("ttl=2s", "ttl=12s");
    let one = Coordinator::connect(&url).await.expect("he may");
    let other = Coordinator::connect(&url).await.expect("he may");
    let lock = |name| one.lock(name).expect("a name");
    for (taken, given, may_log_in) in taken::<S>() {
        println!("F-56 {}: {taken}", server.scheme());
        let kept = lock("kept").acquire(PATIENCE).await.expect("free");
        let held = lock("x").acquire(PATIENCE).await.expect("free");
        let waits = other.lock("x").expect("a name");
        let waiting = tokio::spawn(async move { waits.acquire(Some(LONG)).await });
        while count(&*server, "entries") != "3" {}
        ask(&*server, &taken);
        block_in_place(|| server.end_connections());
        // By that the lock is free for the waiter, whose session lives.
        let (entries, token) = (S::table("entries"), held.token());
        ask(&*server, &format!("DELETE FROM {entries} WHERE seq = {token}"));
        sleep(Duration::from_secs(2)).await;
        assert!(may_log_in || !waiting.is_finished(), "{taken}: {:?}", waiting.await);
        assert!(kept.is_held(), "{taken}: the session was lost");
        ask(&*server, &given);
        let next = waiting.await.expect("no panic").expect("it is its turn");
        must_hold!(next.token() > held.token(), "{} after {}", next.token(), held.token());
        let told = timeout(LONG, held.lost()).await.expect("it is told");
        assert_eq!(told, LossReason::EntryDeleted, "{taken}");
        // Longer than the lease, so that heartbeats have been confirmed again.
        sleep(Duration::from_secs(13)).await;
        assert!(kept.is_held() && next.is_held(), "{taken}: a session was lost");
        next.release().await.expect("released");
        kept.release().await.expect("released");
    }
    other.stop().await.expect("stopped");
    one.stop().await.expect("stopped");
}

/// F-73: in each round, one of the rights that the store's page lists is missing. The error names it, and nothing is left behind.
pub(crate) async fn f73_each_right_is_missing<S: Faulty>() {
    let server = one::<S>();
    let url = make_app(&*server).await;
    let sessions = count(&*server, "sessions");
    for [taken, given, named] in S::each_right() {
        ask(&*server, &taken);
        let refused = Coordinator::connect(&url).await.expect_err(&taken);
        println!("F-73 {}: {taken}: {refused}", server.scheme());
        assert_eq!(refused.kind(), ErrorKind::Permission, "{taken}: {refused}");
        assert!(refused.to_string().contains(&named), "{taken}: {refused}");
        ask(&*server, &given);
    }
    assert_eq!(count(&*server, "sessions"), sessions, "a session was opened");
    let app = Coordinator::connect(&url).await.expect("he has all of them");
    let lock = app.lock("x").expect("a name");
    lock.acquire(PATIENCE).await.expect("free").release().await.expect("released");
    app.stop().await.expect("stopped");
}
