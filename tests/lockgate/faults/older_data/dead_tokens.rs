//! Tokens that hold nothing any more are back with the older data: they give way to the owner of today,
//! and where there is none they are gone when the grace is over.

use std::time::{Duration, Instant};

use super::{SETTINGS, Stage, Wrongs, grant_again};
use crate::{
    faults::{holder, timed, waiter},
    support::{Client, Lockgate, Machine, Proxy, RedisServer, Value},
};

const ROUNDS: usize = 3;
const KEYS: usize = 20;

/// More than the tokens that were once remembered of one lock.
const MANY: usize = 1_500;

/// The grace of [`SETTINGS`], and the time to notice that the connection broke, with room for a busy machine.
const SERVED_WITHIN: Duration = Duration::from_millis(2_500 + 2_000);

/// How a lock came from its older token to where it is, by clients of two lockgates.
type Way = fn(&mut Clients<'_>, &str);

struct Clients<'a> {
    stage: &'a Stage,
    /// One of each lockgate.
    of: Vec<Client>,
}

impl<'a> Clients<'a> {
    fn of(stage: &'a Stage) -> Self {
        let of = stage.gates.iter().map(Lockgate::client).collect();
        Self { stage, of }
    }

    #[track_caller]
    fn locks(&mut self, gate: usize, key: &str, token: &str) {
        let command = ["LOCK", key, "TOKEN", token, "PX", "3600000", "WAIT", "9000"];
        assert_eq!(self.of[gate].call(&command), token);
    }

    #[track_caller]
    fn unlocks(&mut self, gate: usize, key: &str, token: &str) {
        assert_eq!(self.of[gate].call(&["UNLOCK", key, token]), 1);
    }

    /// Others had it meanwhile, very often.
    #[track_caller]
    fn passes_through_many(&mut self, gate: usize, key: &str) {
        let client = &mut self.of[gate];
        for n in 0..MANY {
            let token = format!("t{n}");
            client.send(&["LOCK", key, "TOKEN", &token, "PX", "60000"]);
            client.send(&["UNLOCK", key, &token]);
        }
        for n in 0..MANY {
            assert_eq!(client.read_reply(), format!("t{n}"));
            assert_eq!(client.read_reply(), 1);
        }
    }

    /// Past any lockgate.
    fn directly(&self, command: &[&str]) -> Value {
        self.stage.redis.client().call(command)
    }
}

/// The ends of the older token, which the first lockgate granted and the snapshot has.
const WAYS: [(&str, Way); 8] = [
    ("released", |clients, key| clients.unlocks(0, key, "old")),
    ("released elsewhere", |clients, key| {
        clients.unlocks(1, key, "old");
    }),
    ("handed on, and released", |clients, key| {
        let mut next = waiter(&clients.stage.gates[0], key, "next", 1);
        clients.unlocks(0, key, "old");
        assert_eq!(next.read_reply(), "next");
        clients.unlocks(0, key, "next");
    }),
    ("deleted in Redis", |clients, key| {
        assert_eq!(clients.directly(&["DEL", key]), 1);
    }),
    ("released in Redis", |clients, key| {
        let script =
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end";
        assert_eq!(clients.directly(&["EVAL", script, "1", key, "old"]), 1);
    }),
    ("replaced in Redis", |clients, key| {
        assert_eq!(clients.directly(&["SET", key, "direct"]), "OK");
        assert_eq!(clients.directly(&["DEL", key]), 1);
    }),
    ("released before many others", |clients, key| {
        clients.unlocks(0, key, "old");
        clients.passes_through_many(0, key);
    }),
    ("released before many others elsewhere", |clients, key| {
        clients.unlocks(0, key, "old");
        clients.passes_through_many(1, key);
    }),
];

