use std::{
    io::{Read, Write},
    net::TcpListener,
    process::Command,
};

use bytes::{Bytes, BytesMut};

use super::{Alone, FACTS, Local, Then, Value};

/// Serves one client after the other, until one sends `the last`.
fn serve(listener: &TcpListener) {
    loop {
        let (mut socket, peer) = listener.accept().unwrap();
        let mut local = Local::new(1, peer.to_string(), "", FACTS.now);
        let (mut unread, mut out) = (vec![], BytesMut::new());
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = socket.read(&mut chunk) {
            unread.extend_from_slice(&chunk[..length]);
            while !unread.is_empty()
                && let Some((command, length)) = Value::read(&unread)
            {
                unread.drain(..length);
                let arguments: Vec<Bytes> = command
                    .into_elements()
                    .into_iter()
                    .map(|word| word.into_bytes().into())
                    .collect();
                if arguments == ["the", "last"] {
                    return;
                }
                let then = local.answer(&arguments, &Alone, &mut out);
                assert_eq!(then, Then::Go);
            }
            let _ = socket.write_all(&out.split());
        }
    }
}

#[test]
fn redis_cli_works_and_explains_lock() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let server = std::thread::spawn(move || serve(&listener));
    let redis_cli = |words: &str| -> String {
        let output = Command::new("redis-cli")
            .args(["-p", &port])
            .args(words.split(' '))
            .output()
            .expect("redis-cli is needed to try this with");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(redis_cli("ping"), "PONG\n");
    assert_eq!(redis_cli("-3 -n 3 client getname"), "\n");
    assert_eq!(redis_cli("-3 -n 3 echo x"), "x\n");
    assert!(redis_cli("-3 info lockgate").contains("lockgate_version:"));
    let explained = redis_cli("help lock");
    assert!(
        explained.contains("key [TOKEN token] [PX milliseconds|EX seconds] [WAIT milliseconds]"),
        "{explained}"
    );
    let explained = redis_cli("help select");
    assert!(explained.contains("Changes the database"), "{explained}");
    let group = redis_cli("help @lock");
    for name in ["TRYLOCK", "UNLOCK", "RELOCK", "LOCKINFO", "LOCKS"] {
        assert!(group.contains(name), "{name} in {group}");
    }
    redis_cli("the last");
    server.join().unwrap();
}
