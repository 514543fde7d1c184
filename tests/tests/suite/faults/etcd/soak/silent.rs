//! A server that stops reading while many watches are being started on it.

use std::time::{Duration, Instant};

use coordination::{Coordinator, Error, Result};
use coordination_tests::faults::LONG;
use coordination_tests::harness::{
    Direction, Etcd, Proxy, Server, Unit, eventually_async, rerun_on_threads,
};
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{sleep, timeout};

const LOCKS: usize = 1_000;
const LEASE: Duration = Duration::from_secs(10);
/// How many bytes are delivered before the connection delivers nothing more. They are enough to open the stream of
/// watches.
const PASSES: u64 = 20 * 1024;

/// All waiters restart their watches on one connection, and meanwhile that connection stops delivering. When the
/// client has given the connection up, it starts the watches at the next server.
#[test]
fn l2_a_member_falls_silent_while_many_begin_to_watch() -> Result<()> {
    rerun_on_threads(watch_at_a_silent_member)
}

async fn watch_at_a_silent_member() -> Result<()> {
    let etcd = block_in_place(Etcd::one);
    let holder = Coordinator::connect(&format!("etcd://{}", etcd.authority())).await?;
    let proxies = [etcd.proxy_to(0), etcd.proxy_to(0)];
    let [one, other] = proxies.each_ref().map(|proxy| proxy.address());
    let url = format!("etcd://{one},{other}");
    let client = Coordinator::builder().ttl(LEASE).connect(&url).await?;
    let mut acquiring = JoinSet::new();
    for number in 0..LOCKS {
        let lock = holder.lock(format!("{number:0>180}"))?;
        acquiring.spawn(async move { lock.acquire(None).await });
    }
    let mut guards = acquiring.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
    let mut waiting = JoinSet::new();
    for guard in &guards {
        let lock = client.lock(guard.name())?;
        waiting.spawn(async move { Ok::<_, Error>((lock.acquire(None).await?, Instant::now())) });
    }
    for guard in &guards {
        while holder.lock(guard.name())?.holders().await?.len() < 2 {
            sleep(Duration::from_millis(10)).await;
        }
    }
    let [used, next] = match proxies[0].connections() {
        0 => [&proxies[1], &proxies[0]],
        _ => [&proxies[0], &proxies[1]],
    };
    next.stall_after(Direction::ToServer, Unit::Bytes, PASSES);
    block_in_place(|| used.reset_all());
    while next.is_cut_pending() {
        sleep(Duration::from_millis(10)).await;
    }
    println!("the next member is silent");
    // Waits until the client has given the connection up and made another one.
    sleep(LEASE).await;
    for guard in guards.drain(..20) {
        let begun = Instant::now();
        guard.release().await?;
        let served = timeout(LEASE, waiting.join_next()).await;
        let served = served.expect("somebody is served").expect("they wait").expect("no panic");
        let (_guard, granted) = served?;
        let took = granted.saturating_duration_since(begun);
        println!("served within {took:?}");
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    waiting.abort_all();
    client.stop().await?;
    holder.stop().await
}

/// A `grpc-proxy` does not answer one request for a watch. Its answers do not say which request they belong to, so the client asks for
/// no other watch until the answer comes. After a while the client opens another stream, on the same connection.
#[test]
fn l2_a_watch_that_is_never_answered_stops_no_other() -> Result<()> {
    rerun_on_threads(watch_in_vain)
}

async fn watch_in_vain() -> Result<()> {
    let etcd = block_in_place(|| Etcd::options().in_setting("proxy").start());
    let proxy = etcd.proxy_to(0);
    let holder = Coordinator::connect(&etcd.url(&Server::authority(&etcd), "")).await?;
    let builder = Coordinator::builder().ttl(etcd.ttl());
    let client = builder.connect(&etcd.url(&proxy.address().to_string(), "")).await?;
    let (mut guards, mut waiting) = (Vec::new(), JoinSet::new());
    for number in 0..4 {
        if let [stream] = watch_streams(&proxy)[..] {
            proxy.drop_stream(1, stream);
        }
        let name = format!("x-{number}");
        guards.push(holder.lock(&name)?.acquire(None).await?);
        let lock = client.lock(&name)?;
        waiting.spawn(async move { lock.acquire(None).await });
        eventually_async(LONG, async || {
            holder.lock(&name).expect("a good name").holders().await.is_ok_and(|all| all.len() == 2)
        })
        .await;
        // Until the request for the watch has been sent.
        sleep(Duration::from_millis(200)).await;
    }
    eventually_async(LONG, async || watch_streams(&proxy).len() == 2).await;
    drop(guards);
    while let Some(granted) = timeout(LONG, waiting.join_next()).await.expect("all are told") {
        drop(granted.expect("no panic")?);
    }
    assert_eq!(proxy.connections(), 1);
    Ok(())
}

/// The streams of watches on the first connection: no other stream has several requests.
fn watch_streams(proxy: &Proxy) -> Vec<u32> {
    let messages = proxy.messages_by_stream(Direction::ToServer);
    let several = messages.into_iter().filter(|((_, stream), count)| *stream > 0 && *count > 1);
    several.map(|((_, stream), _)| stream).collect()
}
