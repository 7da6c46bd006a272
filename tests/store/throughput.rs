//! How much one shared connection carries. Not a test that can fail; run it with
//! `cargo test --release --test store throughput -- --ignored --nocapture`.

use std::{sync::Arc, time::Duration};

use lockgate::{
    lock::Outcome,
    store::{Store, embedded::EmbeddedStore, redis::RedisStore},
};

use crate::{
    bed::{NobodyListens, WITHIN, ask, lock, release},
    redis::Server,
};

const TASKS: usize = 64;
const TIME: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes seconds and says a number"]
async fn throughput_of_redis() {
    let server = Server::start();
    measure(
        "redis",
        Arc::new(RedisStore::new(server.settings(), Arc::default())),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes seconds and says a number"]
async fn throughput_of_memory() {
    measure("memory", Arc::new(EmbeddedStore::new())).await;
}

/// Tasks that take and release a lock of their own, one after the other.
async fn measure(what: &str, store: Arc<dyn Store>) {
    store.listen(Arc::new(NobodyListens));
    let started = tokio::time::Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (store, name) = (Arc::clone(&store), lock(format!("lock:{task}")));
            tokio::spawn(async move {
                let (mut cycles, token) = (0_u64, "0123456789abcdef0123456789abcdef");
                while started.elapsed() < TIME {
                    let answer = store.ask(&name, &ask(token, 30_000), WITHIN).await;
                    assert!(
                        matches!(answer.outcome, Outcome::Granted { fresh: true, .. }),
                        "{answer:?}"
                    );
                    assert_eq!(
                        store.ask(&name, &release(token), WITHIN).await.outcome,
                        Outcome::Free
                    );
                    cycles += 1;
                }
                cycles
            })
        })
        .collect();
    let mut cycles = 0;
    for task in tasks {
        cycles += task.await.unwrap();
    }
    println!(
        "{what}: {:.0} cycles of ask and release a second",
        cycles as f64 / started.elapsed().as_secs_f64()
    );
}
