//! A Redis that lost its data, or that has another history of it than before.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockgate::{
    lock::{Dead, Deadline, Fence, Mark, Outcome, StoreRequest, UserId},
    store::{Needed, redis::RedisSettings},
};

use crate::{
    fixture::{Fixture, LONG, Told, armed, ask, granted, held, lock, token},
    redis::Server,
};

const USER: UserId = UserId(0);
const GRACE: Duration = Duration::from_millis(700);

async fn restore(fixture: &Fixture, holder: &str, lease_ms: u64) -> Outcome {
    let store_request = StoreRequest::WriteBack {
        user: USER,
        token: token(holder),
        lease_ms,
    };
    fixture.put(&lock("a"), store_request).await.outcome
}

async fn delete_dead(fixture: &Fixture, dead: &str, not_after: Option<Deadline>) -> Outcome {
    delete_dead_or_at(fixture, dead, not_after, None).await
}

async fn delete_dead_or_at(
    fixture: &Fixture,
    dead: &str,
    not_after: Option<Deadline>,
    or_at: Option<Deadline>,
) -> Outcome {
    let store_request = StoreRequest::DeleteDead {
        token: token(dead),
        dead: Dead {
            user: USER,
            not_after,
            or_at,
        },
    };
    fixture.put(&lock("a"), store_request).await.outcome
}

fn is_fresh(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Granted { fresh: true, .. })
}

/// Redis came back with its data, and has no memory for more.
#[tokio::test]
async fn a_lease_that_redis_kept_is_written_back_without_memory() {
    let fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    granted(&fixture.ask(&lock("a"), "me", 5_000).await);
    let () = other.say("CONFIG SET maxmemory 1").await;
    assert!(matches!(
        restore(&fixture, "me", LONG).await,
        Outcome::Granted { fresh: true, .. }
    ));
    assert!(other.say::<i64>("PTTL a").await > 5_000);
    let kept = restore(&fixture, "me", 1_000).await;
    assert!(matches!(kept, Outcome::Granted { fresh: false, .. }));
    assert!(matches!(
        restore(&fixture, "you", LONG).await,
        Outcome::Held { holder: Some(holder), .. } if holder == token("me")
    ));
    let () = other.say("DEL a").await;
    assert!(matches!(
        restore(&fixture, "me", LONG).await,
        Outcome::Refused(text) if text.starts_with(b"OOM ")
    ));
}

#[tokio::test]
async fn a_lease_is_written_back_where_the_lock_is_free() {
    let fixture = Fixture::redis();
    assert!(is_fresh(&restore(&fixture, "me", 5_000).await));
    assert_eq!(fixture.holder(&lock("a")).await, Some(token("me")));
    assert!((4_000..=5_000).contains(&fixture.status(&lock("a")).await.ttl_ms));
}

#[tokio::test]
async fn a_lease_takes_the_place_of_no_other_token() {
    let fixture = Fixture::redis();
    fixture.hold(&lock("a"), "other").await;
    let outcome = restore(&fixture, "me", 5_000).await;
    assert!(
        matches!(&outcome, Outcome::Held { holder: Some(holder), .. } if *holder == token("other")),
        "{outcome:?}"
    );
    assert_eq!(fixture.holder(&lock("a")).await, Some(token("other")));
}

#[tokio::test]
async fn a_dead_token_is_deleted_up_to_its_deadline_and_no_other() {
    let fixture = Fixture::redis();
    let Deadline(at) = fixture.hold(&lock("a"), "dead").await;
    for (name, not_after) in [("other", None), ("dead", Some(Deadline(at - 1)))] {
        let outcome = delete_dead(&fixture, name, not_after).await;
        assert!(matches!(outcome, Outcome::Held { .. }), "{outcome:?}");
        assert_eq!(fixture.holder(&lock("a")).await, Some(token("dead")));
    }
    assert_eq!(
        delete_dead(&fixture, "dead", Some(Deadline(at))).await,
        Outcome::Free
    );
    assert_eq!(fixture.holder(&lock("a")).await, None);
    fixture.hold(&lock("a"), "dead").await;
    assert_eq!(delete_dead(&fixture, "dead", None).await, Outcome::Free);
    assert_eq!(delete_dead(&fixture, "dead", None).await, Outcome::Free);
}

