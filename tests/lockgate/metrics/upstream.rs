//! What lockgate asks Redis on connections of its own, by what it is for, and what becomes of them.

use super::{Counts, place_with, quiet_place, sample, told};
use crate::support::{Client, Lockgate, Monitor, Place, eventually};

/// What was sent since it was made, of a kind.
struct Sent(Counts);

impl Sent {
    fn from_now(observer: &mut Client) -> Self {
        Self(Counts::of(observer))
    }

    fn of(&self, kind: &str, observer: &mut Client) -> u64 {
        let name = format!("upstream_commands_{kind}");
        Counts::of(observer).get(&name) - self.0.get(&name)
    }
}

/// The number that Prometheus is told, who needs no Redis for it.
fn number(gate: &Lockgate, name: &str) -> u64 {
    let name = format!("lockgate_upstream_{name}");
    sample(&told(gate), &name).parse().unwrap()
}

#[test]
fn a_connection_that_broke_is_counted_when_it_is_back() {
    let place = quiet_place();
    let mut client = place.client();
    let count = |client: &mut Client, name: &str| Counts::of(client).get(name);
    assert_eq!(count(&mut client, "upstream_connections"), 1);
    assert_eq!(count(&mut client, "upstream_reconnects"), 0);
    let mut redis = place.redis().client();
    let list = redis.say("CLIENT LIST").text();
    // It is the only one that is told of changes.
    let shared = list.lines().find(|line| line.contains(" flags=t "));
    let id = shared.expect(&list).split(['=', ' ']).nth(1).unwrap();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    let sent = Sent::from_now(&mut client);
    let mut monitor = Monitor::start(place.redis());
    assert_eq!(redis.say(&format!("CLIENT KILL ID {id}")), 1);
    eventually("it is back", || {
        count(&mut client, "upstream_connections") == 1
            && count(&mut client, "upstream_reconnects") == 1
    });
    assert_eq!(count(&mut client, "upstream_data_losses"), 0);
    // Nobody would have told of it meanwhile.
    eventually("the lock is looked after", || {
        let executed = monitor.commands_on("k").len() as u64;
        executed > 0 && sent.of("check", &mut client) == executed
    });
    assert_eq!(sent.of("write_back", &mut client), 0);
}

/// Where nothing is written back, a lock of which nothing is known is taken by a plain `SET` for who brings
/// no token, and only who finds it held asks the script.
#[test]
fn a_plain_set_is_counted() {
    let place = place_with(&[("LOCKGATE_WRITE_BACK_LEASES", "off")]);
    let mut client = place.client();
    assert_eq!(place.redis().client().say("SET theirs x PX 30000"), "OK");
    let mut monitor = Monitor::start(place.redis());
    let sent = Sent::from_now(&mut client);
    client.say("LOCK free").text();
    let more = ["set", "acquire"].map(|kind| sent.of(kind, &mut client));
    assert_eq!(more, [1, 0]);
    let executed = monitor.commands_on("free");
    assert_eq!(executed.len(), 1, "{executed:?}");
    assert_eq!(executed[0][0], "SET");
    assert!(client.say("LOCK theirs WAIT 1").is_nil());
    let more = ["set", "acquire"].map(|kind| sent.of(kind, &mut client));
    assert_eq!(more, [2, 1]);
}

/// May the user list at all? And which command was it that the script may not run?
#[test]
fn questions_about_rights_are_counted() {
    let place = quiet_place();
    let mut client = place.client();
    assert_eq!(client.say("LOCK k TOKEN t"), "t");
    let mut monitor = Monitor::start(place.redis());
    let sent = Sent::from_now(&mut client);
    client.say("LOCKS");
    assert_eq!(sent.of("list", &mut client), 1);
    assert_eq!(monitor.commands_where(|word| word == "COUNT").len(), 1);
    assert_eq!(sent.of("explain", &mut client), 0);
    let mut redis = place.redis().client();
    assert_eq!(redis.say("ACL SETUSER default -del"), "OK");
    let refused = client.say("UNLOCK k t");
    assert!(refused.error().starts_with("NOPERM "), "{refused:?}");
    // Of one of them no argument is the key.
    let mut executed = monitor.commands_on("k");
    executed.retain(|command| !command[0].starts_with("EVAL"));
    let explained = sent.of("explain", &mut client);
    assert_eq!(explained, executed.len() as u64 + 1, "{executed:?}");
    assert!(explained > 1);
}

#[test]
fn signs_of_life_are_counted() {
    let place = place_with(&[("LOCKGATE_UPSTREAM_PING", "20ms")]);
    let mut client = place.client();
    let sent = |client: &mut Client| {
        let counts = Counts::of(client);
        ["ping", "admission"].map(|kind| counts.get(&format!("upstream_commands_{kind}")))
    };
    eventually("it asks whether Redis lives", || sent(&mut client)[0] > 2);
    let [before, _] = sent(&mut client);
    let info = place.redis().client().say("INFO commandstats").text();
    let executed = info.lines().find_map(|line| {
        let (calls, _) = line.strip_prefix("cmdstat_ping:calls=")?.split_once(',')?;
        calls.parse::<u64>().ok()
    });
    let executed = executed.expect("Redis was pinged");
    let [after, admissions] = sent(&mut client);
    // One may be on its way; whether clients need a password is asked with a PING, too.
    let possible = before - 1..=after + admissions;
    assert!(possible.contains(&executed), "{executed} in {possible:?}");
}

#[test]
fn unanswered_commands_count_as_in_flight() {
    let place = quiet_place();
    let mut clients = place.gate.clients(3);
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.say(&format!("LOCK k{n} TOKEN t")), "t");
    }
    assert_eq!(number(&place.gate, "in_flight"), 0);
    place.redis().stop();
    for (n, client) in clients.iter_mut().enumerate() {
        client.send(&["UNLOCK", &format!("k{n}"), "t"]);
        let asked = n as u64 + 1;
        eventually("it is on its way", || {
            number(&place.gate, "in_flight") == asked
        });
    }
    place.redis().go_on();
    for client in &mut clients {
        assert_eq!(client.read_reply(), 1);
    }
    assert_eq!(number(&place.gate, "in_flight"), 0);
}

#[test]
fn a_redis_that_comes_back_with_nothing_is_counted() {
    let mut place = quiet_place();
    let mut owner = place.client();
    assert_eq!(owner.say("LOCK k TOKEN t PX 60000"), "t");
    let counted = |place: &Place| {
        [
            "connect_failures_total",
            "data_losses_total",
            "commands_total{kind=\"write_back\"}",
        ]
        .map(|name| number(&place.gate, name))
    };
    assert_eq!(counted(&place), [0; 3]);
    let redis = place.redis.as_mut().expect("it has one");
    redis.kill();
    eventually("it could not be reached", || {
        number(&place.gate, "connect_failures_total") > 0
    });
    let redis = place.redis.as_mut().expect("it has one");
    redis.forget();
    redis.restart();
    let mut direct = place.redis().client();
    eventually("the lock is written back", || direct.say("GET k") == "t");
    let [_, losses, restored] = counted(&place);
    // By the name of the script, which the new Redis does not know, and in full.
    assert_eq!((losses, restored), (1, 2));
    assert_eq!(number(&place.gate, "reconnects_total"), 1);
}
