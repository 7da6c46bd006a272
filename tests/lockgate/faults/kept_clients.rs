//! Redis goes away and comes back: clients that it owes nothing keep their connection to lockgate, and are to Redis
//! what they were. Those whose state cannot be restored are closed, as a direct connection would be, and so are those
//! that Redis closes while it lives.

use std::time::Duration;

use super::{AT_ONCE, gate_before, is_error, timed};
use crate::support::{
    Client, Http, Lockgate, Machine, Monitor, Proxy, RedisServer, Value, eventually,
};

/// Whether the server has closed, rather than that nothing was heard in time.
fn is_closed(client: &mut Client) -> bool {
    client.hears_within(Duration::ZERO).is_err()
}

const ADMIN: [(&str, &str); 1] = [("LOCKGATE_ADMIN_LISTEN", "127.0.0.1:0")];

/// A metric, without a client of lockgate's own.
fn metric(gate: &Lockgate, name: &str) -> u64 {
    let text = Http::connect(gate.admin_address()).get("/metrics").body;
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).expect("a number")
}

/// Returns when the connections of so many clients have ended without them.
fn are_kept(gate: &Lockgate, clients: u64) {
    eventually("the connections of the clients are given up", || {
        metric(gate, "lockgate_relay_connections_detached_total") == clients
    });
}

/// Returns when lockgate knows the server behind the client's connection.
fn knows_server(monitor: &mut Monitor, client: &mut Client) {
    eventually("lockgate looks at the server", || {
        let asked = monitor.everything();
        asked.iter().any(|command| command == &["INFO", "server"])
    });
    // Redis has sent the reply to that before this one.
    assert_eq!(client.say("PING"), "PONG");
}

/// A Redis that forgets nothing when it is killed, and a gate before it.
struct Place {
    redis: RedisServer,
    gate: Lockgate,
    _machine: Machine,
}

impl Place {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(arguments: &[&str]) -> Self {
        let machine = Machine::shared();
        let forgets_nothing = ["--appendonly", "yes", "--appendfsync", "always"];
        let redis = RedisServer::start(&[&forgets_nothing, arguments].concat());
        let gate = gate_before(&redis.url(), &ADMIN);
        Self {
            redis,
            gate,
            _machine: machine,
        }
    }

    fn with_ann() -> Self {
        Self::with(&["--user", "ann", "on", ">pw", "~*", "&*", "+@all"])
    }

    /// A client that Redis has served.
    fn client(&self, says: &[&str]) -> Client {
        let mut client = self.gate.client();
        for command in says {
            let reply = client.say(command);
            assert!(!matches!(reply, Value::Error(_)), "{command}: {reply:?}");
        }
        client
    }

    fn metric(&self, name: &str) -> u64 {
        metric(&self.gate, name)
    }

    fn awaits_waiters(&self, count: u64) {
        eventually("they wait", || self.metric("lockgate_waiters") == count);
    }

    /// Returns when lockgate knows that Redis is gone.
    fn redis_dies(&mut self) {
        self.redis.kill();
        eventually("every connection is given up", || {
            self.metric("lockgate_relay_connections") == 0
        });
    }
}

#[test]
fn clients_that_wait_keep_their_connection_and_are_to_redis_what_they_were() {
    for (hello, resp) in [("AUTH ann pw", 2), ("HELLO 3 AUTH ann pw", 3)] {
        for shuts_down in [false, true] {
            let mut place = Place::with_ann();
            let says = [hello, "CLIENT SETNAME me", "SELECT 3", "SET where here"];
            let (mut owner, mut waiting) = (place.client(&says), place.client(&says));
            for client in [&mut owner, &mut waiting] {
                // Redis 7.0 does not know it.
                client.say("CLIENT SETINFO LIB-NAME library");
                client.say("CLIENT SETINFO LIB-VER 1.2");
            }
            assert_eq!(owner.say("LOCK k TOKEN owner PX 60000"), "owner");
            waiting.send(&["LOCK", "k", "TOKEN", "waiting"]);
            place.awaits_waiters(1);
            if shuts_down {
                // Its reply is the end of the connection.
                let mut direct = place.redis.client();
                direct.send(&["SHUTDOWN", "NOSAVE"]);
                direct.is_closed_by_the_server();
            }
            place.redis_dies();
            waiting.hears_nothing_for(Duration::from_millis(20));
            place.redis.restart();
            assert_eq!(owner.say("UNLOCK k owner"), 1);
            assert_eq!(waiting.read_reply(), "waiting");
            for client in [&mut owner, &mut waiting] {
                assert_eq!(client.say("GET where"), "here");
                assert_eq!(client.say("ACL WHOAMI"), "ann");
                let info = client.say("CLIENT INFO").text();
                let is = |field: &str| info.split_ascii_whitespace().any(|it| it == field);
                assert!(is("name=me") && is("db=3"), "{info}");
                assert!(is(&format!("resp={resp}")), "{info}");
                if info.contains("lib-name") {
                    assert!(is("lib-name=library") && is("lib-ver=1.2"), "{info}");
                }
                let is_map = matches!(client.say("CONFIG GET port"), Value::Map(_));
                assert_eq!(is_map, resp == 3);
            }
            assert_eq!(waiting.say("UNLOCK k waiting"), 1);
        }
    }
}