/// A later deadline than the last one counts only exactly.
#[tokio::test]
async fn a_dead_token_is_deleted_at_the_deadline_that_was_shortened() {
    let fixture = Fixture::redis();
    let Deadline(at) = fixture.hold(&lock("a"), "dead").await;
    let early = Some(Deadline(at - 1_000));
    for other in [at - 10, at + 10] {
        let outcome = delete_dead_or_at(&fixture, "dead", early, Some(Deadline(other))).await;
        assert!(matches!(outcome, Outcome::Held { .. }), "{outcome:?}");
    }
    let outcome = delete_dead_or_at(&fixture, "dead", early, Some(Deadline(at))).await;
    assert_eq!(outcome, Outcome::Free);
    assert_eq!(fixture.holder(&lock("a")).await, None);
}

#[tokio::test]
async fn a_lease_that_is_there_is_left_or_made_longer_never_shorter() {
    let fixture = Fixture::redis();
    let at = fixture.hold(&lock("a"), "me").await;
    let left = restore(&fixture, "me", 1_000).await;
    assert_eq!(
        left,
        Outcome::Granted {
            deadline: at,
            fresh: false,
            fence: None
        }
    );
    let longer = restore(&fixture, "me", 2 * LONG).await;
    let Outcome::Granted {
        deadline: Deadline(longer),
        fresh: true,
        ..
    } = longer
    else {
        panic!("{longer:?}")
    };
    assert!(longer > at.0 + LONG / 2);
}

/// The clock of another Redis may be behind, and its counter gone.
#[tokio::test]
async fn a_new_connection_raises_the_fence_counter_to_what_was_told() {
    const AHEAD: u64 = 5_000_000_000_000_000;
    let fixture = Fixture::redis();
    let mut client = fixture.server.as_ref().unwrap().client().await;
    let () = client.say(&format!("SET lockgate:fence {AHEAD}")).await;
    granted(&fixture.put(&lock("a"), fenced("me")).await);
    let () = client.say("DEL lockgate:fence").await;
    let _: i64 = client.say("CLIENT KILL TYPE normal SKIPME yes").await;
    granted(&fixture.ask(&lock("b"), "me", LONG).await);
    let counter: u64 = client.say("GET lockgate:fence").await;
    assert_eq!(counter, AHEAD + 1);
}

/// A value that no clock gave was set by hand; the error names the cure, which is to delete it.
#[tokio::test]
async fn a_counter_that_was_set_near_its_end_is_cured_by_deleting_it() {
    let fixture = Fixture::redis();
    let mut client = fixture.server.as_ref().unwrap().client().await;
    let () = client.say("SET lockgate:fence 9007199254740990").await;
    granted(&fixture.put(&lock("a"), fenced("me")).await);
    let refused = fixture.put(&lock("b"), fenced("me")).await.outcome;
    assert!(matches!(refused, Outcome::Refused(_)), "{refused:?}");
    let () = client.say("DEL lockgate:fence").await;
    granted(&fixture.put(&lock("b"), fenced("me")).await);
    let counter: u64 = client.say("GET lockgate:fence").await;
    assert!(counter < 1 << 52, "{counter}");
}

fn fenced(holder: &str) -> StoreRequest {
    StoreRequest::Acquire {
        user: USER,
        token: token(holder),
        lease_ms: LONG,
        fence: Fence::New,
        expects: None,
        bare: false,
        strict: false,
        replicas: 0,
    }
}

#[tokio::test]
async fn a_check_tells_the_holder_and_is_told_of_changes() {
    let mut fixture = Fixture::redis();
    let mut client = fixture.server.as_ref().unwrap().client().await;
    let check = || StoreRequest::Check { user: USER };
    assert_eq!(
        fixture.put(&lock("a"), check()).await.outcome,
        Outcome::Free
    );
    let () = client.say("SET a somebody PX 60000").await;
    assert_eq!(
        held(&fixture.put(&lock("a"), check()).await).0,
        token("somebody")
    );
    fixture.told_already();
    let () = client.say("DEL a").await;
    assert!(matches!(fixture.told().await, Told::Changed(_, name) if name == lock("a")));
}

