//! Protected mode. "Elsewhere" is an address beside the loopback, in a network that the test makes for
//! itself: there the test runs once more, as the only one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::support::{
    self, Authority, Client, Lockgate, RedisServer, Value, counted, eventually, free_address, text,
};

/// An address of the documentation's: nobody's.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 77));

/// Makes that an address of the network that this is run in.
const NETWORK: &str = "ip link set lo up; ip address add 198.51.100.77/32 dev lo";

fn in_a_network_of_its_own(test: &str) -> bool {
    support::in_a_network_of_its_own(&format!("protected::{test}"), NETWORK)
}

/// A gate for everybody.
fn gate(flags: &[&str], environment: &[(&str, &str)]) -> Lockgate {
    Lockgate::start_at("0.0.0.0:0", flags, environment)
}

fn from_here(gate: &Lockgate) -> Client {
    let port = gate.address().port();
    Client::connect(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))
}

fn from_elsewhere(gate: &Lockgate) -> Client {
    Client::connect(SocketAddr::new(ELSEWHERE, gate.address().port()))
}

#[track_caller]
fn is_refused(mut client: Client, with: &str) {
    let reply = client.read_reply();
    assert!(reply.error().starts_with(with), "{reply:?}");
    client.is_closed_by_the_server();
}

const DENIED: &str = "DENIED lockgate is running in protected mode because";

#[test]
fn protected_mode_refuses_remote_clients() {
    if !in_a_network_of_its_own("protected_mode_refuses_remote_clients") {
        return;
    }
    let redis = RedisServer::start(&[]);
    for flags in [&[][..], &["--upstream", &redis.url()]] {
        let gate = gate(flags, &[]);
        is_refused(from_elsewhere(&gate), DENIED);
        eventually("the log says so", || {
            gate.log()
                .contains("protected mode: clients from elsewhere")
        });
        assert_eq!(counted(&mut from_here(&gate), "refused_from_elsewhere"), 1);
        assert_eq!(from_here(&gate).say("PING"), "PONG");
        assert_eq!(from_here(&gate).say("TRYLOCK k TOKEN t"), "t");
    }
}

#[test]
fn a_password_of_the_gate_or_the_operators_word_lets_in_who_comes_from_elsewhere() {
    if !in_a_network_of_its_own(
        "a_password_of_the_gate_or_the_operators_word_lets_in_who_comes_from_elsewhere",
    ) {
        return;
    }
    let with_password = gate(&[], &[("LOCKGATE_AUTH_PASSWORD", "secret")]);
    let mut client = from_elsewhere(&with_password);
    assert!(client.say("PING").error().starts_with("NOAUTH "));
    assert_eq!(client.say("AUTH secret"), "OK");
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    let unprotected = gate(&[], &[("LOCKGATE_PROTECTED_MODE", "false")]);
    assert_eq!(from_elsewhere(&unprotected).say("PING"), "PONG");
}

/// To Redis every client of the gate looks local, so it is the gate that has to look.
#[test]
fn a_password_of_redis_counts_as_long_as_it_has_one() {
    if !in_a_network_of_its_own("a_password_of_redis_counts_as_long_as_it_has_one") {
        return;
    }
    let redis = RedisServer::start(&[]);
    // The gate's own credentials are not what clients are asked for.
    let url = format!("redis://default:secret@{}", redis.address());
    let gate = gate(&["--upstream", &url], &[]);
    is_refused(from_elsewhere(&gate), DENIED);
    let mut admin = redis.client();
    assert_eq!(admin.say("CONFIG SET requirepass secret"), "OK");
    eventually("it is noticed", || {
        let mut client = from_elsewhere(&gate);
        // A refused client gets the error before it sends anything.
        client.send(&["AUTH", "secret"]);
        client.try_read().is_ok_and(|reply| reply == "OK")
    });
    let mut client = from_elsewhere(&gate);
    assert!(client.say("GET a").error().starts_with("NOAUTH "));
    assert_eq!(client.say("AUTH secret"), "OK");
    assert_eq!(client.say("SET a 1"), "OK");
    assert_eq!(admin.call(&["CONFIG", "SET", "requirepass", ""]), "OK");
    eventually("it is noticed again", || {
        let mut client = from_elsewhere(&gate);
        client.send(&["PING"]);
        client
            .try_read()
            .is_ok_and(|reply| matches!(&reply, Value::Error(text) if text.starts_with("DENIED")))
    });
    assert_eq!(client.say("GET a"), "1", "who was let in stays");
}

#[test]
fn remote_clients_are_refused_while_redis_is_unreachable() {
    if !in_a_network_of_its_own("remote_clients_are_refused_while_redis_is_unreachable") {
        return;
    }
    let url = format!("redis://{}", free_address());
    let gate = gate(&["--upstream", &url], &[]);
    is_refused(from_elsewhere(&gate), "UPSTREAM no connection to Redis");
}

#[test]
fn a_client_certificate_admits_over_tls_only() {
    if !in_a_network_of_its_own("a_client_certificate_admits_over_tls_only") {
        return;
    }
    let authority = Authority::new();
    let pair = authority.issue("gate", "198.51.100.77");
    let own = authority.issue("client", "somebody");
    let ca = authority.file();
    let files = [
        ("LOCKGATE_TLS_LISTEN", "0.0.0.0:0"),
        ("LOCKGATE_TLS_CERTIFICATE", text(&pair.certificate)),
        ("LOCKGATE_TLS_KEY", text(&pair.key)),
        ("LOCKGATE_TLS_CLIENT_CA", text(&ca)),
    ];
    let start = |how| {
        gate(
            &[],
            &[&files[..], &[("LOCKGATE_TLS_CLIENT_CERTIFICATES", how)]].concat(),
        )
    };
    let connect = |gate: &Lockgate| {
        let address = SocketAddr::new(ELSEWHERE, gate.tls_address().port());
        Client::try_connect_tls(address, &authority.client(Some(&own))).unwrap()
    };
    let required = start("required");
    assert_eq!(connect(&required).say("PING"), "PONG");
    // Beside it there is no such door.
    is_refused(from_elsewhere(&required), DENIED);
    let optional = start("optional");
    is_refused(connect(&optional), DENIED);
}