#[test]
fn many_waiters_are_served_in_their_order_after_a_restart() {
    let mut place = Place::new();
    let hello = ["HELLO 3", "CLIENT SETNAME me"];
    let mut owner = place.client(&hello);
    assert_eq!(owner.say("LOCK k TOKEN owner PX 60000"), "owner");
    let mut waiters = Vec::new();
    for number in 0..20 {
        let mut client = place.client(&hello);
        client.send(&["LOCK", "k", "TOKEN", &number.to_string()]);
        place.awaits_waiters(number + 1);
        waiters.push(client);
    }
    place.redis_dies();
    place.redis.restart();
    assert_eq!(owner.say("UNLOCK k owner"), 1);
    for (number, waiter) in waiters.iter_mut().enumerate() {
        assert_eq!(waiter.read_reply(), number.to_string());
        assert_eq!(waiter.call(&["UNLOCK", "k", &number.to_string()]), 1);
        assert_eq!(waiter.say("CLIENT GETNAME"), "me");
    }
}

#[test]
fn what_is_over_keeps_no_client_from_staying() {
    let mut place = Place::new();
    let over: [&[&str]; 6] = [
        &["PING"],
        &["WATCH a", "MULTI", "SET a 1", "EXEC"],
        &["WATCH a", "UNWATCH"],
        &["WATCH a", "MULTI", "DISCARD"],
        &["SUBSCRIBE a", "UNSUBSCRIBE a"],
        &["WATCH a", "SELECT 2", "RESET"],
    ];
    let mut clients = over.map(|says| place.client(says));
    place.redis_dies();
    place.redis.restart();
    for (client, says) in clients.iter_mut().zip(over) {
        assert_eq!(client.say("PING"), "PONG", "{says:?}");
    }
    assert!(clients[5].say("CLIENT INFO").text().contains(" db=0 "));
}

#[test]
fn a_client_whose_state_cannot_be_restored_is_closed() {
    let mut place = Place::new();
    let long = format!("CLIENT SETNAME {}", "x".repeat(600));
    let kept: [&[&str]; 10] = [
        &["SET a 1", "WAIT 0 0"],
        &["MULTI"],
        &["WATCH a"],
        &["WATCH a", "EXEC"],
        &["SUBSCRIBE a"],
        &["PSUBSCRIBE a"],
        &["HELLO 3", "SSUBSCRIBE a"],
        &["HELLO 3", "CLIENT TRACKING ON"],
        &["MONITOR"],
        &[&long],
    ];
    let mut clients: Vec<_> = kept
        .iter()
        .map(|says| {
            let mut client = place.gate.client();
            says.iter().for_each(|command| drop(client.say(command)));
            client
        })
        .collect();
    let mut owed = place.client(&["PING"]);
    owed.send(&["BLPOP", "nothing", "0"]);
    let mut half = place.client(&["PING"]);
    half.write_raw(b"*2\r\n$4\r\nECHO\r\n$100\r\nhalf");
    let mut silent = place.client(&["PING"]);
    silent.write_raw(b"CLIENT REPLY OFF\r\n");
    eventually("Redis has it", || {
        let mut direct = place.redis.client();
        let clients = direct.say("INFO clients").text();
        clients.contains("blocked_clients:1")
    });
    place.redis.kill();
    for (client, says) in clients.iter_mut().zip(kept) {
        while let Ok(heard) = client.try_read() {
            drop(heard);
        }
        assert!(is_closed(client), "{says:?}");
    }
    for client in [&mut owed, &mut half, &mut silent] {
        client.is_closed_by_the_server();
    }
}