/// A replica's answer about the holder is stale, so the store ignores it.
#[tokio::test]
async fn a_replica_answers_no_question() {
    let fixture = Fixture::redis();
    fixture.hold(&lock("a"), "me").await;
    let mut client = fixture.server.as_ref().unwrap().client().await;
    let () = client.say("REPLICAOF 127.0.0.1 1").await;
    let store_request = |what: &str| match what {
        "check" => StoreRequest::Check { user: USER },
        "release" => StoreRequest::Release {
            user: USER,
            token: token("other"),
            only_if: None,
        },
        "extend" => StoreRequest::Extend {
            user: USER,
            token: token("other"),
            lease_ms: LONG,
            expects: None,
            mark: Mark::None,
            replicas: 0,
        },
        "restore" => StoreRequest::WriteBack {
            user: USER,
            token: token("other"),
            lease_ms: LONG,
        },
        "delete dead" => StoreRequest::DeleteDead {
            token: token("other"),
            dead: Dead {
                user: USER,
                not_after: None,
                or_at: None,
            },
        },
        _ => StoreRequest::Handover {
            user: USER,
            from: token("other"),
            only_if: None,
            to: token("third"),
            lease_ms: LONG,
            fence: false,
            strict: false,
        },
    };
    for what in [
        "check",
        "release",
        "extend",
        "restore",
        "delete dead",
        "hand over",
    ] {
        for key in ["a", "free"] {
            let outcome = fixture.put(&lock(key), store_request(what)).await.outcome;
            assert!(
                matches!(&outcome, Outcome::NotNow(text) if text.starts_with(b"READONLY")),
                "{what} {key}: {outcome:?}"
            );
        }
    }
}

fn settings(port: u16) -> RedisSettings {
    RedisSettings {
        grace: Some(GRACE),
        ..crate::redis::settings(port)
    }
}

