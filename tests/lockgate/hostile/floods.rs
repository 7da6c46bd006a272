//! Floods of everything that a stranger can send, against the program itself.

use std::{io::Read, net::TcpStream, thread, time::Duration};

use super::{KIB, MIB, WITH_ITS_LOCK, WITH_NEW_LOCKS, Witness, counted, cut, hears_little};
use crate::{
    scale::{growth, pour},
    support::{
        Client, Lockgate, Machine, Place, RedisServer, SHORT_GRACE, Value, allow_many_files,
        eventually, frame, report,
    },
};

/// What lockgate may grow by whatever the flood: what the system's allocator keeps for itself.
const SLACK_BYTES: u64 = 16 * MIB;

/// What a client costs that sent half of a command, at most: twice the longest lock command, since
/// buffers grow in powers of two, and what an idle client costs.
const HALF_COMMAND_BYTES: u64 = 40 * KIB;

/// What a lock costs that is held and has a short name, at most.
const LOCK_BYTES: u64 = 2 * KIB;

/// What a client costs with all that may be kept behind its waiting `LOCK`, at most: the bytes
/// (`limits.pipelined_bytes`), what was seen of the commands (`limits.pipelined_commands`), and an idle client.
const WAITER_BYTES: u64 = 512 * KIB;

/// What a client costs that never reads, at most: what may be on its way to it (`limits.relay_bytes`), what
/// it sent meanwhile, and an idle client.
const HOARDER_BYTES: u64 = MIB;

#[test]
fn thousands_of_half_commands() {
    const CLIENTS: usize = 2_000;
    allow_many_files();
    Place::each(|place| {
        let witness = Witness::begin(&place.gate, WITH_NEW_LOCKS);
        let long = format!("*3\r\n$4\r\nLOCK\r\n$16000\r\n{}", "x".repeat(15_900));
        let halves = [
            "*".to_owned(),
            "*3\r\n$4\r\nLO".to_owned(),
            long.clone(),
            "L".repeat(15_900),
            "*2\r\n$6\r\nCLIENT\r\n$20\r\nab".to_owned(),
            "*2\r\n$3\r\nGET\r\n$".to_owned(),
            long.clone(),
        ];
        let mut clients = Vec::new();
        let growth = growth(&place.gate, || {
            clients = place.gate.clients(CLIENTS);
            for (i, client) in clients.iter_mut().enumerate() {
                client.write_raw(halves[i % halves.len()].as_bytes());
            }
            // Byte by byte, for ever, as far as the gate can tell.
            for _ in 0..20 {
                for client in clients.iter_mut().step_by(halves.len()) {
                    client.write_raw(b"0");
                }
            }
        });
        let each = growth / CLIENTS as u64;
        report(&format!("a client with half a command costs {each} bytes"));
        assert!(
            growth < CLIENTS as u64 * HALF_COMMAND_BYTES + SLACK_BYTES,
            "{each} bytes each"
        );
        witness.was_served();
        clients[1].write_raw(b"CK\r\n$1\r\nk\r\n$1\r\nx\r\n");
        assert_eq!(clients[1].read_reply().error(), "ERR syntax error");
    });
}

/// A client that announces half a gigabyte gets no memory for it.
#[test]
fn thousands_of_announcements() {
    const CLIENTS: usize = 2_000;
    const EACH_BYTES: u64 = 8 * KIB;
    allow_many_files();
    Place::each(|place| {
        let witness = Witness::begin(&place.gate, WITH_NEW_LOCKS);
        let announced = [
            &b"*2\r\n$4\r\nLOCK\r\n$536870912\r\n"[..],
            b"*2147483647\r\n$4\r\nLOCK\r\n",
            b"*2\r\n$4\r\nECHO\r\n$536870912\r\nx",
            b"*2147483647\r\n$536870912\r\n",
        ];
        let mut clients = Vec::new();
        let growth = growth(&place.gate, || {
            clients = place.gate.clients(CLIENTS);
            for (i, client) in clients.iter_mut().enumerate() {
                client.write_raw(announced[i % announced.len()]);
            }
        });
        assert!(
            growth < CLIENTS as u64 * EACH_BYTES + SLACK_BYTES,
            "{} bytes each",
            growth / CLIENTS as u64
        );
        witness.was_served();
    });
}

