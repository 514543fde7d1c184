//! A client process that executes the commands of a test. The protocol is described in `harness::worker`.
//!
//! The process has one coordinator, which the command `connect` creates, and any number of guards. Each guard has a
//! `handle`: the name that the field `as` of its `acquire` gave, or else the name of the lock. Times are those of
//! `harness::log::now_ns`, a clock that all processes share. With the environment variable
//! `COORDINATION_WORKER_TRACE=1` the library's traces are written to standard error.
//!
//! # Commands
//!
//! A field with a question mark may be left out.
//!
//! | command | fields | result |
//! |---|---|---|
//! | `ping` | – | `{"pid", "t_ns"}` |
//! | `connect` | `url?` (default: the environment's), `member?`, `prefix?`, `namespace?`, `ttl_ms?`, `heartbeat_ms?`, `max_backoff_ms?` | `{"member", "ms"}`: how long it took |
//! | `acquire` | `lock`, `timeout_ms?`, `as?` | `{"token", "remaining_ms", "t_ns"}`, at the moment of its return |
//! | `try_acquire` | `lock`, `as?` | as for `acquire`, or `null` when the lock is taken |
//! | `acquire_shared` | `lock`, `timeout_ms?`, `as?` | as for `acquire` |
//! | `acquire_all` | `locks`, `timeout_ms?` | `{"tokens", "t_ns"}`; held until the process ends |
//! | `release_after` | `handle`, `ms` | `{"t_ns"}`: the lock is released by itself this long after its grant |
//! | `release` | `handle` | `{"before_ns", "after_ns"}`: the times before and after the call |
//! | `drop` | `handle` | `{"before_ns", "after_ns"}`: the times before and after the drop |
//! | `is_held` | `handle` | `{"held", "before_ns", "after_ns"}` |
//! | `write_fenced` | `handle`, `value?` | `{"token", "value", "t_ns"}`: a write, which the test itself applies to its resource; the worker does not call `is_held` before it |
//! | `holders` | `lock` | `[{"member", "token", "holding"}]`, in order |
//! | `break_lock` | `lock` | the holder that lost the lock, as in `holders`, or `null` |
//! | `stop` | – | `{"ms"}`: how long it took |
//! | `disconnect` | – | `{}`: the coordinator is dropped; guards stay |
//! | `watch_lost` | `handle` | `{}`; the event `lost` follows |
//! | `probe_held` | `handle`, `every_us?` | `{}`; the event `not_held` follows |
//! | `state_events` | – | `{"state"}`; events `state` follow |
//! | `cycle` | `lock`, `n`, `hold_us?`, `file?`, `timeout_ms?` | `{"tokens"}`: acquires and releases `n` times |
//! | `tasks` | `lock`, `n`, `hold_us?`, `file?` | `{"tokens", "ms"}`: `n` tasks acquire and release once each |
//! | `block_executor` | `ms` | `{"workers"}`, when all threads are free again; the event `blocked` is sent when all are busy |
//! | `spawn_children` | `n`, `seconds?` | `{}`: runs `true` `n` times; with `seconds`, starts `sleep` `n` times and does not wait for the children |
//! | `permits` | `semaphore`, `of`, `count?`, `timeout_ms?` | `{"slots", "token", "t_ns"}`; the permits are kept until `let_go` |
//! | `enter` | `limiter`, `slots?`, `standby?`, `order?` (`latest`), `timeout_ms?` (patience) | `{"slot", "token", "t_ns"}`: the slot is kept until `let_go`; or `{"refused"}` |
//! | `let_go` | – | `{"t_ns"}`: gives back all that `permits` and `enter` have taken |
//! | `come_and_go` | as `enter`, `ms`, `hold_us?` | `{"stays": [[slot, from, to, token]], "refused"}` |
//! | `campaign` | `election`, `value`, `timeout_ms?` | `{"term", "t_ns"}`, when the worker leads |
//! | `reign` | `election` | none: the worker leads and resigns again and again, and sends an event `leads` each time |
//! | `watch_leadership` | `election` | `{}`; the event `out` follows |
//! | `probe_leadership` | `election` | `{}`; the event `not_leader` follows |
//! | `count` | `counter`, `n?` | `{}`: adds one `n` times, or for ever, and sends an event `counted` each time |
//! | `rate` | `limiter`, `permits`, `per_ms`, `n?` or `ms?` | `{"permits": [[slot, from]], "late", "withheld"}`, times in µs: takes `n` permits, or as many as it gets within `ms`. `late` is the longest time for which the machine kept the worker waiting meanwhile, and `withheld` the sum of these times |
//! | `claim` | `job`, `period_ms` | `{"token"}`, or `null` |
//! | `claim_work` | `queue`, `limit` | `{"token", "items"}`, or `null`; the claim is kept until the process ends |
//! | `work_through` | `queue`, `client`, `history` | none: claims and acknowledges items until the process ends, and writes a history (`coordination_history`) in which the queue is object 1 |
//! | `close_barrier` | `barrier` | `{"closed"}` |
//! | `count_down` | `latch`, `count` | `{"remaining"}` |
//! | `go_in` | `barrier`, `parties` | `{"token"}`; the worker stays in the barrier until the process ends |
//! | `create_group` | `group` | `{}` |
//! | `join_group` | `group`, `member?`, `capabilities?` | `{"incarnation", "t_ns"}` |
//! | `join_many` | `group`, `prefix`, `n` | `{"ms"}`: joins as `n` members, `<prefix>-0` and so on |
//! | `watch_many` | `group`, `n` | `{"ms"}`: starts `n` more watches |
//! | `await_member` | `member` | `{"told", "events", "t_ns"}` when every watch has reported that the member joined |
//! | `exit` | `code?` | none: the process ends at once, without dropping guards |
//!
//! `hold_loop` is another name of `cycle`. `file` is a history (`coordination_history`). In it, the process id is the
//! number of the client, and the lock is object 1.
//!
//! # Events
//!
//! | event | fields | when |
//! |---|---|---|
//! | `lost` | `handle`, `reason`, `t_ns`, `waited` | `lost()` of the guard has returned; `waited`: how long each thread of the process has waited for a processor until then, in ns |
//! | `not_held` | `handle`, `before_ns`, `after_ns`, `last_true_before_ns` | `probe_held` got the first `false` from `is_held()`, by a call between `before_ns` and `after_ns`; the last call that returned `true` began at `last_true_before_ns` |
//! | `state` | `state`, `t_ns` | the coordinator's state has changed |
//! | `blocked` | `workers`, `t_ns` | every thread of the runtime is busy |
//! | `leads` | `term` | the worker was elected |
//! | `out` | `election`, `reason`, `t_ns` | `lost()` of the leadership has returned |
//! | `not_leader` | `election`, `t_ns`, `last_true_before_ns` | `probe_leadership` got the first `false` from `is_leader()`; the last call that returned `true` began at `last_true_before_ns` |
//! | `counted` | `sum` | an addition was confirmed |
//!
//! # Errors
//!
//! `{"kind", "effect", "message", "reason", "ms"}`. `kind` and `effect` are names of variants in the library, `message`
//! is the error's text, `reason` is the reason of a loss or `null`, and `ms` is how long the command took. `kind` is
//! `Command` if a field of the command is wrong. It is `UnknownCommand` if there is no command of this name; such an error
//! has no `effect` and no `reason`.

