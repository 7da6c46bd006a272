//! Commands that are not absorbed: they reach Redis as they came.

use super::{RELEASE, names, place, release, with};
use crate::support::{Machine, Monitor, Place, RedisServer, Value, counted, frame};

const LONG: &str = "10s";

#[test]
fn without_patterns_nothing_is_absorbed() {
    let place = Place::with_redis(Machine::shared());
    let mut monitor = Monitor::start(place.redis());
    let mut client = place.client();
    assert_eq!(client.say("SET lock:a t NX PX 20000"), "OK");
    assert_eq!(client.say("SET lock:a t NX PX 20000"), Value::Nil);
    assert_eq!(client.say("DEL lock:a"), 1);
    assert_eq!(names(&mut monitor, "lock:a"), ["SET", "SET", "DEL"]);
}

#[test]
fn other_keys_and_other_commands_pass() {
    let place = place(LONG);
    let mut client = place.client();
    let mut monitor = Monitor::start(place.redis());
    for (command, name) in [
        ("SET other:a t NX PX 20000", "SET"),
        ("DEL other:a", "DEL"),
        ("SET lock:a t", "SET"),
        ("SET lock:a t XX PX 20000", "SET"),
        ("SET lock:a t NX", "SET"),
        ("SETNX lock:a t", "SETNX"),
        ("SET lock:a t NX PX 20000 GET", "SET"),
        ("SET lock:a t NX PXAT 99999999999999", "SET"),
        ("SET lock:a t NX PX 0", "SET"),
        ("GETDEL lock:a", "GETDEL"),
        ("EVAL return 1 lock:a t", "EVAL"),
    ] {
        client.say(command);
        let seen = monitor.commands_where(|argument| argument.ends_with(":a"));
        assert_eq!(seen.last().unwrap()[0], name, "{command}");
    }
}

#[test]
fn what_the_bounds_of_locks_exclude_passes() {
    let place = place(LONG);
    let mut client = place.client();
    let token = "x".repeat(300);
    assert_eq!(
        client.call(&["SET", "lock:a", &token, "NX", "PX", "20000"]),
        "OK"
    );
    assert_eq!(client.say("SET lock:b t NX PX 999999999999"), "OK");
    assert_eq!(
        client.call(&["SET", "lock:c", "", "NX", "PX", "20000"]),
        "OK"
    );
    assert_eq!(counted(&mut client, "absorb_passed_token"), 2);
    assert_eq!(counted(&mut client, "absorb_passed_lease"), 1);
}

#[test]
fn an_unknown_script_passes_and_is_reported_once() {
    let place = place(LONG);
    let mut client = place.client();
    let script = "redis.call('publish', 'released', '1') return redis.call('del', KEYS[1])";
    for _ in 0..2 {
        client.call(&["EVAL", script, "1", "lock:a", "t"]);
    }
    let log = place.gate.log();
    assert_eq!(log.matches("absorb.release_scripts").count(), 1, "{log}");
    assert_eq!(counted(&mut client, "absorb_passed_script"), 2);
}

#[test]
fn in_a_transaction_and_under_client_reply_redis_executes_the_commands() {
    let place = place(LONG);
    let mut client = place.client();
    let pipeline: Vec<u8> = [
        vec!["MULTI"],
        vec!["SET", "lock:a", "t", "NX", "PX", "20000"],
        vec!["EVAL", RELEASE, "1", "lock:a", "t"],
        vec!["EXEC"],
    ]
    .iter()
    .flat_map(|command| frame(command))
    .collect();
    client.write_raw(&pipeline);
    assert_eq!(client.read_reply(), "OK");
    assert_eq!(client.read_reply(), "QUEUED");
    assert_eq!(client.read_reply(), "QUEUED");
    let results = client.read_reply();
    assert_eq!(
        results.items(),
        [Value::Simple("OK".into()), Value::Integer(1)]
    );
    client.send(&["CLIENT", "REPLY", "SKIP"]);
    client.send(&["SET", "lock:a", "t", "NX", "PX", "20000"]);
    assert_eq!(client.say("GET lock:a"), "t");
    assert_eq!(counted(&mut client, "absorb_passed_transaction"), 3);
}

#[test]
fn an_error_of_redis_reaches_the_client_as_it_is() {
    let place = place(LONG);
    let mut client = place.client();
    place.redis().client().say("LPUSH lock:a 1");
    // The key exists, whatever it holds.
    assert_eq!(client.say("SET lock:a t NX PX 20000"), Value::Nil);
    assert!(
        release(&mut client, "lock:a", "t")
            .error()
            .starts_with("WRONGTYPE")
    );
}

