//! A queue on a desk: events go in as a line of text, what it does comes out as one.
//!
//! | event | means |
//! | --- | --- |
//! | `1 lock a`, with `named`, `try`, `fence`, `session`, `replicas 1`, `wait 5`, `px 50`, `user 2`, `on 3` behind it | request 1 is a `LOCK` with token a, which lockgate made, or the client (`named`), on connection 3, or one of its own |
//! | `1 unlock a`, `1 relock a 50` | these and those below with `user 2` behind their token, too |
//! | `1 gone a`, `1 stop a`, `1 undelivered a`, `1 behind a b` | the client vanished; does not wait; did not get its grant; has the `UNLOCK` of b behind it |
//! | `1 closed a`, `1 closed a here` | the connection of a `SESSION` ended: by the client, or by the gate |
//! | `1 unlock a late 5` | it was asked for 5 ms ago |
//! | `data_lost`, `data_lost dead` | the store lost data; the driver remembers dead tokens of the lock |
//! | `granted 7`, `granted 7 fence 9`, `again 7`, `not yet 50`, `held b 50`, `free`, `not held`, `refused X`, `not now X`, `unknown`, `no link`, `unacknowledged 8`, with `have 1`, `in 200` or `ever`, `foreign` behind it | what the store answers; 7 is the deadline; `polled` behind it: it will not tell of changes |
//! | `held b 50 dead`, `held b 50 dead 7`, `held b 50 dead 7 9` | … and the driver knows b to be dead, up to the deadline 7, or at 9 |
//! | `held b 50 grace 9` | … within the grace, of which 9 ms are left |
//! | `taken` | the acquisition in flight has taken the lock, and waits for replicas |
//! | `push`, `push 2`, `tracking_lost` | the store's connection 1, or 2, tells of a change, or breaks |
//! | `linked 2` | the store has a connection for user 2 again |
//! | `after 5` | 5 ms later, with all timers on the way |
//! | `rests`, `idle` | no event: whether only a held lock is left, or nothing |
//! | `within` | no event: for how many milliseconds the latest store request may wait for a connection |

use std::collections::HashMap;

use bytes::Bytes;
use lockgate::lock::{
    Action, Attempt, ConnectionId, Dead, DeadToken, DeadWatch, Deadline, Event, Fence, LinkId,
    LockMetric, LockRequest, Mark, Missing, Outcome, Queue, Reply, RequestId, Settings, StoreReply,
    StoreRequest, StoreRequestId, Time, Token, UserId, Wait, WriteBack,
};

pub(crate) const SETTINGS: Settings = Settings {
    max_handovers: 3,
    max_handover_time_ms: 5_000,
    yield_pause_ms: 0,
    reconnect_grace_ms: 2_000,
    max_delay_ms: 15,
    ask_at_least_every_ms: 60_000,
    poll_every_ms: 100,
    answer_within_ms: 2_000,
    write_back: WriteBack::All,
    max_waiters: 4,
    max_kept_by_connection: 2,
    min_session_ms: 1,
};

/// A lease that is asked for where none is said, in milliseconds.
pub(crate) const LEASE_MS: u64 = 30_000;

pub(crate) struct Harness {
    pub(crate) queue: Queue,
    /// After the last event nothing was left to do but to hold the lock.
    rests: bool,
    now: Time,
    settings: Settings,
    asked: Option<StoreRequestId>,
    /// How long the latest store request may wait for a connection.
    within_ms: u64,
    /// Which request was told of a lease that is there since when.
    granted: HashMap<u64, Time>,
    /// The connection that the store's answers come on.
    pub(crate) link: u64,
    /// How grants came about, and what shows in no reply.
    pub(crate) counted: Vec<String>,
    /// Tokens that do not hold the lock any more.
    pub(crate) dead: Vec<String>,
}

/// Each event, and what is to come of it.
pub(crate) fn scenario(lines: &[(&str, &str)]) {
    scenario_with(SETTINGS, lines);
}

pub(crate) fn scenario_with(settings: Settings, lines: &[(&str, &str)]) {
    let mut harness = Harness::new(settings);
    for (number, (event, expected)) in lines.iter().enumerate() {
        let done = harness.happen(event);
        assert_eq!(done, *expected, "line {}: {event}", number + 1);
    }
}