/// Asks until the grace is over; returns how long that took.
async fn wait_for_grant(fixture: &Fixture, key: &str) -> Duration {
    let asked = Instant::now();
    loop {
        match fixture.ask(&lock(key), "me", LONG).await.outcome {
            Outcome::NotYet { ms } => {
                assert!(u128::from(ms) <= GRACE.as_millis());
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
            Outcome::Granted { .. } => return asked.elapsed(),
            Outcome::Unknown => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_grace_is_kept_once_in_front_of_each_redis_by_all_together() {
    let server = Server::start();
    let fixture = Fixture::at(settings(server.port()));
    assert!(wait_for_grant(&fixture, "a").await >= GRACE / 2);
    assert!(
        wait_for_grant(&fixture, "b").await < GRACE / 2,
        "once is enough"
    );
    let fresh = Fixture::at(settings(server.port()));
    assert!(wait_for_grant(&fresh, "c").await < GRACE / 2);
    // Another Redis that came to have its data has none of its own.
    let mut client = server.client().await;
    let mark: String = client.say("GET lockgate:grace").await;
    let another = Server::start();
    let mut client = another.client().await;
    let words: [&[u8]; 3] = [b"SET", b"lockgate:grace", mark.as_bytes()];
    let () = client.say_bytes("SET", &words[1..]).await;
    let fresh = Fixture::at(settings(another.port()));
    assert!(wait_for_grant(&fresh, "a").await >= GRACE / 2);
}

/// Each keeps it by itself, for the whole time.
#[tokio::test]
async fn the_grace_is_kept_by_who_may_not_write_its_mark() {
    let user = "--user default on nopass ~a ~b ~c &* +@all";
    let server = Server::start_with(&user.split(' ').collect::<Vec<_>>());
    for _ in 0..2 {
        let fresh = Fixture::at(settings(server.port()));
        assert!(wait_for_grant(&fresh, "a").await >= GRACE / 2);
    }
}

/// It changes the replication id of its master, and nothing else.
#[tokio::test]
async fn the_first_replica_is_no_loss() {
    let server = Server::start();
    let mut fixture = Fixture::at(settings(server.port()));
    wait_for_grant(&fixture, "a").await;
    let mut client = server.client().await;
    let data_loss = async |client: &mut crate::redis::Client| {
        let info: String = client.say("INFO replication").await;
        let line = info.lines().find(|line| line.starts_with("master_replid:"));
        line.unwrap_or_default().to_owned()
    };
    let before = data_loss(&mut client).await;
    let replica = Server::start();
    let mut other = replica.client().await;
    let _: redis::Value = other
        .say(&format!("REPLICAOF 127.0.0.1 {}", server.port()))
        .await;
    while data_loss(&mut client).await == before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let _: i64 = client.say("CLIENT KILL TYPE normal SKIPME yes").await;
    assert!(matches!(fixture.told().await, Told::TrackingLost(_)));
    granted(&fixture.ask(&lock("b"), "me", LONG).await);
    assert_eq!(fixture.told_already(), []);
}

#[tokio::test]
async fn a_restart_is_told_before_anything_is_answered_and_no_free_lock_is_taken_for_a_while() {
    let server = Server::start();
    let mut fixture = Fixture::at(settings(server.port()));
    wait_for_grant(&fixture, "a").await;
    let port = server.port();
    fixture.told_already();
    drop(server);
    let _server = Server::start_on(port, &[]);
    let waited = wait_for_grant(&fixture, "b").await;
    assert!(waited >= GRACE / 2, "{waited:?}");
    let told = fixture.told_already();
    assert!(told.contains(&Told::DataLost), "{told:?}");
    // Everything but the taking of free locks goes on meanwhile, and a lease can be written back.
    assert!(is_fresh(&restore(&fixture, "me", 5_000).await));
}

/// To tell very many queues takes long, and its own user may need no connection any more.
#[tokio::test]
async fn a_connection_closed_as_unused_ends_no_notification_of_a_loss() {
    let server = Server::start();
    let port = server.port();
    let mut fixture = Fixture::at(never_used(port));
    wait_for_grant(&fixture, "a").await;
    let notifies = Arc::clone(&fixture.notifies).write_owned().await;
    drop(server);
    let _server = Server::start_on(port, &[]);
    while fixture.told().await != Told::DataLost {}
    fixture.store().close_unused(&Needed::default);
    drop(notifies);
    while fixture.told().await != Told::DataLossNotified {}
}

/// Its connections are closed at each search for unused ones.
fn never_used(port: u16) -> RedisSettings {
    RedisSettings {
        idle: Duration::ZERO,
        ..settings(port)
    }
}

/// Another connection to the same Redis is no reason to suspect anything.
#[tokio::test]
async fn a_broken_connection_alone_forgets_nothing() {
    let server = Server::start();
    let mut fixture = Fixture::at(settings(server.port()));
    wait_for_grant(&fixture, "a").await;
    let mut client = server.client().await;
    let _: i64 = client.say("CLIENT KILL TYPE normal SKIPME yes").await;
    assert!(matches!(fixture.told().await, Told::TrackingLost(_)));
    granted(&fixture.ask(&lock("b"), "me", LONG).await);
    assert_eq!(fixture.told_already(), []);
}

/// A replica that takes over has another history from then on, though its process is the same.
#[tokio::test]
async fn another_history_is_a_loss() {
    let server = Server::start();
    let mut fixture = Fixture::at(settings(server.port()));
    wait_for_grant(&fixture, "a").await;
    let mut client = server.client().await;
    let () = client.say("REPLICAOF 127.0.0.1 1").await;
    let () = client.say("REPLICAOF NO ONE").await;
    let _: i64 = client.say("CLIENT KILL TYPE normal SKIPME yes").await;
    wait_for_grant(&fixture, "b").await;
    assert!(fixture.told_already().contains(&Told::DataLost));
}

/// A failover takes longer than the grace time: what counts is when the replica takes writes.
#[tokio::test]
async fn the_grace_time_begins_when_redis_takes_writes() {
    let server = Server::start();
    let mut fixture = Fixture::at(settings(server.port()));
    wait_for_grant(&fixture, "a").await;
    let mut client = server.client().await;
    let () = client.say("REPLICAOF 127.0.0.1 1").await;
    let _: i64 = client.say("CLIENT KILL TYPE normal SKIPME yes").await;
    assert!(matches!(fixture.told().await, Told::TrackingLost(_)));
    let waiting = fixture.start(&lock("b"), ask("me", LONG));
    tokio::time::sleep(2 * GRACE).await;
    assert!(!waiting.is_finished(), "what takes no writes is not asked");
    let () = client.say("REPLICAOF NO ONE").await;
    assert!(matches!(
        waiting.await.unwrap().outcome,
        Outcome::NotYet { .. }
    ));
    assert!(wait_for_grant(&fixture, "b").await >= GRACE / 2);
    assert!(fixture.told_already().contains(&Told::DataLost));
}

/// A user without the right to INFO writes nothing back, and waits for no grace.
#[tokio::test]
async fn without_info_there_is_no_grace() {
    let server = Server::start_with(&["--rename-command", "INFO", ""]);
    let fixture = Fixture::at(settings(server.port()));
    assert!(wait_for_grant(&fixture, "a").await < GRACE / 2);
}

/// Where others here can see that Redis lost data, who cannot leaves them the time to write back.
#[tokio::test]
async fn a_user_that_cannot_see_a_loss_waits_out_the_grace() {
    let plain = "--user plain on >secret ~* &* +@all -info";
    let plain: Vec<&str> = plain.split(' ').collect();
    let server = Server::start_with(&plain);
    let mut fixture = Fixture::at(settings(server.port()));
    wait_for_grant(&fixture, "a").await;
    let port = server.port();
    fixture.becomes("plain", "secret");
    assert!(
        wait_for_grant(&fixture, "p").await < GRACE / 2,
        "no loss yet"
    );
    drop(server);
    // Nobody who can see it comes back, so nobody else begins the grace time.
    let closed = [&plain[..], &["--requirepass", "another"]].concat();
    let _server = Server::start_on(port, &closed);
    let waited = wait_for_grant(&fixture, "a").await;
    assert!(waited >= GRACE / 2, "{waited:?}");
    assert!(
        wait_for_grant(&fixture, "b").await < GRACE / 2,
        "once is enough"
    );
}

/// Others may wait for the same lock, who are not held back: what is known of it is told.
#[tokio::test]
async fn within_the_grace_a_held_lock_is_reported_as_held() {
    const LONG_GRACE: Duration = Duration::from_secs(2);
    let plain = "--user plain on >secret ~* &* +@all -info";
    let plain: Vec<&str> = plain.split(' ').collect();
    let server = Server::start_with(&plain);
    let mut fixture = Fixture::at(RedisSettings {
        grace: Some(LONG_GRACE),
        ..crate::redis::settings(server.port())
    });
    while !matches!(
        fixture.ask(&lock("a"), "me", LONG).await.outcome,
        Outcome::Granted { .. }
    ) {
        tokio::time::sleep(LONG_GRACE / 10).await;
    }
    fixture.becomes("plain", "secret");
    let link = armed(&fixture.ask(&lock("a"), "other", LONG).await);
    let mut direct = server.client().await;
    let _: redis::Value = direct.say("CLIENT KILL USER plain").await;
    let () = direct.say("SET taken somebody PX 600000").await;
    let answer = loop {
        match fixture.ask(&lock("taken"), "me", LONG).await {
            answer if answer.outcome == Outcome::Unknown => {}
            answer => break answer,
        }
    };
    assert_eq!(held(&answer).0, token("somebody"));
    let now = armed(&answer);
    assert_ne!(now, link);
    // The store asks later about free locks, and about locks that the same token may have held before.
    for change in ["DEL taken", "SET taken me PX 600000"] {
        fixture.told_already();
        let _: redis::Value = direct.say(change).await;
        let answer = fixture.ask(&lock("taken"), "me", LONG).await;
        assert!(
            matches!(answer.outcome, Outcome::NotYet { ms: 1.. }),
            "{change}: {answer:?}"
        );
    }
}
