//! A program with a lockgate inside: its tasks take turns at a counter, each as a client of its own.
//!
//! `cargo run --example embedded` keeps the locks in this process. With `LOCKGATE_UPSTREAM=redis://127.0.0.1` in the
//! environment they are in Redis, where other programs compete for them.

use std::{
    error::Error,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockgate::{Config, Embedder};
use redis::{AsyncConnectionConfig, Client, cmd};
use tokio::{sync::oneshot, task::JoinSet, time::sleep};

type Failure = Box<dyn Error + Send + Sync>;

const TASKS: u64 = 10;

#[tokio::main]
pub(crate) async fn main() -> Result<(), Failure> {
    let config = Config::builder()
        .environment(std::env::vars_os())
        .set("listen", "127.0.0.1:0")
        .build()?;
    let (tell, listening) = oneshot::channel();
    let embedder = Embedder::default().on_listening(|on| {
        // The receiver is gone only where this program ends.
        let _ = tell.send(on.addresses().next());
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async { drop(stopped.await) };
    let gate = tokio::spawn(lockgate::run(config, embedder, shutdown));
    let Ok(address) = listening.await else {
        // It ended before it listened, and says why.
        return Err(gate.await?.map_or_else(Into::into, |_| "it ended".into()));
    };
    let address = address.ok_or("it listens on no TCP address")?;

    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        tasks.spawn(take_turn(address, task, Arc::clone(&counter)));
    }
    for turn in tasks.join_all().await {
        turn?;
    }
    let count = counter.load(Ordering::Relaxed);
    println!("counted {count} of {TASKS} turns");
    if count != TASKS {
        return Err("two tasks had the lock at a time".into());
    }

    // lockgate waits for its clients, for `drain` at most.
    drop(stop);
    gate.await??;
    Ok(())
}

async fn take_turn(address: SocketAddr, task: u64, counter: Arc<AtomicU64>) -> Result<(), Failure> {
    // The client would give up on a reply, and so on the lock, after half a second.
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = Client::open(format!("redis://{address}"))?;
    let mut redis = client
        .get_multiplexed_async_connection_with_config(&patient)
        .await?;
    let token = format!("{}-{task}", std::process::id());
    let mut lock = cmd("LOCK");
    let granted: Option<String> = lock
        .arg(&["counter", "TOKEN", &token, "PX", "10000"])
        .query_async(&mut redis)
        .await?;
    granted.ok_or("a LOCK without WAIT waits forever")?;
    // Two tasks that did this at a time would count once.
    let count = counter.load(Ordering::Relaxed);
    sleep(Duration::from_millis(5)).await;
    counter.store(count + 1, Ordering::Relaxed);
    match cmd("UNLOCK")
        .arg(&["counter", &token])
        .query_async(&mut redis)
        .await?
    {
        1 => Ok(()),
        _ => Err("the lease ended before the turn did".into()),
    }
}