mod client;
mod election;
mod events;
mod group;
mod load;
mod locks;
mod rate;
mod slots;
mod together;
mod value;
mod work;

use std::{env, process, sync::Arc};

use coordination_tests::harness::log::now_ns;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use client::{Arguments, Client};

#[tokio::main]
async fn main() {
    if env::var_os("COORDINATION_WORKER_TRACE").is_some_and(|set| set == "1") {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .init();
    }
    let client = Arc::new(Client::default());
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = commands.next_line().await {
        let command: Value = serde_json::from_str(&line).expect("a command is a line of JSON");
        let client = Arc::clone(&client);
        tokio::spawn(async move {
            let begun = now_ns();
            let mut answer = match execute(&client, Arguments(&command)).await {
                Ok(result) => json!({ "ok": result }),
                Err(mut error) => {
                    error["ms"] = json!((now_ns() - begun) / 1_000_000);
                    json!({ "error": error })
                }
            };
            answer["id"] = command["id"].clone();
            say(&answer);
        });
    }
}

/// Executes one command.
async fn execute(client: &Arc<Client>, arguments: Arguments<'_>) -> Result<Value, Value> {
    match arguments.text("command")? {
        "ping" => Ok(json!({ "pid": process::id(), "t_ns": now_ns() })),
        "connect" => client.connect(arguments).await,
        "acquire" => client.acquire(arguments).await,
        "try_acquire" => client.try_acquire(arguments).await,
        "acquire_shared" => locks::acquire_shared(client, arguments).await,
        "acquire_all" => locks::acquire_all(client, arguments).await,
        "release_after" => locks::release_after(client, arguments).await,
        "release" => client.release(arguments).await,
        "drop" => client.drop_guard(arguments).await,
        "is_held" => client.is_held(arguments),
        "write_fenced" => client.write_fenced(arguments),
        "holders" => client.holders(arguments).await,
        "break_lock" => client.break_lock(arguments).await,
        "stop" => client.stop().await,
        "disconnect" => client.disconnect(),
        "watch_lost" => events::watch_lost(client, arguments),
        "probe_held" => events::probe_held(client, arguments),
        "state_events" => events::state_events(client),
        "cycle" | "hold_loop" => load::cycle(client, arguments).await,
        "tasks" => load::tasks(client, arguments).await,
        "block_executor" => load::block_executor(arguments).await,
        "spawn_children" => load::spawn_children(arguments).await,
        "permits" => slots::permits(client, arguments).await,
        "enter" => slots::enter(client, arguments).await,
        "come_and_go" => slots::come_and_go(client, arguments).await,
        "let_go" => slots::let_go().await,
        "campaign" => election::campaign(client, arguments).await,
        "reign" => election::reign(client, arguments).await,
        "watch_leadership" => election::watch_leadership(arguments),
        "probe_leadership" => election::probe_leadership(arguments),
        "count" => value::count(client, arguments).await,
        "rate" => rate::rate(client, arguments).await,
        "claim" => together::claim(client, arguments).await,
        "claim_work" => work::claim_work(client, arguments).await,
        "work_through" => work::work_through(client, arguments).await,
        "close_barrier" => together::close_barrier(client, arguments).await,
        "count_down" => together::count_down(client, arguments).await,
        "go_in" => together::go_in(client, arguments).await,
        "create_group" => group::create(client, arguments).await,
        "join_group" => group::join(client, arguments).await,
        "join_many" => group::join_many(client, arguments).await,
        "watch_many" => group::watch_many(client, arguments).await,
        "await_member" => group::await_member(arguments).await,
        "exit" => {
            let code = arguments.number("code").and_then(|code| code.try_into().ok());
            process::exit(code.unwrap_or(0))
        }
        _ => Err(json!({ "kind": "UnknownCommand", "message": arguments.0.to_string() })),
    }
}

/// Prints one line. `println!` writes it as a whole, even if several commands end at the same time.
fn say(answer: &Value) {
    println!("{answer}");
}
