//! When everybody is done nothing is left.

use std::time::{Duration, Instant};

use crate::{
    faults::Machinery,
    support::{Value, eventually},
    world::World,
};

/// The counter of fencing tokens and the mark of the grace, which stay.
const STAYS: [&str; 2] = ["lockgate:fence", "lockgate:grace"];

/// How long a free lock may take.
const AT_ONCE: Duration = Duration::from_millis(500);

/// To be called at the end of the faults and of all clients. Leases that run out do so within the
/// time that `eventually` allows.
pub(crate) fn check(machinery: &Machinery, world: &World) {
    let mut redis = machinery.redis.client();
    let mut left = Vec::new();
    eventually("no lock is left in Redis", || {
        left = redis.say("KEYS *").items().to_vec();
        left.iter().all(|key| STAYS.iter().any(|it| *key == *it))
    });
    for gate in &machinery.gates {
        let mut observer = gate.client();
        eventually(
            "no lock is left in a gate",
            || matches!(observer.say("LOCKS"), Value::Array(locks) if locks.is_empty()),
        );
    }
    for gate in &machinery.gates {
        for key in &world.locks {
            let start = Instant::now();
            let mut client = gate.client();
            assert_eq!(
                client.call(&["LOCK", key, "TOKEN", "last", "WAIT", "5000"]),
                "last"
            );
            assert!(
                start.elapsed() < AT_ONCE,
                "{key} after {:?}",
                start.elapsed()
            );
            assert_eq!(client.call(&["UNLOCK", key, "last"]), 1);
        }
    }
}
