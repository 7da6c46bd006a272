//! Replies on a client's own connection can be forged: by scripts, by faults of Redis, by a network that
//! lies. Whatever they say, the client locks as no user whose password it did not give.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use crate::random::Random;
use crate::support::{
    Client, Forger, Lockgate, Machine, RedisServer, SHORT_GRACE, Value, frame, words,
};

/// `bob` is the victim, `mal` has keys of its own and nothing else; no client comes in without a password.
const USERS: &str = "--user bob on >right ~bob:* &* +@all \
                     --user mal on >mal ~mal:* &* +@all -@admin -@dangerous \
                     --user default on >secret ~* &* +@all";

/// Conversations of an ordinary run.
const CASES: u64 = 400;

/// Conversations at a time.
const WORKERS: u64 = 4;

/// A Redis, a lockgate before it, and `bob`, the owner of the lock `bob:held` by the token `held`.
struct Scene {
    redis: RedisServer,
    gate: Lockgate,
    bob: Client,
    _machine: Machine,
}

impl Scene {
    fn new() -> Self {
        Self::through(|redis| redis.url())
    }

    fn through(upstream: impl Fn(&RedisServer) -> String) -> Self {
        let machine = Machine::shared();
        let redis = RedisServer::start(&words(USERS));
        let gate = Lockgate::start_with(&["--upstream", &upstream(&redis)], &SHORT_GRACE);
        let mut bob = gate.client();
        assert_eq!(bob.say("AUTH bob right"), "OK");
        assert_eq!(bob.say("LOCK bob:held TOKEN held PX 600000"), "held");
        Self {
            redis,
            gate,
            bob,
            _machine: machine,
        }
    }

    fn admin(&self) -> Client {
        let mut admin = self.redis.client();
        assert_eq!(admin.say("AUTH secret"), "OK");
        admin
    }

    fn mal(&self) -> Client {
        let mut mal = self.gate.client();
        assert_eq!(mal.say("AUTH mal mal"), "OK");
        mal
    }

    /// `bob` alone has locked what is his, and goes on as before, also on a new connection.
    #[track_caller]
    fn is_untouched(&mut self) {
        let mut admin = self.admin();
        for database in ["SELECT 1", "SELECT 0"] {
            assert_eq!(admin.say(database), "OK");
            assert_eq!(admin.say("EXISTS bob:free"), 0);
        }
        assert_eq!(admin.say("GET bob:held"), "held");
        kill_shared(&mut admin, "bob");
        assert_eq!(self.bob.say("RELOCK bob:held held PX 600000"), 1);
        let mut another = self.gate.client();
        assert_eq!(another.say("AUTH bob right"), "OK");
        assert_eq!(another.say("UNLOCK bob:held wrong"), 0);
    }
}

/// Ends the connections on which Redis tells of changes to this user's locks.
fn kill_shared(admin: &mut Client, user: &str) {
    let (mine, list) = (format!(" user={user} "), admin.say("CLIENT LIST").text());
    let shared = |line: &&str| line.contains(&mine) && line.contains(" flags=t ");
    for line in list.lines().filter(shared) {
        let id = line.split(' ').next().unwrap().trim_start_matches("id=");
        admin.call(&["CLIENT", "KILL", "ID", id]);
    }
}

/// Sends all of these, and reads until nothing more comes.
fn at_once(client: &mut Client, commands: &[&[&str]]) {
    let bytes: Vec<u8> = commands.iter().flat_map(|command| frame(command)).collect();
    let _ = client.try_write(&bytes);
    while let Ok(true) = client.hears_within(Duration::from_millis(300)) {
        if client.try_read().is_err() {
            return;
        }
    }
}

/// Redis 7.0 writes the line ends of this error as they are: one command gives four replies, of which the third
/// is an `OK` to the letter.
pub(super) const FOUR_REPLIES: &str = "#!lua name=l\nlocal '\\r\\n+x\\r\\n+OK\\r\\n+y'";

