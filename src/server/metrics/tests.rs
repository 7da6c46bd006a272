use std::{
    collections::HashSet,
    sync::{Arc, LazyLock},
};

use tokio::runtime::Runtime;

use super::*;
use crate::{
    config::{Config, live::LiveConfig},
    gate::{Answer, Client, Label, LockOptions},
    lock::{EndReason, GrantKind, LockMetric, Refusal, Reply, Time, Token, UserId},
    store::LockName,
    telemetry::metrics::{
        Measured,
        absorb::{AbsorbMetrics, AttemptAnswer, EarlyEnd, PassedReason, ReleaseHow},
        exposition::{Kind, Value, text},
        histogram::Histogram,
        locks::{LockMetrics, Request},
        relays::RelayMetrics,
    },
};

fn shared() -> Shared {
    let config = Config::default();
    crate::run::shared(&config, Arc::new(LiveConfig::new(&config)), None, 0)
}

/// Returns every family: with an upstream that sentinels name, though none is reachable.
fn families_before_redis() -> Vec<Family> {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
    let _entered = RUNTIME.enter();
    let config = Config::builder().set("upstream.url", "redis+sentinel://127.0.0.1:1/m");
    let config = config.build().unwrap();
    families(&crate::run::shared(
        &config,
        Arc::new(LiveConfig::new(&config)),
        None,
        0,
    ))
}

fn plain(text: &str) -> bool {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(letter)
}

/// Help, labels and names need no escapes and follow Prometheus's rules.
#[tokio::test]
async fn names_and_labels_are_plain_words() {
    let (families, mut names) = (families_before_redis(), HashSet::new());
    for family in &families {
        let Family {
            name,
            help,
            kind,
            samples,
        } = family;
        assert!(plain(name), "{name}");
        assert!(names.insert(name), "{name} twice");
        assert!(
            help.ends_with('.') && !help.contains(['\\', '\n']),
            "{name}: {help}"
        );
        assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
        assert!(!samples.is_empty(), "{name}");
        let mut labels = HashSet::new();
        for sample in samples {
            assert!(
                labels.insert(&sample.labels),
                "{name}: {:?} twice",
                sample.labels
            );
            for (label, value) in &sample.labels {
                assert!(
                    plain(label) && !value.contains(['\\', '"', '\n']),
                    "{name}: {label}={value}"
                );
            }
        }
    }
}

/// Returns what each event adds to the fields of `INFO`.
fn changed(by: impl FnOnce(&LockMetrics)) -> Vec<(String, u64)> {
    let locks = LockMetrics::new(50_000);
    by(&locks);
    fields(&locks, &AbsorbMetrics::new())
}

/// Returns the fields of `INFO` that are not zero.
fn fields(locks: &LockMetrics, absorbed: &AbsorbMetrics) -> Vec<(String, u64)> {
    let measured = Measured {
        locks,
        upstream: None,
        relays: &RelayMetrics::new(),
        absorbed,
    };
    let mut fields = measured.fields();
    fields.retain(|(_, value)| *value > 0);
    fields
}

