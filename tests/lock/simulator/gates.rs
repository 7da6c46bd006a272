//! The gates: each the driver of its queue. It performs the actions and keeps the timers.

use lockgate::lock::{Action, Dead, DeadToken, DeadWatch, Event, LinkId, Outcome, Queue, Time};

use super::{
    network::Port,
    world::{Ev, World},
};
use crate::harness::rests;

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

/// The tokens that a gate knows to be dead.
#[derive(Default)]
pub(crate) struct DeadTokens {
    /// Those that are dead since the latest loss of data.
    recent: Vec<DeadToken>,
    /// Those that were dead before it.
    before_loss: Vec<DeadToken>,
}

impl DeadTokens {
    /// The store lost data.
    pub(crate) fn lost_data(&mut self, now: Time) -> Option<DeadWatch> {
        self.before_loss.append(&mut self.recent);
        self.before_loss.retain(|it| it.expires_latest > now);
        let latest = self.before_loss.iter().max_by_key(|it| it.expires_latest)?;
        Some(DeadWatch {
            user: latest.dead.user,
            until: latest.expires_latest,
        })
    }

    /// The holder that the answer names is dead.
    pub(crate) fn of_holder(&self, now: Time, outcome: &Outcome) -> Option<Dead> {
        let Outcome::Held {
            holder: Some(holder),
            ..
        } = outcome
        else {
            return None;
        };
        let is_it = |it: &&DeadToken| it.token == *holder && it.expires_latest > now;
        let dead = self.before_loss.iter().filter(is_it).map(|it| it.dead);
        dead.reduce(Dead::or)
    }

    /// There are some whose lease would not be over.
    pub(crate) fn matter(&self, now: Time) -> bool {
        let mut all = self.recent.iter().chain(&self.before_loss);
        all.any(|it| it.expires_latest > now)
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
    pub(crate) dead_tokens: DeadTokens,
    pub(crate) largest_fence: u64,
    /// The version of the store that it knows of.
    pub(crate) knows: u64,
    /// The connection that it read the lock on last.
    pub(crate) reads_on: Option<LinkId>,
    /// When it was told of a change that it did not look at yet, as a count of events.
    pub(crate) heard: Option<u64>,
    /// The version of the latest change that somebody else made.
    pub(crate) changed: u64,
    /// The latest trouble on its way to the store.
    pub(crate) disturbed_at: Option<u64>,
    /// The time since which the lock is free although a client waits here.
    pub(crate) idle_since: Option<u64>,
    /// The requests since the last event: their begin, their number, and the state then.
    pub(crate) quiet: (u64, u64, State),
    /// The latest choice of the next owner, as a count of events.
    pub(crate) chose_at: u64,
    /// Questions that it asked.
    pub(crate) asked: u64,
    /// Grows with everything that may make it ask.
    pub(crate) causes: u64,
}

impl Gate {
    /// A loss of data concerns it: it granted a lease, or knows of dead tokens or of fences.
    pub(crate) fn has_stake(&self, now: u64) -> bool {
        let time = Time::from_micros(self.clock.at(now));
        let lease = self.queue.as_ref().and_then(Queue::held_since);
        lease.is_some() || self.largest_fence > 0 || self.dead_tokens.matter(time)
    }

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
            if !matches!(event, Event::Timer | Event::StoreReplied { .. }) {
                self.gates[gate].causes += 1;
            }
            if self.gates[gate].queue.is_none() {
                let haunted = matches!(event, Event::DataLost { dead: Some(_) });
                if event.request().is_none() && !haunted {
                    continue;
                }
                self.gates[gate].queue = Some(Queue::new(self.random.next()));
            }
            let mut todo = Vec::new();
            if let Some(queue) = &mut self.gates[gate].queue {
                queue.handle(time, event, &self.day.settings, &mut todo);
                rests(queue);
            }
            for action in todo {
                match action {
                    Action::Send {
                        id,
                        store_request,
                        within_ms,
                    } => {
                        self.gates[gate].asked += 1;
                        events.extend(self.send(gate, id, store_request, within_ms));
                    }
                    Action::Reply { request, reply } => {
                        events.extend(self.reply(gate, request, &reply));
                    }
                    Action::SessionOver { request, lost } => self.session_over(request, lost),
                    Action::Dead {
                        dead_token,
                        before_loss,
                    } => {
                        let kept = &mut self.gates[gate].dead_tokens;
                        let kept = match before_loss {
                            true => &mut kept.before_loss,
                            false => &mut kept.recent,
                        };
                        kept.push(dead_token);
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
