//! Redis went back to older data, and one lockgate is there again before the other. A client lets go of
//! its lock, or extends it, through the one that is there, though the other one granted it.

use std::time::Duration;

use super::{SETTINGS, Wrongs, gates_by_ways, grant_again};
use crate::{
    faults::{holder, pttl},
    support::{Client, Lockgate, Machine, Proxy, RedisServer, Value, eventually},
};

const KEYS: usize = 20;

/// How long the one that granted is away after the other one serves again: far less than the grace.
const AWAY: Duration = Duration::from_millis(500);

/// The first lockgate grants and comes back late, the other one at once.
struct Scene {
    redis: RedisServer,
    way: Proxy,
    gates: [Lockgate; 2],
    _machine: Machine,
}

impl Scene {
    fn new() -> Self {
        let machine = Machine::shared();
        let redis = RedisServer::start(&[]);
        let way = Proxy::before(redis.address());
        let start = |url: &str| Lockgate::start_with(&["--upstream", url], &SETTINGS);
        let gates = [start(&way.url()), start(&redis.url())];
        grant_again(&gates);
        Self {
            redis,
            way,
            gates,
            _machine: machine,
        }
    }

    #[track_caller]
    fn locks(&self, key: &str, lease_ms: &str) {
        let command = ["LOCK", key, "TOKEN", "owner", "PX", lease_ms];
        assert_eq!(self.gates[0].client().call(&command), "owner");
    }

    /// Returns when the other lockgate is there again.
    #[track_caller]
    fn goes_back(&mut self) {
        self.way.refuse(true);
        self.redis.kill();
        self.redis.restart();
        let mut observer = self.gates[1].client();
        eventually("the other one is there again", || {
            !matches!(observer.say("LOCKINFO nothing"), Value::Error(_))
        });
    }

    /// Returns when both grant again.
    fn comes_back(&self) {
        std::thread::sleep(AWAY);
        self.way.refuse(false);
        grant_again(&self.gates);
    }

    /// The replies of the other lockgate to these commands, all sent before the first lockgate is back.
    fn told_elsewhere(&mut self, commands: &[Vec<&str>]) -> Vec<Value> {
        let other = &self.gates[1];
        let mut clients: Vec<Client> = commands.iter().map(|_| other.client()).collect();
        for (client, command) in clients.iter_mut().zip(commands) {
            client.send(command);
        }
        self.comes_back();
        clients.iter_mut().map(Client::read_reply).collect()
    }
}

/// The token is in the older data, so the other lockgate releases it; the one that granted it knows nothing
/// of that, and must not bring it back.
#[test]
fn a_release_before_the_granting_lockgate_is_back_stays_a_release() {
    let mut scene = Scene::new();
    let keys: Vec<_> = (0..KEYS).map(|n| format!("k:{n}")).collect();
    keys.iter().for_each(|key| scene.locks(key, "3600000"));
    assert_eq!(scene.redis.client().say("SAVE"), "OK");
    scene.goes_back();
    let commands: Vec<_> = keys
        .iter()
        .map(|key| vec!["UNLOCK", key, "owner"])
        .collect();
    let told = scene.told_elsewhere(&commands);
    let mut wrongs = Wrongs::default();
    for (key, told) in keys.iter().zip(told) {
        wrongs.unless_is(key, &told, 1);
        let left = holder(&scene.redis, key);
        wrongs.unless(left.is_nil(), || format!("{key}: {left:?} is there still"));
    }
    wrongs.none();
}

