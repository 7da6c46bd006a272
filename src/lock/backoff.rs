//! The timing of attempts to acquire a lock. A push reports that a lock changed, but if another instance hands the lock
//! over among its own clients, every push causes a failed attempt. So each failed attempt delays the next one longer,
//! up to a bound; the first is never delayed.
//!
//! The jitter comes from a generator that the driver seeds, so that instances do not try in step and a simulation can
//! be repeated.

use super::event::Time;

/// The most failed attempts before one turn that are counted.
const MOST_COUNTED: u32 = 100_000;

/// The pace of the attempts to acquire one lock.
#[derive(Debug, Clone)]
pub struct Backoff {
    /// Failed attempts on pushes since the last grant.
    in_vain: u32,
    /// Failed attempts on pushes since the latest turn of this instance began. A turn is a chain of handovers.
    in_vain_this_turn: u32,
    /// The mean of `in_vain_this_turn` over the latest turns, in 256ths.
    mean: u32,
    /// The earliest moment of the next attempt.
    ask_at: Time,
    /// A push causes the next attempt.
    pushed: bool,
    random: u64,
}

impl Backoff {
    /// Creates a pace whose jitter follows from `seed`.
    pub fn new(seed: u64) -> Self {
        // Xorshift never leaves zero.
        Self {
            in_vain: 0,
            in_vain_this_turn: 0,
            mean: 0,
            ask_at: Time::default(),
            pushed: false,
            random: seed | 1,
        }
    }

    /// Returns the earliest moment of the next attempt.
    pub fn ask_at(&self) -> Time {
        self.ask_at
    }

    /// Returns whether no recent attempt failed. A held lock without waiters needs no more of the pace.
    pub fn rests(&self) -> bool {
        [self.in_vain, self.in_vain_this_turn, self.mean] == [0; 3]
    }

    /// Returns whether a push causes the next attempt.
    pub fn pushed(&self) -> bool {
        self.pushed
    }

    /// Schedules an attempt on a push: now, or later if attempts on pushes failed before.
    pub fn push(&mut self, now: Time, max_delay_ms: u64) {
        let delay_ms = match self.in_vain {
            0 => 0,
            n => max_delay_ms.min(1 << (n - 1).min(20)),
        };
        let delay = self.jittered(delay_ms);
        self.ask_at = self.ask_at.max(delay_from(now, delay));
        self.pushed = true;
    }

    /// Schedules an attempt after `pause_ms`, for a reason other than a push.
    pub fn pause(&mut self, now: Time, pause_ms: u64) {
        self.ask_at = now.plus_millis(pause_ms);
        self.pushed = false;
    }

    /// Schedules an attempt at once, for a reason other than a push.
    pub fn now(&mut self) {
        self.ask_at = Time::default();
        self.pushed = false;
    }

    /// Schedules an attempt at `time`, for a reason other than a push.
    pub fn at(&mut self, time: Time) {
        self.ask_at = time;
        self.pushed = false;
    }

    /// Records an attempt that found the lock held.
    pub fn in_vain(&mut self, on_push: bool) {
        if on_push {
            self.in_vain = self.in_vain.saturating_add(1);
            self.in_vain_this_turn = self.in_vain_this_turn.saturating_add(1);
        }
        self.now();
    }

    /// Begins a turn of this instance. Returns the mean number of failed attempts on pushes before each of its latest
    /// turns: each other instance that wants the lock had a turn in between, and caused at least one push.
    pub fn turn_begins(&mut self) -> u32 {
        let latest = std::mem::take(&mut self.in_vain_this_turn).min(MOST_COUNTED) * 256;
        self.mean = self.mean / 4 * 3 + latest / 4;
        self.mean / 256
    }

    /// Records a grant.
    pub fn granted(&mut self) {
        self.in_vain = 0;
        self.now();
    }

    /// Returns a random number of microseconds between the half and the whole of `millis`.
    pub fn jittered(&mut self, millis: u64) -> u64 {
        let half = millis.saturating_mul(500);
        if half == 0 {
            return 0;
        }
        // Marsaglia, "Xorshift RNGs" (2003), the triple 13, 7, 17.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        half + self.random % half
    }
}

fn delay_from(now: Time, micros: u64) -> Time {
    Time::from_micros(now.micros().saturating_add(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(pushes: usize) -> Vec<u64> {
        let mut backoff = Backoff::new(7);
        let mut now = Time::from_millis(1_000);
        (0..pushes)
            .map(|_| {
                backoff.push(now, 15);
                let delay = backoff.ask_at().micros_since(now);
                now = backoff.ask_at().max(now).plus_millis(1);
                backoff.in_vain(true);
                delay
            })
            .collect()
    }

    #[test]
    fn the_first_push_is_followed_at_once_and_the_delay_doubles_up_to_the_bound() {
        let delays = delays(9);
        assert_eq!(delays[0], 0);
        for (n, delay) in delays.iter().enumerate().skip(1) {
            let whole = 15_000.min(1_000 << (n - 1));
            assert!(
                (whole / 2..=whole).contains(delay),
                "{n}: {delay} of {whole}"
            );
        }
    }

    #[test]
    fn a_grant_ends_the_delay() {
        let mut backoff = Backoff::new(7);
        let now = Time::from_millis(5);
        for _ in 0..5 {
            backoff.push(now, 15);
            backoff.in_vain(true);
        }
        backoff.granted();
        backoff.push(now, 15);
        assert_eq!(backoff.ask_at(), now);
    }

    #[test]
    fn the_asks_in_vain_before_each_turn_are_averaged() {
        let mut backoff = Backoff::new(7);
        let means = [30; 12].map(|asks| {
            (0..asks).for_each(|_| backoff.in_vain(true));
            backoff.in_vain(false);
            // Handovers within the turn change nothing.
            backoff.granted();
            backoff.turn_begins()
        });
        assert_eq!((means[0], means[11]), (7, 29));
        assert!(means.is_sorted());
    }

    #[test]
    fn asks_in_vain_without_a_push_delay_nothing() {
        let mut backoff = Backoff::new(7);
        let now = Time::from_millis(5);
        for _ in 0..5 {
            backoff.in_vain(false);
        }
        backoff.push(now, 15);
        assert_eq!(backoff.ask_at(), now);
    }
}
