//! The faults that other tests rely on are seen to happen: those of the network, before a real
//! Redis, and those of the programs.

use std::time::{Duration, Instant};

use crate::support::{Client, Lockgate, Proxy, RedisServer, eventually, free_address};

/// Long enough to be seen beside what a busy machine adds.
const DELAY: Duration = Duration::from_millis(100);

fn redis_behind_a_proxy() -> (RedisServer, Proxy) {
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::before(redis.address());
    (redis, proxy)
}

#[test]
fn without_a_fault_everything_passes_in_order() {
    let (_redis, proxy) = redis_behind_a_proxy();
    let mut client = Client::connect(proxy.address());
    let large = "x".repeat(3_000_000);
    client.send(&["SET", "k", &large]);
    client.send(&["GET", "k"]);
    client.finish_sending();
    assert_eq!(client.read_reply(), "OK");
    assert_eq!(client.read_reply(), large);
    client.is_closed_by_the_server();
}

#[test]
fn a_cut_ends_every_connection_and_lets_new_ones_in() {
    let (redis, proxy) = redis_behind_a_proxy();
    let mut clients = [(); 3].map(|()| Client::connect(proxy.address()));
    for client in &mut clients {
        assert_eq!(client.say("PING"), "PONG");
    }
    let mut observer = redis.client();
    let connected = |observer: &mut Client| observer.say("CLIENT LIST").text().lines().count();
    assert_eq!(connected(&mut observer), 4);
    proxy.cut();
    for client in &mut clients {
        client.is_closed_by_the_server();
    }
    let mut fresh = Client::connect(proxy.address());
    assert_eq!(fresh.say("PING"), "PONG");
    eventually("Redis saw the cut connections end", || {
        connected(&mut observer) == 2
    });
}

#[test]
fn refused_connections_end_at_once_and_others_live_on() {
    let (_redis, proxy) = redis_behind_a_proxy();
    let mut before = Client::connect(proxy.address());
    assert_eq!(before.say("PING"), "PONG");
    proxy.refuse(true);
    Client::connect(proxy.address()).is_closed_by_the_server();
    assert_eq!(before.say("PING"), "PONG");
    proxy.refuse(false);
    assert_eq!(Client::connect(proxy.address()).say("PING"), "PONG");
}

#[test]
fn delayed_bytes_come_late_both_ways_and_in_order() {
    let (_redis, proxy) = redis_behind_a_proxy();
    let mut client = Client::connect(proxy.address());
    assert_eq!(client.say("SET n 0"), "OK");
    proxy.delay(DELAY);
    let start = Instant::now();
    for _ in 0..50 {
        client.send(&["INCR", "n"]);
    }
    for n in 1..=50 {
        assert_eq!(client.read_reply(), n);
    }
    let took = start.elapsed();
    assert!(took >= 2 * DELAY, "{took:?}");
    assert!(took < 20 * DELAY, "{took:?}: one after the other");
    proxy.delay(Duration::ZERO);
    let start = Instant::now();
    assert_eq!(client.say("GET n"), "50");
    assert!(start.elapsed() < DELAY);
}

#[test]
fn a_dropped_reply_means_that_the_command_arrived() {
    let (redis, proxy) = redis_behind_a_proxy();
    let mut client = Client::connect(proxy.address());
    assert_eq!(client.say("PING"), "PONG");
    proxy.drop_replies(true);
    client.send(&["SET", "k", "arrived"]);
    client.hears_nothing_for(DELAY);
    assert_eq!(redis.client().say("GET k"), "arrived");
    proxy.cut();
    client.is_closed_by_the_server();
    proxy.drop_replies(false);
    assert_eq!(Client::connect(proxy.address()).say("GET k"), "arrived");
}

#[test]
fn half_open_connections_say_nothing_and_what_was_held_back_comes_late() {
    let (redis, proxy) = redis_behind_a_proxy();
    let mut before = Client::connect(proxy.address());
    assert_eq!(before.say("PING"), "PONG");
    proxy.half_open(true);
    let mut fresh = Client::connect(proxy.address());
    before.send(&["SET", "before", "1"]);
    fresh.send(&["SET", "fresh", "1"]);
    fresh.hears_nothing_for(DELAY);
    before.hears_nothing_for(DELAY);
    assert_eq!(redis.client().say("EXISTS before fresh"), 0);
    proxy.half_open(false);
    assert_eq!(before.read_reply(), "OK");
    assert_eq!(fresh.read_reply(), "OK");
}

#[test]
fn commands_held_back_by_a_half_open_network_die_with_a_cut() {
    let (redis, proxy) = redis_behind_a_proxy();
    let mut before = Client::connect(proxy.address());
    assert_eq!(before.say("PING"), "PONG");
    proxy.half_open(true);
    before.send(&["SET", "before", "1"]);
    before.hears_nothing_for(DELAY);
    proxy.cut();
    before.is_closed_by_the_server();
    proxy.half_open(false);
    assert_eq!(Client::connect(proxy.address()).say("PING"), "PONG");
    assert_eq!(redis.client().say("EXISTS before"), 0);
}

#[test]
fn new_connections_go_where_they_are_told() {
    let (redis, proxy) = redis_behind_a_proxy();
    let other = RedisServer::start(&[]);
    assert_eq!(redis.client().say("SET name one"), "OK");
    assert_eq!(other.client().say("SET name other"), "OK");
    let mut before = Client::connect(proxy.address());
    assert_eq!(before.say("GET name"), "one");
    proxy.forward_to(other.address());
    assert_eq!(Client::connect(proxy.address()).say("GET name"), "other");
    assert_eq!(before.say("GET name"), "one");
    drop(other);
    Client::connect(proxy.address()).is_closed_by_the_server();
}

#[test]
fn a_redis_is_killed_stopped_and_started_again_where_it_was() {
    let mut redis = RedisServer::start_with_aof();
    let address = redis.address();
    assert_eq!(redis.client().say("SET k remembered"), "OK");
    redis.kill();
    redis.restart();
    assert_eq!(Client::connect(address).say("GET k"), "remembered");
    let mut client = redis.client();
    redis.stop();
    client.send(&["GET", "k"]);
    client.hears_nothing_for(DELAY);
    redis.go_on();
    assert_eq!(client.read_reply(), "remembered");
    redis.kill();
    redis.forget();
    redis.restart();
    assert_eq!(Client::connect(address).say("EXISTS k"), 0);
}

#[test]
fn a_lockgate_is_killed_stopped_and_started_again_where_it_was() {
    let mut gate = Lockgate::start_at(free_address(), &[], &[("LOCKGATE_LOCK_LEASE", "7s")]);
    let mut client = gate.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    gate.stop();
    client.send(&["TRYLOCK", "k"]);
    client.hears_nothing_for(DELAY);
    gate.go_on();
    assert!(client.read_reply().is_nil());
    let address = gate.address();
    gate.kill();
    client.is_closed_by_the_server();
    gate.restart();
    assert_eq!(gate.address(), address);
    let mut fresh = Client::connect(address);
    assert_eq!(fresh.say("LOCK k TOKEN other"), "other");
    let left = fresh.say("LOCKINFO k").field("ttl").integer();
    assert!(
        (1..=7_000).contains(&left),
        "{left} ms, of the lease it was started with"
    );
}