/// The present owner locked through the other lockgate, and a third client waits.
#[test]
fn a_lease_granted_elsewhere_after_a_release_outlives_the_older_token() {
    let mut stage = Stage::with_gates(2);
    let mut wrongs = Wrongs::default();
    for round in 0..ROUNDS {
        let keys: Vec<_> = (0..KEYS).map(|n| format!("k:{round}:{n}")).collect();
        let mut clients = Clients::of(&stage);
        for (n, key) in keys.iter().enumerate() {
            clients.locks(n % 2, key, "old");
        }
        stage.takes_a_snapshot();
        let mut thirds = Vec::new();
        for (n, key) in keys.iter().enumerate() {
            clients.unlocks(n % 2, key, "old");
            clients.locks(1 - n % 2, key, "owner");
            thirds.push(waiter(&stage.gates[n / 2 % 2], key, "third", 1));
        }
        let mut owners = clients.of;
        stage.goes_back();
        stage.settles();
        for (n, (key, third)) in keys.iter().zip(&mut thirds).enumerate() {
            let what = |what| format!("{key}, of gate {}: {what}", 1 - n % 2);
            wrongs.unless_is(&what("its holder"), &holder(&stage.redis, key), "owner");
            let granted = third.hears_within(Duration::ZERO).unwrap();
            wrongs.unless(!granted, || what("the third was granted it, too"));
            let released = owners[1 - n % 2].call(&["UNLOCK", key, "owner"]);
            wrongs.unless_is(&what("UNLOCK by the owner"), &released, 1);
            // At the latest when it has been got out of the way by hand, so that all are looked at.
            if released != 1 {
                stage.redis.client().call(&["DEL", key]);
            }
            assert_eq!(third.read_reply(), "third");
            assert_eq!(third.call(&["UNLOCK", key, "third"]), 1);
        }
    }
    wrongs.none();
}

/// Whatever became of the older token: one lockgate, or two, and the owner of either.
#[test]
fn the_owner_outlives_every_older_token() {
    for owner_of in [0, 1] {
        let mut stage = Stage::with_gates(2);
        let mut clients = Clients::of(&stage);
        for (n, (_, _)) in WAYS.iter().enumerate() {
            clients.locks(0, &format!("k:{n}"), "old");
        }
        stage.takes_a_snapshot();
        for (n, (_, way)) in WAYS.iter().enumerate() {
            way(&mut clients, &format!("k:{n}"));
            clients.locks(owner_of, &format!("k:{n}"), "owner");
        }
        let mut owner = clients.of.swap_remove(owner_of);
        stage.goes_back();
        stage.settles();
        let mut wrongs = Wrongs::default();
        for (n, (way, _)) in WAYS.iter().enumerate() {
            let (key, what) = (format!("k:{n}"), format!("{way}, owner of gate {owner_of}"));
            wrongs.unless_is(&what, &holder(&stage.redis, &key), "owner");
            wrongs.unless_is(&what, &owner.call(&["UNLOCK", &key, "owner"]), 1);
        }
        wrongs.none();
    }
}

/// The lock has no owner: it is free when the grace is over, though the older token had an hour to live.
#[test]
fn no_lock_waits_for_an_older_token() {
    for wanted_at in [0, 1] {
        let mut stage = Stage::with_gates(2);
        let mut clients = Clients::of(&stage);
        for n in 0..WAYS.len() {
            clients.locks(0, &format!("k:{n}"), "old");
            clients.locks(0, &format!("unwanted:{n}"), "old");
        }
        stage.takes_a_snapshot();
        for (n, (_, way)) in WAYS.iter().enumerate() {
            way(&mut clients, &format!("k:{n}"));
            way(&mut clients, &format!("unwanted:{n}"));
        }
        drop(clients);
        stage.goes_back();
        let back = Instant::now();
        let mut waiting: Vec<_> = (0..WAYS.len())
            .map(|n| {
                let mut next = stage.gates[wanted_at].client();
                next.send(&["LOCK", &format!("k:{n}"), "TOKEN", "next", "WAIT", "8000"]);
                next
            })
            .collect();
        let mut wrongs = Wrongs::default();
        for ((way, _), next) in WAYS.iter().zip(&mut waiting) {
            let what = format!("{way}, wanted at gate {wanted_at}");
            let said = next.read_reply();
            wrongs.unless_is(&what, &said, "next");
            let took = back.elapsed();
            wrongs.unless(said != "next" || took < SERVED_WITHIN, || {
                format!("{what}: after {took:?}")
            });
        }
        for (n, (way, _)) in WAYS.iter().enumerate() {
            let left = holder(&stage.redis, &format!("unwanted:{n}"));
            wrongs.unless(left.is_nil(), || format!("{way}: {left:?} is there still"));
        }
        wrongs.none();
    }
}

