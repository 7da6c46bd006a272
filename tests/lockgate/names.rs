//! Redis is known by its name, and the name server is silent: whoever looks the name up there takes a thread for ten
//! seconds and more, and cannot be told to stop. (In a network of the test's own, where it is the name server.)

use std::{
    fs,
    net::UdpSocket,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{Http, Lockgate, RedisServer, in_a_network_of_its_own};

/// Makes us the name server.
const NETWORK: &str = "ip link set lo up; conf=$(mktemp); echo nameserver 127.0.0.1 >$conf; \
    mount --bind $conf /etc/resolv.conf; rm $conf";

fn in_a_network(test: &str) -> bool {
    in_a_network_of_its_own(&format!("names::{test}"), NETWORK)
}

/// A gate that cannot find its Redis, and who has waited for that.
fn gate_before(upstream: &str) -> Lockgate {
    let environment = [("LOCKGATE_ADMIN", "127.0.0.1:0"), ("LOCKGATE_THREADS", "1")];
    let gate = Lockgate::start_with(&["--upstream", upstream], &environment);
    let mut clients = gate.clients(60);
    for client in &mut clients {
        client.send(&["GET", "k"]);
    }
    for mut client in clients {
        let reply = client.read_reply();
        assert!(reply.error().starts_with("UPSTREAM"), "{reply:?}");
    }
    gate
}

#[test]
fn lookups_take_few_threads_and_keep_nobody_from_ending() {
    if !in_a_network("lookups_take_few_threads_and_keep_nobody_from_ending") {
        return;
    }
    let _silent = UdpSocket::bind("127.0.0.1:53").unwrap();
    let mut gate = gate_before("redis://redis.example");
    let mut http = Http::connect(gate.admin_address());
    assert_eq!(http.get("/readyz").status, 503);
    let threads = fs::read_dir(format!("/proc/{}/task", gate.pid())).unwrap();
    let threads = threads.count();
    // As many for clients as may be, some for the gate's own connections, and its own threads.
    assert!((64..90).contains(&threads), "{threads} threads");
    let began = Instant::now();
    gate.terminate();
    assert_eq!(gate.exit_code(), Some(0), "{}", gate.log());
    let took = began.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// Lookups for clients go on for seconds after the name server answers again; lookups for locks do not wait for
/// them.
#[test]
fn lookups_for_clients_keep_no_lock_waiting() {
    if !in_a_network("lookups_for_clients_keep_no_lock_waiting") {
        return;
    }
    let answers = Arc::new(AtomicBool::new(false));
    let server = UdpSocket::bind("127.0.0.1:53").unwrap();
    thread::spawn({
        let answers = Arc::clone(&answers);
        move || answer(&server, &answers)
    });
    let redis = RedisServer::start(&[]);
    let gate = gate_before(&format!("redis://redis.example:{}", redis.address().port()));
    let mut client = gate.client();
    client.send(&["LOCK", "k", "TOKEN", "t", "WAIT", "60000"]);
    answers.store(true, Relaxed);
    let began = Instant::now();
    assert_eq!(client.read_reply(), "t");
    let took = began.elapsed();
    // The system retries the lookups for clients five seconds after they began, a second ago and less.
    // The gate's own connection is tried anew after a second and a quarter at most.
    assert!(took < Duration::from_millis(2_500), "{took:?}");
}

/// Says that every name is this machine's, from when it is to answer on.
fn answer(server: &UdpSocket, answers: &AtomicBool) {
    let mut question = [0; 512];
    while let Ok((length, from)) = server.recv_from(&mut question) {
        if !answers.load(Relaxed) {
            continue;
        }
        // RFC 1035, 4.1: the same header as an answer, and the question, behind which its type stands and its class.
        let name = question[12..length].iter().position(|byte| *byte == 0);
        let end = 12 + name.unwrap() + 5;
        let is_for_version_4 = question[end - 3] == 1;
        let mut reply = question[..end].to_vec();
        reply[2..4].copy_from_slice(&[0x81, 0x80]);
        reply[6..12].copy_from_slice(&[0, u8::from(is_for_version_4), 0, 0, 0, 0]);
        if is_for_version_4 {
            reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1]);
        }
        server.send_to(&reply, from).unwrap();
    }
}