#[test]
fn a_client_that_redis_closes_while_it_lives_is_closed() {
    let place = Place::with_ann();
    let mut direct = place.redis.client();
    let mut owner = place.client(&["PING"]);
    assert_eq!(owner.say("LOCK k TOKEN owner"), "owner");
    let waits = |says: &[&str], waiters| {
        let mut client = place.client(says);
        let id = client.say("CLIENT ID").integer();
        client.send(&["LOCK", "k", "TOKEN", "t"]);
        place.awaits_waiters(waiters);
        (client, id)
    };
    let (mut killed, id) = waits(&["PING"], 1);
    assert_eq!(direct.call(&["CLIENT", "KILL", "ID", &id.to_string()]), 1);
    killed.is_closed_by_the_server();
    place.awaits_waiters(0);
    let (mut of_ann, _) = waits(&["AUTH ann pw"], 1);
    assert_eq!(direct.say("ACL DELUSER ann"), 1);
    of_ann.is_closed_by_the_server();
    assert_eq!(direct.say("CONFIG SET timeout 1"), "OK");
    let (mut silent, _) = waits(&["PING"], 1);
    silent.is_closed_by_the_server();
}

/// A packet filter, not Redis.
#[test]
fn a_client_whose_connection_is_cut_before_a_living_redis_is_closed() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let way = Proxy::before(redis.address());
    let gate = gate_before(&way.url(), &[]);
    let mut client = gate.client();
    assert_eq!(client.say("PING"), "PONG");
    way.cut();
    client.is_closed_by_the_server();
}

#[test]
fn a_client_of_a_server_that_another_one_replaced_is_kept() {
    let _machine = Machine::shared();
    let (old, new) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let way = Proxy::before(old.address());
    let gate = gate_before(&way.url(), &ADMIN);
    let mut monitor = Monitor::start(&old);
    let mut client = gate.client();
    assert_eq!(client.say("SELECT 2"), "OK");
    knows_server(&mut monitor, &mut client);
    way.forward_to(new.address());
    way.cut();
    are_kept(&gate, 1);
    assert_eq!(client.say("SET where new"), "OK");
    let mut direct = new.client();
    assert_eq!(direct.say("SELECT 2"), "OK");
    assert_eq!(direct.say("GET where"), "new");
}

