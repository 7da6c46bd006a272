//! Bytes that are no commands harm nobody else, and cost no memory without end.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
};

use crate::support::{Client, Http, Lockgate, Machine, Place, eventually};

/// What a gate may grow by, whatever is sent to it here: far below what is announced to it.
const MOST_GROWTH_BYTES: u64 = 64 * 1024 * 1024;

/// Sends nonsense on connections of their own; then a client that came before and one that comes
/// after are served as ever.
fn harms_nobody(place: &Place, what: &str, nonsense: impl Fn(&mut Client)) {
    let mut before = place.client();
    assert_eq!(before.say("LOCK k TOKEN t"), "t");
    let memory = place.gate.rss_bytes();
    let mut connections = place.gate.clients(20);
    connections.iter_mut().for_each(&nonsense);
    let growth = place.gate.rss_bytes().saturating_sub(memory);
    assert!(growth < MOST_GROWTH_BYTES, "{what}: {growth} bytes more");
    assert_eq!(before.say("UNLOCK k t"), 1, "{what}");
    let mut after = place.client();
    assert_eq!(after.say("PING"), "PONG", "{what}");
    assert_eq!(after.say("TRYLOCK k TOKEN u"), "u", "{what}");
    assert_eq!(after.say("UNLOCK k u"), 1, "{what}");
}

/// The server may close at any moment, and then takes nothing more.
fn pour(client: &mut Client, bytes: &[u8]) {
    let _ = client.try_write(bytes);
}

#[test]
fn random_bytes() {
    Place::each(|place| {
        let random = pseudo_random(256 * 1024);
        harms_nobody(place, "random bytes", |client| {
            // The last of them end the line, so that something is answered or closed.
            pour(client, &random);
            pour(client, b"\r\n\r\n");
        });
    });
}

#[test]
fn a_bulk_string_of_three_gigabytes_is_announced() {
    Place::each(|place| {
        let filler = vec![b'x'; 1024 * 1024];
        for start in [
            "*1\r\n$3221225472\r\n",
            "*2\r\n$4\r\nLOCK\r\n$3221225472\r\n",
            "*2\r\n$4\r\nECHO\r\n$99999999999999999999\r\n",
            "*2\r\n$4\r\nLOCK\r\n$536870912\r\n",
        ] {
            harms_nobody(place, start, |client| {
                pour(client, start.as_bytes());
                for _ in 0..8 {
                    pour(client, &filler);
                }
            });
        }
    });
}

#[test]
fn an_array_without_end_is_announced() {
    Place::each(|place| {
        for start in [
            "*2147483647\r\n",
            "*99999999999\r\n",
            "*2147483647\r\n$4\r\nLOCK\r\n",
        ] {
            let arguments = b"$1\r\nx\r\n".repeat(100_000);
            harms_nobody(place, start, |client| {
                pour(client, start.as_bytes());
                pour(client, &arguments);
            });
        }
    });
}

#[test]
fn arrays_nested_a_hundred_thousand_deep() {
    Place::each(|place| {
        let nested = b"*1\r\n".repeat(100_000);
        harms_nobody(place, "nesting", |client| {
            pour(client, &nested);
            client.is_closed_by_the_server();
        });
    });
}

#[test]
fn a_line_without_end() {
    Place::each(|place| {
        let line = vec![b'L'; 1024 * 1024];
        harms_nobody(place, "a line without end", |client| {
            pour(client, &line);
            client.is_closed_by_the_server();
        });
    });
}

#[test]
fn half_a_command_and_then_silence() {
    Place::each(|place| {
        let mut silent = Vec::new();
        for half in [
            "*",
            "*3\r\n$4\r\nLO",
            "*2\r\n$4\r\nLOCK\r\n$5\r\nab",
            "*2\r\n$3\r\nGET\r\n$",
            "LOC",
        ] {
            let mut clients = place.gate.clients(50);
            clients
                .iter_mut()
                .for_each(|client| client.write_raw(half.as_bytes()));
            silent.push(clients);
        }
        harms_nobody(place, "silence", |client| {
            client.write_raw(b"*1\r\n$4\r\nPI")
        });
        // Those who were silent go on where they were.
        for client in &mut silent[0] {
            client.write_raw(b"1\r\n$4\r\nPING\r\n");
            assert_eq!(client.read_reply(), "PONG");
        }
    });
}

#[test]
fn a_lock_command_of_many_arguments_or_bytes_is_refused_and_the_next_one_served() {
    Place::each(|place| {
        let mut client = place.client();
        let mut many = vec!["LOCK", "k"];
        many.resize(1_000, "x");
        client.call(&many).error();
        let long = "x".repeat(100_000);
        client.call(&["LOCK", &long]).error();
        client.call(&["LOCK", "k", "TOKEN", &long]).error();
        client.call(&["LOCK", ""]).text();
        client.call(&["LOCK", "k", "TOKEN", ""]).error();
        assert_eq!(client.say("LOCK k TOKEN t"), "t");
    });
}

/// The same bytes at every run.
fn pseudo_random(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[3]
    };
    (0..count).map(|_| next()).collect()
}

/// A server that is no Redis: it answers each packet twice. Nobody is given another command's reply.
#[test]
fn a_server_that_says_more_than_it_was_asked() {
    let _machine = Machine::shared();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!("redis://{}", server.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in server.incoming().flatten() {
            thread::spawn(move || {
                while stream.read(&mut [0; 1024]).is_ok_and(|count| count > 0) {
                    // The gate may have closed it meanwhile.
                    let _ = stream.write_all(b"+one\r\n+two\r\n");
                }
            });
        }
    });
    let gate = Lockgate::start(&["--upstream", &upstream, "--admin", "127.0.0.1:0"]);
    for closed in 1..=2 {
        let mut client = gate.client();
        assert_eq!(client.say("PING"), "one");
        // The gate passes on the bytes that made it close the connection: they may state the reason.
        assert_eq!(client.read_reply(), "two");
        client.is_closed_by_the_server();
        let metrics = Http::connect(gate.admin_address()).get("/metrics").body;
        let counted = format!("reason=\"uncountable_replies\"}} {closed}\n");
        assert!(metrics.contains(&counted), "{metrics}");
    }
    eventually("it says so", || {
        gate.log().contains("closing a client's connection")
    });
}
