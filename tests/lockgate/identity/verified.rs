//! lockgate believes a password when Redis has accepted it of lockgate itself.

use std::time::{Duration, Instant};

use super::{House, forged::FOUR_REPLIES};
use crate::support::{
    Client, Lockgate, Machine, RedisServer, SHORT_GRACE, Value, eventually, frame,
};

/// How often Redis has run this command.
fn calls(redis: &mut Client, command: &str) -> usize {
    let info = redis.say("INFO commandstats").text();
    let line = format!("cmdstat_{command}:calls=");
    info.split(&line).nth(1).map_or(0, |rest| {
        let count = rest.split(',').next().unwrap();
        count.parse().unwrap()
    })
}

/// One login of lockgate's own serves all clients that come at the same time with the same password, and counts
/// for a second.
#[test]
fn a_crowd_of_one_user_costs_few_logins() {
    const CLIENTS: usize = 300;
    let house = House::new();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| house.client("ben", 2)).collect();
    let mut redis = house.redis.client();
    let begun = Instant::now();
    let before = calls(&mut redis, "auth");
    for (i, client) in clients.iter_mut().enumerate() {
        client.send(&["LOCK", &format!("b:{i}"), "TOKEN", "t"]);
    }
    for client in &mut clients {
        assert_eq!(client.read_reply(), "t");
    }
    let logins = calls(&mut redis, "auth") - before;
    // One for the shared connection, and a few each second.
    let most = 5 + 2 * begun.elapsed().as_secs() as usize;
    assert!((1..=most).contains(&logins), "{logins} logins");
}

/// A password of several is as good as another.
#[test]
fn each_password_of_a_user_is_verified_by_itself() {
    let house = House::new();
    assert_eq!(house.admin().say("ACL SETUSER ben >two >three"), "OK");
    for password in ["pw", "two", "three"] {
        let mut client = house.gate.client();
        assert_eq!(client.call(&["AUTH", "ben", password]), "OK");
        assert_eq!(client.say("LOCK b:1 TOKEN t"), "t", "{password}");
        assert_eq!(client.say("UNLOCK b:1 t"), 1);
    }
}

#[test]
fn a_user_without_a_password_may_give_any() {
    let house = House::new();
    assert_eq!(
        house.admin().say("ACL SETUSER eve on nopass ~e:* +@all"),
        "OK"
    );
    for number in 0..10 {
        let mut client = house.gate.client();
        assert_eq!(
            client.call(&["AUTH", "eve", &format!("any {number}")]),
            "OK"
        );
        assert_eq!(client.say("LOCK e:1 TOKEN t"), "t");
        assert_eq!(client.say("UNLOCK e:1 t"), 1);
    }
}

/// What the client gets to a command behind an `AUTH` that Redis has not answered, but something else has.
fn claims(client: &mut Client, user: &str, password: &str, command: &[&str]) -> Value {
    let pipeline = [
        frame(&["FUNCTION", "LOAD", FOUR_REPLIES]),
        frame(&["BLPOP", "m:none", "0"]),
        frame(&["AUTH", user, password]),
        frame(&["PING"]),
        frame(command),
    ];
    client.write_raw(&pipeline.concat());
    for _ in 0..4 {
        client.read_reply();
    }
    client.read_reply()
}

/// A password that was verified a second ago is verified again.
#[test]
fn a_password_that_was_changed_is_soon_believed_no_more() {
    let house = House::new();
    let mut old = house.client("ben", 2);
    assert_eq!(old.say("LOCK b:1 TOKEN t PX 600000"), "t");
    let mut admin = house.admin();
    assert_eq!(admin.say("ACL SETUSER ben resetpass >new"), "OK");
    assert_eq!(admin.say("ACL SETUSER mal on >pw ~m:* &* +@all"), "OK");
    eventually("the old password is not believed", || {
        let mut mal = house.client("mal", 2);
        let reply = claims(&mut mal, "ben", "pw", &["UNLOCK", "b:1", "wrong"]);
        matches!(&reply, Value::Error(text) if text.starts_with("WRONGPASS"))
    });
    // As in Redis, a client that came before goes on.
    assert_eq!(old.say("RELOCK b:1 t PX 600000"), 1);
}

/// Many clients with false passwords of a user delay its own clients, and others, no longer than a moment.
#[test]
fn a_flood_of_false_logins_delays_no_other_login() {
    const FLOOD: usize = 400;
    let house = House::new();
    assert_eq!(
        house.admin().say("ACL SETUSER mal on >pw ~m:* &* +@all"),
        "OK"
    );
    let mut flood: Vec<Client> = (0..FLOOD).map(|_| house.client("mal", 2)).collect();
    for (i, mal) in flood.iter_mut().enumerate() {
        let password = format!("{i} {}", "x".repeat(7_000));
        let pipeline = [
            frame(&["FUNCTION", "LOAD", FOUR_REPLIES]),
            frame(&["BLPOP", "m:none", "0"]),
            frame(&["AUTH", "ben", &password]),
            frame(&["PING"]),
            frame(&["TRYLOCK", "b:free"]),
        ];
        mal.write_raw(&pipeline.concat());
    }
    for user in ["ann", "ben"] {
        let mut client = house.client(user, 2);
        let begun = Instant::now();
        assert_eq!(client.say("TRYLOCK s:1 TOKEN t"), "t");
        assert_eq!(client.say("UNLOCK s:1 t"), 1);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(2), "{user}: {took:?}");
    }
    for mal in &mut flood {
        for _ in 0..4 {
            mal.read_reply();
        }
        assert!(mal.read_reply().error().starts_with("WRONGPASS"));
    }
    assert_eq!(house.redis.client().say("EXISTS b:free"), 0);
}

/// Whether a client has to authenticate is asked once a second, however many come.
#[test]
fn clients_without_a_password_cost_two_commands_a_second() {
    const CLIENTS: usize = 50;
    let _machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let gate = Lockgate::start_with(&["--upstream", &redis.url()], &SHORT_GRACE);
    let mut owner = gate.client();
    assert_eq!(owner.say("LOCK k TOKEN t PX 600000"), "t");
    let mut waiter = gate.client();
    waiter.send(&["LOCK", "k"]);
    gate.awaits_waiters("k", 1);
    let mut direct = redis.client();
    let executed = |direct: &mut Client| {
        let info = direct.say("INFO stats").text();
        let line = "total_commands_processed:";
        let line = info.lines().find_map(|it| it.strip_prefix(line)).unwrap();
        line.parse::<usize>().unwrap()
    };
    // Another one may fall due just then.
    let cheapest = (0..5).map(|_| {
        let before = executed(&mut direct);
        for _ in 0..CLIENTS {
            assert_eq!(gate.client().say("TRYLOCK k"), Value::Nil);
        }
        // The first INFO counts.
        executed(&mut direct) - before - 1
    });
    let cheapest = cheapest.min().unwrap();
    assert!(cheapest <= 2, "{cheapest} commands");
}
