//! Pushes of Redis about changes that other clients made.

use lockgate::{
    lock::{LinkId, Mark, Outcome, StoreReply, StoreRequest, UserId},
    store::redis::RedisSettings,
};

use crate::{
    fixture::{Fixture, LONG, Told, armed, ask, granted, lock, lock_in, token},
    redis::{Client, Server},
};

/// Somebody else holds the lock, and the store has read it.
async fn wait_for(fixture: &Fixture, other: &mut Client, key: &str) -> LinkId {
    let () = other.say(&format!("SET {key} theirs PX 600000")).await;
    let answer = fixture.ask(&lock(key), "mine", LONG).await;
    assert!(matches!(answer.outcome, Outcome::Held { .. }));
    armed(&answer)
}

#[tokio::test]
async fn whatever_somebody_else_does_to_a_lock_is_told() {
    let mut fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    for change in [
        "DEL a",
        "SET a else PX 600000",
        "PEXPIRE a 10000",
        "PEXPIRE a -1",
        "RENAME a b",
        "APPEND a x",
    ] {
        let link = wait_for(&fixture, &mut other, "a").await;
        let () = other.say(change).await;
        assert_eq!(
            fixture.told().await,
            Told::Changed(link, lock("a")),
            "{change}"
        );
        // The renamed one was not read, and so is not told.
        assert_eq!(fixture.told_already(), [], "{change}");
    }
}

#[tokio::test]
async fn a_lock_of_somebody_else_that_expires_is_told() {
    let mut fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    let () = other.say("SET a theirs PX 50").await;
    let link = armed(&fixture.ask(&lock("a"), "mine", LONG).await);
    assert_eq!(fixture.told().await, Told::Changed(link, lock("a")));
    fixture.hold(&lock("a"), "mine").await;
}

#[tokio::test]
async fn a_lock_that_this_store_granted_and_somebody_else_changes_is_told() {
    let mut fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    let extend = StoreRequest::Extend {
        user: UserId(0),
        token: token("mine"),
        lease_ms: LONG,
        expects: None,
        mark: Mark::None,
        replicas: 0,
    };
    let hand_over = StoreRequest::Handover {
        user: UserId(0),
        from: token("mine"),
        only_if: None,
        to: token("yours"),
        lease_ms: LONG,
        fence: false,
        strict: false,
    };
    // Each writes last what it read first: only a read after the write keeps the key armed.
    for store_requests in [
        vec![],
        vec![ask("mine", LONG)],
        vec![extend],
        vec![hand_over],
    ] {
        let mut answer = fixture.ask(&lock("a"), "mine", LONG).await;
        for store_request in store_requests {
            answer = fixture.put(&lock("a"), store_request).await;
        }
        granted(&answer);
        let link = armed(&answer);
        let () = other.say("DEL a").await;
        assert_eq!(
            fixture.told().await,
            Told::Changed(link, lock("a")),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn a_lock_that_was_found_free_and_somebody_else_takes_is_told() {
    let mut fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    let answer: StoreReply = fixture.extend(&lock("a"), "mine", LONG).await;
    assert_eq!(answer.outcome, Outcome::Free);
    let () = other.say("SET a theirs PX 600000").await;
    assert_eq!(
        fixture.told().await,
        Told::Changed(armed(&answer), lock("a"))
    );
}

#[tokio::test]
async fn the_store_does_not_report_its_own_changes() {
    let mut fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    fixture.hold(&lock("a"), "mine").await;
    fixture.hold(&lock("a"), "mine").await;
    fixture.extend(&lock("a"), "mine", LONG).await;
    fixture.hand_over(&lock("a"), "mine", "yours").await;
    fixture.release(&lock("a"), "yours").await;
    // Pushes come in order: had there been any, they would stand before this one.
    let link = wait_for(&fixture, &mut other, "b").await;
    let () = other.say("DEL b").await;
    assert_eq!(fixture.told().await, Told::Changed(link, lock("b")));
}

#[tokio::test]
async fn a_flush_of_everything_is_told_as_deafness_to_everything_before() {
    let mut fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    let link = wait_for(&fixture, &mut other, "a").await;
    for flush in ["FLUSHALL", "FLUSHDB", "FLUSHALL ASYNC"] {
        let () = other.say(flush).await;
        assert_eq!(fixture.told().await, Told::TrackingLost(link), "{flush}");
        // The connection itself is well.
        assert_eq!(wait_for(&fixture, &mut other, "a").await, link);
    }
}

#[tokio::test]
async fn a_change_is_told_under_the_database_of_the_link_that_heard_it() {
    let mut fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client_in(5).await;
    let zero = armed(&fixture.ask(&lock_in(0, "a"), "mine", LONG).await);
    let five = armed(&fixture.ask(&lock_in(5, "a"), "mine", LONG).await);
    assert_ne!(zero, five);
    // Redis pushes no database, and forgets the name for all of them: each link is told.
    let () = other.say("DEL a").await;
    let mut told = [fixture.told().await, fixture.told().await];
    told.sort_by_key(|told| matches!(told, Told::Changed(link, _) if *link == five));
    assert_eq!(
        told,
        [
            Told::Changed(zero, lock_in(0, "a")),
            Told::Changed(five, lock_in(5, "a"))
        ]
    );
}

#[tokio::test]
async fn a_prefix_stands_before_every_key_in_redis_and_nowhere_else() {
    let server = Server::start();
    let mut other = server.client().await;
    let mut fixture = Fixture::at(RedisSettings {
        key_prefix: "lock:".into(),
        ..server.settings()
    });
    let link = armed(&fixture.ask(&lock("a"), "mine", LONG).await);
    assert_eq!(other.say::<String>("GET lock:a").await, "mine");
    assert!(!other.say::<bool>("EXISTS a").await);
    assert!(fixture.status(&lock("a")).await.held);
    let () = other.say("DEL lock:a").await;
    assert_eq!(fixture.told().await, Told::Changed(link, lock("a")));
}

#[tokio::test]
async fn a_key_of_any_bytes_is_told_as_it_is() {
    let mut fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    let key = b"\0 \r\n\xff";
    let link = armed(&fixture.ask(&lock(key), "mine", LONG).await);
    let () = other.say_bytes("DEL", &[key]).await;
    assert_eq!(fixture.told().await, Told::Changed(link, lock(key)));
}
