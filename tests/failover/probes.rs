//! Clients of their own that measure how soon a lock is handed over, and a free lock granted.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use crate::{
    figures::Figures,
    support::{Client, Lockgate},
};

/// Names them apart.
static ROUND: AtomicUsize = AtomicUsize::new(0);

/// An owner and a waiter at each lockgate.
pub(crate) struct Probes {
    pairs: Vec<Pair>,
    round: usize,
}

struct Pair {
    owner: Client,
    waiter: Client,
    key: String,
}

impl Probes {
    /// Returns when each waiter waits.
    pub(crate) fn before(gates: &[Lockgate]) -> Self {
        let round = ROUND.fetch_add(1, Relaxed);
        let pair = |(number, gate): (usize, &Lockgate)| {
            let (mut owner, mut waiter) = (gate.client(), gate.client());
            let key = format!("handover:{round}:{number}");
            let lock = |token| ["LOCK", &key, "PX", "60000", "TOKEN", token];
            assert_eq!(owner.call(&lock("owner")), "owner");
            waiter.send(&lock("waiter"));
            gate.awaits_waiters(&key, 1);
            Pair { owner, waiter, key }
        };
        let pairs = gates.iter().enumerate().map(pair).collect();
        Self { pairs, round }
    }

    /// Each owner lets go now, and somebody asks for a free lock at each lockgate.
    pub(crate) fn measure(
        self,
        gates: &[Lockgate],
        switched: Instant,
        served: Duration,
        figures: &mut Figures,
    ) {
        let round = self.round;
        thread::scope(|threads| {
            let since = |granted: Instant| granted.saturating_duration_since(switched);
            let pairs = self.pairs.into_iter();
            let handovers: Vec<_> = pairs
                .map(|mut pair| {
                    pair.owner.send(&["UNLOCK", &pair.key, "owner"]);
                    threads.spawn(move || {
                        assert!(pair.waiter.hears_within(served).expect("it is kept"));
                        let granted = Instant::now();
                        assert_eq!(pair.waiter.read_reply(), "waiter");
                        assert_eq!(pair.owner.read_reply(), 1, "an owner's UNLOCK");
                        assert_eq!(pair.waiter.call(&["UNLOCK", &pair.key, "waiter"]), 1);
                        since(granted)
                    })
                })
                .collect();
            let gates = gates.iter().enumerate();
            let free: Vec<_> = gates
                .map(|(number, gate)| {
                    let mut client = gate.client();
                    client.send(&["LOCK", &format!("free:{round}:{number}"), "PX", "1000"]);
                    threads.spawn(move || {
                        assert!(client.hears_within(served).expect("it is kept"));
                        let granted = Instant::now();
                        client.read_reply().text();
                        since(granted)
                    })
                })
                .collect();
            let all = |threads: Vec<thread::ScopedJoinHandle<'_, Duration>>| {
                let times = threads.into_iter().map(|thread| thread.join().unwrap());
                times.collect::<Vec<_>>()
            };
            figures.handovers.extend(all(handovers));
            figures.free.extend(all(free));
        });
    }
}