/// As Sentinel does it: the master lives on as a replica, and closes its clients.
#[test]
fn a_client_of_a_demoted_master_is_kept() {
    let _machine = Machine::shared();
    let (old, new) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let gate = gate_before(&old.url(), &ADMIN);
    let mut monitor = Monitor::start(&old);
    let mut client = gate.client();
    assert_eq!(client.say("PING"), "PONG");
    knows_server(&mut monitor, &mut client);
    let port = new.address().port().to_string();
    let mut direct = old.client();
    assert_eq!(direct.call(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    assert!(direct.say("CLIENT KILL TYPE normal SKIPME yes").integer() >= 1);
    are_kept(&gate, 1);
    is_error(&client.say("SET a 1"), "READONLY");
}

#[test]
fn an_ordinary_command_in_an_outage_gets_an_error_and_the_client_stays() {
    let mut place = Place::new();
    let mut client = place.client(&["HELLO 3", "SELECT 1"]);
    place.redis_dies();
    is_error(&client.say("SET a 1"), "UPSTREAM");
    client.write_raw(b"SET a 2\r\nGET a\r\nPUBLISH a x\r\nINFO\r\n");
    for _ in 0..4 {
        is_error(&client.read_reply(), "UPSTREAM");
    }
    place.redis.restart();
    assert_eq!(client.say("PING"), "PONG");
    assert!(client.say("GET a").is_nil());
    assert!(client.say("CLIENT INFO").text().contains(" db=1 "));
    // One that is half sent has no end to answer to.
    let mut half = place.client(&["PING"]);
    place.redis_dies();
    half.write_raw(b"*2\r\n$4\r\nECHO\r\n$100\r\nhalf");
    half.is_closed_by_the_server();
}

/// What the client sends behind it, or has sent, would run in a state that it does not expect.
#[test]
fn a_command_in_an_outage_that_changes_the_connection_gets_an_error_and_closes_it() {
    let mut place = Place::new();
    let changes = [
        "MULTI",
        "SELECT 2",
        "WATCH a",
        "AUTH pw",
        "HELLO 3",
        "RESET",
        "SUBSCRIBE a",
        "CLIENT SETNAME me",
    ];
    let clients = || changes.map(|_| place.client(&["PING"]));
    let (mut together, mut one_by_one) = (clients(), clients());
    place.redis_dies();
    for (number, command) in changes.iter().enumerate() {
        let client = &mut together[number];
        client.write_raw(format!("{command}\r\nSET a 1\r\nLOCK k\r\n").as_bytes());
        is_error(&client.read_reply(), "UPSTREAM");
        client.is_closed_by_the_server();
        is_error(&one_by_one[number].say(command), "UPSTREAM");
    }
    place.redis.restart();
    for client in &mut one_by_one {
        client.is_closed_by_the_server();
    }
    let mut direct = place.redis.client();
    assert!(direct.say("GET a").is_nil());
}

/// Replicas acknowledge the writes of a connection, and those of its client went over another one.
#[test]
fn a_kept_client_that_waits_for_replicas_is_closed() {
    let mut place = Place::new();
    let mut clients = ["WAIT 0 1", "waitaof 0 0 1"].map(|waits| (place.client(&["PING"]), waits));
    place.redis_dies();
    place.redis.restart();
    for (client, waits) in &mut clients {
        assert_eq!(client.say("SET a 1"), "OK");
        is_error(&client.say(waits), "ERR");
        client.is_closed_by_the_server();
    }
    let mut new = place.client(&["SET a 1"]);
    assert_eq!(new.say("WAIT 0 1"), 0);
    assert_eq!(new.say("WAIT 0 1"), 0);
}

/// Whether its writes are lost is not known before the look at the server has ended.
#[test]
fn a_client_that_waits_for_replicas_while_redis_is_looked_at_is_closed() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let way = Proxy::before(redis.address());
    let gate = gate_before(&way.url(), &ADMIN);
    let mut client = gate.client();
    assert_eq!(client.say("SET a 1"), "OK");
    way.half_open(true);
    way.cut();
    eventually("lockgate looks at the server", || way.connections() > 0);
    client.send(&["WAIT", "1", "100"]);
    is_error(&client.read_reply(), "ERR");
    client.is_closed_by_the_server();
}

/// The new check of its password cannot take place before Redis is back, and its client may not try again.
#[test]
fn a_release_in_an_outage_takes_effect_when_redis_is_back() {
    let mut place = Place::with_ann();
    let says = ["AUTH ann pw"];
    let (mut owner, mut waiting) = (place.client(&says), place.client(&says));
    assert_eq!(owner.say("LOCK k TOKEN owner PX 600000"), "owner");
    waiting.send(&["LOCK", "k", "TOKEN", "waiting"]);
    place.awaits_waiters(1);
    place.redis_dies();
    is_error(&owner.say("UNLOCK k owner"), "UPSTREAM");
    place.redis.restart();
    assert_eq!(waiting.read_reply(), "waiting");
}

#[test]
fn a_client_that_gave_a_password_that_is_not_needed_is_kept() {
    let mut place = Place::new();
    let mut client = place.client(&["AUTH default anything"]);
    place.redis_dies();
    place.redis.restart();
    assert_eq!(client.say("PING"), "PONG");
}

/// Its command must not run as the `default` user either.
#[test]
fn a_client_of_a_user_that_is_gone_is_closed() {
    let mut place = Place::new();
    let mut direct = place.redis.client();
    assert_eq!(direct.say("ACL SETUSER ann on >pw ~* &* +@all"), "OK");
    let says = ["AUTH ann pw"];
    let (mut owner, mut idle) = (place.client(&says), place.client(&says));
    let mut waiting = place.client(&says);
    assert_eq!(owner.say("LOCK k TOKEN owner"), "owner");
    waiting.send(&["LOCK", "k", "TOKEN", "waiting"]);
    place.awaits_waiters(1);
    place.redis_dies();
    place.redis.restart();
    for client in [&mut owner, &mut waiting] {
        client.is_closed_by_the_server();
    }
    idle.send(&["SET", "by", "ann"]);
    idle.is_closed_by_the_server();
    assert!(place.redis.client().say("GET by").is_nil());
}

/// Another client of the same user has the new password, and so lockgate has a connection for its locks.
#[test]
fn a_client_with_a_password_that_was_changed_meanwhile_gets_no_lock() {
    let mut place = Place::new();
    let mut direct = place.redis.client();
    assert_eq!(direct.say("ACL SETUSER ann on >old ~* &* +@all"), "OK");
    let (mut owner, mut waiting) = (place.client(&["PING"]), place.client(&["AUTH ann old"]));
    assert_eq!(owner.say("LOCK k TOKEN owner PX 60000"), "owner");
    waiting.send(&["LOCK", "k", "TOKEN", "waiting"]);
    place.awaits_waiters(1);
    place.redis_dies();
    place.redis.restart();
    direct = place.redis.client();
    assert_eq!(direct.say("ACL SETUSER ann on >new ~* &* +@all"), "OK");
    let mut new = place.client(&["AUTH ann new"]);
    new.send(&["LOCK", "k", "TOKEN", "new"]);
    assert_eq!(owner.say("UNLOCK k owner"), 1);
    assert_eq!(new.read_reply(), "new");
    let told = waiting.try_read();
    assert!(
        !matches!(&told, Ok(reply) if *reply == "waiting"),
        "{told:?}"
    );
}

#[test]
fn a_redis_that_accepts_and_says_nothing_counts_as_gone() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let way = Proxy::before(redis.address());
    let gate = gate_before(&way.url(), &ADMIN);
    let mut clients: Vec<_> = (0..5).map(|_| gate.client()).collect();
    for client in &mut clients {
        assert_eq!(client.say("PING"), "PONG");
    }
    way.half_open(true);
    way.cut();
    let mut waiting = gate.client();
    waiting.send(&["LOCK", "k", "TOKEN", "t"]);
    are_kept(&gate, 5);
    way.half_open(false);
    way.cut();
    for client in &mut clients {
        let (reply, took) = timed(|| client.say("PING"));
        assert_eq!(reply, "PONG");
        assert!(took < AT_ONCE, "{took:?}");
    }
    assert_eq!(waiting.read_reply(), "t");
}

