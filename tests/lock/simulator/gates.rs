//! The gates: each the driver of its queue. It performs the actions and keeps the timers.

use lockgate::lock::{Action, Event, LinkId, Queue, Time, Token};

use super::{
    network::Port,
    world::{Ev, World},
};

/// The clock of a gate: it has a zero and a pace of its own.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock {
    /// What it shows at the beginning, in microseconds.
    pub(crate) offset: u64,
    /// Millionths by which it is too fast.
    pub(crate) ahead: i64,
}

impl Clock {
    /// What it shows.
    pub(crate) fn at(&self, moment: u64) -> u64 {
        let gained = i64::try_from(moment).unwrap() * self.ahead / 1_000_000;
        (self.offset + moment).saturating_add_signed(gained)
    }

    /// The first moment at which it shows this.
    pub(crate) fn moment(&self, shown: u64) -> u64 {
        let passed = i64::try_from(shown.saturating_sub(self.offset)).unwrap();
        let mut moment = u64::try_from(passed - passed * self.ahead / 1_000_000).unwrap();
        while self.at(moment) < shown {
            moment += 1;
        }
        while moment > 0 && self.at(moment - 1) >= shown {
            moment -= 1;
        }
        moment
    }
}

/// What a gate may ask because of: the version of the store, whether the lock is held, what the gate
/// heard, and when its way to the store was disturbed.
pub(crate) type State = (u64, bool, u64, Option<u64>);

#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) alive: bool,
    /// Grows with every death.
    pub(crate) life: u64,
    pub(crate) died_at: Option<u64>,
    pub(crate) clock: Clock,
    pub(crate) queue: Option<Queue>,
    pub(crate) wake_at: Option<u64>,
    pub(crate) port: Port,
    pub(crate) released: Vec<(Token, Time)>,
    pub(crate) largest_fence: u64,
    /// The version of the store that it knows of.
    pub(crate) knows: u64,
    /// The connection that it read the lock on last.
    pub(crate) reads_on: Option<LinkId>,
    /// When it was told of a change that it did not look at yet, as a count of events.
    pub(crate) heard: Option<u64>,
    /// The version of the latest change that somebody else made.
    pub(crate) changed: u64,
    /// When something was wrong last with its way to the store.
    pub(crate) disturbed_at: Option<u64>,
    /// Since when the lock is free while somebody waits here.
    pub(crate) idle_since: Option<u64>,
    /// What the gate asked since anything happened: since when, how often, and the state then.
    pub(crate) quiet: (u64, u64, State),
    /// Grows with everything that may make it ask.
    pub(crate) causes: u64,
}

impl Gate {
    /// Somebody changed the lock, and the gate was not told.
    pub(crate) fn missed_a_change(&self) -> bool {
        self.alive && self.queue.is_some() && self.changed > self.knows && self.heard.is_none()
    }
}

impl World {
    /// What the gate's clock shows.
    pub(super) fn time(&self, gate: usize) -> Time {
        Time::from_micros(self.gates[gate].clock.at(self.now))
    }

    /// The many locks of one connection ask one after the other.
    pub(super) fn some_time_soon(&mut self, gate: usize) -> Time {
        let later = self.random.between(0, 30);
        self.time(gate).plus_millis(later)
    }

    pub(super) fn feed(&mut self, gate: usize, event: Event) {
        if !self.gates[gate].alive {
            return;
        }
        let time = self.time(gate);
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            if !matches!(event, Event::Timer | Event::Answered { .. }) {
                self.gates[gate].causes += 1;
            }
            if self.gates[gate].queue.is_none() {
                if event.request().is_none() {
                    continue;
                }
                self.gates[gate].queue = Some(Queue::new(self.random.next()));
            }
            let mut todo = Vec::new();
            if let Some(queue) = &mut self.gates[gate].queue {
                queue.handle(time, event, &self.day.settings, &mut todo);
            }
            for action in todo {
                match action {
                    Action::Ask {
                        id,
                        question,
                        within_ms,
                    } => {
                        events.extend(self.send(gate, id, question, within_ms));
                    }
                    Action::Reply { request, reply } => {
                        events.extend(self.reply(gate, request, &reply));
                    }
                    Action::SessionOver { request, lost } => self.session_over(request, lost),
                    Action::Released { token, over_at } => {
                        self.gates[gate].released.push((token, over_at));
                    }
                    Action::Happened(_) => {}
                }
            }
        }
        self.keep_time(gate);
    }

    fn keep_time(&mut self, gate: usize) {
        let it = &mut self.gates[gate];
        let Some(queue) = &it.queue else {
            return;
        };
        let clock = it.clock;
        let wake_at = queue
            .wake_at()
            .map(|time| clock.moment(time.micros()).max(self.now));
        if queue.is_idle() {
            assert_eq!(wake_at, None, "an idle queue has no timer");
            it.queue = None;
        }
        if it.wake_at != wake_at {
            it.wake_at = wake_at;
            if let Some(moment) = wake_at {
                self.at(moment, Ev::Wake(gate));
            }
        }
    }

    pub(super) fn wake(&mut self, gate: usize) {
        self.gates[gate].wake_at = None;
        self.feed(gate, Event::Timer);
    }
}
