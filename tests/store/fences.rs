//! Fences, in both stores: they rise whatever happens to the counter.

use lockgate::lock::{Deadline, Fence, Outcome, StoreRequest, UserId};
use redis::Value;

use crate::fixture::{Fixture, LONG, lock, token};

const USER: UserId = UserId(0);

async fn ask(fixture: &Fixture, key: &str, holder: &str) -> Outcome {
    ask_for(fixture, key, holder, Fence::New, None).await
}

async fn ask_for(
    fixture: &Fixture,
    key: &str,
    holder: &str,
    fence: Fence,
    expects: Option<Deadline>,
) -> Outcome {
    let store_request = StoreRequest::Acquire {
        user: USER,
        token: token(holder),
        lease_ms: LONG,
        fence,
        expects,
        bare: false,
        strict: false,
        replicas: 0,
    };
    fixture.put(&lock(key), store_request).await.outcome
}

async fn hand_over(fixture: &Fixture, key: &str, from: &str, to: &str) -> Outcome {
    let store_request = StoreRequest::Handover {
        user: USER,
        from: token(from),
        only_if: None,
        to: token(to),
        lease_ms: LONG,
        fence: true,
        strict: false,
    };
    fixture.put(&lock(key), store_request).await.outcome
}

#[track_caller]
fn fence(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Granted {
            fence: Some(fence), ..
        } => *fence,
        other => panic!("no fence: {other:?}"),
    }
}

#[track_caller]
fn is_fresh(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Granted { fresh: true, .. })
}

async fn rises(fixture: Fixture) {
    let first = ask(&fixture, "a", "one").await;
    let again = ask(&fixture, "a", "one").await;
    let next = hand_over(&fixture, "a", "one", "two").await;
    let sent_again = hand_over(&fixture, "a", "one", "two").await;
    let elsewhere = ask(&fixture, "b", "one").await;
    let all = [&first, &again, &next, &sent_again, &elsewhere];
    assert!(
        all.iter()
            .map(|outcome| fence(outcome))
            .is_sorted_by(|a, b| a < b),
        "{all:?}"
    );
    assert!(is_fresh(&first) && is_fresh(&next) && is_fresh(&elsewhere));
    assert!(!is_fresh(&again) && !is_fresh(&sent_again));
    assert!(matches!(
        ask(&fixture, "a", "three").await,
        Outcome::Held { .. }
    ));
    assert!(matches!(
        hand_over(&fixture, "a", "three", "four").await,
        Outcome::Held { .. }
    ));
    assert_eq!(hand_over(&fixture, "free", "a", "b").await, Outcome::Free);
}

/// A holder that names the deadline of its lock keeps its fence; where the deadline differs, other clients may have
/// had a larger one.
async fn is_kept(fixture: Fixture) {
    let deadline = |outcome: &Outcome| match outcome {
        Outcome::Granted { deadline, .. } => *deadline,
        other => panic!("not granted: {other:?}"),
    };
    let again = |at| ask_for(&fixture, "a", "one", Fence::NewUnless(at), Some(at));
    let first = ask(&fixture, "a", "one").await;
    let kept = again(deadline(&first)).await;
    assert!(matches!(
        kept,
        Outcome::Granted {
            fresh: true,
            fence: None,
            ..
        }
    ));
    let late = again(deadline(&first)).await;
    assert!(fence(&late) > fence(&first) && !is_fresh(&late));
    let release = StoreRequest::Release {
        user: USER,
        token: token("one"),
        only_if: None,
    };
    assert_eq!(
        fixture.put(&lock("a"), release).await.outcome,
        Outcome::Free
    );
    let anew = again(deadline(&late)).await;
    assert!(fence(&anew) > fence(&late) && is_fresh(&anew));
}

#[tokio::test]
async fn a_fence_is_kept_in_memory() {
    is_kept(Fixture::embedded()).await;
}

#[tokio::test]
async fn a_fence_is_kept_in_redis() {
    is_kept(Fixture::redis()).await;
}

#[tokio::test]
async fn a_fence_rises_in_memory() {
    rises(Fixture::embedded()).await;
}

#[tokio::test]
async fn a_fence_rises_in_redis() {
    rises(Fixture::redis()).await;
}

#[tokio::test]
async fn a_fence_rises_over_a_counter_that_was_deleted_or_ran_ahead() {
    let fixture = Fixture::redis();
    let mut client = fixture.server.as_ref().unwrap().client().await;
    let first = fence(&ask(&fixture, "a", "one").await);
    let () = client.say("FLUSHALL").await;
    let second = fence(&ask(&fixture, "a", "two").await);
    assert!(second > first);
    // Another gate's clock, or another Redis's.
    let () = client.say("SET lockgate:fence 8000000000000000").await;
    let third = fence(&ask(&fixture, "b", "one").await);
    assert_eq!(third, 8_000_000_000_000_001);
    let () = client.say("FLUSHALL").await;
    // Lost, and Redis's clock is far behind: what this gate has seen counts.
    assert!(fence(&ask(&fixture, "c", "one").await) > third);
}

#[tokio::test]
async fn a_counter_that_is_no_number_is_an_error_and_nothing_is_held() {
    let fixture = Fixture::redis();
    let mut client = fixture.server.as_ref().unwrap().client().await;
    for counter in ["x", "-1", "1.5", "9007199254740991", "1e3"] {
        let () = client.say(&format!("SET lockgate:fence {counter}")).await;
        let Outcome::Refused(text) = ask(&fixture, "a", "me").await else {
            panic!("{counter} was taken for a number")
        };
        assert!(text.starts_with(b"ERR the fence counter"), "{text:?}");
    }
    let () = client.say("DEL lockgate:fence").await;
    let () = client.say("RPUSH lockgate:fence x").await;
    let Outcome::Refused(text) = ask(&fixture, "a", "me").await else {
        panic!("a list was taken for a number")
    };
    assert!(text.starts_with(b"WRONGTYPE"), "{text:?}");
    let keys: Value = client.say("KEYS *").await;
    assert_eq!(
        keys,
        Value::Array(vec![Value::BulkString(b"lockgate:fence".to_vec())])
    );
}
