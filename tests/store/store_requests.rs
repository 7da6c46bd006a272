//! Every store request in every situation, put to both stores: what Redis promises, memory keeps too.

use std::time::{SystemTime, UNIX_EPOCH};

use lockgate::lock::{Deadline, Fence, Outcome, StoreReply, StoreRequest, Token, UserId};

use crate::fixture::{Fixture, LONG, Told, armed, ask, granted, held, lock, lock_in, token};

const NOT_RELEASED: Outcome = Outcome::Held {
    holder: None,
    ttl_ms: None,
};

fn unix_ms() -> u64 {
    u64::try_from(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis(),
    )
    .unwrap()
}

/// A lease of so many milliseconds that began just now ends about then.
fn assert_ends_after(deadline: Deadline, lease_ms: u64) {
    let from_now = deadline.0.saturating_sub(unix_ms());
    assert!(
        (lease_ms.saturating_sub(10_000)..=lease_ms + 50).contains(&from_now),
        "{from_now} instead of {lease_ms}"
    );
}

macro_rules! in_both_stores {
    ($($name:ident),* $(,)?) => {
        mod in_redis {
            $(#[tokio::test] async fn $name() { super::$name(crate::fixture::Fixture::redis()).await; })*
        }
        mod in_memory {
            $(#[tokio::test] async fn $name() { super::$name(crate::fixture::Fixture::embedded()).await; })*
        }
    };
}

in_both_stores!(
    a_free_lock_is_granted_until_its_deadline,
    a_held_lock_is_not_granted_and_says_who_holds_it_and_for_how_long,
    asking_again_begins_the_lease_anew,
    asking_again_moves_the_deadline_by_3_ms_even_within_the_same_millisecond,
    asking_again_with_a_shorter_lease_shortens_it,
    a_handover_passes_the_lock_on,
    a_handover_sent_twice_begins_the_lease_anew,
    a_handover_by_somebody_else_changes_nothing,
    a_handover_of_a_free_lock_finds_it_free,
    a_guarded_handover_needs_the_very_deadline,
    a_release_frees_the_lock,
    a_release_by_somebody_else_changes_nothing,
    a_release_of_a_free_lock_is_not_done,
    a_guarded_release_needs_the_very_deadline,
    a_guard_knows_a_lease_that_began_anew,
    extending_begins_the_lease_anew,
    extending_moves_the_deadline_by_3_ms_even_within_the_same_millisecond,
    extending_never_acquires,
    an_expired_lock_is_free_to_every_question,
    an_expiry_is_told,
    keys_and_tokens_are_any_bytes,
    looking_changes_nothing,
    databases_are_apart,
    the_answer_says_whether_changes_will_be_told,
);

async fn a_free_lock_is_granted_until_its_deadline(fixture: Fixture) {
    let answer = fixture.ask(&lock("a"), "me", 30_000).await;
    assert_ends_after(granted(&answer), 30_000);
    assert_eq!(fixture.holder(&lock("a")).await, Some(token("me")));
}

async fn a_held_lock_is_not_granted_and_says_who_holds_it_and_for_how_long(fixture: Fixture) {
    fixture.ask(&lock("a"), "somebody", 30_000).await;
    let (holder, ttl_ms) = held(&fixture.ask(&lock("a"), "me", LONG).await);
    assert_eq!(holder, token("somebody"));
    assert!((20_000..=30_000).contains(&ttl_ms.unwrap()), "{ttl_ms:?}");
    assert_eq!(fixture.holder(&lock("a")).await, Some(token("somebody")));
}

async fn asking_again_begins_the_lease_anew(fixture: Fixture) {
    let first = fixture.ask(&lock("a"), "me", 30_000).await;
    let second = fixture.ask(&lock("a"), "me", 90_000).await;
    let is_fresh =
        |answer: &StoreReply| matches!(answer.outcome, Outcome::Granted { fresh: true, .. });
    assert!(
        is_fresh(&first) && !is_fresh(&second),
        "it held the lock already"
    );
    let (first, second) = (granted(&first), granted(&second));
    assert_ends_after(first, 30_000);
    assert_ends_after(second, 90_000);
    assert!(fixture.status(&lock("a")).await.ttl_ms > 80_000);
}

async fn asking_again_moves_the_deadline_by_3_ms_even_within_the_same_millisecond(
    fixture: Fixture,
) {
    let mut before = fixture.hold(&lock("a"), "me").await;
    for _ in 0..20 {
        let after = fixture.hold(&lock("a"), "me").await;
        assert!(after.0 >= before.0 + 3, "{before:?} {after:?}");
        before = after;
    }
}

async fn asking_again_with_a_shorter_lease_shortens_it(fixture: Fixture) {
    fixture.ask(&lock("a"), "me", 90_000).await;
    assert_ends_after(
        granted(&fixture.ask(&lock("a"), "me", 30_000).await),
        30_000,
    );
    assert!(fixture.status(&lock("a")).await.ttl_ms <= 30_000);
}

async fn a_handover_passes_the_lock_on(fixture: Fixture) {
    fixture.ask(&lock("a"), "me", 30_000).await;
    assert_ends_after(
        granted(&fixture.hand_over(&lock("a"), "me", "you").await),
        LONG,
    );
    assert_eq!(fixture.holder(&lock("a")).await, Some(token("you")));
}

async fn a_handover_sent_twice_begins_the_lease_anew(fixture: Fixture) {
    fixture.hold(&lock("a"), "me").await;
    let once = granted(&fixture.hand_over(&lock("a"), "me", "you").await);
    let again = fixture.hand_over(&lock("a"), "me", "you").await;
    assert!(granted(&again).0 >= once.0 + 3);
    assert!(matches!(
        again.outcome,
        Outcome::Granted { fresh: false, .. }
    ));
}

async fn a_handover_by_somebody_else_changes_nothing(fixture: Fixture) {
    fixture.ask(&lock("a"), "owner", 30_000).await;
    let (holder, ttl_ms) = held(&fixture.hand_over(&lock("a"), "me", "you").await);
    assert_eq!(holder, token("owner"));
    assert!((20_000..=30_000).contains(&ttl_ms.unwrap()), "{ttl_ms:?}");
    assert_eq!(fixture.holder(&lock("a")).await, Some(token("owner")));
}

async fn a_handover_of_a_free_lock_finds_it_free(fixture: Fixture) {
    assert_eq!(
        fixture.hand_over(&lock("a"), "me", "you").await.outcome,
        Outcome::Free
    );
    assert!(!fixture.status(&lock("a")).await.held);
}

async fn a_guarded_handover_needs_the_very_deadline(fixture: Fixture) {
    let at = fixture.hold(&lock("a"), "me").await;
    for wrong in [at.0 - 3, at.0 + 3] {
        let answer = fixture
            .hand_over_if(&lock("a"), "me", Some(Deadline(wrong)), "you")
            .await;
        assert_eq!(held(&answer).0, token("me"));
    }
    granted(
        &fixture
            .hand_over_if(&lock("a"), "me", Some(at), "you")
            .await,
    );
    assert_eq!(fixture.holder(&lock("a")).await, Some(token("you")));
}

async fn a_release_frees_the_lock(fixture: Fixture) {
    fixture.hold(&lock("a"), "me").await;
    assert_eq!(fixture.release(&lock("a"), "me").await, Outcome::Free);
    assert!(!fixture.status(&lock("a")).await.held);
    fixture.hold(&lock("a"), "you").await;
}

async fn a_release_by_somebody_else_changes_nothing(fixture: Fixture) {
    fixture.hold(&lock("a"), "owner").await;
    assert_eq!(fixture.release(&lock("a"), "me").await, NOT_RELEASED);
    assert_eq!(fixture.holder(&lock("a")).await, Some(token("owner")));
}

async fn a_release_of_a_free_lock_is_not_done(fixture: Fixture) {
    assert_eq!(fixture.release(&lock("a"), "me").await, NOT_RELEASED);
}

async fn a_guarded_release_needs_the_very_deadline(fixture: Fixture) {
    let at = fixture.hold(&lock("a"), "me").await;
    for wrong in [at.0 - 3, at.0 + 3] {
        assert_eq!(
            fixture
                .release_if(&lock("a"), "me", Some(Deadline(wrong)))
                .await,
            NOT_RELEASED
        );
    }
    assert_eq!(fixture.holder(&lock("a")).await, Some(token("me")));
    assert_eq!(
        fixture.release_if(&lock("a"), "me", Some(at)).await,
        Outcome::Free
    );
    assert!(!fixture.status(&lock("a")).await.held);
}

/// The owner retried at another gate and was granted again: the first gate must not take that back.
async fn a_guard_knows_a_lease_that_began_anew(fixture: Fixture) {
    let first = fixture.hold(&lock("a"), "me").await;
    let second = fixture.hold(&lock("a"), "me").await;
    assert_eq!(
        fixture.release_if(&lock("a"), "me", Some(first)).await,
        NOT_RELEASED
    );
    assert_eq!(
        held(
            &fixture
                .hand_over_if(&lock("a"), "me", Some(first), "you")
                .await
        )
        .0,
        token("me")
    );
    assert_eq!(
        fixture.release_if(&lock("a"), "me", Some(second)).await,
        Outcome::Free
    );
}

async fn extending_begins_the_lease_anew(fixture: Fixture) {
    fixture.ask(&lock("a"), "me", 30_000).await;
    assert_ends_after(
        granted(&fixture.extend(&lock("a"), "me", 90_000).await),
        90_000,
    );
    assert!(fixture.status(&lock("a")).await.ttl_ms > 80_000);
    assert_ends_after(
        granted(&fixture.extend(&lock("a"), "me", 30_000).await),
        30_000,
    );
    assert!(fixture.status(&lock("a")).await.ttl_ms <= 30_000);
}

async fn extending_moves_the_deadline_by_3_ms_even_within_the_same_millisecond(fixture: Fixture) {
    let mut before = fixture.hold(&lock("a"), "me").await;
    for _ in 0..20 {
        let after = granted(&fixture.extend(&lock("a"), "me", LONG).await);
        assert!(after.0 >= before.0 + 3, "{before:?} {after:?}");
        before = after;
    }
}

async fn extending_never_acquires(fixture: Fixture) {
    assert_eq!(
        fixture.extend(&lock("a"), "me", LONG).await.outcome,
        Outcome::Free
    );
    assert!(!fixture.status(&lock("a")).await.held);
    fixture.ask(&lock("a"), "owner", 30_000).await;
    let (holder, ttl_ms) = held(&fixture.extend(&lock("a"), "me", LONG).await);
    assert_eq!(holder, token("owner"));
    assert!((20_000..=30_000).contains(&ttl_ms.unwrap()), "{ttl_ms:?}");
}

async fn an_expired_lock_is_free_to_every_question(mut fixture: Fixture) {
    for name in ["asked", "handed over", "released", "extended", "looked at"] {
        let link = armed(&fixture.ask(&lock(name), "me", 1).await);
        assert_eq!(fixture.told().await, Told::Changed(link, lock(name)));
    }
    fixture.hold(&lock("asked"), "you").await;
    assert_eq!(
        fixture
            .hand_over(&lock("handed over"), "me", "you")
            .await
            .outcome,
        Outcome::Free
    );
    assert_eq!(fixture.release(&lock("released"), "me").await, NOT_RELEASED);
    assert_eq!(
        fixture.extend(&lock("extended"), "me", LONG).await.outcome,
        Outcome::Free
    );
    assert!(!fixture.status(&lock("looked at")).await.held);
}

async fn an_expiry_is_told(mut fixture: Fixture) {
    let later = armed(&fixture.ask(&lock("later"), "me", 120).await);
    let sooner = armed(&fixture.ask(&lock("sooner"), "me", 10).await);
    fixture.hold(&lock("not at all"), "me").await;
    assert_eq!(fixture.told().await, Told::Changed(sooner, lock("sooner")));
    assert_eq!(fixture.told().await, Told::Changed(later, lock("later")));
    assert!(fixture.status(&lock("not at all")).await.held);
}

async fn keys_and_tokens_are_any_bytes(fixture: Fixture) {
    let name = lock(b"\0 \r\n\xff\"{}*");
    let bytes = Token::new(&b"\r\n$-1\r\n\0\xfe"[..]);
    let user = UserId(0);
    let mine = StoreRequest::Acquire {
        user,
        token: bytes.clone(),
        lease_ms: LONG,
        fence: Fence::No,
        expects: None,
        bare: false,
        strict: false,
        replicas: 0,
    };
    granted(&fixture.put(&name, mine).await);
    assert_eq!(held(&fixture.ask(&name, "me", LONG).await).0, bytes);
    let release = StoreRequest::Release {
        user,
        token: bytes,
        only_if: None,
    };
    assert_eq!(fixture.put(&name, release).await.outcome, Outcome::Free);
}

async fn looking_changes_nothing(fixture: Fixture) {
    let free = fixture.status(&lock("a")).await;
    assert_eq!((free.held, free.ttl_ms), (false, -2));
    let at = granted(&fixture.ask(&lock("a"), "me", 30_000).await);
    let status = fixture.status(&lock("a")).await;
    assert!(
        status.held && (20_000..=30_000).contains(&status.ttl_ms),
        "{status:?}"
    );
    assert_eq!(
        fixture.release_if(&lock("a"), "me", Some(at)).await,
        Outcome::Free
    );
}

async fn databases_are_apart(fixture: Fixture) {
    fixture.hold(&lock_in(0, "a"), "zero").await;
    fixture.hold(&lock_in(5, "a"), "five").await;
    assert_eq!(fixture.holder(&lock_in(0, "a")).await, Some(token("zero")));
    assert_eq!(
        fixture.release(&lock_in(5, "a"), "five").await,
        Outcome::Free
    );
    assert!(fixture.status(&lock_in(0, "a")).await.held);
}

/// Whatever leaves a lock that somebody may wait for reads it last. A release leaves none.
async fn the_answer_says_whether_changes_will_be_told(fixture: Fixture) {
    let release = StoreRequest::Release {
        user: UserId(0),
        token: token("me"),
        only_if: None,
    };
    let link = armed(&fixture.ask(&lock("a"), "me", LONG).await);
    for answer in [
        fixture.ask(&lock("a"), "you", LONG).await,
        fixture.ask(&lock("a"), "me", LONG).await,
        fixture.extend(&lock("a"), "me", LONG).await,
        fixture.extend(&lock("a"), "you", LONG).await,
        fixture.hand_over(&lock("a"), "me", "you").await,
        fixture.hand_over(&lock("a"), "me", "you").await,
        fixture.hand_over(&lock("a"), "you", "me").await,
        fixture.extend(&lock("free"), "me", LONG).await,
        fixture.hand_over(&lock("free"), "me", "you").await,
    ] {
        assert_eq!(answer.armed, Some(link), "{answer:?}");
    }
    assert_eq!(fixture.put(&lock("a"), release).await.armed, None);
    assert_eq!(
        fixture.put(&lock("a"), ask("me", LONG)).await.armed,
        Some(link)
    );
}