/// The token is not in the older data, and comes back with the lockgate that granted it: until then
/// no lockgate can know that it holds nothing.
#[test]
fn no_valid_lease_is_denied_before_the_granting_lockgate_is_back() {
    let mut scene = Scene::new();
    let keys: Vec<_> = (0..2 * KEYS).map(|n| format!("k:{n}")).collect();
    keys.iter().for_each(|key| scene.locks(key, "3600000"));
    scene.goes_back();
    let command = |(n, key)| match n < KEYS {
        true => vec!["UNLOCK", key, "owner"],
        false => vec!["RELOCK", key, "owner", "PX", "1800000"],
    };
    let wanted: Vec<_> = keys.iter().map(String::as_str).enumerate().collect();
    let commands: Vec<_> = wanted.into_iter().map(command).collect();
    let told = scene.told_elsewhere(&commands);
    let mut wrongs = Wrongs::default();
    for ((n, key), told) in keys.iter().enumerate().zip(told) {
        // An error says that it is not known, and the client asks again.
        wrongs.unless(told != 0, || format!("{:?} was answered 0", commands[n]));
        let now = holder(&scene.redis, key);
        if n < KEYS && told == 1 {
            wrongs.unless(now.is_nil(), || format!("{key}: {now:?} is there still"));
        } else {
            let again = scene.gates[1].client().call(&commands[n]);
            wrongs.unless_is(&format!("{:?} once more", commands[n]), &again, 1);
        }
    }
    wrongs.none();
}

/// The longer lease is the one that counts, whichever lockgate comes back when.
#[test]
fn a_lease_that_was_extended_elsewhere_is_written_back_as_it_was_extended() {
    let mut scene = Scene::new();
    scene.locks("before", "20000");
    scene.locks("meanwhile", "20000");
    assert_eq!(scene.redis.client().say("SAVE"), "OK");
    let mut other = scene.gates[1].client();
    assert_eq!(other.say("RELOCK before owner PX 3600000"), 1);
    for _ in 0..2 {
        scene.goes_back();
        let told = scene.told_elsewhere(&[vec!["RELOCK", "meanwhile", "owner", "PX", "3600000"]]);
        assert_eq!(told, [Value::Integer(1)]);
        let mut direct = scene.redis.client();
        for key in ["before", "meanwhile"] {
            assert_eq!(holder(&scene.redis, key), "owner");
            let left = pttl(&mut direct, key);
            assert!(left > 3_500_000, "{key}: {left} ms");
        }
    }
}

/// The lockgate that extended the leases does not know that the other one has released them since: at the first try that
/// one had no connection, and gives each lock up by the deadline that it knows; at the second one, by the token.
#[test]
fn a_release_at_the_second_try_stays_one_where_the_lease_was_extended_elsewhere() {
    let _machine = Machine::shared();
    let mut redis = RedisServer::start(&[]);
    let (ways, gates) = gates_by_ways(&redis);
    let keys: Vec<_> = (0..KEYS).map(|n| format!("k:{n}")).collect();
    let mut owners: Vec<_> = keys.iter().map(|_| gates[0].client()).collect();
    let mut other = gates[1].client();
    for (owner, key) in owners.iter_mut().zip(&keys) {
        let command = ["LOCK", key, "TOKEN", "owner", "PX", "20000"];
        assert_eq!(owner.call(&command), "owner");
        assert_eq!(other.call(&["RELOCK", key, "owner", "PX", "3600000"]), 1);
    }
    assert_eq!(redis.client().say("SAVE"), "OK");
    ways.iter().for_each(|way| way.refuse(true));
    redis.kill();
    redis.restart();
    let unlock = |owner: &mut Client, key: &String| owner.send(&["UNLOCK", key, "owner"]);
    let each = || keys.iter().enumerate();
    each().for_each(|(n, key)| unlock(&mut owners[n], key));
    for owner in &mut owners {
        let refused = owner.read_reply().error().to_owned();
        assert!(refused.starts_with("UPSTREAM "), "{refused}");
    }
    each().for_each(|(n, key)| unlock(&mut owners[n], key));
    ways[0].refuse(false);
    owners
        .iter_mut()
        .for_each(|owner| assert_eq!(owner.read_reply(), 1));
    std::thread::sleep(AWAY);
    ways[1].refuse(false);
    grant_again(&gates);
    eventually("the dead tokens are gone", || {
        keys.iter().all(|key| holder(&redis, key).is_nil())
    });
}
