//! Everything that is no lock command reaches Redis, and its reply the client, as if lockgate were
//! not there. Mostly: the same script runs through lockgate and on a Redis directly, and the
//! replies are the same.

use std::{io::Write, thread, time::Duration};

use crate::support::{
    Client, Lockgate, Machine, Place, Proxy, RedisServer, SHORT_GRACE, Value, eventually, frame,
    words,
};

const END: &str = "end of the script";

/// All replies to these bytes, sent at once, up to that of a last `ECHO`.
fn replies(mut client: Client, script: &[u8]) -> Vec<Value> {
    client.write_raw(&[script, &frame(&["ECHO", END])].concat());
    let mut replies = Vec::new();
    loop {
        match client.read_reply() {
            reply if reply == END => return replies,
            reply => replies.push(without_ids(reply)),
        }
    }
}

/// The numbers that Redis gives its clients are not the same twice.
fn without_ids(reply: Value) -> Value {
    let items = |mut items: Vec<Value>| {
        if let Some(at) = items.iter().position(|item| *item == "id") {
            items[at + 1] = Value::Nil;
        }
        items
    };
    match reply {
        Value::Map(map) => Value::Map(items(map)),
        Value::Array(array) => Value::Array(items(array)),
        other => other,
    }
}

/// Runs a script of bytes on two fresh servers, on one of them through lockgate.
#[track_caller]
fn is_answered_as_by_redis(script: &[u8]) {
    let (direct, place) = (
        RedisServer::start(&[]),
        Place::with_redis(Machine::shared()),
    );
    let (expected, relayed) = (
        replies(direct.client(), script),
        replies(place.client(), script),
    );
    assert!(!expected.is_empty(), "the script does something");
    assert_eq!(relayed, expected);
    // And again, one byte at a time.
    assert_eq!(place.redis().client().say("FLUSHALL"), "OK");
    let mut client = place.client();
    let mut writer = client.writer();
    let bytes = [script, &frame(&["ECHO", END])].concat();
    thread::scope(|threads| {
        threads.spawn(|| {
            bytes
                .iter()
                .for_each(|byte| writer.write_all(&[*byte]).unwrap())
        });
        for expected in &expected {
            assert_eq!(without_ids(client.read_reply()), *expected, "byte by byte");
        }
        assert_eq!(client.read_reply(), END, "byte by byte");
    });
}

/// The same with one command a line.
#[track_caller]
fn commands_are_answered_as_by_redis(script: &str) {
    let lines = script.lines().map(words).filter(|words| !words.is_empty());
    is_answered_as_by_redis(&lines.flat_map(|words| frame(&words)).collect::<Vec<u8>>());
}

#[test]
fn a_pipeline() {
    commands_are_answered_as_by_redis(
        "SET a 1
         GET a
         GET missing
         INCR a
         LPUSH a x
         NONSENSE x y
         GET
         RPUSH list 1 2 3
         LRANGE list 0 -1
         HSET h f v
         HGETALL h
         EVAL return{1,{2,{3,{}}},'x'} 0
         BLPOP nothing 0.01",
    );
}

#[test]
fn the_types_of_resp3() {
    commands_are_answered_as_by_redis(
        "HSET h f v
         SADD s a
         ZADD z 1.5 m
         HGETALL h
         HELLO 3
         HGETALL h
         SMEMBERS s
         ZSCORE z m
         GET missing
         BLPOP nothing 0.01
         CLIENT TRACKING ON
         GET a
         SET a 1
         HELLO 2
         HGETALL h
         HELLO 4
         HELLO 3 SETNAME x
         CLIENT GETNAME
         RESET
         HGETALL h",
    );
}

#[test]
fn transactions_in_which_lock_commands_are_unknown() {
    commands_are_answered_as_by_redis(
        "MULTI
         SET a 1
         INCR a
         EXEC
         MULTI
         SET a 2
         LOCK k TOKEN t
         GET a
         EXEC
         GET a
         MULTI
         UNLOCK k t
         DISCARD
         MULTI
         TRYLOCK k
         RELOCK k t
         EXEC
         WATCH a
         SET a 3
         MULTI
         GET a
         EXEC
         EXEC
         MULTI
         MULTI
         EXEC
         EXISTS k",
    );
}

