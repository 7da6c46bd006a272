//! Connections that break, servers that hang, come late or never read.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockgate::{
    lock::{Fence, Outcome, StoreReply, StoreRequest, Token, UserId},
    store::redis::RedisSettings,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

use crate::{
    fixture::{Fixture, LONG, PATIENCE, Told, armed, ask, granted, lock, lock_in},
    network::Network,
    redis::{Server, settings},
};

const UNKNOWN: StoreReply = StoreReply {
    outcome: Outcome::Unknown,
    armed: None,
    grace_ms: None,
};

fn impatient(settings: RedisSettings) -> RedisSettings {
    RedisSettings {
        timeout: Duration::from_millis(200),
        connect_timeout: Duration::from_millis(200),
        ..settings
    }
}

#[tokio::test]
async fn a_broken_connection_is_told_and_replaced_by_one_that_tells_again() {
    let mut fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    for _ in 0..3 {
        let before = armed(&fixture.ask(&lock("a"), "me", LONG).await);
        other.kill_others().await;
        assert_eq!(fixture.told().await, Told::TrackingLost(before));
        let after = armed(&fixture.ask(&lock("a"), "me", LONG).await);
        assert_ne!(before, after);
        let () = other.say("DEL a").await;
        assert_eq!(fixture.told().await, Told::Changed(after, lock("a")));
    }
}

#[tokio::test]
async fn requests_in_flight_when_the_connection_breaks_are_unknown() {
    let mut fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    let link = armed(&fixture.ask(&lock("a"), "me", LONG).await);
    // Redis takes the store request and does not answer before it is told to.
    let () = other.say("CLIENT PAUSE 600000 WRITE").await;
    let asked: Vec<_> = (0..10)
        .map(|n| fixture.start(&lock(format!("{n}")), ask("me", LONG)))
        .collect();
    while other.blocked_clients().await == 0 {
        tokio::task::yield_now().await;
    }
    other.kill_others().await;
    for asked in asked {
        assert_eq!(asked.await.unwrap(), UNKNOWN);
    }
    assert_eq!(fixture.told().await, Told::TrackingLost(link));
    let () = other.say("CLIENT UNPAUSE").await;
    let after = armed(&fixture.ask(&lock("0"), "me", LONG).await);
    assert_ne!(link, after);
}

/// Or a queue that asks again would ask in vain, over and over, until the link is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_after_an_unknown_outcome_gets_another_link() {
    let fixture = Arc::new(Fixture::redis());
    let mut other = fixture.server.as_ref().unwrap().client().await;
    fixture.hold(&lock("a"), "me").await;
    let () = other.say("CLIENT PAUSE 600000 WRITE").await;
    let askers: Vec<_> = (0..50)
        .map(|n| {
            let (fixture, name) = (Arc::clone(&fixture), lock(format!("{n}")));
            tokio::spawn(async move {
                (
                    fixture.ask(&name, "me", LONG).await,
                    fixture.ask(&name, "me", LONG).await,
                )
            })
        })
        .collect();
    while other.blocked_clients().await == 0 {
        tokio::task::yield_now().await;
    }
    other.kill_others().await;
    let () = other.say("CLIENT UNPAUSE").await;
    for asker in askers {
        let (first, second) = asker.await.unwrap();
        // The store sends a request after the break on the next link, and Redis grants it.
        if first != UNKNOWN {
            granted(&first);
        }
        granted(&second);
    }
}

#[tokio::test]
async fn the_link_of_another_database_does_not_care() {
    let mut fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    let zero = armed(&fixture.ask(&lock("a"), "me", LONG).await);
    let five = armed(&fixture.ask(&lock_in(5, "b"), "me", LONG).await);
    other.kill_one_in(5).await;
    assert_eq!(fixture.told().await, Told::TrackingLost(five));
    assert_eq!(armed(&fixture.ask(&lock("a"), "me", LONG).await), zero);
    assert_eq!(fixture.told_already(), []);
}

