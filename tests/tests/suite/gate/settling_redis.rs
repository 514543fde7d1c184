//! How the entries of a session are removed on Redis of which the session's client does not know.

use std::sync::Arc;
use std::time::Duration;

use coordination_tests::faults::Site;
use coordination_tests::harness::{Redis, rerun_on_threads, wait_until};
use tokio::task::block_in_place;

use crate::WORKER;

const LONG: Duration = Duration::from_secs(30);
/// The key in which the server keeps its record of the namespace.
const RECORD: &str = "{coordination}:clock";
/// The key with the exclusive entries of the lock "y".
const QUEUE: &str = "{coordination}:exclusive:lock/y";
/// How many entries are left; `budget` of the scripts is 300.
const LEFT: usize = 1_000;
/// Gives a session these entries, with numbers from before the present record.
const LEAVE: &str = "
for number = 1, tonumber(ARGV[2]) do
  local entry = ARGV[1] .. '-left' .. number
  redis.call('ZADD', KEYS[1], number, entry)
  redis.call('HSET', KEYS[2], 'entry:lock/y/' .. entry, '')
end
return 'ok'";
const SETTLE: &str = concat!(
    include_str!("../../../../coordination/src/backend/redis/scripts/prelude.lua"),
    "\n",
    include_str!("../../../../coordination/src/backend/redis/scripts/settle.lua"),
);

/// R3: however many entries a server has that came back with older data, none of the calls that remove them keeps other clients
/// waiting for long.
#[test]
fn r3_what_a_client_does_not_know_of_is_removed_in_short_calls() {
    rerun_on_threads(async || {
        let redis = block_in_place(|| Arc::new(Redis::one()));
        let site = Site::on(Arc::clone(&redis) as Arc<_>, WORKER);
        let client = site.client("one").await;
        let lock = client.lock("x").expect("a good name");
        let held = lock.acquire(Some(LONG)).await.expect("it is free");
        block_in_place(|| {
            let session = redis.ask(&["ZRANGE", "{coordination}:sessions", "0", "0"]).text();
            let session = session.expect("it is open");
            let key = format!("{{coordination}}:session:{session}");
            let leave = || {
                let count = LEFT.to_string();
                redis.ask(&["EVAL", LEAVE, "2", QUEUE, &key, &session, &count]);
            };
            let left = || redis.ask(&["ZCARD", QUEUE]).text().expect("a number");

            leave();
            let record = redis.ask(&["HGET", RECORD, "server"]).text().expect("there is a record");
            let generation = redis.ask(&["HGET", &key, "generation"]).text();
            let generation = generation.unwrap_or_else(|| "0".to_owned());
            let settle = |listed: &str| {
                let call =
                    ["EVAL", SETTLE, "1", RECORD, &record, "0 0", &session, &generation, listed];
                redis.ask(&call).text()
            };
            assert_eq!(settle("an earlier record").as_deref(), Some("more"));
            assert_eq!(left(), LEFT.to_string(), "the list may lack entries of the client");
            for (said, rest) in [("more", "700"), ("more", "400"), ("more", "100"), ("ok", "0")] {
                assert_eq!(settle(&record).as_deref(), Some(said));
                assert_eq!(left(), rest);
            }

            // The client finds another record with its next heartbeat, and makes as many calls as are needed.
            leave();
            redis.ask(&["HSET", RECORD, "server", "garbage"]);
            assert!(wait_until(LONG, || left() == "0"), "{} are left", left());
        });
        assert!(held.is_held(), "the client knows of this one");
    });
}
