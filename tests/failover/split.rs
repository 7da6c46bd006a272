//! One lockgate is alone with the old master: neither it nor that master reaches the Sentinels or the replicas,
//! and the other lockgate follows the new one.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    ACKNOWLEDGED, Machinery, SERVED, Settings, USUAL,
    contention::{
        checks::{DOUBLE, judge},
        contend,
        history::{History, Said},
    },
    failovers_are_many,
    random::Random,
    support::{DOWN_AFTER, Machine, report},
};

/// In the long run, and in the short one.
const SPLIT: [Duration; 2] = [Duration::from_secs(12), Duration::from_secs(5)];

/// The lockgate that is alone with the old master, and its user at the Sentinels.
const ALONE: usize = 0;
const USER: &str = "alone";

/// What replicas acknowledged before the split may be told so much later.
const TOLD: Duration = Duration::from_millis(100);

/// How long a sentinel's silence may take to be noticed, beside `down-after-milliseconds`.
const NOTICED: Duration = Duration::from_millis(200);

/// The number of grants on the old side from `after` its beginning to the end of a split, and the history.
fn split(settings: &Settings, after: Duration) -> (usize, History) {
    let _machine = Machine::alone();
    let mut machinery = Machinery::with_user(settings, Some((ALONE, USER)));
    let world = machinery.world();
    let (mut begun, mut healed) = (Duration::ZERO, Duration::ZERO);
    contend(&world, &mut Random::new(7), || {
        thread::sleep(Duration::from_secs(1));
        let split = SPLIT[usize::from(!failovers_are_many())];
        let sentinels = &mut machinery.sentinels;
        sentinels.lets_in(USER, false);
        let failover = sentinels.is_cut_off();
        begun = world.moment(failover.from);
        thread::sleep((failover.from + split).saturating_duration_since(Instant::now()));
        healed = world.now();
        sentinels.lets_in(USER, true);
        sentinels.heals(false);
        for gate in &machinery.gates {
            let mut probe = gate.client();
            probe.send(&["LOCK", &format!("healed:{}", gate.address()), "PX", "1000"]);
            assert!(probe.hears_within(SERVED).expect("it is kept"));
            probe.read_reply().text();
        }
    });
    let history = world.history();
    let on_the_old_side = history.steps.iter().filter(|step| {
        let granted = matches!(step.said, Said::Granted { .. });
        granted && step.gate == ALONE && (begun + after..healed).contains(&step.read)
    });
    let grants = on_the_old_side.count();
    let (name, split) = (settings.name, healed - begun);
    report(&format!(
        "{name}: {grants} grants with the old master, from {after:?} after the beginning of a split of {split:?}"
    ));
    (grants, history)
}

/// What the others prevent, and the proof that they could fail.
#[test]
fn an_instance_that_is_cut_off_together_with_the_old_master_goes_on_granting_there() {
    let (grants, _) = split(&USUAL, DOWN_AFTER + NOTICED);
    assert!(grants > 0);
}

#[test]
fn an_isolated_instance_that_is_to_stop_grants_nothing() {
    let settings = Settings {
        name: "isolated = \"stop\"",
        environment: &[USUAL.environment, &[("LOCKGATE_SENTINEL_ISOLATED", "stop")]].concat(),
        ..USUAL
    };
    let (grants, _) = split(&settings, DOWN_AFTER + NOTICED);
    assert_eq!(grants, 0);
}

#[test]
fn an_instance_that_no_replica_acknowledges_grants_nothing() {
    let (grants, history) = split(&ACKNOWLEDGED, TOLD);
    assert_eq!(grants, 0);
    let verdict = judge(&history, SERVED);
    assert!(
        verdict.wrongs.iter().all(|wrong| wrong.what != DOUBLE),
        "{verdict:?}"
    );
}