/// A client that was refused for good may stay for ten seconds. One look at the server takes place at a time.
#[test]
fn a_refused_client_that_stays_holds_up_no_other_in_its_look_at_the_server() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let way = Proxy::before(redis.address());
    let gate = Lockgate::start_with(&["--upstream", &way.url()], &ADMIN);
    eventually("lockgate can lock", || {
        metric(&gate, "lockgate_upstream_can_lock") == 1
    });
    let (mut kept, mut refused) = (gate.client(), gate.client());
    way.delay(Duration::from_millis(50));
    assert_eq!(kept.say("PING"), "PONG");
    for (connections, what) in [(1, "is open"), (2, "looks"), (1, "has looked")] {
        eventually(what, || way.connections() == connections);
    }
    assert_eq!(refused.say("PING"), "PONG");
    way.half_open(true);
    eventually("it looks again", || way.connections() == 3);
    refused.write_raw(b"*x\r\n");
    let error = refused.read_reply();
    assert_eq!(
        error.error(),
        "ERR Protocol error: invalid multibulk length"
    );
    redis.kill();
    way.half_open(false);
    redis.restart();
    let (reply, took) = timed(|| kept.say("PING"));
    assert_eq!(reply, "PONG");
    assert!(took < AT_ONCE, "{took:?}");
}

/// Redis closes after `QUIT`, and is then not there to be looked at: the client wanted no other server.
#[test]
fn a_client_that_quits_is_closed_though_redis_is_gone() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let way = Proxy::before(redis.address());
    let gate = gate_before(&way.url(), &ADMIN);
    let mut monitor = Monitor::start(&redis);
    let mut client = gate.client();
    assert_eq!(client.say("PING"), "PONG");
    knows_server(&mut monitor, &mut client);
    way.refuse(true);
    assert_eq!(client.say("QUIT"), "OK");
    let ((), took) = timed(|| client.is_closed_by_the_server());
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(
        metric(&gate, "lockgate_relay_connections_detached_total"),
        0
    );
}
