//! Replies come in the order of the commands, however the bytes are cut; and what may overtake.

use std::{thread, time::Duration};

use crate::support::{Client, Machine, Place, Value, counted, frame, words};

/// Commands and their replies; the order among them can be seen from the replies.
type Script = [(&'static str, Value)];

fn text(text: &str) -> Value {
    Value::Bulk(text.as_bytes().to_vec())
}

fn status(text: &str) -> Value {
    Value::Simple(text.to_owned())
}

fn ok() -> Value {
    status("OK")
}

#[track_caller]
fn expect_replies(client: &mut Client, script: &Script, how: &str) {
    for (command, reply) in script {
        assert_eq!(client.read_reply(), *reply, "{command}, {how}");
    }
}

fn bytes_of(script: &Script) -> Vec<u8> {
    script
        .iter()
        .flat_map(|(command, _)| frame(&words(command)))
        .collect()
}

/// One script in one packet, byte by byte, and cut in two at every place.
fn however_it_is_cut(place: &Place, script: &Script) {
    let bytes = bytes_of(script);
    let mut client = place.client();
    client.write_raw(&bytes);
    expect_replies(&mut client, script, "in one packet");
    for byte in &bytes {
        client.write_raw(&[*byte]);
    }
    expect_replies(&mut client, script, "byte by byte");
    for cut in 1..bytes.len() {
        client.write_raw(&bytes[..cut]);
        // Nothing tells when the first piece was read on its own; were it not, the test would only
        // be weaker.
        thread::sleep(Duration::from_millis(1));
        client.write_raw(&bytes[cut..]);
        expect_replies(&mut client, script, &format!("cut at byte {cut}"));
    }
}

#[test]
fn ordinary_and_lock_commands_are_answered_in_order_however_they_are_cut() {
    let place = Place::with_redis(Machine::shared());
    let script = [
        ("SET a 1", ok()),
        ("LOCK k TOKEN t", text("t")),
        ("GET a", text("1")),
        ("UNLOCK k t", Value::Integer(1)),
        ("INCR a", Value::Integer(2)),
    ];
    however_it_is_cut(&place, &script);
}

#[test]
fn without_a_redis_too() {
    let place = Place::embedded(Machine::shared());
    let script = [
        ("PING", status("PONG")),
        ("LOCK k TOKEN t", text("t")),
        ("ECHO a", text("a")),
        ("UNLOCK k t", Value::Integer(1)),
        ("UNLOCK k t", Value::Integer(0)),
        ("ECHO b", text("b")),
    ];
    however_it_is_cut(&place, &script);
}

#[test]
fn a_thousand_commands_in_one_packet_are_answered_in_order() {
    let place = Place::with_redis(Machine::shared());
    let mut client = place.client();
    let mut bytes = Vec::new();
    for i in 0..250 {
        for command in ["LOCK k TOKEN t", "INCR n", "UNLOCK k t"] {
            bytes.extend(frame(&words(command)));
        }
        bytes.extend(frame(&["ECHO", &i.to_string()]));
    }
    let mut writer = client.writer();
    thread::scope(|threads| {
        threads.spawn(|| std::io::Write::write_all(&mut writer, &bytes).unwrap());
        for i in 0..250_i64 {
            assert_eq!(client.read_reply(), "t");
            assert_eq!(client.read_reply(), i + 1);
            assert_eq!(client.read_reply(), 1);
            assert_eq!(client.read_reply(), i.to_string());
        }
    });
}

/// `UNLOCK` must not release before the `INCR` before it has run.
#[test]
fn an_unlock_does_not_overtake_what_was_done_under_the_lock() {
    let place = Place::with_redis(Machine::shared());
    let (mut a, mut b) = (place.client(), place.client());
    for round in 1..=200 {
        assert_eq!(a.say("LOCK k TOKEN a"), "a");
        b.send(&["LOCK", "k", "TOKEN", "b"]);
        place.gate.awaits_waiters("k", 1);
        let together = [frame(&["INCR", "x"]), frame(&["UNLOCK", "k", "a"])].concat();
        a.write_raw(&together);
        assert_eq!(b.read_reply(), "b");
        assert_eq!(b.say("GET x"), round.to_string());
        assert_eq!(b.say("UNLOCK k b"), 1);
        assert_eq!(a.read_reply(), round);
        assert_eq!(a.read_reply(), 1);
    }
}

#[test]
fn commands_behind_a_waiting_lock_wait_too() {
    let place = Place::with_redis(Machine::shared());
    let (mut holder, mut waiter) = (place.client(), place.client());
    assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
    waiter.send(&["LOCK", "k", "TOKEN", "waiter"]);
    waiter.send(&["SET", "a", "written"]);
    place.gate.awaits_waiters("k", 1);
    waiter.hears_nothing_for(Duration::from_millis(50));
    assert_eq!(holder.say("GET a"), Value::Nil);
    assert_eq!(holder.say("UNLOCK k holder"), 1);
    assert_eq!(waiter.read_reply(), "waiter");
    assert_eq!(waiter.read_reply(), "OK");
    assert_eq!(holder.say("GET a"), "written");
}

/// Two tasks share one connection, as many client libraries have it: one holds, one waits.
#[test]
fn the_unlock_of_one_task_overtakes_the_waiting_lock_of_another() {
    Place::each(|place| {
        let mut shared = place.client();
        assert_eq!(shared.say("LOCK k TOKEN one"), "one");
        shared.send(&["LOCK", "k", "TOKEN", "two"]);
        place.gate.awaits_waiters("k", 1);
        shared.send(&["UNLOCK", "k", "one"]);
        assert_eq!(
            shared.read_reply(),
            "two",
            "the LOCK came first and is answered first"
        );
        assert_eq!(shared.read_reply(), 1);
        assert_eq!(shared.say("UNLOCK k two"), 1);
    });
}

#[test]
fn a_relock_overtakes_too() {
    Place::each(|place| {
        let mut shared = place.client();
        assert_eq!(shared.say("LOCK k TOKEN one PX 300"), "one");
        shared.send(&["LOCK", "k", "TOKEN", "two"]);
        place.gate.awaits_waiters("k", 1);
        shared.send(&["RELOCK", "k", "one", "PX", "30000"]);
        shared.hears_nothing_for(Duration::from_millis(400));
        shared.send(&["UNLOCK", "k", "one"]);
        assert_eq!(shared.read_reply(), "two");
        assert_eq!(shared.read_reply(), 1);
        assert_eq!(shared.read_reply(), 1);
    });
}

/// Ten tasks on one connection, all after the same lock: each passes it on behind nine that wait.
#[test]
fn ten_tasks_on_one_connection_pass_a_lock_on() {
    Place::each(|place| {
        let mut shared = place.client();
        for i in 0..10 {
            shared.send(&["LOCK", "k", "TOKEN", &format!("task-{i}")]);
        }
        for i in 0..10 {
            assert_eq!(shared.read_reply(), format!("task-{i}"));
            shared.send(&["UNLOCK", "k", &format!("task-{i}")]);
        }
        for i in 0..10 {
            assert_eq!(shared.read_reply(), 1, "the UNLOCK of task {i}");
        }
    });
}

#[test]
fn a_lock_that_can_never_be_granted_says_so() {
    Place::each(|place| {
        let mut shared = place.client();
        assert_eq!(shared.say("LOCK k TOKEN one"), "one");
        shared.send(&["LOCK", "k", "TOKEN", "two"]);
        place.gate.awaits_waiters("k", 1);
        // An ordinary command may belong to what the lock protects: it is not overtaken.
        shared.send(&["PING"]);
        shared.send(&["UNLOCK", "k", "one"]);
        let reply = shared.read_reply();
        assert!(reply.error().starts_with("DEADLOCK"), "{reply:?}");
        assert_eq!(shared.read_reply(), "PONG");
        assert_eq!(shared.read_reply(), 1);
        assert_eq!(shared.say("TRYLOCK k TOKEN three"), "three");
        assert_eq!(counted(&mut place.client(), "refused_deadlocks"), 1);
    });
}

/// Each waiting `LOCK` gets the error that the `UNLOCK` behind all of them causes.
#[test]
fn so_does_each_of_several_in_a_row() {
    Place::each(|place| {
        let mut shared = place.client();
        assert_eq!(shared.say("LOCK k TOKEN one"), "one");
        shared.send(&["LOCK", "k", "TOKEN", "two"]);
        place.gate.awaits_waiters("k", 1);
        shared.send(&["LOCK", "k", "TOKEN", "three"]);
        shared.send(&["PING"]);
        shared.send(&["UNLOCK", "k", "one"]);
        for _ in 0..2 {
            let reply = shared.read_reply();
            assert!(reply.error().starts_with("DEADLOCK"), "{reply:?}");
        }
        assert_eq!(shared.read_reply(), "PONG");
        assert_eq!(shared.read_reply(), 1);
    });
}