impl Harness {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            queue: Queue::new(1),
            rests: false,
            now: Time::from_millis(1_000_000),
            settings,
            asked: None,
            within_ms: 0,
            granted: HashMap::new(),
            link: 1,
            counted: Vec::new(),
            dead: Vec::new(),
        }
    }

    /// How long the holder's lease lasts at least, in milliseconds.
    pub(crate) fn holder_for_ms(&self) -> Option<u64> {
        self.queue.holder(self.now).map(|(_, left_ms)| left_ms)
    }

    pub(crate) fn happen(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["after", millis] = words[..] {
            return self.wait(millis.parse().unwrap());
        }
        if let ["stalls", millis] = words[..] {
            // The machine is busy: timers are late.
            self.now = self.now.plus_millis(millis.parse().unwrap());
            return String::new();
        }
        if line == "within" {
            return self.within_ms.to_string();
        }
        if line == "rests" {
            return self.rests.to_string();
        }
        if line == "idle" {
            return self.queue.is_idle().to_string();
        }
        let event = self.event(&words);
        self.feed(event)
    }

    fn feed(&mut self, event: Event) -> String {
        let mut todo = Vec::new();
        self.queue
            .handle(self.now, event, &self.settings, &mut todo);
        let before = kept(&self.queue);
        self.rests = rests(&mut self.queue);
        assert_eq!(kept(&self.queue), before);
        let told: Vec<String> = todo
            .iter()
            .map(|action| self.told(action))
            .filter(|told| !told.is_empty())
            .collect();
        told.join("; ")
    }

    fn wait(&mut self, millis: u64) -> String {
        let end = self.now.plus_millis(millis);
        let mut told = Vec::new();
        let mut timers = 0;
        while let Some(time) = self.queue.wake_at().filter(|time| *time <= end) {
            self.now = self.now.max(time);
            let line = self.feed(Event::Timer);
            told.extend((!line.is_empty()).then_some(line));
            timers += 1;
            assert!(timers < 1_000, "the timer spins");
        }
        self.now = end;
        told.join("; ")
    }

    fn event(&mut self, words: &[&str]) -> Event {
        let user = user_of(words);
        match *words {
            ["push", ..] => Event::Changed {
                link: LinkId::new(words.get(1).map_or(1, |n| n.parse().unwrap())),
            },
            ["taken"] => Event::Taken,
            ["tracking_lost"] => Event::TrackingLost {
                link: LinkId::new(1),
                ask_at: self.now,
            },
            [number, "undelivered", token] => {
                let request = number.parse().unwrap();
                Event::Undelivered {
                    request: RequestId(request),
                    user,
                    token: token_of(token),
                    since: self.granted.get(&request).copied().unwrap_or_default(),
                }
            }
            ["linked", user] => Event::Linked {
                user: UserId(user.parse().unwrap()),
            },
            ["data_lost", ref dead @ ..] => Event::DataLost {
                dead: (!dead.is_empty()).then(|| DeadWatch {
                    user,
                    until: self.now.plus_millis(LEASE_MS),
                }),
            },
            [number, "closed", token, ref how @ ..] => Event::SessionClosed {
                request: RequestId(number.parse().unwrap()),
                user,
                token: token_of(token),
                by_client: how.is_empty(),
            },
            [number, "delete", ..] => Event::Delete {
                request: RequestId(number.parse().unwrap()),
                asked_at: self.now,
                user,
            },
            [number, what, token, ..] if number.parse::<u64>().is_ok() => {
                let request = RequestId(number.parse().unwrap());
                let token = token_of(token);
                let late = words.iter().position(|word| *word == "late");
                let late_ms = late.map_or(0, |at| words[at + 1].parse().unwrap());
                let asked_at = Time::from_micros(self.now.micros() - late_ms * 1_000);
                let last = words[words.len() - 1];
                match what {
                    "lock" => Event::Lock(self.lock(request, token, &words[3..])),
                    "unlock" => Event::Unlock {
                        request,
                        asked_at,
                        user,
                        token,
                        absorbed: words.contains(&"absorbed"),
                    },
                    "relock" => Event::Relock {
                        request,
                        asked_at,
                        user,
                        token,
                        lease_ms: last.parse().unwrap(),
                        replicas: replicas_of(words),
                        absorbed: words.contains(&"absorbed"),
                    },
                    "gone" => Event::Gone { request },
                    "stop" => Event::StopWaiting { request },
                    "behind" => Event::UnlockBehind {
                        request,
                        held_by: token_of(last),
                    },
                    _ => panic!("{words:?}"),
                }
            }
            _ => self.answer(words),
        }
    }

    fn lock(&self, request: RequestId, token: Token, options: &[&str]) -> LockRequest {
        let value = |name: &str| {
            let at = options.iter().position(|option| *option == name)?;
            options[at + 1].parse::<u64>().ok()
        };
        let wait = match (options.contains(&"try"), value("wait")) {
            (true, _) => Wait::No,
            (false, Some(millis)) => Wait::Until(self.now.plus_millis(millis)),
            (false, None) => Wait::Forever,
        };
        LockRequest {
            request,
            asked_at: self.now,
            user: user_of(options),
            token,
            explicit: options.contains(&"named") || options.contains(&"spins"),
            lease_ms: value("px").unwrap_or(LEASE_MS),
            wait,
            fence: options.contains(&"fence"),
            session: options.contains(&"session"),
            replicas: replicas_of(options),
            connection: ConnectionId(value("spins").or(value("on")).unwrap_or(1_000 + request.0)),
            attempt: value("spins").map(|_| Attempt {
                strict: !options.contains(&"again"),
                returns: !options.contains(&"once"),
            }),
        }
    }

    fn answer(&mut self, words: &[&str]) -> Event {
        let grace = words.iter().position(|word| *word == "grace");
        let grace_ms = grace.map(|at| words[at + 1].parse().unwrap());
        let words = &words[..grace.unwrap_or(words.len())];
        let text = |words: &[&str]| words.join(" ").into_bytes().into();
        let polled = words.last() == Some(&"polled");
        let fence = |more: &[&str]| match more {
            ["fence", number, ..] => number.parse().ok(),
            _ => None,
        };
        let outcome = match *words {
            ["granted", at, ref more @ ..] => Outcome::Granted {
                deadline: Deadline(at.parse().unwrap()),
                fresh: true,
                fence: fence(more),
            },
            ["again", at, ref more @ ..] => Outcome::Granted {
                deadline: Deadline(at.parse().unwrap()),
                fresh: false,
                fence: fence(more),
            },
            ["not", "yet", ms] => Outcome::NotYet {
                ms: ms.parse().unwrap(),
            },
            ["held", by, ttl, ..] => Outcome::Held {
                holder: Some(token_of(by)),
                ttl_ms: ttl.parse().ok(),
            },
            ["not", "held"] => Outcome::Held {
                holder: None,
                ttl_ms: None,
            },
            ["not", "now", ..] => Outcome::NotNow(text(&words[2..])),
            ["refused", ..] => Outcome::Refused(text(&words[1..])),
            ["free"] => Outcome::Free,
            ["unacknowledged", ref more @ ..] => Outcome::Unacknowledged {
                missing: Missing {
                    error: Bytes::from_static(b"NOREPLICAS"),
                    have: number_after(words, "have").unwrap_or(0),
                    again_ms: match more.contains(&"ever") {
                        true => None,
                        false => Some(number_after(words, "in").unwrap_or(100).into()),
                    },
                },
                done: more.first().and_then(|at| {
                    let deadline = Deadline(at.parse().ok()?);
                    Some((deadline, !more.contains(&"foreign")))
                }),
            },
            ["unknown"] => Outcome::Unknown,
            ["no", "link"] => Outcome::NoLink,
            _ => panic!("{words:?}"),
        };
        // A release that freed the lock did not read it again.
        let told = matches!(outcome, Outcome::Granted { .. } | Outcome::Held { .. });
        let dead = words.iter().position(|word| *word == "dead");
        let deadline = |at: usize| Some(Deadline(words.get(at)?.parse().ok()?));
        let dead = dead.map(|at| Dead {
            user: user_of(words),
            not_after: deadline(at + 1),
            or_at: deadline(at + 1).and(deadline(at + 2)),
        });
        let armed = (told && !polled).then_some(LinkId::new(self.link));
        let store_request = self.asked.take().expect("a question is on its way");
        Event::StoreReplied {
            store_request,
            store_reply: StoreReply {
                outcome,
                armed,
                grace_ms,
            },
            dead,
        }
    }

    fn told(&mut self, action: &Action) -> String {
        match action {
            Action::Reply { request, reply } => {
                if let Reply::Granted { how, since, .. } = reply {
                    self.granted.insert(request.0, *since);
                    self.counted.push(format!("{} {how:?}", request.0));
                }
                format!("{} {}", request.0, told_reply(reply))
            }
            Action::Happened(what) => {
                self.counted.push(match what {
                    LockMetric::LeaseOver { since, how } => {
                        format!("{how:?} after {}", self.now.millis_since(*since))
                    }
                    other => format!("{other:?}"),
                });
                String::new()
            }
            Action::Send {
                id,
                store_request,
                within_ms,
            } => {
                assert!(self.asked.is_none(), "one question at a time");
                self.within_ms = *within_ms;
                self.asked = Some(*id);
                told_question(store_request)
            }
            Action::SessionOver { request, lost } => {
                format!("{} {}", request.0, if *lost { "lost" } else { "over" })
            }
            Action::Dead {
                dead_token: DeadToken { token, dead, .. },
                before_loss,
            } => {
                let before = if *before_loss { " before the loss" } else { "" };
                let told = format!("{}{}{before}", name_of(token), told_deadlines(dead));
                self.dead.push(told);
                String::new()
            }
        }
    }
}