/// Redis goes back to the same snapshot more than once, and one lockgate puts it right each time.
#[test]
fn a_redis_that_goes_back_to_the_same_data_twice_changes_nothing() {
    let mut stage = Stage::with_gates(1);
    let mut clients = Clients::of(&stage);
    clients.locks(0, "owned", "old");
    clients.locks(0, "free", "old");
    stage.takes_a_snapshot();
    clients.unlocks(0, "owned", "old");
    clients.unlocks(0, "free", "old");
    clients.locks(0, "owned", "owner");
    let mut owner = clients.of.remove(0);
    for _ in 0..ROUNDS {
        stage.goes_back();
        stage.settles();
        assert_eq!(holder(&stage.redis, "owned"), "owner");
        assert_eq!(holder(&stage.redis, "free"), Value::Nil);
    }
    assert_eq!(owner.say("UNLOCK owned owner"), 1);
}

/// The release went through another lockgate, and Redis crashed before it could tell of it: the one that
/// granted the lock writes it back, and the other one knows better.
#[test]
fn a_release_that_the_granting_lockgate_did_not_hear_of_stays_a_release() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let way = Proxy::before(redis.address());
    let start = |url: &str| Lockgate::start_with(&["--upstream", url], &SETTINGS);
    let gates = [start(&way.url()), start(&redis.url())];
    grant_again(&gates);
    let mut wrongs = Wrongs::default();
    for round in 0..ROUNDS {
        let keys: Vec<_> = (0..KEYS).map(|n| format!("k:{round}:{n}")).collect();
        let (mut granted, mut releases) = (gates[0].client(), gates[1].client());
        for key in &keys {
            assert_eq!(
                granted.call(&["LOCK", key, "TOKEN", "old", "PX", "3600000"]),
                "old"
            );
        }
        way.drop_replies(true);
        for key in &keys {
            assert_eq!(releases.call(&["UNLOCK", key, "old"]), 1);
        }
        redis.kill();
        way.cut();
        way.drop_replies(false);
        redis.restart();
        grant_again(&gates);
        for (n, key) in keys.iter().enumerate() {
            let left = holder(&redis, key);
            wrongs.unless(left.is_nil(), || format!("{key}: {left:?} is there still"));
            let next = gates[n % 2]
                .client()
                .call(&["LOCK", key, "TOKEN", "next", "WAIT", "50"]);
            wrongs.unless_is(key, &next, "next");
        }
    }
    wrongs.none();
}

/// A fresh lockgate remembers nothing and waits until the others have written back their leases.
#[test]
fn a_fresh_lockgate_waits_for_what_the_others_put_right() {
    let mut stage = Stage::with_gates(1);
    let mut clients = Clients::of(&stage);
    clients.locks(0, "dead", "old");
    clients.locks(0, "owned", "old");
    stage.takes_a_snapshot();
    clients.unlocks(0, "dead", "old");
    clients.unlocks(0, "owned", "old");
    clients.locks(0, "owned", "owner");
    clients.locks(0, "gone", "owner");
    let mut owner = clients.of.remove(0);
    stage.goes_back();
    let fresh = Lockgate::start_with(&["--upstream", &stage.redis.url()], &SETTINGS);
    let mut waiting = ["owned", "gone"].map(|key| waiter(&fresh, key, "next", 1));
    let (reply, took) = timed(|| fresh.client().say("LOCK dead TOKEN next WAIT 8000"));
    assert_eq!(reply, "next");
    assert!(took < SERVED_WITHIN, "{took:?}");
    for (key, next) in ["owned", "gone"].iter().zip(&mut waiting) {
        assert!(
            !next.hears_within(Duration::ZERO).unwrap(),
            "{key}: two owners"
        );
        assert_eq!(owner.call(&["UNLOCK", key, "owner"]), 1);
        assert_eq!(next.read_reply(), "next");
    }
}