#[test]
fn connections_beyond_the_limit() {
    const CLIENTS: usize = 50;
    const FLOOD: usize = 5_000;
    const OWN_FILES: usize = 64;
    let _machine = Machine::shared();
    let gate = Lockgate::start_with(&[], &[("LOCKGATE_LIMITS_CLIENTS", &CLIENTS.to_string())]);
    let (mut observer, witness) = (gate.client(), Witness::begin(&gate, WITH_NEW_LOCKS));
    let mut others = gate.clients(CLIENTS - 2);
    others
        .iter_mut()
        .for_each(|client| assert_eq!(client.say("PING"), "PONG"));
    let files = || {
        std::fs::read_dir(format!("/proc/{}/fd", gate.pid()))
            .unwrap()
            .count()
    };
    let growth = growth(&gate, || {
        for i in 0..FLOOD {
            let mut stream = TcpStream::connect(gate.address()).unwrap();
            if i % 100 == 0 {
                let mut said = String::new();
                stream.read_to_string(&mut said).unwrap();
                assert_eq!(said, "-ERR max number of clients reached\r\n");
                assert!(files() < CLIENTS + OWN_FILES, "{} open files", files());
            }
        }
        eventually("all were refused", || {
            counted(&mut observer, "refused_clients") == FLOOD as u64
        });
    });
    assert!(growth < SLACK_BYTES, "{growth} bytes more");
    witness.was_served();
    others
        .iter_mut()
        .for_each(|client| assert_eq!(client.say("PING"), "PONG"));
    assert_eq!(
        gate.log().matches("max number of clients").count(),
        1,
        "{}",
        gate.log()
    );
}

#[test]
fn a_million_names() {
    floods_with_names(100_000);
}

/// With the limit there is by default: `cargo test --release --test lockgate a_million_locks -- --ignored`
#[test]
#[ignore = "takes a gigabyte of memory"]
fn a_million_locks() {
    floods_with_names(1_000_000);
}

fn floods_with_names(limit: usize) {
    const NAMES: usize = 1_000_000;
    const CLIENTS: usize = 4;
    let _machine = Machine::shared();
    let gate = Lockgate::start_with(&[], &[("LOCKGATE_LIMITS_LOCKS", &limit.to_string())]);
    let (mut observer, witness) = (gate.client(), Witness::begin(&gate, WITH_ITS_LOCK));
    let (mut granted, mut refused) = (0, 0);
    let mut clients = gate.clients(CLIENTS);
    let growth = growth(&gate, || {
        let counts = thread::scope(|threads| {
            let flood =
                |(i, client): (usize, _)| threads.spawn(move || names(client, i, NAMES / CLIENTS));
            let floods: Vec<_> = clients.iter_mut().enumerate().map(flood).collect();
            floods
                .into_iter()
                .map(|flood| flood.join().unwrap())
                .collect::<Vec<_>>()
        });
        granted = counts.iter().map(|(granted, _)| granted).sum();
        refused = counts.iter().map(|(_, refused)| refused).sum();
    });
    report(&format!(
        "{NAMES} names, of which {limit} may be locks: {} bytes each",
        growth / limit as u64
    ));
    // Of several threads each may let one more in.
    assert!(
        (limit - 1..limit + CLIENTS).contains(&granted),
        "{granted} were granted"
    );
    assert_eq!(granted + refused, NAMES);
    assert_eq!(counted(&mut observer, "refused_locks"), refused as u64);
    assert!(
        growth < limit as u64 * LOCK_BYTES + SLACK_BYTES,
        "{} bytes each",
        growth / limit as u64
    );
    witness.was_served();
    // Where one is given back, there is room for one.
    assert_eq!(observer.say("UNLOCK 0-0 t"), 1);
    assert_eq!(observer.say("LOCK another TOKEN t"), "t");
}