#[test]
fn subscriptions_in_which_lock_commands_are_unknown() {
    commands_are_answered_as_by_redis(
        // In which order a bare UNSUBSCRIBE tells of several is chance.
        "SUBSCRIBE a a b
         PING
         LOCK k TOKEN t
         GET a
         PSUBSCRIBE p*
         UNSUBSCRIBE a
         UNSUBSCRIBE
         PUNSUBSCRIBE
         UNSUBSCRIBE
         PUNSUBSCRIBE x y
         PING
         HELLO 3
         SUBSCRIBE a b
         GET a
         PUBLISH a m
         UNSUBSCRIBE b
         UNSUBSCRIBE
         UNSUBSCRIBE
         SUBSCRIBE a
         RESET
         PING",
    );
}

#[test]
fn replies_that_are_switched_off() {
    commands_are_answered_as_by_redis(
        "CLIENT REPLY SKIP
         SET a 1
         GET a
         CLIENT REPLY OFF
         SET a 2
         NONSENSE
         CLIENT REPLY ON
         GET a
         CLIENT REPLY SKIP
         CLIENT REPLY OFF
         SET a 3
         CLIENT REPLY ON
         GET a",
    );
}

#[test]
fn inline_commands_and_sloppy_frames() {
    is_answered_as_by_redis(
        b"PING\r\nping\n\r\n\n  SET a 'b c'\r\nGET \"a\"\r\n*0\r\n*-1\r\nECHO \"\\x41\\n\"\r\n\
          *1\r\n$4\r\nPINGxy*2\r\n$4\r\nECHO\r\n$0\r\n\r\n",
    );
}

/// The client gets the last reply of Redis, and is closed as Redis closes.
#[test]
fn wrong_frames_end_the_connection_as_with_redis() {
    let (direct, place) = (
        RedisServer::start(&[]),
        Place::with_redis(Machine::shared()),
    );
    for wrong in [
        "*1\r\n:1\r\n",
        "*x\r\n",
        "*1\r\n$x\r\n",
        "*1\r\n$-2\r\n",
        "PING 'a\r\n",
        "*2147483648\r\n",
    ] {
        for mut client in [direct.client(), place.client()] {
            client.write_raw(wrong.as_bytes());
            let reply = client.read_reply();
            assert!(
                reply.error().starts_with("ERR Protocol error"),
                "{wrong:?}: {reply:?}"
            );
            client.is_closed_by_the_server();
        }
    }
}

#[test]
fn the_database_of_the_connection_is_that_of_its_locks() {
    let place = Place::with_redis(Machine::shared());
    let (mut client, mut direct) = (place.client(), place.redis().client());
    assert_eq!(direct.say("SELECT 3"), "OK");
    assert_eq!(client.say("SELECT 3"), "OK");
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    assert_eq!(direct.say("GET k"), "t");
    assert_eq!(client.say("GET k"), "t");
    client.say("SELECT 99").error();
    assert_eq!(
        client.say("UNLOCK k t"),
        1,
        "a SELECT that failed changed nothing"
    );
    for command in ["MULTI", "SELECT 4", "EXEC"] {
        client.say(command);
    }
    assert_eq!(client.say("LOCK k TOKEN u"), "u");
    assert_eq!(direct.say("EXISTS k"), 0);
    assert_eq!(direct.say("SELECT 4"), "OK");
    assert_eq!(direct.say("GET k"), "u");
    assert_eq!(client.say("RESET"), "RESET");
    assert_eq!(client.say("UNLOCK k u"), 0, "back in database 0");
}

#[test]
fn a_password_is_needed_for_locks_as_for_everything() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&["--requirepass", "hunter2"]);
    let url = redis.url().replace("redis://", "redis://:hunter2@");
    let gate = Lockgate::start(&["--upstream", &url]);
    let mut client = gate.client();
    let refused = |reply: Value, code: &str| assert!(reply.error().starts_with(code), "{reply:?}");
    for command in [
        "GET a",
        "LOCK k",
        "TRYLOCK k",
        "UNLOCK k t",
        "RELOCK k t",
        "LOCKINFO k",
        "LOCKS",
    ] {
        refused(client.say(command), "NOAUTH");
    }
    refused(client.say("AUTH wrong"), "WRONGPASS");
    refused(client.say("LOCK k"), "NOAUTH");
    assert_eq!(client.say("AUTH hunter2"), "OK");
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    assert_eq!(client.say("GET k"), "t");
    let mut other = gate.client();
    refused(other.say("UNLOCK k t"), "NOAUTH");
    assert_eq!(*other.say("HELLO 3 AUTH default hunter2").field("proto"), 3);
    assert_eq!(other.say("UNLOCK k t"), 1);
    assert_eq!(client.say("RESET"), "RESET");
    refused(client.say("LOCK k"), "NOAUTH");
}