#[test]
fn a_user_without_rights_for_lockgates_scripts_is_served_by_redis() {
    let redis = RedisServer::start(&[]);
    let mut admin = redis.client();
    admin.call(&[
        "ACL", "SETUSER", "plain", "on", ">p", "~lock:*", "+set", "+get", "+del",
    ]);
    let place = with(redis, LONG);
    let mut client = place.client();
    assert_eq!(client.say("AUTH plain p"), "OK");
    assert_eq!(client.say("SET lock:a t NX PX 20000"), "OK");
    assert_eq!(client.say("SET lock:a t NX PX 20000"), Value::Nil);
    let refused = client.call(&["EVAL", RELEASE, "1", "lock:a", "t"]);
    let mut direct = place.redis().client();
    direct.say("AUTH plain p");
    assert_eq!(refused, direct.call(&["EVAL", RELEASE, "1", "lock:a", "t"]));
    let (through, directly) = ("SET other:a t NX PX 20000", "SET other:a t NX PX 20000");
    assert_eq!(client.say(through), direct.say(directly));
    assert_eq!(client.say("DEL lock:a"), 1);
    assert_eq!(counted(&mut place.client(), "absorb_passed_rights"), 4);
}

#[test]
fn a_connection_that_authenticates_as_another_user_has_the_rights_of_that_user() {
    let redis = RedisServer::start(&[]);
    let mut admin = redis.client();
    admin.call(&["ACL", "SETUSER", "plain", "on", ">p", "~lock:*", "+set"]);
    admin.call(&["ACL", "SETUSER", "full", "on", ">p", "~*", "&*", "+@all"]);
    let place = with(redis, LONG);
    let mut client = place.client();
    // (user, lock, the number of commands that passed for want of rights)
    for (user, lock, passed) in [
        ("plain", "lock:a", 1),
        ("full", "lock:b", 1),
        ("plain", "lock:c", 2),
    ] {
        assert_eq!(client.say(&format!("AUTH {user} p")), "OK");
        assert_eq!(client.say(&format!("SET {lock} t NX PX 20000")), "OK");
        let counted = counted(&mut place.client(), "absorb_passed_rights");
        assert_eq!(counted, passed, "{user}");
    }
    // Redis has refused this user's scripts: a new connection does not make lockgate try again.
    let mut rejected = || {
        let info = admin.say("INFO commandstats").text();
        let scripts = info.lines().filter(|line| line.starts_with("cmdstat_eval"));
        let calls =
            scripts.filter_map(|line| line.split_once("rejected_calls=")?.1.split(',').next());
        calls
            .map(|calls| calls.parse::<u32>().unwrap())
            .sum::<u32>()
    };
    let before = rejected();
    assert!(before > 0, "lockgate tried");
    let mut client = place.client();
    assert_eq!(client.say("AUTH plain p"), "OK");
    assert_eq!(client.say("SET lock:d t NX PX 20000"), "OK");
    assert_eq!(rejected(), before);
}

#[test]
fn a_redis_that_is_away_fails_an_attempt_as_any_command() {
    let mut place = place("20ms");
    place.redis.as_mut().unwrap().kill();
    let mut client = place.client();
    let reply = client.say("SET lock:a t NX PX 20000");
    let mut other = place.client();
    assert_eq!(reply, other.say("GET lock:a"));
}

#[test]
fn a_lock_with_the_prefix_of_the_configuration_is_the_same_for_every_command() {
    let redis = RedisServer::start(&[]);
    let url = redis.url();
    let flags = ["--upstream", &url];
    let environment = [
        ("LOCKGATE_LOCK_KEY_PREFIX", "lock:"),
        ("LOCKGATE_ABSORB_KEYS", "lock:*"),
        ("LOCKGATE_ABSORB_PARK", LONG),
    ];
    let gate = crate::support::Lockgate::start_with(&flags, &environment);
    let place = Place::of(Some(redis), gate, Machine::shared());
    let (mut holder, mut waiter) = (place.client(), place.client());
    assert_eq!(holder.say("SET lock:a t1 NX PX 400000"), "OK");
    waiter.send(&["LOCK", "a", "TOKEN", "t2"]);
    place.gate.awaits_waiters("a", 1);
    assert_eq!(release(&mut holder, "lock:a", "t1"), 1);
    assert_eq!(waiter.read_reply(), "t2");
}