/// Asks for so many locks at once; returns how many were granted, and how many refused.
fn names(client: &mut Client, number: usize, count: usize) -> (usize, usize) {
    let ask = |i: usize| {
        frame(&[
            "LOCK",
            &format!("{number}-{i}"),
            "TOKEN",
            "t",
            "PX",
            "600000",
        ])
    };
    let poured = pour(client.writer(), (0..count).flat_map(ask).collect());
    let (mut granted, mut refused) = (0, 0);
    for _ in 0..count {
        let reply = client.read_reply();
        if reply == "t" {
            granted += 1;
        } else {
            assert!(reply.error().starts_with("MAXLOCKS"), "{reply:?}");
            refused += 1;
        }
    }
    poured.join().unwrap();
    (granted, refused)
}

/// A client has one `LOCK` at most that waits, so there are never more waiters than clients, and what
/// they send meanwhile is kept up to a limit.
#[test]
fn a_million_waiters() {
    const CLIENTS: usize = 500;
    const EACH: usize = 2_000;
    const WAITERS: usize = 400;
    allow_many_files();
    let _machine = Machine::shared();
    let gate = Lockgate::start_with(&[], &[("LOCKGATE_LIMITS_WAITERS", &WAITERS.to_string())]);
    let (mut observer, witness) = (gate.client(), Witness::begin(&gate, WITH_NEW_LOCKS));
    let mut clients = gate.clients(CLIENTS);
    let growth = growth(&gate, || {
        for client in &mut clients {
            client.write_raw(&frame(&["LOCK", "held", "PX", "600000"]).repeat(EACH));
        }
        eventually("as many wait as may, and all others are told so", || {
            counted(&mut observer, "waiters") >= WAITERS as u64
                && counted(&mut observer, "refused_waiters") >= ((CLIENTS - WAITERS) * EACH) as u64
        });
    });
    let waiters = observer.say("LOCKINFO held").field("waiters").integer();
    assert_eq!(waiters as usize, WAITERS);
    assert!(counted(&mut observer, "held_back_behind_locks") >= WAITERS as u64);
    let each = growth / WAITERS as u64;
    report(&format!(
        "a waiting client with all that is kept behind its LOCK costs {each} bytes"
    ));
    assert!(
        growth < WAITERS as u64 * WAITER_BYTES + SLACK_BYTES,
        "{each} bytes each"
    );
    witness.was_served();
    drop(clients);
    eventually("nobody waits any more", || {
        observer.say("LOCKINFO held").field("waiters").integer() == 0
    });
}

/// What all clients together may have kept for them in these tests (`limits.kept_reply_bytes`).
const KEPT_BYTES: u64 = 32 * MIB;

/// Runs a test without and with a Redis, where so much is kept.
fn with_a_small_reply_budget(test: impl Fn(&Place)) {
    let kept = KEPT_BYTES.to_string();
    let environment = [
        &SHORT_GRACE[..],
        &[("LOCKGATE_LIMITS_KEPT_REPLY_BYTES", &kept)],
    ]
    .concat();
    let gate = Lockgate::start_with(&[], &environment);
    test(&Place::of(None, gate, Machine::shared()));
    let redis = RedisServer::start(&[]);
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &environment);
    test(&Place::of(Some(redis), gate, Machine::shared()));
}

/// lockgate stops reading from a client that never reads its replies.
#[test]
fn replies_that_nobody_reads() {
    const CLIENTS: usize = 12;
    with_a_small_reply_budget(|place| {
        let mut observer = place.client();
        for i in 0..500 {
            let name = format!("{i}-{}", "n".repeat(1_000));
            assert_eq!(
                observer.call(&["LOCK", &name, "TOKEN", "t", "PX", "600000"]),
                "t"
            );
        }
        let witness = Witness::begin(&place.gate, WITH_NEW_LOCKS);
        let questions = [
            "LOCKS COUNT 1000000",
            "COMMAND",
            "COMMAND DOCS lock unlock trylock",
        ];
        let writers: Vec<TcpStream> = place
            .gate
            .clients(CLIENTS)
            .iter()
            .map(Client::writer)
            .collect();
        let growth = growth(&place.gate, || {
            let pouring: Vec<_> = writers
                .iter()
                .enumerate()
                .map(|(i, writer)| {
                    hears_little(writer);
                    let question = frame(&crate::support::words(questions[i % questions.len()]));
                    pour(writer.try_clone().unwrap(), question.repeat(150_000))
                })
                .collect();
            eventually("nobody is read from", || {
                counted(&mut observer, "held_back_relays") >= CLIENTS as u64
            });
            writers.iter().for_each(cut);
            pouring.into_iter().for_each(|pour| drop(pour.join()));
        });
        let each = growth / CLIENTS as u64;
        report(&format!("a client that never reads costs {each} bytes"));
        assert!(
            growth < CLIENTS as u64 * HOARDER_BYTES + KEPT_BYTES + SLACK_BYTES,
            "{each} bytes each"
        );
        witness.was_served();
    });
}