#[test]
fn each_event_of_a_lock_is_counted_once() {
    let granted = |how| Reply::Granted {
        token: Token::new("t"),
        until: Time::default(),
        since: Time::default(),
        fence: None,
        session: false,
        how,
    };
    let refused = || Reply::Refused(Refusal::Upstream);
    let one = |name: &str| vec![(format!("lockgate_{name}"), 1)];
    for (request, reply, name) in [
        (Request::Lock, granted(GrantKind::Free), "grants_free"),
        (
            Request::Lock,
            granted(GrantKind::Handover),
            "grants_handover",
        ),
        (
            Request::TryLock,
            granted(GrantKind::Waited),
            "grants_waited",
        ),
        (Request::TryLock, granted(GrantKind::Again), "grants_again"),
        (Request::Lock, Reply::Nil, "timeouts"),
        (Request::TryLock, Reply::Nil, "busy_trylocks"),
        (Request::Lock, refused(), "lock_errors"),
        (Request::TryLock, refused(), "lock_errors"),
        (Request::Unlock, Reply::Done, "unlocks_released"),
        (Request::Unlock, Reply::NotHeld, "unlocks_not_held"),
        (Request::Unlock, refused(), "unlocks_error"),
        (Request::Relock, Reply::Done, "relocks_extended"),
        (Request::Relock, Reply::NotHeld, "relocks_not_held"),
        (Request::Relock, refused(), "relocks_error"),
    ] {
        let counted = changed(|locks| locks.answered(request, 49_999, &reply, false));
        assert_eq!(counted, one(name));
    }
    let over = |how| LockMetric::LeaseOver {
        since: Time::from_millis(10),
        how,
    };
    for (what, name) in [
        (over(EndReason::Released), "leases_ended_released"),
        (over(EndReason::HandedOver), "leases_ended_handed_over"),
        (over(EndReason::RanOut), "leases_ended_ran_out"),
        (over(EndReason::Lost), "leases_ended_lost"),
        (LockMetric::Yielded, "yields"),
        (LockMetric::Renewed, "renewals"),
        (LockMetric::NotRenewed, "failed_renewals"),
    ] {
        let counted = changed(|locks| locks.happened(Time::from_millis(12), what));
        assert_eq!(counted, one(name));
    }
    let left = changed(|locks| locks.answered(Request::Lock, 0, &Reply::Nil, true));
    assert_eq!(left, one("waiters_left"));
    assert_eq!(
        changed(|locks| locks.left(Request::Lock, 0)),
        one("waiters_left")
    );
    assert_eq!(changed(LockMetrics::undelivered), one("undelivered_grants"));
    assert_eq!(changed(LockMetrics::lost_session), one("lost_sessions"));
    assert_eq!(
        changed(|locks| locks.lease_changed(false, true)),
        one("leases")
    );
    assert_eq!(changed(|locks| locks.lease_changed(true, true)), []);
}

#[test]
fn each_event_of_an_absorbed_command_is_counted_once() {
    let check = |by: &dyn Fn(&AbsorbMetrics), name: &str| {
        let absorbed = AbsorbMetrics::new();
        by(&absorbed);
        let fields = fields(&LockMetrics::new(50_000), &absorbed);
        assert_eq!(fields, [(format!("lockgate_{name}"), 1)]);
    };
    for (answer, name) in [
        (AttemptAnswer::Free, "free"),
        (AttemptAnswer::Handover, "handover"),
        (AttemptAnswer::Waited, "waited"),
        (AttemptAnswer::Again, "again"),
        (AttemptAnswer::RefusedAtOnce, "refused_at_once"),
        (AttemptAnswer::RefusedParked, "refused_parked"),
    ] {
        let name = format!("absorbed_attempts_{name}");
        check(&|absorbed| absorbed.attempt(answer), &name);
    }
    for (how, name) in [
        (ReleaseHow::Released, "released"),
        (ReleaseHow::NotHeld, "not_held"),
        (ReleaseHow::FromMemory, "from_memory"),
    ] {
        let name = format!("absorbed_releases_{name}");
        check(&|absorbed| absorbed.release(how), &name);
    }
    for (reason, name) in [
        (PassedReason::NoExpiry, "no_expiry"),
        (PassedReason::Lease, "lease"),
        (PassedReason::Token, "token"),
        (PassedReason::Keys, "keys"),
        (PassedReason::Script, "script"),
        (PassedReason::Rights, "rights"),
        (PassedReason::Limit, "limit"),
        (PassedReason::Transaction, "transaction"),
        (PassedReason::Draining, "draining"),
    ] {
        let name = format!("absorb_passed_{name}");
        check(&|absorbed| absorbed.passed(reason), &name);
    }
    for (why, name) in [
        (EarlyEnd::Behind, "behind"),
        (EarlyEnd::Share, "share"),
        (EarlyEnd::Closed, "closed"),
    ] {
        let name = format!("absorb_ended_early_{name}");
        check(&|absorbed| absorbed.ended_early(why), &name);
    }
    check(&|absorbed| absorbed.saved(1), "absorbed_commands_saved");
}

#[test]
fn an_attempt_is_parked_until_it_is_dropped() {
    let absorbed = Arc::new(AbsorbMetrics::new());
    let parked = || fields(&LockMetrics::new(50_000), &absorbed);
    let attempts = [absorbed.parked(), absorbed.parked()];
    assert_eq!(parked(), [("lockgate_absorb_parked".to_owned(), 2)]);
    drop(attempts);
    assert_eq!(parked(), []);
}