#[tokio::test]
async fn a_server_that_hangs_makes_the_question_unknown_and_the_link_deaf() {
    let server = Server::start();
    let mut fixture = Fixture::at(impatient(server.settings()));
    let before = armed(&fixture.ask(&lock("a"), "me", LONG).await);
    server.freeze();
    let asked = tokio::time::Instant::now();
    assert_eq!(fixture.ask(&lock("b"), "me", LONG).await, UNKNOWN);
    assert!(
        asked.elapsed() >= Duration::from_millis(200),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!(fixture.told().await, Told::TrackingLost(before));
    let waiting = fixture.start(&lock("c"), ask("me", LONG));
    assert!(
        fixture
            .try_look(&lock("a"))
            .await
            .unwrap_err()
            .starts_with(b"UPSTREAM ")
    );
    server.thaw();
    let answer = waiting.await.unwrap();
    let after = armed(&fixture.granted_or_anew(answer, &lock("c"), "me").await);
    assert_ne!(before, after);
}

#[tokio::test]
async fn a_server_that_hangs_is_noticed_though_nobody_has_the_patience_to_wait() {
    let server = Server::start();
    let mut fixture = Fixture::at(impatient(server.settings()));
    let link = armed(&fixture.ask(&lock("a"), "me", LONG).await);
    server.freeze();
    let given_up = fixture.start(&lock("b"), ask("me", LONG));
    tokio::task::yield_now().await;
    given_up.abort();
    assert_eq!(fixture.told().await, Told::TrackingLost(link));
    server.thaw();
}

#[tokio::test]
async fn a_server_that_hangs_is_noticed_though_nobody_asks() {
    let server = Server::start();
    let settings = RedisSettings {
        ping: Duration::from_millis(100),
        ..impatient(server.settings())
    };
    let mut fixture = Fixture::at(settings);
    let link = armed(&fixture.ask(&lock("a"), "me", LONG).await);
    server.freeze();
    assert_eq!(fixture.told().await, Told::TrackingLost(link));
    server.thaw();
}

#[tokio::test]
async fn a_silent_connection_is_pinged_and_lives() {
    let server = Server::start();
    let mut other = server.client().await;
    let settings = RedisSettings {
        ping: Duration::from_millis(20),
        ..server.settings()
    };
    let mut fixture = Fixture::at(settings);
    let link = armed(&fixture.ask(&lock("a"), "me", LONG).await);
    while !other
        .say::<String>("INFO commandstats")
        .await
        .contains("cmdstat_ping:calls=5")
    {
        tokio::task::yield_now().await;
    }
    assert_eq!(fixture.told_already(), []);
    assert_eq!(armed(&fixture.ask(&lock("a"), "me", LONG).await), link);
}

#[tokio::test]
async fn a_slow_question_is_no_hang_while_others_are_answered() {
    let server = Server::start();
    let fixture = Fixture::at(impatient(server.settings()));
    let started = tokio::time::Instant::now();
    let link = armed(&fixture.ask(&lock("a"), "me", LONG).await);
    while started.elapsed() < Duration::from_secs(1) {
        assert_eq!(fixture.ask(&lock("a"), "me", LONG).await.armed, Some(link));
    }
}

#[tokio::test]
async fn a_question_waits_for_a_server_that_comes_later() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = nobody.local_addr().unwrap().port();
    let fixture = Fixture::at(settings(port));
    let asked: Vec<_> = (0..10)
        .map(|n| fixture.start(&lock(format!("{n}")), ask("me", LONG)))
        .collect();
    // One attempt is in vain for certain.
    drop(nobody.accept().await.unwrap());
    drop(nobody);
    let _server = tokio::task::spawn_blocking(move || Server::start_on(port, &[]))
        .await
        .unwrap();
    for (n, asked) in asked.into_iter().enumerate() {
        let name = lock(format!("{n}"));
        fixture
            .granted_or_anew(asked.await.unwrap(), &name, "me")
            .await;
    }
}

#[tokio::test]
async fn a_server_that_restarts_is_found_again() {
    let server = Server::start();
    let port = server.port();
    let mut fixture = Fixture::at(settings(port));
    let before = armed(&fixture.ask(&lock("a"), "me", LONG).await);
    drop(server);
    assert_eq!(fixture.told().await, Told::TrackingLost(before));
    let asked = fixture.start(&lock("a"), ask("you", LONG));
    let _server = tokio::task::spawn_blocking(move || Server::start_on(port, &[]))
        .await
        .unwrap();
    fixture
        .granted_or_anew(asked.await.unwrap(), &lock("a"), "you")
        .await;
}