#[test]
fn a_message_reaches_its_subscriber_whenever_it_comes() {
    let place = Place::with_redis(Machine::shared());
    let (mut subscriber, mut publisher) = (place.client(), place.client());
    assert_eq!(subscriber.say("SUBSCRIBE news").items()[2], 1);
    subscriber.hears_nothing_for(Duration::from_millis(100));
    for i in 0..100 {
        assert_eq!(publisher.call(&["PUBLISH", "news", &i.to_string()]), 1);
        assert_eq!(subscriber.read_reply().items()[2], i.to_string());
    }
    // In RESP3 a subscriber may lock, and pushes come in between.
    let mut subscriber = place.client();
    subscriber.say("HELLO 3");
    assert!(matches!(subscriber.say("SUBSCRIBE news"), Value::Push(_)));
    assert_eq!(subscriber.say("LOCK k TOKEN t"), "t");
    assert_eq!(publisher.say("PUBLISH news now"), 2);
    assert!(matches!(subscriber.read_reply(), Value::Push(_)));
    assert_eq!(subscriber.say("UNLOCK k t"), 1);
}

/// Longer than lockgate waits for the answers to its own questions.
#[test]
fn a_blocking_command_may_take_its_time() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let environment = [
        ("LOCKGATE_UPSTREAM_TIMEOUT", "100ms"),
        ("LOCKGATE_UPSTREAM_PING", "100ms"),
    ];
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &environment);
    let (mut blocked, mut other) = (gate.client(), gate.client());
    blocked.send(&["BLPOP", "list", "0"]);
    blocked.send(&["ECHO", "behind"]);
    blocked.hears_nothing_for(Duration::from_millis(500));
    assert_eq!(other.say("RPUSH list x"), 1);
    assert_eq!(blocked.read_reply().items()[1], "x");
    assert_eq!(blocked.read_reply(), "behind");
}

/// Nothing is read for a while on either side; nobody may hold up the other, or keep it all.
#[test]
fn a_client_that_writes_much_before_reading_is_served() {
    let place = Place::with_redis(Machine::shared());
    let mut client = place.client();
    let value = "x".repeat(1024 * 1024);
    assert_eq!(client.call(&["SET", "big", &value]), "OK");
    let before = place.gate.rss_bytes();
    let mut writer = client.writer();
    let commands = frame(&["GET", "big"]).repeat(200);
    writer.write_all(&commands).unwrap();
    client.hears_something();
    let growth = place.gate.rss_bytes().saturating_sub(before);
    assert!(
        growth < 16 * 1024 * 1024,
        "200 MiB are on their way, and {growth} bytes here"
    );
    for _ in 0..200 {
        assert_eq!(client.read_reply(), value.as_str());
    }
}

#[test]
fn commands_sent_before_closing_run() {
    let place = Place::with_redis(Machine::shared());
    let mut direct = place.redis().client();
    let mut total = 0;
    for count in [1, 10, 1_000] {
        let mut client = place.client();
        client.write_raw(&frame(&["INCR", "n"]).repeat(count));
        // Closed at once, what fits into one packet; the others only for writing, since a system
        // throws away what it has not sent yet when replies are left unread.
        client.finish_sending();
        let kept = (count > 10).then_some(client);
        total += count;
        eventually("all of them ran", || {
            direct.say("GET n") == total.to_string()
        });
        drop(kept);
    }
}

#[test]
fn a_lock_command_takes_its_place_among_replies_that_are_switched_off() {
    let place = Place::with_redis(Machine::shared());
    let mut client = place.client();
    client.write_raw(&frame(&["CLIENT", "REPLY", "SKIP"]));
    client.write_raw(&frame(&["LOCK", "k", "TOKEN", "t"]));
    assert_eq!(client.say("GET k"), "t");
    client.write_raw(&frame(&["CLIENT", "REPLY", "OFF"]));
    client.write_raw(&frame(&["UNLOCK", "k", "t"]));
    client.write_raw(&frame(&["LOCK", "k", "TOKEN", "u"]));
    client.write_raw(&frame(&["SET", "a", "1"]));
    client.write_raw(&frame(&["CLIENT", "REPLY", "ON"]));
    assert_eq!(client.read_reply(), "OK");
    assert_eq!(client.say("GET k"), "u");
    assert_eq!(client.say("GET a"), "1");
}

