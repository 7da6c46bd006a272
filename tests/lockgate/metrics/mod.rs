//! What is counted is what happened: situations that clients and Redis see, too, each counted by the
//! other side. `INFO lockgate` shows the counters; they are the same that `/metrics` shows.

use std::{
    collections::HashMap,
    io::Write,
    process::{Command, Stdio},
    time::Instant,
};

mod upstream;

use crate::support::{
    Client, Http, Lockgate, Machine, Monitor, Place, RedisServer, SHORT_GRACE, eventually, report,
    run_to_its_end,
};

/// The counters of the gate, as `INFO lockgate` shows them.
struct Counts(HashMap<String, u64>);

impl Counts {
    fn of(client: &mut Client) -> Self {
        let info = client.say("INFO lockgate").text();
        let numbers = info.lines().filter_map(|line| {
            let (name, value) = line.strip_prefix("lockgate_")?.split_once(':')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Self(numbers.collect())
    }

    #[track_caller]
    fn get(&self, name: &str) -> u64 {
        *self.0.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// What was counted since, but for what is zero and what other tests are for.
    fn since(&self, before: &Self) -> Vec<(String, u64)> {
        let ignored = ["relay", "uptime", "clients", "upstream"];
        let mut more: Vec<_> = self
            .0
            .iter()
            .filter(|(name, _)| !ignored.iter().any(|it| name.starts_with(it)))
            .map(|(name, value)| (name.clone(), value - before.0.get(name).unwrap_or(&0)))
            .filter(|(_, more)| *more > 0)
            .collect();
        more.sort();
        more
    }
}

/// Silent connections are not asked for a sign of life, so that what goes to Redis can be counted.
fn quiet_place() -> Place {
    place_with(&[
        ("LOCKGATE_UPSTREAM_PING", "1h"),
        ("LOCKGATE_WRITE_BACK_GRACE", "1800ms"),
    ])
}

fn place_with(settings: &[(&str, &str)]) -> Place {
    let machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let environment = [&SHORT_GRACE[..], settings].concat();
    let flags = ["--admin", "127.0.0.1:0", "--upstream", &redis.url()];
    let gate = Lockgate::start_with(&flags, &environment);
    let mut first = gate.client();
    assert_eq!(first.say("LOCK first TOKEN f"), "f");
    assert_eq!(first.say("UNLOCK first f"), 1);
    Place::of(Some(redis), gate, machine)
}

fn expected(counts: &[(&str, u64)]) -> Vec<(String, u64)> {
    let mut counts: Vec<_> = counts
        .iter()
        .map(|(name, count)| ((*name).to_owned(), *count))
        .collect();
    counts.sort();
    counts
}

/// Three who wait and get it, one who waits in vain, one who does not wait, one who leaves, one who
/// comes again, and those who are wrong.
fn a_busy_lock(place: &Place) {
    let mut observer = place.client();
    let before = Counts::of(&mut observer);
    let mut owner = place.client();
    assert_eq!(owner.say("LOCK k TOKEN o"), "o");
    let mut waiters = place.gate.clients(3);
    for (number, waiter) in waiters.iter_mut().enumerate() {
        waiter.send(&["LOCK", "k", "TOKEN", &format!("w{number}")]);
        place
            .gate
            .awaits_waiters("k", i64::try_from(number).unwrap() + 1);
    }
    let now = Counts::of(&mut observer);
    assert_eq!((now.get("waiters"), now.get("leases")), (3, 1));
    assert!(place.client().say("LOCK k WAIT 20").is_nil());
    assert!(place.client().say("TRYLOCK k").is_nil());
    let mut leaver = place.client();
    leaver.send(&["LOCK", "k"]);
    place.gate.awaits_waiters("k", 4);
    drop(leaver);
    place.gate.awaits_waiters("k", 3);
    assert_eq!(owner.say("LOCK k TOKEN o"), "o");
    assert_eq!(owner.say("RELOCK k o PX 20000"), 1);
    assert_eq!(owner.say("RELOCK k wrong"), 0);
    assert_eq!(owner.say("UNLOCK k wrong"), 0);
    assert_eq!(owner.call(&["UNLOCK", "k", &"x".repeat(300)]), 0);
    assert_eq!(owner.say("UNLOCK k o"), 1);
    for (number, waiter) in waiters.iter_mut().enumerate() {
        assert_eq!(waiter.read_reply(), *format!("w{number}"));
        assert_eq!(waiter.say(&format!("UNLOCK k w{number}")), 1);
    }
    let after = Counts::of(&mut observer);
    assert_eq!((after.get("waiters"), after.get("leases")), (0, 0));
    let polls = after.get("estimated_polls_avoided") - before.get("estimated_polls_avoided");
    let counted = [
        ("grants_free", 1),
        ("grants_handover", 3),
        ("grants_again", 1),
        ("leases_ended_handed_over", 3),
        ("leases_ended_released", 1),
        ("timeouts", 1),
        ("busy_trylocks", 1),
        ("waiters_left", 1),
        ("unlocks_released", 4),
        ("unlocks_not_held", 2),
        ("relocks_extended", 1),
        ("relocks_not_held", 1),
        ("estimated_polls_avoided", polls),
    ];
    let counted: Vec<_> = counted
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .collect();
    assert_eq!(after.since(&before), expected(&counted));
}

#[test]
fn clients_see_what_is_counted() {
    Place::each(a_busy_lock);
}

#[test]
fn commands_are_those_that_redis_executes() {
    let place = quiet_place();
    // Redis has seen every script.
    a_busy_lock(&place);
    let mut monitor = Monitor::start(place.redis());
    let mut observer = place.client();
    let before = Counts::of(&mut observer);
    a_busy_lock(&place);
    let after = Counts::of(&mut observer);
    let sent = |kind: &str| {
        let name = format!("upstream_commands_{kind}");
        after.get(&name) - before.get(&name)
    };
    // The first one, and who came again.
    assert_eq!(sent("acquire"), 2);
    assert_eq!(sent("handover"), 3);
    assert_eq!(sent("release"), 2, "the last one, and the wrong token");
    assert_eq!(sent("extend"), 2);
    let executed = monitor.commands_on("k");
    let named = |names: &[&str]| {
        let of = |command: &&Vec<String>| names.contains(&command[0].as_str());
        executed.iter().filter(of).count() as u64
    };
    let kinds = [
        "acquire",
        "handover",
        "release",
        "extend",
        "check",
        "write_back",
    ];
    let scripts: u64 = kinds.into_iter().map(sent).sum();
    assert_eq!(scripts, named(&["EVALSHA", "EVAL"]), "{executed:?}");
    assert_eq!(sent("status"), named(&["PTTL"]));
    assert_eq!(sent("status") + scripts, executed.len() as u64);
    assert_eq!(after.get("upstream_in_flight"), 0);
    for kind in ["set", "ping", "setup", "info", "explain"] {
        assert_eq!(sent(kind), 0, "{kind}");
    }
}

#[test]
fn a_wait_is_counted_in_polls_that_it_spared() {
    let place = Place::with_redis(Machine::shared());
    let (mut owner, mut waiter) = (place.client(), place.client());
    assert_eq!(owner.say("LOCK k TOKEN o"), "o");
    let polls = |client: &mut Client| Counts::of(client).get("estimated_polls_avoided");
    let before = polls(&mut owner);
    let began = Instant::now();
    assert!(waiter.say("LOCK k WAIT 260").is_nil());
    let most = began.elapsed().as_millis() / 50;
    let spared = u128::from(polls(&mut owner) - before);
    assert!((5..=most).contains(&spared), "{spared} of {most}");
}

/// Clients that lock in Redis directly, keys that vanish, leases that nobody ends.
#[test]
fn changes_by_others_are_counted() {
    let place = quiet_place();
    let (mut redis, mut client) = (place.redis().client(), place.client());
    let before = Counts::of(&mut client);
    let more = |client: &mut Client, name: &str| Counts::of(client).get(name) - before.get(name);
    // Held by somebody else, and freed while one waits.
    assert_eq!(redis.say("SET theirs x PX 30000"), "OK");
    let mut waiter = place.client();
    waiter.send(&["LOCK", "theirs", "TOKEN", "w"]);
    place.gate.awaits_waiters("theirs", 1);
    eventually("the gate knows who holds it", || {
        more(&mut client, "upstream_commands_acquire") == 1
    });
    assert_eq!(redis.say("DEL theirs"), 1);
    assert_eq!(waiter.read_reply(), "w");
    assert_eq!(more(&mut client, "grants_waited"), 1);
    assert_eq!(more(&mut client, "upstream_pushes"), 1);
    // Taken away.
    assert_eq!(redis.say("DEL theirs"), 1);
    eventually("the loss is counted", || {
        more(&mut client, "leases_ended_lost") == 1
    });
    // Bound to a connection: renewed, and then lost.
    let mut session = place.client();
    session.say("HELLO 3");
    assert_eq!(session.say("LOCK bound TOKEN s PX 600 SESSION"), "s");
    eventually("it is renewed", || more(&mut client, "renewals") > 0);
    assert_eq!(more(&mut client, "lost_sessions"), 0);
    assert_eq!(redis.say("SET bound x PX 30000"), "OK");
    eventually("its owner is told", || {
        more(&mut client, "lost_sessions") == 1
    });
    assert_eq!(more(&mut client, "leases_ended_lost"), 2);
    // Left to its end.
    assert_eq!(client.say("LOCK short TOKEN e PX 50"), "e");
    eventually("it runs out", || {
        more(&mut client, "leases_ended_ran_out") == 1
    });
    assert_eq!(more(&mut client, "leases_ended_lost"), 2);
    assert_eq!(Counts::of(&mut client).get("leases"), 0);
}

#[test]
fn a_login_is_a_relayed_command() {
    let place = quiet_place();
    let mut observer = place.client();
    let mut client = place.client();
    assert_eq!(client.say("PING"), "PONG");
    let before = Counts::of(&mut observer);
    client.say("HELLO 3");
    client.say("AUTH default any");
    let after = Counts::of(&mut observer);
    let more = after.get("relayed_commands") - before.get("relayed_commands");
    assert_eq!(more, 2 + 1, "both, and the observer's INFO");
}

#[test]
fn relayed_bytes_are_unchanged() {
    let place = quiet_place();
    let mut redis = place.redis().client();
    let mut observer = place.client();
    let mut clients = place.gate.clients(3);
    for client in &mut clients {
        assert_eq!(client.say("PING"), "PONG");
    }
    // A question of the observer: what Redis counted includes it from then on.
    let stats = |redis: &mut Client| {
        let info = redis.say("INFO stats").text();
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.expect(name).parse::<u64>().expect("a number")
        };
        field("total_net_input_bytes:")
    };
    let own = |words: &[&str]| crate::support::frame(words).len() as u64;
    let calls = |redis: &mut Client| {
        let info = redis.say("INFO commandstats").text();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_set:calls="));
        line.map_or(0, |rest| {
            rest.split(',').next().unwrap().parse::<u64>().unwrap()
        })
    };
    let sets = calls(&mut redis);
    let redis_before = stats(&mut redis);
    let before = Counts::of(&mut observer);
    assert_eq!(before.get("relay_connections"), 4);
    let (mut sent, mut received) = (0, 0);
    for (number, client) in clients.iter_mut().enumerate() {
        for round in 0..50 {
            let value = "v".repeat(number * 20_000 + round);
            sent += own(&["SET", "a", &value]);
            client.send(&["SET", "a", &value]);
        }
        for _ in 0..50 {
            assert_eq!(client.read_reply(), "OK");
            received += 5;
        }
    }
    let after = Counts::of(&mut observer);
    let redis_after = stats(&mut redis);
    let more = |name: &str| after.get(name) - before.get(name);
    let info = own(&["INFO", "lockgate"]);
    // The second question is among them, the first was before.
    assert_eq!(more("relayed_commands"), 150 + 1);
    assert_eq!(calls(&mut redis) - sets, 150);
    assert_eq!(more("relayed_bytes_to_redis"), sent + info);
    // The reply of Redis, which knows no such section, to the first; that to the second was not read.
    assert_eq!(more("relayed_bytes_from_redis"), received + 6);
    let at_redis = redis_after - redis_before - own(&["INFO", "stats"]) - 2 * info;
    assert_eq!(at_redis, sent);
    drop(clients);
    eventually("connections that ended are not counted", || {
        Counts::of(&mut observer).get("relay_connections") == 1
    });
    assert_eq!(
        Counts::of(&mut observer).get("relay_connections_opened"),
        before.get("relay_connections_opened")
    );
}

/// `/metrics` of a gate that has been busy.
fn exposition() -> (Place, String) {
    let machine = Machine::shared();
    let redis = RedisServer::start(&[]);
    let url = redis.url();
    let flags = ["--admin", "127.0.0.1:0", "--upstream", &url];
    let gate = Lockgate::start_with(&flags, &SHORT_GRACE);
    let place = Place::of(Some(redis), gate, machine);
    a_busy_lock(&place);
    let text = told(&place.gate);
    (place, text)
}

/// `/metrics` now.
fn told(gate: &Lockgate) -> String {
    let answer = Http::connect(gate.admin_address()).get("/metrics");
    assert_eq!(answer.status, 200);
    answer.body
}

/// The value of a sample, by its name and labels.
#[track_caller]
fn sample(text: &str, name: &str) -> String {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .to_owned()
}

#[test]
fn prometheus_is_told_the_same() {
    let (place, text) = exposition();
    let counts = Counts::of(&mut place.client());
    for (name, field) in [
        ("lockgate_grants_total{how=\"free\"}", "grants_free"),
        ("lockgate_grants_total{how=\"handover\"}", "grants_handover"),
        ("lockgate_timeouts_total", "timeouts"),
        ("lockgate_leases", "leases"),
        (
            "lockgate_upstream_commands_total{kind=\"handover\"}",
            "upstream_commands_handover",
        ),
        (
            "lockgate_refusals_total{reason=\"refused_keys\"}",
            "refused_keys",
        ),
    ] {
        assert_eq!(sample(&text, name), counts.get(field).to_string(), "{name}");
    }
    let hows = ["free", "handover", "waited", "again"];
    let grants = hows.map(|how| counts.get(&format!("grants_{how}")));
    let grants = grants.iter().sum::<u64>().to_string();
    assert_eq!(sample(&text, "lockgate_wait_seconds_count"), grants);
    assert_eq!(
        sample(&text, "lockgate_wait_seconds_bucket{le=\"+Inf\"}"),
        grants
    );
    // `lockgate 0.1.0 (0123456789ab)`, without the commit in a development build.
    let printed = run_to_its_end(&["--version"], &[]).stdout;
    let printed = printed.trim().strip_prefix("lockgate ").expect("its name");
    let (version, commit) = match printed.split_once(" (") {
        Some((version, commit)) => (version, commit.trim_end_matches(')')),
        None => (printed, ""),
    };
    let build = format!("lockgate_build_info{{version=\"{version}\",commit=\"{commit}\"}}");
    assert_eq!(sample(&text, &build), "1");
    let kinds = [
        "set",
        "acquire",
        "handover",
        "release",
        "extend",
        "check",
        "write_back",
    ];
    let asked: u64 = kinds
        .iter()
        .map(|kind| counts.get(&format!("upstream_commands_{kind}")))
        .sum();
    assert_eq!(
        sample(&text, "lockgate_upstream_latency_seconds_count"),
        asked.to_string()
    );
}

#[test]
fn prometheus_is_told_what_there_is_now() {
    let (place, text) = exposition();
    assert_eq!(sample(&text, "lockgate_oldest_waiter_seconds"), "0");
    let mut owner = place.client();
    assert_eq!(owner.say("LOCK now TOKEN t"), "t");
    let mut waiter = place.client();
    waiter.send(&["LOCK", "now"]);
    place.gate.awaits_waiters("now", 1);
    // A moment later, clients that have gone are not counted any more.
    eventually("two clients and one lock are left", || {
        let text = told(&place.gate);
        ["clients", "locks", "waiters"].map(|what| sample(&text, &format!("lockgate_{what}")))
            == ["2", "1", "1"]
    });
    let text = told(&place.gate);
    let number = |name: &str| sample(&text, name).parse::<u64>().unwrap();
    assert!(number("lockgate_clients_limit") > 2);
    assert!(number("lockgate_relay_connections_opened_total") > 0);
    let ended = ["handed_over", "lost", "ran_out", "released"];
    let ended = ended.map(|how| number(&format!("lockgate_leases_ended_total{{how=\"{how}\"}}")));
    assert_eq!(
        number("lockgate_hold_seconds_count"),
        ended.iter().sum::<u64>()
    );
    for kind in ["admission", "info", "setup"] {
        let asked = number(&format!(
            "lockgate_upstream_commands_total{{kind=\"{kind}\"}}"
        ));
        assert!(asked > 0, "{kind}");
    }
}

#[test]
fn prometheus_is_told_the_age_of_the_oldest_waiter_of_all_locks() {
    let place = quiet_place();
    let mut owner = place.client();
    let seconds = || {
        let text = told(&place.gate);
        sample(&text, "lockgate_oldest_waiter_seconds")
            .parse::<f64>()
            .unwrap()
    };
    let mut waiters = Vec::new();
    for key in ["older", "younger"] {
        assert_eq!(owner.call(&["LOCK", key, "TOKEN", "o"]), "o");
        let mut waiter = place.client();
        let sent = Instant::now();
        waiter.send(&["LOCK", key, "TOKEN", "w"]);
        place.gate.awaits_waiters(key, 1);
        waiters.push((waiter, sent, Instant::now()));
    }
    for (at, key) in ["older", "younger"].into_iter().enumerate() {
        let (waiter, sent, joined) = &mut waiters[at];
        let least = joined.elapsed().as_secs_f64();
        let age = seconds();
        let most = sent.elapsed().as_secs_f64();
        assert!(
            (least..=most).contains(&age),
            "{key}: {least} <= {age} <= {most}"
        );
        assert_eq!(owner.call(&["UNLOCK", key, "o"]), 1);
        assert_eq!(waiter.read_reply(), "w");
    }
    assert_eq!(seconds(), 0.0);
}

/// No name, user, token or address is among the labels.
#[test]
fn no_secret_is_a_label() {
    let (place, text) = exposition();
    let upstream = place.redis().address().port().to_string();
    for secret in ["\"k\"", "\"o\"", "w1", "127.0.0.1", &upstream, "default"] {
        let shown = text.lines().filter(|line| !line.starts_with('#'));
        let shown: Vec<_> = shown
            .filter(|line| line.contains('{') && line.contains(secret))
            .collect();
        assert!(shown.is_empty(), "{secret}: {shown:?}");
    }
}

/// Prometheus's own judge of names, units and format.
#[test]
fn promtool_is_content() {
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match promtool {
        Ok(promtool) => promtool,
        Err(error) => {
            assert!(
                std::env::var_os("CI").is_none(),
                "promtool (package prometheus): {error}"
            );
            return report(
                "promtool is not installed (package prometheus): metrics are not checked by it",
            );
        }
    };
    let (_place, text) = exposition();
    let mut input = promtool.stdin.take().expect("piped");
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert_eq!(
        (
            output.status.code(),
            String::from_utf8_lossy(&said).as_ref()
        ),
        (Some(0), "")
    );
}