#[test]
fn waits_and_holds_are_in_their_histograms() {
    let locks = LockMetrics::new(50_000);
    let reply = Reply::Granted {
        token: Token::new("t"),
        until: Time::default(),
        since: Time::default(),
        fence: None,
        session: false,
        how: GrantKind::Waited,
    };
    locks.answered(Request::Lock, 120_000, &reply, false);
    locks.answered(Request::Lock, 170_000, &Reply::Nil, false);
    let (since, how) = (Time::from_millis(10), EndReason::Released);
    locks.happened(Time::from_millis(12), LockMetric::LeaseOver { since, how });
    let (wait, hold) = (locks.wait.get(), locks.hold.get());
    assert_eq!((wait.count(), wait.sum_micros), (1, 120_000), "grants only");
    assert_eq!((hold.count(), hold.sum_micros), (1, 2_000));
}

#[test]
fn polls_avoided_are_those_of_whole_intervals_of_locks_that_waited() {
    for (request, micros, polls) in [
        (Request::Lock, 49_999, 0),
        (Request::Lock, 50_000, 1),
        (Request::Lock, 170_000, 3),
        (Request::TryLock, 170_000, 0),
        (Request::Unlock, 170_000, 0),
    ] {
        for left in [false, true] {
            let mut counted = changed(|locks| match left {
                true => locks.left(request, micros),
                false => locks.answered(request, micros, &Reply::Nil, false),
            });
            counted.retain(|(name, _)| name == "lockgate_estimated_polls_avoided");
            let expected =
                (polls > 0).then(|| ("lockgate_estimated_polls_avoided".to_owned(), polls));
            assert_eq!(counted, Vec::from_iter(expected), "{request:?} {micros}");
        }
    }
}

/// The client of an instance inside this process.
#[tokio::test]
async fn a_grant_that_reaches_nobody_is_counted_and_its_lease_ends() {
    let shared = shared();
    let client = Client {
        user: UserId::ANONYMOUS,
        label: Label::of("here").into(),
    };
    let name = LockName {
        database: 0,
        key: b"k".as_slice().into(),
    };
    let wish = LockOptions {
        asked_at: crate::clock::now(),
        token: None,
        lease_ms: 30_000,
        wait_ms: None,
        try_only: false,
        fence: false,
        session: None,
        replicas: 0,
        connection: crate::lock::ConnectionId(1),
        attempt: None,
    };
    let field = |name: &str| {
        let fields = shared.measured().fields();
        fields
            .into_iter()
            .find(|(its, _)| its == name)
            .expect(name)
            .1
    };
    let Answer::Granted(grant) = shared.gate.lock(&client, name, &wish).await else {
        panic!("nobody holds it");
    };
    assert_eq!(
        (field("lockgate_grants_free"), field("lockgate_leases")),
        (1, 1)
    );
    drop(grant);
    assert_eq!(field("lockgate_undelivered_grants"), 1);
    assert_eq!(
        (
            field("lockgate_leases"),
            field("lockgate_leases_ended_released")
        ),
        (0, 1)
    );
}

#[test]
fn a_family_is_written_as_the_format_says() {
    let histogram = Histogram::new(&[1_000, 2_500_000]);
    for micros in [1_000, 1_001, 9_000_000] {
        histogram.count(micros);
    }
    let labelled = vec![Sample::of("how", "free", 3), Sample::of("how", "waited", 0)];
    let families = [
        Family::counters("grants_total", "Grants.", labelled),
        Family::gauge("waiters", "Waiters.", 7),
        Family::gauge_seconds("start_seconds", "Start.", 1_500_000),
        Family::histogram("wait_seconds", "Waits.", histogram.get()),
    ];
    assert_eq!(
        text(&families),
        "# HELP grants_total Grants.\n# TYPE grants_total counter\n\
         grants_total{how=\"free\"} 3\ngrants_total{how=\"waited\"} 0\n\
         # HELP waiters Waiters.\n# TYPE waiters gauge\nwaiters 7\n\
         # HELP start_seconds Start.\n# TYPE start_seconds gauge\nstart_seconds 1.5\n\
         # HELP wait_seconds Waits.\n# TYPE wait_seconds histogram\n\
         wait_seconds_bucket{le=\"0.001\"} 1\nwait_seconds_bucket{le=\"2.5\"} 2\n\
         wait_seconds_bucket{le=\"+Inf\"} 3\nwait_seconds_sum 9.002001\nwait_seconds_count 3\n"
    );
}

