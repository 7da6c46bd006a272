//! What Redis's own test suite (`tests/parity/run`) found to be different behind lockgate, in a few
//! lines each.

use crate::support::{Client, Lockgate, Machine, RedisServer, eventually};

/// A field of what `INFO` says.
#[track_caller]
fn info(client: &mut Client, name: &str) -> i64 {
    let text = client.say("INFO").text();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.expect("INFO has it").parse().expect("a number")
}

/// A client that counts clients, or that tracks, sees no connection of lockgate's while no locks are taken.
#[test]
fn redis_has_no_client_more_before_the_first_lock() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = Lockgate::start(&["--upstream", &redis.url()]);
    let mut client = gate.client();
    eventually("lockgate has seen that Redis is there", || {
        info(&mut client, "total_connections_received") == 2
    });
    eventually("it stays no longer", || {
        info(&mut client, "connected_clients") == 1
    });
    assert_eq!(info(&mut client, "tracking_clients"), 0);
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    eventually("what asked about the client is gone", || {
        info(&mut client, "connected_clients") == 2
    });
    assert_eq!(info(&mut client, "tracking_clients"), 1);
}

/// They need the machine for themselves.
mod alone {
    use super::*;

    /// Nobody promises an order to commands that are sent on two connections, one right after the other.
    /// But a program that shares its work between two meets none but this one with Redis.
    #[test]
    fn commands_on_two_connections_run_in_the_order_in_which_they_came() {
        const ROUNDS: usize = 1_000;
        let _machine = Machine::alone();
        let redis = RedisServer::start(&[]);
        let gate =
            Lockgate::start_with(&["--upstream", &redis.url()], &[("LOCKGATE_THREADS", "1")]);
        let (mut first, mut second) = (gate.client(), gate.client());
        assert_eq!(first.say("PING"), "PONG");
        assert_eq!(second.say("PING"), "PONG");
        let in_order = |round: &usize| {
            let round = round.to_string();
            first.send(&["SET", "k", &round]);
            second.send(&["GET", "k"]);
            assert_eq!(first.read_reply(), "OK");
            second.read_reply() == round
        };
        let in_order = (0..ROUNDS).filter(in_order).count();
        // On a machine that is busy the second may well be heard first.
        assert!(in_order > ROUNDS * 3 / 4, "{in_order} of {ROUNDS}");
    }
}