/// Each of them has replies that would have to be kept, so that the lock commands between them can run. Together they
/// get what there is for all, and nobody else waits for it.
#[test]
fn pipelines_with_lock_commands_that_nobody_reads() {
    const CLIENTS: usize = 100;
    with_a_small_reply_budget(|place| {
        let witness = Witness::begin(&place.gate, WITH_NEW_LOCKS);
        let mut observer = place.client();
        let mut kept = || counted(&mut observer, "kept_reply_bytes");
        let text = "x".repeat(4096);
        let pipeline = [
            frame(&["ECHO", &text]).repeat(1_000),
            frame(&["LOCK", "k", "TOKEN", "t", "PX", "600000"]),
            frame(&["UNLOCK", "k", "t"]),
        ];
        let pipeline = pipeline.concat().repeat(4);
        let writers: Vec<TcpStream> = place
            .gate
            .clients(CLIENTS)
            .iter()
            .map(Client::writer)
            .collect();
        let growth = growth(&place.gate, || {
            let pouring: Vec<_> = writers
                .iter()
                .map(|writer| {
                    hears_little(writer);
                    pour(writer.try_clone().unwrap(), pipeline.clone())
                })
                .collect();
            eventually("as much is kept as may be", || kept() > KEPT_BYTES - MIB);
            thread::sleep(Duration::from_millis(500));
            assert!(kept() <= KEPT_BYTES);
            writers.iter().for_each(cut);
            pouring.into_iter().for_each(|pour| drop(pour.join()));
        });
        let each = growth / CLIENTS as u64;
        report(&format!(
            "a client with replies that are kept costs {each} bytes"
        ));
        assert!(
            growth < CLIENTS as u64 * HOARDER_BYTES + KEPT_BYTES + SLACK_BYTES,
            "{each} bytes each"
        );
        witness.was_served();
        drop(writers);
        eventually("all of it is given back", || kept() == 0);
    });
}

/// Redis pushes each flush, also that of an empty database, to every connection that it tells of changes.
#[test]
fn databases_that_are_flushed_all_the_time() {
    const LOCKS: usize = 20_000;
    const FLUSHES: usize = 500;
    let place = Place::with_redis(Machine::shared());
    let (mut owner, mut flusher) = (place.client(), place.client());
    let number = |i: usize| format!("{i}");
    let locks = (0..LOCKS).flat_map(|i| frame(&["LOCK", &number(i), "TOKEN", "t", "PX", "600000"]));
    owner.write_raw(&locks.collect::<Vec<_>>());
    for _ in 0..LOCKS {
        assert_eq!(owner.read_reply(), "t");
    }
    assert_eq!(flusher.say("SELECT 9"), "OK");
    let witness = Witness::begin(&place.gate, WITH_NEW_LOCKS);
    let growth = growth(&place.gate, || {
        flusher.write_raw(&frame(&["FLUSHDB"]).repeat(FLUSHES));
        for _ in 0..FLUSHES {
            assert_eq!(flusher.read_reply(), "OK");
        }
        witness.was_served();
    });
    report(&format!("{FLUSHES} flushes cost {growth} bytes"));
    assert!(growth < 2 * SLACK_BYTES, "{growth} bytes");
    assert_eq!(owner.call(&["UNLOCK", "7", "t"]), 1);
}

