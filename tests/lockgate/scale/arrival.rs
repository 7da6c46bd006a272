//! Many clients come at once, each with a command for Redis.

use std::{thread, time::Duration};

use crate::support::{Client, Lockgate, Machine, RedisServer};

const CLIENTS: usize = 400;

/// How long Redis does not come to accept anybody: a slow command, a busy machine.
const STALL: Duration = Duration::from_millis(400);

/// The system drops what does not fit into Redis's queue of connections to be accepted, and tries it
/// again a second later only.
#[test]
fn more_clients_than_redis_can_accept_at_a_time_are_all_served() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--tcp-backlog", "128", "--maxclients", "1000"]);
    // Less than the system waits before it tries again.
    let environment = [("LOCKGATE_UPSTREAM_CONNECT_TIMEOUT", "900ms")];
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &environment);
    let mut clients = gate.clients(CLIENTS);
    redis.stop();
    clients
        .iter_mut()
        .for_each(|client| client.send(&["ECHO", "served"]));
    thread::sleep(STALL);
    redis.go_on();
    let served = |client: &mut Client| assert_eq!(client.read_reply(), "served");
    clients.iter_mut().for_each(served);
}
