//! Refusals of Redis, in its own words; and servers that can do less.

use std::time::{Duration, Instant};

use lockgate::{
    auth::identity::Credentials,
    lock::{Deadline, Outcome, StoreReply, StoreRequest},
    store::redis::RedisSettings,
};

use crate::{
    fixture::{Fixture, LONG, Told, ask, granted, held, lock, lock_in, token},
    network::without_users,
    redis::{Server, settings},
};

fn refused(answer: &StoreReply) -> &str {
    assert_eq!(answer.armed, None);
    match &answer.outcome {
        Outcome::Refused(text) | Outcome::WrongType(text) => std::str::from_utf8(text).unwrap(),
        other => panic!("not refused: {other:?}"),
    }
}

fn not_now(answer: &StoreReply) -> &str {
    match &answer.outcome {
        Outcome::NotNow(text) => std::str::from_utf8(text).unwrap(),
        other => panic!("not put off: {other:?}"),
    }
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

#[tokio::test]
async fn a_key_that_is_no_string_is_refused_in_the_words_of_redis() {
    let fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    let () = other.say("LPUSH list x").await;
    let name = lock("list");
    assert_eq!(refused(&fixture.ask(&name, "me", LONG).await), WRONG_TYPE);
    assert_eq!(
        refused(&fixture.hand_over(&name, "me", "you").await),
        WRONG_TYPE
    );
    assert_eq!(
        refused(&fixture.extend(&name, "me", LONG).await),
        WRONG_TYPE
    );
    assert_eq!(
        fixture.release(&name, "me").await,
        Outcome::WrongType(WRONG_TYPE.into())
    );
    assert_eq!(other.say::<String>("LPOP list").await, "x");
}

#[tokio::test]
async fn without_memory_nothing_is_granted_but_an_owner_keeps_its_lock() {
    let fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    fixture.hold(&lock("a"), "me").await;
    let () = other.say("CONFIG SET maxmemory 1").await;
    let words = "OOM command not allowed when used memory > 'maxmemory'.";
    assert_eq!(refused(&fixture.ask(&lock("b"), "me", LONG).await), words);
    assert_eq!(
        refused(&fixture.hand_over(&lock("a"), "me", "you").await),
        words
    );
    granted(&fixture.ask(&lock("a"), "me", LONG).await);
    granted(&fixture.extend(&lock("a"), "me", LONG).await);
    assert_eq!(
        held(&fixture.ask(&lock("a"), "you", LONG).await).0,
        token("me")
    );
    assert_eq!(fixture.release(&lock("a"), "me").await, Outcome::Free);
}

#[tokio::test]
async fn a_master_that_becomes_a_replica_may_acknowledge_later() {
    let server = Server::start();
    let mut other = server.client().await;
    let fixture = Fixture::at(RedisSettings {
        replicas_timeout: Duration::from_secs(20),
        timeout: Duration::from_secs(20),
        ..server.settings()
    });
    let mut store_request = ask("me", LONG);
    if let StoreRequest::Acquire { replicas, .. } = &mut store_request {
        *replicas = 1;
    }
    let asked = fixture.start(&lock("a"), store_request);
    while !(other.say::<String>("INFO clients").await).contains("blocked_clients:1") {
        tokio::task::yield_now().await;
    }
    let () = other.say("REPLICAOF 127.0.0.1 1").await;
    let outcome = asked.await.unwrap().outcome;
    let Outcome::Unacknowledged { missing, .. } = &outcome else {
        panic!("{outcome:?}");
    };
    assert!(missing.again_ms.is_some(), "{outcome:?}");
}

#[tokio::test]
async fn a_lease_that_redis_does_not_take_is_refused() {
    let fixture = Fixture::redis();
    let answer = fixture.ask(&lock("a"), "me", u64::MAX).await;
    assert!(refused(&answer).starts_with("ERR "), "{answer:?}");
    assert!(!fixture.status(&lock("a")).await.held);
}

#[tokio::test]
async fn a_lock_without_expiry_is_held_for_ever() {
    let fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    let () = other.say("SET a theirs").await;
    assert_eq!(
        held(&fixture.ask(&lock("a"), "me", LONG).await),
        (token("theirs"), None)
    );
    let status = fixture.status(&lock("a")).await;
    assert_eq!((status.held, status.ttl_ms), (true, -1));
    // And what holds no deadline is not what any gate granted.
    let guarded = fixture
        .release_if(&lock("a"), "theirs", Some(Deadline(u64::MAX)))
        .await;
    assert!(matches!(guarded, Outcome::Held { .. }));
}

#[tokio::test]
async fn a_replica_is_left_for_whatever_the_address_leads_to_then() {
    let mut fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    let before = fixture
        .ask(&lock("theirs"), "them", LONG)
        .await
        .armed
        .unwrap();
    // Nothing listens there, so it keeps its data and cannot write.
    let () = other.say("REPLICAOF 127.0.0.1 1").await;
    // Its data may be old: the store does not even answer "held".
    let (words, name) = (
        "READONLY You can't write against a read only replica.",
        lock("theirs"),
    );
    assert_eq!(not_now(&fixture.ask(&name, "me", LONG).await), words);
    assert_eq!(fixture.told().await, Told::TrackingLost(before));
    let () = other.say("REPLICAOF NO ONE").await;
    let after = fixture.ask(&name, "me", LONG).await.armed.unwrap();
    assert_ne!(before, after);
}

#[tokio::test]
async fn a_busy_server_puts_off() {
    let server = Server::start_with(&["--busy-reply-threshold", "1"]);
    let mut other = server.client().await;
    let mut killer = server.client().await;
    let fixture = Fixture::at(server.settings());
    fixture.hold(&lock("a"), "me").await;
    let script = tokio::spawn(async move {
        let (text, keys): (&[u8], &[u8]) = (b"while true do end", b"0");
        other.try_say_bytes("EVAL", &[text, keys]).await
    });
    // Only once the script runs is anybody refused.
    loop {
        let answer = fixture.ask(&lock("b"), "me", LONG).await;
        if let Outcome::NotNow(text) = &answer.outcome {
            assert!(text.starts_with(b"BUSY "), "{answer:?}");
            break;
        }
        tokio::task::yield_now().await;
    }
    let () = killer.say("SCRIPT KILL").await;
    assert!(script.await.unwrap().is_err());
    fixture.hold(&lock("c"), "me").await;
}

#[tokio::test]
async fn scripts_that_redis_forgot_are_sent_again() {
    let fixture = Fixture::redis();
    let mut other = fixture.server.as_ref().unwrap().client().await;
    for turn in 0..2 {
        let name = lock(format!("{turn}"));
        fixture.hold(&name, "me").await;
        granted(&fixture.extend(&name, "me", LONG).await);
        granted(&fixture.hand_over(&name, "me", "you").await);
        assert_eq!(fixture.release(&name, "you").await, Outcome::Free);
        let () = other.say("SCRIPT FLUSH").await;
    }
}

#[tokio::test]
async fn a_password_opens_and_a_wrong_one_is_told_to_whoever_asks() {
    let server = Server::start_with(&["--requirepass", "open sesame"]);
    let fixture = Fixture::at_as(server.settings(), "default", "open sesame");
    fixture.hold(&lock("a"), "me").await;

    let fixture = Fixture::at_as(server.settings(), "default", "sesame");
    for _ in 0..3 {
        let text = "WRONGPASS invalid username-password pair or user is disabled.";
        assert_eq!(refused(&fixture.ask(&lock("b"), "me", LONG).await), text);
        assert_eq!(fixture.try_look(&lock("b")).await.unwrap_err(), text);
    }
    let fixture = Fixture::at(server.settings());
    let text = "NOAUTH Authentication required.";
    assert_eq!(refused(&fixture.ask(&lock("b"), "me", LONG).await), text);
}

#[tokio::test]
async fn a_password_that_becomes_right_opens() {
    let server = Server::start();
    let mut other = server.client().await;
    let () = other.say("ACL SETUSER ann on >old ~* &* +@all").await;
    let fixture = Fixture::at_as(server.settings(), "ann", "new");
    assert!(refused(&fixture.ask(&lock("a"), "me", LONG).await).starts_with("WRONGPASS "));
    let () = other.say("ACL SETUSER ann >new").await;
    fixture.hold(&lock("a"), "me").await;
}

/// The old password delays neither a client with the new one nor a client that came with the old one.
#[tokio::test]
async fn of_several_passwords_the_one_that_works_opens() {
    let server = Server::start();
    let mut other = server.client().await;
    let () = other.say("ACL SETUSER ann on >old >new ~* &* +@all").await;
    let mut fixture = Fixture::at_as(server.settings(), "ann", "new");
    fixture.becomes("ann", "old");
    let () = other.say("ACL SETUSER ann <old").await;
    fixture.hold(&lock("a"), "me").await;
    assert_eq!(
        fixture.user.credentials().len(),
        1,
        "the dead one is forgotten"
    );
}

/// That none works may be for another reason; then none is forgotten.
#[tokio::test]
async fn a_user_that_was_off_for_a_while_is_let_in_again() {
    let server = Server::start();
    let mut other = server.client().await;
    let () = other.say("ACL SETUSER ann off >old >new ~* &* +@all").await;
    let mut fixture = Fixture::at_as(server.settings(), "ann", "old");
    fixture.becomes("ann", "new");
    assert!(refused(&fixture.ask(&lock("a"), "me", LONG).await).starts_with("WRONGPASS "));
    let () = other.say("ACL SETUSER ann on <old").await;
    fixture.hold(&lock("a"), "me").await;
}

#[tokio::test]
async fn a_password_may_be_any_bytes() {
    let server = Server::start();
    let mut other = server.client().await;
    let password = "\u{e9}\r\n$1\r\n \"x'";
    let words: [&[u8]; 6] = [
        b"SETUSER",
        b"ann",
        b"on",
        &[b">", password.as_bytes()].concat(),
        b"~*",
        b"+@all",
    ];
    let () = other.say_bytes("ACL", &words).await;
    Fixture::at_as(server.settings(), "ann", password)
        .hold(&lock("a"), "me")
        .await;
}

/// However often a refused user asks, each reply is Redis's refusal, and comes at once: a refusal is known during the
/// pause before the next attempt, and other users may be waiting for the lock.
#[tokio::test]
async fn each_request_of_a_refused_user_gets_the_refusal_at_once() {
    let server = Server::start();
    let mut other = server.client().await;
    let () = other
        .say("ACL SETUSER ann on >pw ~* &* +@all -select")
        .await;
    let fixture = Fixture::at_as(server.settings(), "ann", "pw");
    let begun = Instant::now();
    let text = "NOPERM this user has no permissions to run the 'select' command";
    for _ in 0..200 {
        assert_eq!(
            refused(&fixture.ask(&lock_in(1, "a"), "me", LONG).await),
            text
        );
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// Each user has its own connection, and Redis's own rules.
#[tokio::test]
async fn refusals_have_the_words_of_redis() {
    let server = Server::start();
    let mut other = server.client().await;
    for user in ["ann", "ben"] {
        let rule = format!("ACL SETUSER {user} on >pw ~{user}:* &* +@all");
        let () = other.say(&rule).await;
    }
    let mut fixture = Fixture::at_as(server.settings(), "ann", "pw");
    fixture.hold(&lock("ann:a"), "me").await;
    assert_eq!(
        refused(&fixture.ask(&lock("ben:a"), "me", LONG).await),
        NO_KEY
    );
    fixture.becomes("ben", "pw");
    fixture.hold(&lock("ben:a"), "me").await;
    assert_eq!(
        refused(&fixture.ask(&lock("ann:a"), "me", LONG).await),
        NO_KEY
    );
    assert_eq!(
        refused(&fixture.hand_over(&lock("ann:a"), "me", "you").await),
        NO_KEY
    );
    assert_eq!(
        refused(&fixture.extend(&lock("ann:a"), "me", LONG).await),
        NO_KEY
    );
    assert_eq!(
        fixture.release(&lock("ann:a"), "me").await,
        Outcome::Refused(NO_KEY.into())
    );
    assert_eq!(refused(&fixture.check(&lock("ann:a")).await), NO_KEY);
    assert_eq!(fixture.try_look(&lock("ann:a")).await.unwrap_err(), NO_KEY);
    assert_eq!(fixture.store().may_list(0, fixture.user.id()).await, Ok(()));
    fixture.becomes("ann", "pw");
    assert_eq!(
        held(&fixture.ask(&lock("ann:a"), "you", LONG).await).0,
        token("me")
    );
}

const NO_KEY: &str =
    "NOPERM this user has no permissions to access one of the keys used as arguments";

/// Inside a script Redis does not name the command; the client reads what it says to the command itself.
#[tokio::test]
async fn a_command_that_the_user_may_not_run_is_named() {
    let server = Server::start();
    let mut other = server.client().await;
    let mut fixture = Fixture::at(server.settings());
    fixture.hold(&lock("a"), "me").await;
    for acl_error in [
        "set", "get", "pttl", "setrange", "pexpire", "del", "evalsha", "eval",
    ] {
        let rule = format!("ACL SETUSER {acl_error} on >pw ~* &* +@all -{acl_error}");
        let () = other.say(&rule).await;
        let () = other.say("SCRIPT FLUSH").await;
        fixture.becomes(acl_error, "pw");
        let words = format!("NOPERM this user has no permissions to run the '{acl_error}' command");
        let answer = match acl_error {
            "del" => fixture.release_answer(&lock("a"), "me").await,
            "pexpire" => fixture.extend(&lock("a"), "me", LONG).await,
            "setrange" | "pttl" => fixture.check(&lock("a")).await,
            _ => fixture.ask(&lock("a"), "you", LONG).await,
        };
        assert_eq!(refused(&answer), words);
    }
    let rule = "ACL SETUSER blind on >pw ~* &* +@all -scan";
    let () = other.say(rule).await;
    fixture.becomes("blind", "pw");
    let words = "NOPERM this user has no permissions to run the 'scan' command";
    assert_eq!(
        fixture
            .store()
            .may_list(0, fixture.user.id())
            .await
            .unwrap_err(),
        words
    );
}

/// With just these rights a user takes locks.
#[tokio::test]
async fn these_rights_are_enough_for_locks() {
    let server = Server::start();
    let mut other = server.client().await;
    let access = include_str!("../../docs/access.md");
    let rights = access
        .lines()
        .find_map(|line| line.strip_prefix("ACL SETUSER app on >password ~order:* "))
        .expect("docs/access.md names the rights that locks need");
    let () = other
        .say(&format!("ACL SETUSER app on >pw ~order:* {rights}"))
        .await;
    let fixture = Fixture::at_as(server.settings(), "app", "pw");
    let name = lock_in(1, "order:1");
    for _ in 0..2 {
        assert!(
            fixture.ask(&name, "me", LONG).await.armed.is_some(),
            "Redis tells of changes"
        );
        assert_eq!(held(&fixture.ask(&name, "you", LONG).await).0, token("me"));
        assert_eq!(held(&fixture.check(&name).await).0, token("me"));
        granted(&fixture.extend(&name, "me", LONG).await);
        granted(&fixture.hand_over(&name, "me", "you").await);
        assert_eq!(fixture.release(&name, "you").await, Outcome::Free);
        assert!(!fixture.status(&name).await.held);
        let () = other.say("SCRIPT FLUSH").await;
    }
}

#[tokio::test]
async fn a_database_that_redis_does_not_have_is_refused_in_its_words() {
    let fixture = Fixture::redis();
    let answer = fixture.ask(&lock_in(99, "a"), "me", LONG).await;
    assert_eq!(refused(&answer), "ERR DB index is out of range");
    fixture.hold(&lock("a"), "me").await;
}

#[tokio::test]
async fn while_redis_takes_no_more_clients_the_question_waits() {
    let server = Server::start();
    let mut other = server.client().await;
    let () = other.say("CONFIG SET maxclients 1").await;
    let fixture = Fixture::at(RedisSettings {
        timeout: Duration::from_millis(300),
        ..server.settings()
    });
    let asked = fixture.start(&lock("a"), ask("me", LONG));
    // Refused connections show that it was tried.
    let rejected = |info: String| {
        info.lines()
            .any(|line| line.starts_with("rejected_connections:") && !line.ends_with(":0"))
    };
    while !rejected(other.say("INFO stats").await) {
        tokio::task::yield_now().await;
    }
    assert!(!asked.is_finished());
    assert!(
        fixture
            .try_look(&lock("a"))
            .await
            .unwrap_err()
            .starts_with(b"UPSTREAM ")
    );
    let () = other.say("CONFIG SET maxclients 100").await;
    fixture
        .granted_or_anew(asked.await.unwrap(), &lock("a"), "me")
        .await;
}

/// Everything works, but nothing is told.
async fn assert_mute_but_well(fixture: &mut Fixture, server: &Server) {
    let mut other = server.client().await;
    let answer = fixture.ask(&lock("a"), "me", LONG).await;
    granted(&answer);
    assert_eq!(answer.armed, None);
    assert_eq!(fixture.ask(&lock("a"), "you", LONG).await.armed, None);
    granted(&fixture.hand_over(&lock("a"), "me", "you").await);
    assert_eq!(fixture.release(&lock("a"), "you").await, Outcome::Free);
    fixture.hold(&lock_in(3, "a"), "me").await;
    assert!(!fixture.status(&lock("a")).await.held);
    let () = other.say("FLUSHALL").await;
    assert!(!fixture.status(&lock_in(3, "a")).await.held);
    assert_eq!(fixture.told_already(), []);
}

#[tokio::test]
async fn a_server_without_resp3_is_served_without_pushes() {
    let server = Server::start_with(&["--rename-command", "HELLO", ""]);
    assert_mute_but_well(&mut Fixture::at(server.settings()), &server).await;
}

#[tokio::test]
async fn a_server_without_tracking_is_served_without_pushes() {
    let server = Server::start_with(&["--rename-command", "CLIENT", ""]);
    assert_mute_but_well(&mut Fixture::at(server.settings()), &server).await;
}

#[tokio::test]
async fn a_server_without_resp3_is_told_the_password_all_the_same() {
    let server = Server::start_with(&["--rename-command", "HELLO", "", "--requirepass", "pw"]);
    let fixture = Fixture::at_as(server.settings(), "default", "pw");
    fixture.hold(&lock("a"), "me").await;
    let fixture = Fixture::at_as(server.settings(), "default", "no");
    assert!(refused(&fixture.ask(&lock("c"), "me", LONG).await).starts_with("WRONGPASS "));
}

/// Redis before 6 has no users: there a password is that of everybody.
#[tokio::test]
async fn a_server_without_users_is_told_the_password_alone() {
    let server = Server::start_with(&["--rename-command", "HELLO", "", "--requirepass", "pw"]);
    let port = without_users(&server).await;
    let own = Credentials::new(b"default", b"pw").unwrap();
    for own in [None, Some(own)] {
        let settings = RedisSettings {
            own,
            // With it the account is asked who Redis is.
            grace: Some(Duration::ZERO),
            ..settings(port)
        };
        let fixture = Fixture::at_as(settings.clone(), "default", "pw");
        fixture.hold(&lock("a"), "me").await;
        assert_eq!(fixture.release(&lock("a"), "me").await, Outcome::Free);
        let fixture = Fixture::at_as(settings, "default", "no");
        let answer = fixture.ask(&lock("a"), "me", LONG).await;
        let text = refused(&answer);
        assert!(
            text.starts_with("WRONGPASS ") || text.contains("invalid password"),
            "{text}"
        );
    }
}

/// Redis before 7 has no `PEXPIRETIME`.
#[tokio::test]
async fn an_older_server_knows_deadlines_too() {
    let server = Server::start_with(&["--rename-command", "PEXPIRETIME", ""]);
    let mut fixture = Fixture::at(server.settings());
    let mut before = fixture.hold(&lock("a"), "me").await;
    for _ in 0..20 {
        let after = fixture.hold(&lock("a"), "me").await;
        assert!(after.0 >= before.0 + 3, "{before:?} {after:?}");
        assert!(matches!(
            fixture.release_if(&lock("a"), "me", Some(before)).await,
            Outcome::Held { .. }
        ));
        before = after;
    }
    let at = granted(
        &fixture
            .hand_over_if(&lock("a"), "me", Some(before), "you")
            .await,
    );
    let answer = fixture.hand_over(&lock("a"), "me", "you").await;
    let Outcome::Granted {
        deadline,
        fresh: false,
        ..
    } = answer.outcome
    else {
        panic!("{answer:?}")
    };
    assert!(deadline.0 >= at.0 + 3, "{deadline:?} {at:?}");
    let mut other = server.client().await;
    let () = other.say("PEXPIRE a 600000").await;
    assert_eq!(
        fixture.told().await,
        Told::Changed(answer.armed.unwrap(), lock("a"))
    );
}

/// Writes are refused until a replica is back, or the disk takes a snapshot.
#[tokio::test]
async fn a_server_that_takes_no_writes_for_now_is_asked_later() {
    let server = Server::start_with(&["--enable-protected-configs", "yes"]);
    let mut other = server.client().await;
    let fixture = Fixture::at(server.settings());
    fixture.hold(&lock("held"), "me").await;
    let () = other.say("CONFIG SET min-replicas-to-write 1").await;
    assert!(is_not_now(&fixture, "NOREPLICAS").await);
    let () = other.say("CONFIG SET min-replicas-to-write 0").await;
    let save: &[&[u8]] = &[b"SET", b"save", b"900 1"];
    let () = other.say_bytes("CONFIG", save).await;
    let () = other.say("CONFIG SET dir /proc").await;
    let _: String = other.say("BGSAVE").await;
    while !other
        .say::<String>("INFO persistence")
        .await
        .contains("rdb_last_bgsave_status:err")
    {
        tokio::task::yield_now().await;
    }
    assert!(is_not_now(&fixture, "MISCONF").await);
    let () = other.say("CONFIG SET stop-writes-on-bgsave-error no").await;
    assert_eq!(fixture.release(&lock("held"), "me").await, Outcome::Free);
}

/// Whether acquisitions, releases and extensions are put off with this error.
async fn is_not_now(fixture: &Fixture, code: &str) -> bool {
    let outcomes = [
        fixture.ask(&lock("free"), "me", LONG).await.outcome,
        fixture.release(&lock("held"), "me").await,
        fixture.extend(&lock("held"), "me", LONG).await.outcome,
        fixture.hand_over(&lock("held"), "me", "me").await.outcome,
    ];
    let is_it =
        |it: &Outcome| matches!(it, Outcome::NotNow(text) if text.starts_with(code.as_bytes()));
    outcomes.iter().all(is_it)
}