/// Commands that change the connection are remembered one by one until Redis answers: not more of them than a bound,
/// and nothing is lost by that.
#[test]
fn answers_that_do_not_come() {
    const CLIENTS: usize = 48;
    const COMMANDS: usize = 100_000;
    const STILL: usize = 30;
    let place = Place::with_redis(Machine::shared());
    let mut clients = place.gate.clients(CLIENTS);
    for client in &mut clients {
        assert_eq!(client.say("PING"), "PONG");
    }
    place.redis().stop();
    let mut pouring = Vec::new();
    let growth = growth(&place.gate, || {
        let commands = b"SELECT 0\r\n".repeat(COMMANDS);
        pouring.extend(
            clients
                .iter()
                .map(|client| pour(client.writer(), commands.clone())),
        );
        let (mut busy_for, mut still) = (place.gate.cpu_time(), 0);
        eventually("it takes no more", || {
            let before = std::mem::replace(&mut busy_for, place.gate.cpu_time());
            still = if before == busy_for { still + 1 } else { 0 };
            still == STILL
        });
    });
    let each = growth / CLIENTS as u64;
    report(&format!("a client that is not answered costs {each} bytes"));
    assert!(
        growth < CLIENTS as u64 * HOARDER_BYTES + SLACK_BYTES,
        "{each} bytes each"
    );
    place.redis().go_on();
    for _ in 0..COMMANDS {
        assert_eq!(clients[0].read_reply(), "OK");
    }
    clients.iter().for_each(|client| cut(&client.writer()));
    pouring.into_iter().for_each(|pour| drop(pour.join()));
}

/// Clients that name a token, wait, and are gone: their places are kept for a while, but not more of them
/// than may wait.
#[test]
fn places_kept_for_clients_that_are_gone() {
    const WAITERS: usize = 10;
    let _machine = Machine::shared();
    let environment = [
        ("LOCKGATE_LIMITS_WAITERS", "10"),
        ("LOCKGATE_QUEUE_RECONNECT_GRACE", "1h"),
    ];
    let gate = Lockgate::start_with(&[], &environment);
    let mut holder = gate.client();
    assert_eq!(holder.say("LOCK k TOKEN holder"), "holder");
    for i in 0..3 * WAITERS {
        let mut client = gate.client();
        client.send(&["LOCK", "k", "TOKEN", &format!("token-{i}")]);
        gate.awaits_waiters("k", 1);
        drop(client);
        gate.awaits_waiters("k", 0);
    }
    // The first ones come back to their places, in front of whoever came since; the last ones do not.
    let mut late = gate.client();
    late.send(&["LOCK", "k", "TOKEN", "late"]);
    gate.awaits_waiters("k", 1);
    let mut last = gate.client();
    last.send(&["LOCK", "k", "TOKEN", "token-29"]);
    gate.awaits_waiters("k", 2);
    let mut first = gate.client();
    first.send(&["LOCK", "k", "TOKEN", "token-0"]);
    gate.awaits_waiters("k", 3);
    assert_eq!(holder.say("UNLOCK k holder"), 1);
    assert_eq!(first.read_reply(), "token-0");
    assert_eq!(first.say("UNLOCK k token-0"), 1);
    assert_eq!(late.read_reply(), "late");
    assert_eq!(late.say("UNLOCK k late"), 1);
    assert_eq!(last.read_reply(), "token-29");
}

/// A lock's name may be any key of Redis, and what is in there as long as Redis allows: nobody's token, of which
/// no more is asked for than shows that.
#[test]
fn keys_with_huge_values() {
    const KEYS: usize = 4;
    const BYTES: u64 = 64 * MIB;
    let place = Place::with_redis(Machine::shared());
    let mut redis = place.redis().client();
    let mut client = place.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    let keys: Vec<String> = (0..KEYS).map(|n| format!("huge:{n}")).collect();
    for key in &keys {
        let last = (BYTES - 1).to_string();
        let length = redis.call(&["SETRANGE", key, &last, "x"]).integer();
        assert_eq!(length, BYTES.cast_signed());
    }
    let growth = growth(&place.gate, || {
        for key in &keys {
            assert_eq!(client.call(&["TRYLOCK", key]), Value::Nil);
            assert!(client.call(&["LOCK", key, "FENCE", "WAIT", "1"]).is_nil());
            assert_eq!(client.call(&["RELOCK", key, "t"]), 0);
            assert_eq!(client.call(&["UNLOCK", key, "t"]), 0);
        }
    });
    assert!(growth < SLACK_BYTES, "{growth} bytes more");
    for key in &keys {
        let length = redis.call(&["STRLEN", key]).integer();
        assert_eq!(length, BYTES.cast_signed());
    }
}
