//! Thousands wait for one lock.

use std::time::{Duration, Instant};

use crate::support::{
    Client, Lockgate, Machine, Place, Value, allow_many_files, eventually, report,
};

const CROWD: usize = 5_000;

/// Far above what a waiting client may cost: this is for what grows without bound.
const MOST_BYTES_PER_CLIENT: u64 = 64 * 1024;

/// One after the other: only then is it known who came first.
fn all_wait(gate: &Lockgate, crowd: &mut [Client]) {
    let mut observer = gate.client();
    for (i, client) in crowd.iter_mut().enumerate() {
        client.send(&["LOCK", "k", "TOKEN", &token(i), "PX", "600000"]);
        let deadline = Instant::now() + Duration::from_secs(10);
        while observer.say("LOCKINFO k").field("waiters") != &Value::Integer(i as i64 + 1) {
            assert!(Instant::now() < deadline, "client {i} never came to wait");
        }
    }
}

fn token(i: usize) -> String {
    format!("token-{i}")
}

/// One more than may wait is told so, and disturbs nobody.
#[test]
fn one_more_than_may_wait_is_told_so() {
    let _machine = Machine::shared();
    let gate = Lockgate::start_with(&[], &[("LOCKGATE_LIMITS_WAITERS", "3")]);
    let mut clients = gate.clients(4);
    assert_eq!(clients[3].say("LOCK k TOKEN holder"), "holder");
    for (i, client) in clients.iter_mut().take(3).enumerate() {
        client.send(&["LOCK", "k", "TOKEN", &token(i)]);
        gate.awaits_waiters("k", i as i64 + 1);
    }
    let reply = clients[3].say("LOCK k TOKEN late");
    assert!(reply.error().starts_with("MAXWAITERS"), "{reply:?}");
    assert_eq!(clients[3].say("UNLOCK k holder"), 1);
    assert_eq!(clients[0].read_reply(), token(0));
}

#[test]
fn one_more_client_than_may_connect_is_told_so() {
    let _machine = Machine::shared();
    let gate = Lockgate::start_with(&[], &[("LOCKGATE_LIMITS_CLIENTS", "3")]);
    let mut clients = gate.clients(3);
    clients
        .iter_mut()
        .for_each(|client| assert_eq!(client.say("PING"), "PONG"));
    let mut late = gate.client();
    let reply = late.read_reply();
    assert_eq!(reply.error(), "ERR max number of clients reached");
    late.is_closed_by_the_server();
    drop(clients.pop());
    eventually("there is room again", || {
        let mut client = gate.client();
        client.try_write(b"PING\r\n").is_ok() && client.try_read().is_ok_and(|r| r == "PONG")
    });
    assert_eq!(clients[0].say("PING"), "PONG");
}

/// They need the machine for themselves, and take long: `tests/soak` runs them.
mod soak {
    use super::*;

    #[test]
    fn five_thousand_wait_for_one_lock_and_pass_it_on_in_order() {
        let files = allow_many_files();
        assert!(
            files > 2 * CROWD as u64 + 100,
            "too few open files are allowed here: {files}"
        );
        // After the limit was raised: the programs started from here have it too.
        for place in [Place::embedded as fn(Machine) -> Place, Place::with_redis] {
            let place = place(Machine::alone());
            let way = if place.redis.is_some() {
                "in front of Redis"
            } else {
                "embedded"
            };
            let mut holder = place.client();
            assert_eq!(holder.say("LOCK k TOKEN holder PX 600000"), "holder");

            let before = place.gate.rss_bytes();
            let mut crowd = place.gate.clients(CROWD);
            // A reply from each: all are accepted, with all that an idle client costs.
            crowd
                .iter_mut()
                .for_each(|client| client.send(&["TRYLOCK", "k"]));
            crowd
                .iter_mut()
                .for_each(|client| assert_eq!(client.read_reply(), Value::Nil));
            let idle = place.gate.rss_bytes();
            all_wait(&place.gate, &mut crowd);
            let waiting = place.gate.rss_bytes();

            let start = Instant::now();
            assert_eq!(holder.say("UNLOCK k holder"), 1);
            for (i, client) in crowd.iter_mut().enumerate() {
                assert_eq!(
                    client.read_reply(),
                    token(i),
                    "in the order in which they came"
                );
                assert_eq!(client.call(&["UNLOCK", "k", &token(i)]), 1);
            }
            let took = start.elapsed();
            let per_client = |bytes: u64| bytes.saturating_sub(before) / CROWD as u64;
            report(&format!(
                "{CROWD} clients {way}: {} bytes each when idle, {} when waiting; \
                 the lock went through all of them in {:.2} s ({:.0} µs each)",
                per_client(idle),
                per_client(waiting),
                took.as_secs_f64(),
                took.as_secs_f64() * 1e6 / CROWD as f64,
            ));
            assert!(
                per_client(waiting) < MOST_BYTES_PER_CLIENT,
                "{} bytes",
                per_client(waiting)
            );
            let mut observer = place.client();
            eventually("no lock is left", || {
                observer.say("LOCKS").items().is_empty()
            });
        }
    }
}