#[test]
fn a_monitor_sees_what_redis_executes() {
    let place = Place::with_redis(Machine::shared());
    let mut observer = place.client();
    assert_eq!(observer.say("MONITOR"), "OK");
    place.redis().client().say("ECHO seen");
    while !observer.read_reply().text().contains("\"seen\"") {}
}

#[test]
fn when_redis_closes_the_client_is_closed() {
    let place = Place::with_redis(Machine::shared());
    let (mut client, mut other) = (place.client(), place.client());
    let id = client.say("CLIENT ID").integer();
    assert_eq!(other.call(&["CLIENT", "KILL", "ID", &id.to_string()]), 1);
    client.is_closed_by_the_server();
    assert_eq!(other.say("PING"), "PONG");
    assert_eq!(other.say("QUIT"), "OK");
    other.is_closed_by_the_server();
}

#[test]
fn without_a_redis_an_ordinary_command_is_told_how_to_name_one() {
    let place = Place::embedded(Machine::shared());
    let mut client = place.client();
    assert!(client.say("LPUSH a b").error().contains("upstream"));
    assert_eq!(client.say("PING"), "PONG");
    assert_eq!(client.say("ECHO a"), "a");
    assert_eq!(client.say("SELECT 1"), "OK");
    assert_eq!(*client.say("HELLO 3").field("proto"), 3);
    assert_eq!(client.say("CLIENT SETNAME x"), "OK");
    assert_eq!(client.say("RESET"), "RESET");
    assert_eq!(client.say("QUIT"), "OK");
    client.is_closed_by_the_server();
}

/// A message that began to come while a lock command ran is read to its end first.
#[test]
fn own_replies_do_not_interrupt_a_message() {
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let proxy = Proxy::before(redis.address());
    let mut settings = SHORT_GRACE.to_vec();
    settings.push(("LOCKGATE_UPSTREAM_TIMEOUT", "1s"));
    settings.push(("LOCKGATE_WRITE_BACK_GRACE", "1800ms"));
    let gate = Lockgate::start_with(&["--upstream", &proxy.url()], &settings);
    let mut direct = redis.client();
    let message = "x".repeat(16 << 20);
    for (admitted, command) in [(true, "LOCKINFO k"), (true, "LOCKS"), (false, "TRYLOCK k")] {
        let mut client = gate.client();
        client.say("HELLO 3");
        if admitted {
            assert_eq!(client.say("LOCK k TOKEN t"), "t");
            assert_eq!(client.say("UNLOCK k t"), 1);
        }
        client.say("SUBSCRIBE news");
        // Only the subscriber's connection is left, so lockgate waits for an answer in vain.
        proxy.refuse(true);
        let list = direct.say("CLIENT LIST").text();
        for line in list.lines().filter(|line| line.contains(" sub=0 ")) {
            let id = line.split(' ').next().unwrap().strip_prefix("id=").unwrap();
            if !line.contains("cmd=client|list") {
                direct.call(&["CLIENT", "KILL", "ID", id]);
            }
        }
        client.write_raw(format!("{command}\r\n").as_bytes());
        assert_eq!(direct.call(&["PUBLISH", "news", &message]), 1);
        // The client does not read meanwhile, and so the message does not end before lockgate answers.
        thread::sleep(Duration::from_millis(1_300));
        let mut came = [client.read_reply(), client.read_reply()];
        // On a machine that stutters the answer may be first.
        came.sort_by_key(|value| matches!(value, Value::Error(_)));
        assert!(
            came[0].items()[2] == message,
            "{command}: the message is whole"
        );
        assert!(
            came[1].error().starts_with("UPSTREAM"),
            "{command}: {:?}",
            came[1]
        );
        proxy.refuse(false);
    }
}