fn told_reply(reply: &Reply) -> String {
    match reply {
        Reply::Granted {
            token,
            fence,
            session,
            ..
        } => {
            let fence = fence.map_or(String::new(), |fence| format!(" fence {fence}"));
            let session = if *session { " session" } else { "" };
            format!("granted {}{fence}{session}", name_of(token))
        }
        Reply::Refused(refusal) => format!("{refusal:?}"),
        other => format!("{other:?}"),
    }
}

fn told_question(store_request: &StoreRequest) -> String {
    let only = |at: &Option<Deadline>| at.map_or(String::new(), |at| format!(" if {}", at.0));
    let fenced = |fence| if fence { " fence" } else { "" };
    let lease = |ms: &u64| {
        if *ms == LEASE_MS {
            String::new()
        } else {
            format!(" px {ms}")
        }
    };
    match store_request {
        StoreRequest::Acquire {
            token,
            lease_ms,
            fence,
            expects,
            bare,
            strict,
            replicas,
            ..
        } => format!(
            "{}{}acquire {}{}{}{}{}",
            if *bare { "bare " } else { "" },
            if *strict { "strict " } else { "" },
            name_of(token),
            lease(lease_ms),
            match fence {
                Fence::No => String::new(),
                Fence::New => " fence".to_owned(),
                Fence::NewUnless(at) => format!(" fence unless {}", at.0),
            },
            only(expects),
            acknowledged(*replicas)
        ),
        StoreRequest::Handover {
            from,
            only_if,
            to,
            lease_ms,
            fence,
            strict,
            ..
        } => {
            format!(
                "hand {} to {}{}{}{}{}",
                name_of(from),
                if *strict { "strict " } else { "" },
                name_of(to),
                lease(lease_ms),
                fenced(*fence),
                only(only_if)
            )
        }
        StoreRequest::Release { token, only_if, .. } => {
            format!("release {}{}", name_of(token), only(only_if))
        }
        StoreRequest::Extend {
            token,
            lease_ms,
            expects,
            mark,
            replicas,
            ..
        } => {
            let found = if *mark == Mark::Found { " found" } else { "" };
            format!(
                "extend {} {lease_ms}{}{found}{}",
                name_of(token),
                only(expects),
                acknowledged(*replicas)
            )
        }
        StoreRequest::Check { user: UserId(0) } => "check".to_owned(),
        StoreRequest::Check { user } => format!("check as {}", user.0),
        StoreRequest::WriteBack {
            token, lease_ms, ..
        } => format!("write_back {} {lease_ms}", name_of(token)),
        StoreRequest::DeleteDead { token, dead } => {
            format!("delete_dead {}{}", name_of(token), told_deadlines(dead))
        }
    }
}