#[test]
fn a_list_in_a_transaction_is_no_confirmation() {
    let mut scene = Scene::new();
    at_once(
        &mut scene.mal(),
        &[
            &["HELLO", "3"],
            &["SSUBSCRIBE", "mal:a", "mal:b"],
            &["MULTI"],
            &["HELLO", "2"],
            &["EVAL", "return {'sunsubscribe','mal:a',0}", "0"],
            &["AUTH", "bob", "wrong"],
            &["EXEC"],
            &["PING"],
            &["SUNSUBSCRIBE"],
            &["TRYLOCK", "bob:free"],
            &["UNLOCK", "bob:held", "held"],
        ],
    );
    scene.is_untouched();
}

#[test]
fn a_debugger_answers_no_login() {
    let mut scene = Scene::new();
    for mode in ["YES", "sync", "yes\0x"] {
        let mut mal = scene.mal();
        assert_eq!(mal.call(&["SCRIPT", "DEBUG", mode]), "OK");
        at_once(
            &mut mal,
            &[
                &["EVAL", "return 1", "0"],
                &["AUTH", "bob", "wrong"],
                &["TRYLOCK", "bob:free"],
                &["UNLOCK", "bob:held", "held"],
                &["continue"],
            ],
        );
        // Redis itself hangs in SYNC as long as its client is there.
        drop(mal);
        scene.is_untouched();
    }
}

#[test]
fn one_command_with_several_replies_is_no_login() {
    let mut scene = Scene::new();
    at_once(
        &mut scene.mal(),
        &[
            &["FUNCTION", "LOAD", FOUR_REPLIES],
            &["BLPOP", "mal:none", "0"],
            &["AUTH", "bob", "wrong"],
            &["PING"],
            &["TRYLOCK", "bob:free"],
            &["UNLOCK", "bob:held", "held"],
        ],
    );
    scene.is_untouched();
}

/// Whatever passwords others claim, the right one is not forgotten for them.
#[test]
fn false_logins_push_no_password_out() {
    let mut scene = Scene::new();
    for wrong in 0..10 {
        at_once(
            &mut scene.mal(),
            &[
                &["FUNCTION", "LOAD", FOUR_REPLIES],
                &["BLPOP", "mal:none", "0"],
                &["AUTH", "bob", &format!("wrong {wrong}")],
                &["PING"],
                &["TRYLOCK", "bob:free"],
            ],
        );
    }
    scene.is_untouched();
}

/// Redis up to 7.0 logs in before it reads the options behind.
#[test]
fn a_hello_that_fails_behind_its_login_leaves_the_user_unknown() {
    let mut scene = Scene::new();
    for hello in [
        &["HELLO", "3", "SETNAME", "a", "AUTH", "mal", "mal", "bogus"][..],
        &["HELLO", "3", "AUTH", "mal", "mal", "bogus"],
        &["HELLO", "3", "AUTH", "mal", "mal", "SETNAME", "a b"],
        &[
            "HELLO", "2", "setname", "a", "SETNAME", "b", "auth", "mal", "mal", "SETNAME",
        ],
    ] {
        let mut client = scene.gate.client();
        assert_eq!(client.say("AUTH bob right"), "OK");
        assert!(matches!(client.call(hello), Value::Error(_)));
        let whoami = client.say("ACL WHOAMI");
        let refused = client.say("TRYLOCK bob:free");
        assert!(
            refused.error().contains("is not known"),
            "{hello:?}: {whoami:?}, {refused:?}"
        );
        assert!(
            client
                .say("UNLOCK bob:held held")
                .error()
                .contains("is not known")
        );
        assert_eq!(client.say("AUTH mal mal"), "OK");
        assert!(client.say("TRYLOCK bob:free").error().starts_with("NOPERM"));
        scene.is_untouched();
    }
}

