//! Who may do what: lock commands have the rights of the client that sent them, by Redis's own rules and
//! in its own words.
//!
//! - [`rights`]: two users, neither of whom gets at the other's keys in any way.
//! - [`several_users`]: several users at one lock; the queue, handovers and equal tokens give no user another's rights.
//! - [`logins`]: which user a connection is.
//! - [`passwords`]: whoever has not authenticated where Redis wants that.
//! - [`changes`]: users, passwords and rules that change while lockgate runs.
//! - [`forged`]: lost, doubled and forged replies give no client another user's rights.
//! - [`verified`]: what lockgate's own look at a password costs, and how long it counts.
//! - [`connections`]: the connections that lockgate shares, and its own account.

use crate::support::{Client, Lockgate, Machine, RedisServer, SHORT_GRACE, Value};

mod changes;
mod connections;
mod forged;
mod logins;
mod passwords;
mod rights;
mod several_users;
mod verified;

const NO_KEY: &str =
    "NOPERM this user has no permissions to access one of the keys used as arguments";

/// Every lock command, about this key, with this token.
const LOCK_COMMANDS: [&str; 8] = [
    "LOCK {k} TOKEN {t}",
    "LOCK {k} WAIT 5000",
    "LOCK {k} TOKEN {t} SESSION PX 5000 WAIT 5000",
    "TRYLOCK {k} TOKEN {t}",
    "TRYLOCK {k}",
    "RELOCK {k} {t}",
    "UNLOCK {k} {t}",
    "LOCKINFO {k}",
];

fn lock_commands(key: &str, token: &str) -> impl Iterator<Item = String> {
    let filled = |form: &str| form.replace("{k}", key).replace("{t}", token);
    LOCK_COMMANDS.into_iter().map(filled)
}

/// A Redis with users, and a lockgate before it.
struct House {
    redis: RedisServer,
    gate: Lockgate,
    _machine: Machine,
}

impl House {
    /// `ann` has the keys `a:…`, `ben` has `b:…`, both have `s:…`; who is nobody has everything.
    fn new() -> Self {
        Self::with(&[], &[])
    }

    fn with(redis_settings: &[&str], settings: &[(&str, &str)]) -> Self {
        let machine = Machine::shared();
        let users = [
            "--user ann on >pw ~a:* ~s:* &* +@all",
            "--user ben on >pw ~b:* ~s:* &* +@all",
        ];
        let words = users.iter().flat_map(|user| user.split(' '));
        let arguments: Vec<&str> = words.chain(redis_settings.iter().copied()).collect();
        let redis = RedisServer::start(&arguments);
        let settings = [&SHORT_GRACE, settings].concat();
        let gate = Lockgate::start_with(&["--upstream", &redis.url()], &settings);
        let house = Self {
            redis,
            gate,
            _machine: machine,
        };
        // From now on it trusts its Redis.
        let mut first = house.client("ann", 2);
        assert_eq!(first.say("LOCK a:first TOKEN f"), "f");
        assert_eq!(first.say("UNLOCK a:first f"), 1);
        house
    }

    /// A client that has authenticated as this user, with the password `pw`.
    #[track_caller]
    fn client(&self, user: &str, protocol: u8) -> Client {
        let mut client = self.gate.client();
        if protocol == 3 {
            let hello = client.call(&["HELLO", "3", "AUTH", user, "pw"]);
            assert_eq!(*hello.field("proto"), 3);
        } else {
            assert_eq!(client.call(&["AUTH", user, "pw"]), "OK");
        }
        client
    }

    /// A client of this user that waits for this lock, as the last of so many.
    #[track_caller]
    fn waiter(&self, user: &str, key: &str, token: &str, place_in_queue: i64) -> Client {
        let mut client = self.client(user, 2);
        client.send(&["LOCK", key, "TOKEN", token]);
        self.awaits_waiters(user, key, place_in_queue);
        client
    }

    /// Returns when so many wait for this lock, as this user may see it.
    #[track_caller]
    fn awaits_waiters(&self, user: &str, key: &str, count: i64) {
        let mut observer = self.client(user, 2);
        crate::support::eventually(&format!("{count} waiters for {key}"), || {
            observer.call(&["LOCKINFO", key]).field("waiters").integer() == count
        });
    }

    /// A client of Redis, past lockgate, whose connection nobody's rules end.
    fn admin(&self) -> Client {
        let mut admin = self.redis.client();
        assert_eq!(admin.say("ACL SETUSER admin on nopass ~* &* +@all"), "OK");
        assert_eq!(admin.say("AUTH admin x"), "OK");
        admin
    }

    /// The connections to Redis that belong to this user.
    fn connections_of(&self, user: &str) -> usize {
        let list = self.redis.client().say("CLIENT LIST").text();
        let mine = format!(" user={user} ");
        list.lines().filter(|line| line.contains(&mine)).count()
    }

    /// The numbers of those of them that lockgate shares: Redis tells on them of changes.
    fn shared_by(&self, user: &str) -> Vec<String> {
        let list = self.redis.client().say("CLIENT LIST").text();
        let mine = format!(" user={user} ");
        let lines = list
            .lines()
            .filter(|line| line.contains(&mine) && line.contains(" flags=t "));
        let id = |line: &str| {
            line.split(' ')
                .next()?
                .strip_prefix("id=")
                .map(str::to_owned)
        };
        lines.filter_map(id).collect()
    }
}

/// Does the same in both protocols, each time in another house.
fn in_each_protocol(test: impl Fn(&House, u8)) {
    for protocol in [2, 3] {
        test(&House::new(), protocol);
    }
}

#[track_caller]
fn is_error(reply: &Value, text: &str) {
    assert_eq!(reply.error(), text);
}

/// Each lock command on this key gets this error.
#[track_caller]
fn may_not(client: &mut Client, key: &str, token: &str, error: &str) {
    for command in lock_commands(key, token) {
        let reply = client.say(&command);
        assert!(
            matches!(&reply, Value::Error(text) if text.starts_with(error)),
            "{command}: {reply:?}"
        );
    }
}
