//! A value is passed on while it comes, never kept.

use std::{io::Write, thread};

use super::{MIB, MOST_GROWTH_BYTES, growth};
use crate::support::{Client, Machine, Place, report};

/// Bytes of a value made, or looked at, at a time.
const PIECE: usize = 64 * 1024;

#[test]
fn a_value_of_a_hundred_megabytes_goes_both_ways_without_being_kept() {
    goes_both_ways(100 * MIB);
}

/// The longest that Redis takes. `cargo test --release --test lockgate half_a_gigabyte -- --ignored`
#[test]
#[ignore = "takes gigabytes of memory, Redis's and the test's"]
fn a_value_of_half_a_gigabyte_goes_both_ways_without_being_kept() {
    goes_both_ways(512 * MIB);
}

fn goes_both_ways(bytes: u64) {
    let place = Place::with_redis(Machine::shared());
    let mut client = place.client();
    assert_eq!(client.say("PING"), "PONG");
    let growth = growth(&place.gate, || {
        set(&mut client, bytes);
        get(&mut client, bytes);
    });
    report(&format!(
        "a value of {} MiB both ways: lockgate needs {} KiB more",
        bytes / MIB,
        growth / 1024
    ));
    assert!(growth < MOST_GROWTH_BYTES, "{growth} bytes more");
    assert_eq!(place.client().say("STRLEN big"), bytes as i64);
}

fn set(client: &mut Client, bytes: u64) {
    client.write_raw(format!("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${bytes}\r\n").as_bytes());
    for at in pieces(bytes) {
        client.write_raw(&piece(at));
    }
    client.write_raw(b"\r\n");
    assert_eq!(client.read_reply(), "OK");
}

fn get(client: &mut Client, bytes: u64) {
    client.send(&["GET", "big"]);
    let head = format!("${bytes}\r\n");
    assert_eq!(client.read_raw(head.len()), head.as_bytes());
    for at in pieces(bytes) {
        assert!(
            client.read_raw(PIECE) == piece(at),
            "what comes back is what was sent, at {at}"
        );
    }
    assert_eq!(client.read_raw(2), b"\r\n");
}

fn pieces(bytes: u64) -> impl Iterator<Item = u64> {
    (0..bytes).step_by(PIECE)
}

/// No two of a value are alike.
fn piece(at: u64) -> Vec<u8> {
    let mut piece = vec![b'v'; PIECE];
    piece[..8].copy_from_slice(&at.to_be_bytes());
    piece
}

/// A client that pauses in the middle of a value does not delay other clients.
#[test]
fn many_long_values_at_a_time_cost_a_bounded_buffer_each() {
    const CLIENTS: u64 = 20;
    let place = Place::with_redis(Machine::shared());
    let mut clients = place.gate.clients(CLIENTS as usize);
    for client in &mut clients {
        assert_eq!(client.say("PING"), "PONG");
    }
    let growth = growth(&place.gate, || {
        thread::scope(|threads| {
            for (i, client) in clients.iter_mut().enumerate() {
                threads.spawn(move || {
                    let key = format!("key-{i}");
                    let value = vec![b'x'; 4 * MIB as usize];
                    assert_eq!(client.call(&[b"SET", key.as_bytes(), &value]), "OK");
                    // All of them are asked for before one is read.
                    let mut writer = client.writer();
                    let asks = format!("GET {key}\r\n").repeat(4);
                    writer.write_all(asks.as_bytes()).unwrap();
                    client.hears_something();
                    for _ in 0..4 {
                        assert_eq!(client.read_reply().text().len(), value.len());
                    }
                });
            }
        });
    });
    assert!(
        growth < CLIENTS * 2 * MIB,
        "{growth} bytes more for {CLIENTS} clients"
    );
}
