//! Event counters since the start. Each limit has a counter of how often it was reached, so that an operator sees which
//! limit to raise, or that a client is hostile. `INFO lockgate` and [`metrics`](crate::telemetry::metrics) show the
//! counters.
//!
//! A counter is one atomic number. [`Counters::each`] lists them all, each with a line of help.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::Refusal;

/// A counter of one kind of event.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Creates a counter at zero.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts one event.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts this many events.
    pub fn add(&self, times: u64) {
        self.0.fetch_add(times, Ordering::Relaxed);
    }

    /// Returns the number of events.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($name:ident: $help:literal,)+) => {
        /// The event counters.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(#[doc = $help] pub $name: Counter,)+
        }

        impl Counters {
            /// Creates the counters at zero.
            pub const fn new() -> Self {
                Self { $($name: Counter::new(),)+ }
            }

            /// Returns the name, the meaning and the value of each counter.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), $help, self.$name.get()),)+].into_iter()
            }
        }
    };
}

counters! {
    refused_clients: "Clients refused because limits.clients were connected.",
    refused_operators: "Connections to the admin address closed because as many as may be were open.",
    refused_from_elsewhere: "Clients refused by protected mode.",
    failed_handshakes: "Clients that came for TLS and did not get through its handshake.",
    wrong_passwords: "AUTH and HELLO refused because of a wrong name or password of this instance (auth.password).",
    failed_accepts: "Connections that the system could not give, for want of open files above all.",
    closed_idle_clients: "Clients closed because they were silent for idle_timeout.",
    cross_protocol_requests: "Clients dropped because they spoke HTTP.",
    protocol_errors: "Clients closed because they did not speak the Redis protocol.",
    uncountable_replies: "Clients closed because it was not clear whose reply Redis sent.",
    unrestored_clients: "Clients closed because Redis refused, on their new connection, what they had said on an earlier one.",
    unreachable_upstream: "Clients closed because Redis could not be reached for them.",
    refused_lock_commands: "Lock commands of too many arguments, or longer than limits.lock_command_bytes.",
    refused_keys: "Lock commands whose key was longer than limits.key_bytes.",
    refused_tokens: "Lock commands whose token was empty or longer than limits.token_bytes.",
    refused_leases: "Lock commands whose lease was not from lock.min_lease to lock.max_lease, or below lock.min_session_lease.",
    refused_sessions: "Lock commands refused with MAXSESSIONS: limits.session_locks were bound to the connection.",
    refused_locks: "Lock commands refused with MAXLOCKS: limits.locks were known.",
    refused_shared_connections: "Questions refused because limits.shared_connections were in use.",
    refused_waiters: "Lock commands refused with MAXWAITERS: limits.waiters waited for the lock.",
    refused_deadlocks: "Lock commands refused with DEADLOCK.",
    expired_grants: "Lock commands refused with EXPIRED: the lease was over before the reply was written.",
    unanswered_questions: "Lock commands refused with UPSTREAM: Redis did not answer in time.",
    refused_transactions: "Clients closed because a transaction changed the connection too often.",
    held_back_behind_locks: "Times a client was not read from because of limits.pipelined_commands or limits.pipelined_bytes.",
    held_back_relays: "Times a side was not read from because of limits.relay_bytes.",
    closed_starved_clients: "Clients closed because they read nothing while what they had sent needed more of limits.kept_reply_bytes.",
    forgotten_released_tokens: "Released tokens forgotten early because of limits.released_tokens.",
}

impl Counters {
    /// Counts a refused request.
    pub fn refused(&self, refusal: &Refusal) {
        match refusal {
            Refusal::TooManyLocks => self.refused_locks.count(),
            Refusal::TooManyWaiters => self.refused_waiters.count(),
            Refusal::Deadlock => self.refused_deadlocks.count(),
            Refusal::Expired => self.expired_grants.count(),
            Refusal::Upstream => self.unanswered_questions.count(),
            Refusal::Store(_) | Refusal::NotSent => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_named_once_and_told_with_its_value() {
        let counters = Counters::new();
        counters.refused(&Refusal::TooManyLocks);
        counters.refused_locks.count();
        let told = |name| counters.each().find(|(its, ..)| *its == name).unwrap().2;
        assert_eq!((told("refused_locks"), told("refused_waiters")), (2, 0));
        let mut names: Vec<_> = counters.each().map(|(name, ..)| name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