/// The process reports the same figures as the system.
#[cfg(target_os = "linux")]
#[test]
fn the_process_tells_its_memory_and_its_time() {
    let families = process::families(std::time::SystemTime::now());
    let number = |name: &str| {
        let family = families.iter().find(|family| family.name == name);
        match family.expect(name).samples[0].value {
            Value::Whole(number) | Value::Micros(number) => number,
            Value::Distribution(_) => panic!("{name}"),
        }
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = |field: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(field))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let (told, seen) = (
        number("process_resident_memory_bytes"),
        kib("VmRSS:") * 1024,
    );
    // The system counts pages in batches.
    assert!(told.abs_diff(seen) < 4 * 1024 * 1024, "{told} and {seen}");
    assert!(number("process_cpu_seconds_total") > 0);
    assert!(number("process_start_time_seconds") > 1_700_000_000_000_000);
}

/// Returns the metrics in an expression of the dashboard, and the labels that it groups by.
fn named_in(expression: &str) -> (Vec<&str>, Vec<&str>) {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_metric = |word: &&str| word.starts_with("lockgate_") || word.starts_with("process_");
    let by = expression.split("by (").skip(1);
    let by = by.flat_map(|rest| rest.split(')').next().unwrap_or_default().split(", "));
    (words.filter(is_metric).collect(), by.collect())
}

/// The alerts refer only to metrics and reasons of refusals that exist.
#[tokio::test]
async fn alerts_watch_what_is_measured() {
    let families = families_before_redis();
    let alerts = include_str!("../../../config/alerts.yaml");
    let is_expression = |line: &&str| line.contains("lockgate_") || line.contains("=~");
    let mut watched = HashSet::new();
    for line in alerts.lines().filter(is_expression) {
        for metric in named_in(line).0 {
            let is_there = families.iter().any(|family| family.name == metric);
            assert!(is_there, "{metric}");
            watched.insert(metric);
        }
        let values = line.split('"').skip(1).step_by(2);
        for value in values.flat_map(|text| text.split('|')) {
            let mut samples = families.iter().flat_map(|family| &family.samples);
            let is_there = samples.any(|sample| sample.labels.iter().any(|(_, its)| *its == value));
            assert!(is_there, "{value}");
        }
    }
    assert!(watched.len() >= 9, "{watched:?}");
}

/// The dashboard shows only metrics and labels that exist, and shows every metric but some of the process.
#[tokio::test]
async fn the_dashboard_shows_what_is_measured() {
    let dashboard = include_str!("../../../config/grafana-dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let expressions: Vec<_> = targets
        .flatten()
        .map(|target| target["expr"].as_str().expect("an expression"))
        .collect();
    assert!(expressions.len() > 30, "{expressions:?}");
    let families = families_before_redis();
    let mut shown = HashSet::new();
    for expression in expressions {
        let (metrics, labels) = named_in(expression);
        assert!(!metrics.is_empty(), "{expression}");
        for metric in metrics {
            let is_it = |family: &&Family| match family.kind {
                Kind::Histogram => format!("{}_bucket", family.name) == metric,
                Kind::Counter | Kind::Gauge => family.name == metric,
            };
            let family = families.iter().find(is_it).expect(metric);
            shown.insert(family.name);
            let has = |label: &str| {
                let mut labels = family.samples.iter().flat_map(|sample| &sample.labels);
                let own = labels.any(|(its, _)| *its == label);
                own || label == "instance" || (label == "le" && family.kind == Kind::Histogram)
            };
            assert!(labels.iter().all(|label| has(label)), "{expression}");
        }
    }
    let ours = families
        .iter()
        .filter(|family| family.name.starts_with("lockgate_"));
    let unseen: Vec<_> = ours.filter(|family| !shown.contains(family.name)).collect();
    assert!(unseen.is_empty(), "{unseen:?}");
}
