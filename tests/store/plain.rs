//! Locks that are most likely free, which Redis takes by plain commands.

use lockgate::lock::{Outcome, StoreReply, StoreRequest, UserId};

use crate::{
    fixture::{Fixture, LONG, Told, armed, ask, granted, held, lock, token},
    redis::{Client, Server},
};

/// How often each of these commands ran since the server started. A script's commands count, too.
async fn counts<const N: usize>(other: &mut Client, names: [&str; N]) -> [u64; N] {
    let stats: String = other.say("INFO commandstats").await;
    names.map(|name| {
        let head = format!("cmdstat_{name}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&head));
        let calls = line.and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse().unwrap())
    })
}

/// The store request that a client sends whose token may be another one's, too.
fn strict(holder: &str) -> StoreRequest {
    match ask(holder, LONG) {
        StoreRequest::Acquire {
            user,
            token,
            lease_ms,
            fence,
            expects,
            likely_free,
            replicas,
            ..
        } => StoreRequest::Acquire {
            user,
            token,
            lease_ms,
            fence,
            expects,
            likely_free,
            strict: true,
            replicas,
        },
        other => other,
    }
}

fn is_fresh(answer: &StoreReply) -> bool {
    matches!(answer.outcome, Outcome::Granted { fresh: true, .. })
}

#[tokio::test]
async fn after_the_first_lock_no_script_takes_a_free_one() {
    let mut fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    let names = ["eval", "evalsha", "set", "pexpiretime"];
    fixture.hold(&lock("first"), "me").await;
    let before = counts(&mut other, names).await;
    assert!(before[0] + before[1] > 0, "{before:?}");
    let answer = fixture.ask(&lock("a"), "me", LONG).await;
    assert!(is_fresh(&answer), "{answer:?}");
    let after = counts(&mut other, names).await;
    let more: Vec<_> = before.iter().zip(after).map(|(a, b)| b - a).collect();
    assert_eq!(more, [0, 0, 1, 1]);
    let deadline: u64 = other.say("PEXPIRETIME a").await;
    assert_eq!(granted(&answer).0, deadline);
    // The lock is watched from then on.
    let () = other.say("DEL a").await;
    let link = armed(&answer);
    assert_eq!(fixture.told().await, Told::Changed(link, lock("a")));
}

#[tokio::test]
async fn a_lock_that_is_held_after_all_is_left_alone() {
    let fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    fixture.hold(&lock("first"), "me").await;
    let () = other.say("SET a theirs PX 600000").await;
    let answer = fixture.ask(&lock("a"), "me", LONG).await;
    let (holder, ttl_ms) = held(&answer);
    assert_eq!(holder, token("theirs"));
    assert!((1..=LONG).contains(&ttl_ms.unwrap()), "{ttl_ms:?}");
    armed(&answer);
    let value: String = other.say("GET a").await;
    assert_eq!(value, "theirs");
}

#[tokio::test]
async fn a_token_that_holds_the_lock_gets_a_new_lease_unless_it_counts_as_another() {
    let fixture = Fixture::redis();
    fixture.hold(&lock("first"), "me").await;
    let before = fixture.hold(&lock("a"), "me").await;
    let answer = fixture.put(&lock("a"), strict("me")).await;
    assert_eq!(held(&answer).0, token("me"));
    let again = fixture.ask(&lock("a"), "me", LONG).await;
    assert!(!is_fresh(&again), "{again:?}");
    assert!(granted(&again).0 >= before.0 + 3);
}

/// Redis before 7 has no `PEXPIRETIME`.
#[tokio::test]
async fn where_redis_does_not_tell_the_deadline_the_script_goes_on() {
    let server = Server::start_with(&["--rename-command", "PEXPIRETIME", ""]);
    let mut other = server.client().await;
    for is_strict in [false, true] {
        let fixture = Fixture::at(server.settings());
        let request = |holder| match is_strict {
            true => strict(holder),
            false => ask(holder, LONG),
        };
        for key in ["first", "second", "third"] {
            let answer = fixture.put(&lock(key), request("me")).await;
            let deadline = granted(&answer);
            // The one that found it out may not count as a fresh one.
            assert!(
                is_fresh(&answer) || key == "second" && !is_strict,
                "{answer:?}"
            );
            armed(&answer);
            assert_eq!(
                fixture.release_if(&lock(key), "me", Some(deadline)).await,
                Outcome::Free
            );
        }
        let names = ["eval", "evalsha"];
        let before = counts(&mut other, names).await;
        fixture.put(&lock("fourth"), request("me")).await;
        let after = counts(&mut other, names).await;
        assert_eq!(after[0] + after[1], before[0] + before[1] + 1);
        assert_eq!(fixture.release(&lock("fourth"), "me").await, Outcome::Free);
    }
}

/// Such a user could not release the lock.
#[tokio::test]
async fn a_user_who_may_run_no_script_takes_no_lock() {
    let server = Server::start();
    let mut other = server.client().await;
    let () = other
        .say("ACL SETUSER app on >pw ~* &* +@all -evalsha -eval")
        .await;
    let fixture = Fixture::at_as(server.settings(), "app", "pw");
    assert_ne!(fixture.user.id(), UserId::ANONYMOUS);
    for _ in 0..2 {
        let answer = fixture.ask(&lock("a"), "me", LONG).await;
        assert!(
            matches!(answer.outcome, Outcome::Refused(_)),
            "{:?}",
            answer.outcome
        );
    }
    let exists: u64 = other.say("EXISTS a").await;
    assert_eq!(exists, 0);
}