const LINES: &[&str] = &[
    "AUTH bob wrong",
    "AUTH bob wrong",
    "AUTH wrong",
    "AUTH mal mal",
    "HELLO 3 AUTH bob wrong",
    "HELLO 2 AUTH bob wrong",
    "HELLO 3 SETNAME a AUTH bob wrong",
    "HELLO 3 AUTH mal mal AUTH bob wrong",
    "HELLO 2 AUTH mal mal",
    "HELLO 3",
    "HELLO 2",
    "MULTI",
    "EXEC",
    "DISCARD",
    "RESET",
    "SELECT 1",
    "SELECT 0",
    "PING",
    "GET mal:x",
    "SSUBSCRIBE mal:a mal:b",
    "SUNSUBSCRIBE",
    "SUBSCRIBE mal:c",
    "UNSUBSCRIBE",
    "PUBLISH mal:c x",
    "CLIENT REPLY OFF",
    "CLIENT REPLY SKIP",
    "CLIENT REPLY ON",
    "CLIENT CACHING YES",
    "SCRIPT DEBUG YES",
    "BLPOP mal:none 0.01",
    "INFO",
    "COMMAND COUNT",
    "LOCK mal:free WAIT 1",
    "TRYLOCK bob:free",
    "TRYLOCK bob:free",
    "TRYLOCK bob:free",
    "UNLOCK bob:held held",
    "RELOCK bob:held held PX 100",
    "LOCK bob:free WAIT 1",
    "LOCKINFO bob:held",
];

const SCRIPTS: &[&[&str]] = &[
    &["EVAL", "return {'sunsubscribe','mal:a',0}", "0"],
    &["EVAL", "return {'message','mal:c','x'}", "0"],
    &["EVAL", "return {'server','redis'}", "0"],
    &["EVAL", "return {ok='OK'}", "0"],
    &["EVAL", "return {ok='QUEUED'}", "0"],
    &["FUNCTION", "LOAD", FOUR_REPLIES],
];

/// The commands of `mal` in this conversation.
fn said(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.between(3, 25) {
        bytes.extend(match random.percent(85) {
            true => frame(&words(random.one_of(LINES))),
            false => frame(random.one_of(SCRIPTS)),
        });
    }
    // Whatever came of all that.
    bytes.extend(frame(&["TRYLOCK", "bob:free"]));
    bytes
}

/// Each conversation in a burst or two, on a connection whose replies are lost, doubled and forged.
#[test]
fn lost_doubled_and_forged_replies_give_no_client_anothers_rights() {
    let seed = std::env::var("LOCKGATE_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse::<u64>().ok());
    let cases = std::env::var("FORGED_CASES").ok();
    let cases = cases.and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    let mut scene = Scene::through(|redis| Forger::before(redis.address(), 15).url());
    let next = AtomicU64::new(seed.unwrap_or(0));
    let last = seed.map_or(cases, |seed| seed + 1);
    let gate = &scene.gate;
    let converse = |admin: &mut Client, seed: u64| {
        let mut random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut client = gate.client();
        assert_eq!(client.say("AUTH mal mal"), "OK");
        client.write_raw(&Forger::ask(random.next()));
        assert!(client.read_reply().text().starts_with("lie to me"));
        for _ in 0..random.between(1, 3) {
            let _ = client.try_write(&said(&mut random));
            while let Ok(true) = client.hears_within(Duration::from_millis(20)) {
                if client.try_read().is_err() {
                    break;
                }
            }
        }
        for (command, expected) in [("EXISTS bob:free", "0"), ("GET bob:held", "held")] {
            let reply = match admin.say(command) {
                Value::Integer(number) => number.to_string(),
                reply => reply.text(),
            };
            assert_eq!(reply, expected, "LOCKGATE_SEED={seed}: {command}");
        }
    };
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            let mut admin = scene.admin();
            let (next, converse) = (&next, &converse);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last {
                        return;
                    }
                    converse(&mut admin, seed);
                }
            });
        }
    });
    scene.is_untouched();
}