/// A Redis that takes longer arguments than others. lockgate does not, and says so; what it does not take
/// for an argument it does not take for a command, either.
#[test]
fn bytes_behind_a_protocol_error_are_no_command() {
    let machine = Machine::shared();
    let redis = RedisServer::start(&["--proto-max-bulk-len", "1gb"]);
    let gate = Lockgate::in_front_of(&redis);
    let place = Place::of(Some(redis), gate, machine);
    let (mut owner, mut client) = (place.client(), place.client());
    assert_eq!(owner.say("LOCK k TOKEN t"), "t");
    for cut in [0, 13, 20, 37] {
        let mut client = place.client();
        assert_eq!(client.say("UNLOCK k wrong"), 0);
        assert_eq!(client.say("PING"), "PONG");
        let bytes = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$600000000\r\nUNLOCK k t\r\n";
        client.write_raw(&bytes[..cut]);
        // lockgate reads the first part before the rest comes.
        place.client().say("PING");
        client.write_raw(&bytes[cut..]);
        let refused = client.read_reply();
        assert_eq!(refused.error(), "ERR Protocol error: invalid bulk length");
        client.is_closed_by_the_server();
    }
    assert!(client.say("TRYLOCK k").is_nil());
    assert_eq!(owner.say("UNLOCK k t"), 1);
}

/// Redis runs lines of up to 64 KiB, and lockgate knows what they say.
#[test]
fn long_lines_are_answered_as_by_redis() {
    let place = Place::with_redis(Machine::shared());
    let (spaces, long) = (" ".repeat(17_000), "x".repeat(17_000));
    let lines = [
        format!("CLIENT REPLY SKIP{spaces}"),
        format!("{spaces}client reply skip"),
        format!("CLIENT{spaces}REPLY{spaces}SKIP"),
        format!("CLIENT REPLY OFF{spaces}"),
        format!("CLIENT REPLY SKIP\r\nECHO {long}"),
        format!("CLIENT REPLY SKIP\r\n{spaces}"),
        format!("CLIENT REPLY ON {long}"),
        format!("CLIENT REPLY {long}"),
        format!("CLIENT SETNAME {long}"),
        format!("SCRIPT DEBUG {long}"),
        format!("{spaces}SELECT 1"),
        format!("AUTH default {long}"),
        format!("ECHO \"{long}"),
        format!("ECHO {}", "x".repeat(60_000)),
    ];
    for line in lines {
        let said = [place.redis().client(), place.client()].map(|mut client| {
            // It may have closed by then.
            let _ = client.try_write(format!("{line}\r\nPING\r\n").as_bytes());
            let _ = client.try_write(b"RESET\r\nECHO end\r\nQUIT\r\n");
            let mut replies = Vec::new();
            while let Ok(reply) = client.try_read() {
                replies.push(format!("{reply:?}"));
            }
            replies
        });
        let [direct, through] = said;
        let (begin, end) = (line.trim_start(), line.len());
        let begin = &begin[..begin.len().min(30)];
        assert!(!direct.is_empty());
        assert_eq!(through, direct, "{begin}, {end} bytes");
    }
    // Redis refuses a longer one where its end is not there yet.
    for line in [format!("ECHO {}", "x".repeat(70_000)), " ".repeat(70_000)] {
        let mut client = place.client();
        let _ = client.try_write(line.as_bytes());
        let error = "ERR Protocol error: too big inline request";
        assert_eq!(client.read_reply().error(), error);
        client.is_closed_by_the_server();
    }
}

/// Of an argument Redis looks at what stands before a NUL, so `CLIENT REPLY SKIP` may be as long as it likes.
#[test]
fn a_client_reply_of_any_length_is_obeyed_or_refused_and_nothing_hangs() {
    let place = Place::with_redis(Machine::shared());
    let long = "x".repeat(17_000);
    for (command, is_refused) in [
        (["CLIENT", "REPLY", "skip\0"], false),
        (["CLIENT", "REPLY", "nonsense"], true),
        (["SCRIPT", "DEBUG", "nonsense"], true),
    ] {
        let frame = frame(&[command[0], command[1], &format!("{}{long}", command[2])]);
        for pieces in [1, 2, 17] {
            let mut client = place.client();
            assert_eq!(client.say("PING"), "PONG");
            for piece in frame.chunks(frame.len().div_ceil(pieces)) {
                client.write_raw(piece);
                // By then it has been read.
                assert_eq!(place.client().say("PING"), "PONG");
            }
            if is_refused {
                assert!(client.read_reply().error().starts_with("ERR "));
            } else {
                client.send(&["ECHO", "skipped"]);
            }
            assert_eq!(client.say("PING"), "PONG");
            assert_eq!(client.say("LOCK k TOKEN t"), "t");
            assert_eq!(client.say("UNLOCK k t"), 1);
        }
    }
}