fn acknowledged(replicas: u32) -> String {
    match replicas {
        0 => String::new(),
        replicas => format!(" replicas {replicas}"),
    }
}

fn told_deadlines(dead: &Dead) -> String {
    let up_to = dead.not_after.map(|at| format!(" up to {}", at.0));
    let or_at = dead.or_at.map(|at| format!(" or at {}", at.0));
    [up_to, or_at].into_iter().flatten().collect()
}

fn replicas_of(words: &[&str]) -> u32 {
    number_after(words, "replicas").unwrap_or(0)
}

fn number_after(words: &[&str], name: &str) -> Option<u32> {
    let at = words.iter().position(|word| *word == name);
    at.map(|at| words[at + 1].parse().unwrap())
}

fn user_of(words: &[&str]) -> UserId {
    let at = words.iter().position(|word| *word == "user");
    UserId(at.map_or(0, |at| words[at + 1].parse().unwrap()))
}

fn token_of(name: &str) -> Token {
    Token::new(name)
}

fn name_of(token: &Token) -> String {
    String::from_utf8_lossy(token.as_bytes()).into_owned()
}

/// Puts a queue to rest and wakes it, as the driver does. Returns whether it rests.
pub(crate) fn rests(queue: &mut Queue) -> bool {
    let wake_at = queue.wake_at();
    let resting = queue.rest();
    let rests = resting.is_some();
    if let Some(resting) = resting {
        *queue = resting.wake(1);
    }
    assert_eq!(queue.wake_at(), wake_at);
    rests
}

/// What has to outlive the rest of a queue: all but what serves to be fair among those who want something, and the jitter.
fn kept(queue: &Queue) -> String {
    let mut text = format!("{queue:?}");
    for (from, to) in [(", ops: ", ", in_flight: "), (", backoff: ", ", rights: ")] {
        let (from, to) = (text.find(from).unwrap(), text.find(to).unwrap());
        text.replace_range(from..to, "");
    }
    text
}