/// A request that was not sent when the store gave up must never arrive: closing discards it. (A request that has
/// arrived cannot be called back.)
#[tokio::test]
async fn a_request_that_was_given_up_is_not_sent_later() {
    const MUCH: usize = 32 * 1024 * 1024;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (gave_up, may_read) = oneshot::channel();
    let upstream = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        greet(&mut stream).await;
        // Reads no more, as a network that loses its packets, until the store gave up.
        may_read.await.unwrap();
        let (mut received, mut buffer) = (0, vec![0; 1 << 20]);
        loop {
            match stream.read(&mut buffer).await {
                Ok(0) => return (received, None),
                Ok(bytes) => received += bytes,
                Err(error) => return (received, Some(error.kind())),
            }
        }
    });
    let fixture = Fixture::at(impatient(settings(port)));
    let token = Token::new(vec![b'x'; MUCH]);
    let store_request = StoreRequest::Acquire {
        user: UserId(0),
        token,
        lease_ms: LONG,
        fence: Fence::No,
        expects: None,
        bare: false,
        strict: false,
        replicas: 0,
    };
    assert_eq!(fixture.put(&lock("a"), store_request).await, UNKNOWN);
    gave_up.send(()).unwrap();
    let (received, error) = tokio::time::timeout(PATIENCE, upstream)
        .await
        .unwrap()
        .unwrap();
    assert!(received < MUCH);
    assert_eq!(
        error,
        Some(std::io::ErrorKind::ConnectionReset),
        "the connection was closed in order"
    );
}

/// The client has learned that the outcome is unknown, and may do something else.
#[tokio::test]
async fn a_request_without_a_connection_in_time_is_not_sent() {
    const WITHIN: Duration = Duration::from_millis(100);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = RedisSettings {
        connect_timeout: PATIENCE,
        ..settings(listener.local_addr().unwrap().port())
    };
    assert!(settings.timeout > 10 * WITHIN);
    let fixture = Fixture::at(settings);
    let release = StoreRequest::Release {
        user: UserId(0),
        token: Token::new("mine"),
        only_if: None,
    };
    let start = Instant::now();
    let (name, greets_nobody) = (lock("a"), listener.accept());
    let (answer, accepted) =
        tokio::join!(fixture.put_within(&name, release, WITHIN), greets_nobody);
    assert_eq!(answer.outcome, Outcome::NoLink);
    assert!(
        (WITHIN..5 * WITHIN).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
    drop(accepted);
}

/// Nor may what was sent and held up on the way take a lock for nobody, once the store has asked
/// anew and knows what is.
#[tokio::test]
async fn a_request_that_was_given_up_does_not_execute_later() {
    let server = Server::start();
    let network = Network::before(&server).await;
    let fixture = Fixture::at(impatient(settings(network.port())));
    fixture.hold(&lock("a"), "me").await;
    network.lose();
    assert_eq!(fixture.ask(&lock("b"), "me", LONG).await, UNKNOWN);
    fixture.hold(&lock("c"), "me").await;
    let late = network.deliver().await;
    assert!(late.bytes > 0);
    assert!(!late.answered, "Redis executed it");
    assert!(!fixture.status(&lock("b")).await.held);
}

/// A user who may not end its own connections is served all the same.
#[tokio::test]
async fn a_user_without_client_kill_reconnects_too() {
    let server = Server::start();
    let mut other = server.client().await;
    let () = other
        .say("ACL SETUSER ann on >pw ~* &* +@all -client|kill -client|info")
        .await;
    let mut fixture = Fixture::at_as(server.settings(), "ann", "pw");
    let before = armed(&fixture.ask(&lock("a"), "me", LONG).await);
    other.kill_others().await;
    assert_eq!(fixture.told().await, Told::TrackingLost(before));
    armed(&fixture.ask(&lock("a"), "me", LONG).await);
}

/// Answers the first words as Redis does.
async fn greet(stream: &mut TcpStream) {
    let mut heard = Vec::new();
    for (word, answer) in [
        ("HELLO", "%1\r\n+proto\r\n:3\r\n"),
        ("INFO", "-ERR unknown subcommand\r\n"),
        ("replication", "-ERR unknown command\r\n"),
        ("TRACKING", "+OK\r\n"),
    ] {
        while !String::from_utf8_lossy(&heard).contains(word) {
            assert!(stream.read_buf(&mut heard).await.unwrap() > 0);
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

/// A server that speaks nonsense is left, not believed.
#[tokio::test]
async fn an_answer_that_is_not_redis_breaks_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            greet(&mut stream).await;
            let mut buffer = [0; 1024];
            let _ = stream.read(&mut buffer).await;
            let _ = stream.write_all(b"!nonsense\r\n").await;
            // Stays open until the store leaves.
            let _ = stream.read(&mut buffer).await;
        }
    });
    let mut fixture = Fixture::at(settings(port));
    assert_eq!(fixture.ask(&lock("a"), "me", LONG).await, UNKNOWN);
    assert!(matches!(fixture.told().await, Told::TrackingLost(_)));
}
