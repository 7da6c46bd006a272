//! The queue of one lock.
//!
//! It knows three things: who waits ([`Places`]), what the store said last ([`Belief`], and the
//! [`Lease`] where this gate granted it), and which question is on its way. At most one is, so the
//! answers need no sorting. After every event [`Queue::go_on`] (`questions`) looks at these three and decides
//! what to ask next, whatever the event was:
//!
//! 1. errands first: what clients want done with a lock they hold, and what is to be taken back;
//! 2. a lock believed to be held is not asked about, unless the holder itself asks again;
//! 3. otherwise the first who waits asks for it.
//!
//! And before all that, what keeps the lease true that this gate granted (`upkeep`): it is written
//! back when the store lost it, renewed while its session lives, asked about when it changed.
//!
//! Each question is asked as the user on whose behalf it is, so the store decides what it may; who would
//! wait without any is asked for first (`rights`). The lock goes from user to user in two steps, and to
//! equal tokens of different users as to different tokens.
//!
//! A release while somebody of the same user waits becomes a handover: release and next grant in one step. What the
//! store pushes is a hint that a belief is out of date, never a fact.
//!
//! What this gate does with a token on its own account (nobody was there for a grant) it does only
//! if the key still has the deadline that this gate set: a client that came back at another gate
//! with the same token must not lose what it was just given.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::{
    fault::{Fault, planted},
    lease::{Chain, Lease},
    pace::Pace,
    places::{Due, Place, Places},
    vocabulary::{
        Action, Dead, Deadline, Event, LinkId, Question, QuestionId, Refusal, Reply, RequestId,
        Settings, Time, Token, UserId,
    },
};

mod answers;
mod clients;
mod errands;
mod links;
mod looks;
mod questions;
mod recovery;
mod rights;
mod upkeep;

use errands::Errands;
use links::CutOff;
pub use recovery::LAST_LOOK_PART;
use recovery::LOOKED_AT_MS;
use rights::Rights;

/// How long after the store said "not now" it is asked again, in milliseconds.
const NOT_NOW_PAUSE_MS: u64 = 100;

/// The error where the store answers what was not asked.
const NO_ANSWER: &[u8] = b"ERR the store gave no answer";

/// One lock.
#[derive(Debug)]
pub struct Queue {
    places: Places,
    errands: Errands,
    asked: Option<Asked>,
    belief: Option<Belief>,
    /// What was believed when the store told that it is no longer so, until the store is asked.
    told_of: Option<Belief>,
    lease: Option<Lease>,
    chain: Chain,
    pace: Pace,
    rights: Rights,
    cut_off: CutOff,
    /// The connection that tells of changes.
    armed: Option<LinkId>,
    /// The error that the store gave last instead of an answer.
    trouble: Option<Bytes>,
    /// The store lost data, and the lease is to be written back: not before then.
    restore_at: Option<Time>,
    /// How often the store has refused that.
    restores_refused: u32,
    /// The store lost data, and may hold dead tokens of this lock: it is looked at, also when it changes.
    watch: Option<Box<Watch>>,
    /// A dead token that was found to hold the lock.
    ghost: Option<Box<(Token, Dead)>>,
    /// One that is not dead after all: by its deadline it was granted anew elsewhere.
    revenant: Option<Box<Token>>,
    /// Tokens that may come to hold the lock late, by a question that was given up on, and when to
    /// release them once more.
    late: VecDeque<(Time, UserId, Token)>,
    /// Tokens that may hold the lock by a question that is asked no more. Where somebody is there for one, the
    /// next question for it will tell; where nobody is, it is taken back.
    unsure: BTreeMap<(UserId, Token), Maker>,
    questions: u64,
    /// When somebody was known to hold the lock last.
    held_at: Time,
}

/// What `LOCKINFO` and `LOCKS` show of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// How long the lock has been held under a lease of this gate, in milliseconds.
    pub held_here_ms: Option<u64>,
    /// Requests that wait.
    pub waiters: usize,
    /// How long the one who waits longest does, in milliseconds.
    pub longest_wait_ms: u64,
    /// The lease is renewed for as long as its owner's connection lives.
    pub session: bool,
    /// The fence that came with the lease.
    pub fence: Option<u64>,
}

/// Somebody holds the lock, as the store said; to be asked again at `until`.
#[derive(Debug)]
struct Belief {
    holder: Token,
    /// Whose token it is, where this gate granted it.
    user: Option<UserId>,
    /// When it ends, as far as is known.
    over_at: Option<Time>,
    until: Time,
}

/// Something to do with a token that may hold the lock.
#[derive(Debug, Clone)]
enum Errand {
    Unlock(Owner),
    Relock(Owner, u64),
    /// A grant that reached nobody: the next one gets it, or nobody.
    GiveAway {
        user: UserId,
        token: Token,
        only_if: Option<Deadline>,
    },
}

/// A client that says it holds the lock.
#[derive(Debug, Clone)]
struct Owner {
    request: RequestId,
    user: UserId,
    token: Token,
    /// When it is told that the store does not answer.
    give_up_at: Time,
    /// It came after the question of this number was sent.
    after: u64,
    /// Its token may yet come: it is asked about again when the lock changes, and then.
    not_before: Option<Time>,
}

/// Who made a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maker {
    /// Nobody else knows it.
    Lockgate,
    /// It may be in use at another gate.
    Client,
}

/// A look-out for dead tokens.
#[derive(Debug)]
struct Watch {
    user: UserId,
    /// It is looked at for the last time then.
    until: Time,
    /// When to look next.
    look_at: Option<Time>,
}

/// The question on its way.
#[derive(Debug)]
struct Asked {
    id: QuestionId,
    question: Question,
    /// Who is told what the release or the new lease came to, and until when that makes sense.
    teller: Option<(RequestId, Time)>,
    /// The errand that it is asked for.
    errand: Option<Box<Errand>>,
    sent_at: Time,
    /// A first sending was not answered, or the store lost data since the first.
    again: bool,
    /// It was brought about by a push.
    on_push: bool,
    /// What connections told meanwhile.
    dirty: Vec<Dirty>,
    /// The store said "not now": to be asked again at this moment.
    retry_at: Option<Time>,
    /// Who may come to hold the lock by it named the token itself.
    explicit: bool,
    /// It is asked on the gate's own account: no client is told what came of it.
    own: bool,
    /// The store lost data meanwhile.
    forgotten: bool,
    /// What was left of the grace when it was answered.
    grace_ms: Option<u64>,
}

/// A connection told of a change while a question was on its way, or broke.
#[derive(Debug, Clone, Copy)]
struct Dirty {
    link: LinkId,
    /// It broke and nobody told of a change; when to ask about that.
    ask_at: Option<Time>,
}

impl Queue {
    /// A lock of which nothing is known. `seed` decides the jitter.
    pub fn new(seed: u64) -> Self {
        Self {
            places: Places::default(),
            errands: Errands::default(),
            asked: None,
            belief: None,
            told_of: None,
            lease: None,
            chain: Chain::default(),
            pace: Pace::new(seed),
            rights: Rights::default(),
            cut_off: CutOff::default(),
            armed: None,
            trouble: None,
            restore_at: None,
            restores_refused: 0,
            watch: None,
            ghost: None,
            revenant: None,
            late: VecDeque::new(),
            unsure: BTreeMap::new(),
            questions: 0,
            held_at: Time::default(),
        }
    }

    /// Something happened: appends what is to be done.
    pub fn handle(&mut self, now: Time, event: Event, settings: &Settings, todo: &mut Vec<Action>) {
        let mut turn = Turn {
            now,
            settings,
            todo,
        };
        match event {
            Event::Lock(ask) => self.lock(&ask, &mut turn),
            Event::Unlock {
                request,
                asked_at,
                user,
                token,
            } => {
                let give_up_at = turn.give_up_at(asked_at);
                let owner = Owner {
                    request,
                    user,
                    token,
                    give_up_at,
                    after: self.questions,
                    not_before: None,
                };
                self.take_errand(Errand::Unlock(owner), &mut turn);
            }
            Event::Relock {
                request,
                asked_at,
                user,
                token,
                lease_ms,
            } => {
                let give_up_at = turn.give_up_at(asked_at);
                let owner = Owner {
                    request,
                    user,
                    token,
                    give_up_at,
                    after: self.questions,
                    not_before: None,
                };
                self.take_errand(Errand::Relock(owner, lease_ms), &mut turn);
            }
            Event::Gone {
                request,
                user,
                token,
            } => self.gone(request, user, &token, &turn),
            Event::StopWaiting {
                request,
                user,
                token,
            } => {
                self.stop_waiting(request, user, &token, &mut turn);
            }
            Event::Undelivered {
                request,
                user,
                token,
                since,
            } => self.undelivered(request, (user, &token), since, &mut turn),
            Event::SessionClosed {
                request,
                user,
                token,
                by_client,
            } => self.session_closed(request, user, &token, by_client, &mut turn),
            Event::UnlockBehind {
                request,
                user,
                token,
                held_by,
            } => {
                self.places.block(user, &token, request, held_by);
                self.refuse_deadlocked(&mut turn);
            }
            Event::Answered {
                question,
                answer,
                dead,
            } => {
                if let Some(asked) = self.asked.take_if(|asked| asked.id == question) {
                    self.answered(asked, answer, dead, &mut turn);
                }
            }
            Event::Changed { .. } if planted(Fault::PushIgnored) => {}
            Event::Changed { link } => self.changed(link, None, &turn),
            Event::Deaf { link, ask_at } => {
                self.rights.deaf(link);
                self.changed(link, Some(ask_at), &turn);
            }
            Event::Linked { user } => {
                self.linked(user, &mut turn);
                self.recover_again(user, now);
            }
            Event::Forgot { dead } => self.forgot(dead, &turn),
            Event::Timer => self.timer(&mut turn),
        }
        self.cut_off.expire(now);
        self.go_on(&mut turn);
        if self.belief.is_some() {
            self.held_at = now;
        }
    }

    /// When to send [`Event::Timer`] next. None: not at all.
    pub fn wake_at(&self) -> Option<Time> {
        let answers = self.errands.give_up_at();
        let teller = self
            .asked
            .as_ref()
            .and_then(|asked| asked.teller)
            .map(|(_, until)| until);
        let lease = self.lease.as_ref().map(|lease| match lease.session {
            Some(_) => lease.lost_at(),
            None => lease.over_at,
        });
        let late = self.late.front().map(|(time, ..)| *time);
        let next_ask = match (&self.asked, &self.belief) {
            (Some(asked), _) => asked.retry_at,
            (None, Some(belief)) => Some(belief.until),
            (None, None) => self.next_place().map(|_| self.pace.ask_at()),
        };
        let ends = (self.places.next_due()).filter(|_| !planted(Fault::WaitNotTimed));
        let due = [ends, answers, teller, lease, next_ask];
        due.into_iter()
            .chain([late, self.upkeep_at(), self.next_cut_off_at()])
            .chain([self.errands.wake_at()])
            .flatten()
            .min()
    }

    /// Nothing is known or to be done: the queue may be forgotten.
    pub fn is_idle(&self) -> bool {
        self.places.is_idle()
            && self.errands.is_empty()
            && self.asked.is_none()
            && self.belief.is_none()
            && self.lease.is_none()
            && self.late.is_empty()
            && self.watch.is_none()
    }

    /// Nothing is known of the lock, and the store was asked or cannot be: who is told nil now is told so because
    /// its wait ran out, not because somebody holds the lock.
    pub fn is_blind(&self) -> bool {
        self.belief.is_none() && (self.asked.is_some() || self.cut_off.any())
    }

    /// The users for whom something is kept or to be done here; the connection that is to tell of changes.
    pub fn needs(&self) -> (BTreeSet<UserId>, Option<LinkId>) {
        let errands = self.errands.users();
        let mut users: BTreeSet<UserId> = self.places.each_user().chain(errands).collect();
        users.extend(self.lease.as_ref().map(|lease| lease.user));
        users.extend(self.asked.as_ref().map(|asked| asked.question.user()));
        users.extend(self.late.iter().map(|(_, user, _)| *user));
        users.extend(self.watch.as_ref().map(|watch| watch.user));
        (users, self.armed)
    }

    /// What can be seen of it.
    pub fn snapshot(&self, now: Time) -> Snapshot {
        let lease = self.lease.as_ref().filter(|lease| lease.receivers > 0);
        Snapshot {
            held_here_ms: lease.map(|lease| now.millis_since(lease.since)),
            waiters: self.places.requests(),
            longest_wait_ms: self
                .places
                .longest_since()
                .map_or(0, |since| now.millis_since(since)),
            session: lease.is_some_and(|lease| lease.session.is_some()),
            fence: lease.and_then(|lease| lease.fence),
        }
    }

    // ── what the store and the clock say ─────────────────────────────────────────────────────

    /// The lock changed, or (where `ask_at` is given) may have: what was told of it is lost.
    fn changed(&mut self, link: LinkId, ask_at: Option<Time>, turn: &Turn<'_>) {
        if let (Some(_), Some(lease)) = (ask_at, &mut self.lease) {
            // The next connection may lead to a store that has less.
            lease.fence_at = None;
        }
        if self.armed == Some(link) {
            if let Some(watch) = &mut self.watch {
                watch.look_at = Some(ask_at.unwrap_or(turn.now));
            }
            self.errands.wake(|_| true);
            if self.is_restoring() {
                // What changed is the token that keeps the lease from being written back.
                self.restore_at = self.restore_at.map(|_| ask_at.unwrap_or(turn.now));
            } else if let (None, Some(lease)) = (ask_at, &mut self.lease) {
                lease.changed = true;
            }
        }
        if let Some(asked) = &mut self.asked {
            // On the wire it may have come before the answer or after it.
            match asked.dirty.iter_mut().find(|dirty| dirty.link == link) {
                _ if planted(Fault::NoDirtyMark) => {}
                // What was told of a change stays told when the connection breaks.
                Some(dirty) => dirty.ask_at = dirty.ask_at.and(ask_at),
                None => asked.dirty.push(Dirty { link, ask_at }),
            }
        } else if self.armed == Some(link) {
            self.armed = None;
            self.told_of = self.belief.take().filter(|_| ask_at.is_none());
            match ask_at {
                None => self.pace.push(turn.now, turn.settings.max_delay_ms),
                Some(time) => self.pace.at(time),
            }
            if let Some(lease) = &mut self.lease {
                lease.check_at = Some(self.pace.ask_at());
            }
        }
    }

    fn timer(&mut self, turn: &mut Turn<'_>) {
        self.errands.wake(|at| at <= turn.now);
        for due in self.places.take_due(turn.now) {
            match due {
                Due::Try(request) => turn.reply(request, self.unanswered()),
                // Nobody knows whether the lock is held.
                Due::Wait(request) if self.is_unanswered(turn) => {
                    turn.reply(request, self.unanswered());
                }
                Due::Wait(request) => turn.reply(request, Reply::Nil),
            }
            self.left();
        }
        if self
            .belief
            .as_ref()
            .is_some_and(|belief| belief.until <= turn.now)
        {
            self.belief = None;
            self.pace.now();
        }
        self.tell_of_late_renewal(turn);
        if self
            .lease
            .as_ref()
            .is_some_and(|lease| lease.over_at <= turn.now)
        {
            self.put_lease(None, true, turn);
        }
        self.release_late(turn);
        self.give_up(turn);
        self.retry(turn);
    }

    /// Asks again what was not done, if it is time.
    fn retry(&mut self, turn: &mut Turn<'_>) {
        if let Some(asked) = self
            .asked
            .take_if(|a| a.retry_at.is_some_and(|at| at <= turn.now))
        {
            let dirty = asked.dirty.clone();
            self.ask_again_unless_gone(asked, turn);
            self.heed(&dirty, turn);
        }
    }

    /// Asks again what was not done for certain, if there is still reason to.
    fn ask_again_unless_gone(&mut self, mut asked: Asked, turn: &mut Turn<'_>) {
        match &mut asked.question {
            Question::Ask { user, token, .. } if self.places.of_owner(*user, token).is_none() => {
                self.doubt(&asked);
                self.left();
            }
            // Answered already: from here on it is on the gate's own account, and for that grant only, since
            // the token may be granted again elsewhere.
            Question::Release {
                user,
                token: holder,
                only_if,
            }
            | Question::HandOver {
                user,
                from: holder,
                only_if,
                ..
            } if !asked.own
                && only_if.is_none()
                && asked.teller.is_none_or(|(_, until)| until <= turn.now) =>
            {
                let lease = self.lease.as_ref().filter(|l| l.is_of(*user, holder));
                *only_if = lease.and_then(|lease| lease.deadline);
                if only_if.is_some() {
                    return self.send(asked, turn);
                }
                self.doubt(&asked);
                if let Some((request, _)) = asked.teller {
                    turn.reply(request, self.unanswered());
                }
            }
            // A lease that is to be written back first, a renewal, what is asked for the sake of a
            // lease: whether they are due still is seen when the next question is chosen.
            Question::Extend { user, token, .. } if self.waits_for_write_back(*user, token) => {
                self.extend_later(asked);
            }
            Question::Extend { .. } if asked.teller.is_none() => {}
            Question::Restore { .. } => self.restore_at = Some(turn.now),
            Question::Bury { user, .. } => self.look_again(*user, LOOKED_AT_MS, turn),
            // Whether a stranger is to be asked about still is seen when the next question is chosen.
            Question::Check { .. } if asked.teller.is_none() => {
                self.look_later(turn.now);
                if let (None, Some(lease)) = (&self.belief, &mut self.lease) {
                    lease.check_at = Some(turn.now);
                }
            }
            _ => self.send(asked, turn),
        }
    }

    /// Tells those whom the store did not answer in time. What they wanted released is released
    /// all the same, but now on the gate's own account.
    fn give_up(&mut self, turn: &mut Turn<'_>) {
        let reply = self.unanswered();
        if let Some(asked) = &mut self.asked
            && let Some((request, _)) = asked.teller.take_if(|(_, until)| *until <= turn.now)
        {
            turn.reply(request, reply.clone());
        }
        for errand in self.errands.take_where(|errand| errand.is_due(turn.now)) {
            match errand {
                Errand::Unlock(owner) => {
                    turn.reply(owner.request, reply.clone());
                    if let Some(mut lease) = self.lease_of(owner.user, &owner.token) {
                        lease.session = None;
                        // Who was told that nobody knows may have come for it elsewhere by then.
                        if lease.deadline.is_some() {
                            lease.receivers = 0;
                            self.errands.put(Errand::GiveAway {
                                user: owner.user,
                                token: owner.token,
                                only_if: lease.deadline,
                            });
                        }
                        self.put_lease(Some(lease), false, turn);
                    }
                }
                Errand::Relock(owner, _) => turn.reply(owner.request, reply.clone()),
                Errand::GiveAway { .. } => {}
            }
        }
    }

    /// What may have come to hold the lock late is released once more.
    fn release_late(&mut self, turn: &Turn<'_>) {
        while self
            .late
            .front()
            .is_some_and(|(time, ..)| *time <= turn.now)
            && let Some((_, user, token)) = self.late.pop_front()
        {
            self.errands.put(Errand::GiveAway {
                user,
                token,
                only_if: None,
            });
        }
    }

    /// The store was asked, and does not answer.
    fn is_unanswered(&self, turn: &Turn<'_>) -> bool {
        let late = |asked: &Asked| {
            asked.again
                || asked.retry_at.is_some()
                || turn.now.millis_since(asked.sent_at) >= turn.settings.answer_within_ms
        };
        let troubled = self.trouble.is_some() || self.cut_off.any();
        let troubled = troubled || self.asked.as_ref().is_some_and(late);
        self.belief.is_none() && troubled
    }

    fn unanswered(&self) -> Reply {
        Reply::Refused(match &self.trouble {
            Some(error) => Refusal::Store(error.clone()),
            None => Refusal::Upstream,
        })
    }

    /// Until when a place is kept for a client that is gone. None: as many are kept as may wait.
    fn keep_until(&self, turn: &Turn<'_>) -> Option<Time> {
        let has_room = self.places.kept() < turn.settings.max_waiters;
        has_room.then(|| turn.now.plus_millis(turn.settings.return_ms))
    }

    fn lease_of(&self, user: UserId, token: &Token) -> Option<Lease> {
        self.lease.clone().filter(|lease| lease.is_of(user, token))
    }

    /// By the books the lock is held with this very token by another user: the store, which knows no
    /// users, would take one for the other.
    fn is_anothers(&self, user: UserId, token: &Token) -> bool {
        let same = |lease: &Lease| lease.token == *token && lease.user != user;
        self.lease.as_ref().is_some_and(same)
    }
}

impl Errand {
    fn give_up_at(&self) -> Option<Time> {
        match self {
            Self::Unlock(owner) | Self::Relock(owner, _) => Some(owner.give_up_at),
            Self::GiveAway { .. } => None,
        }
    }

    fn user(&self) -> UserId {
        match self {
            Self::Unlock(owner) | Self::Relock(owner, _) => owner.user,
            Self::GiveAway { user, .. } => *user,
        }
    }

    /// The client that wants it done.
    fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Unlock(owner) | Self::Relock(owner, _) => Some(owner),
            Self::GiveAway { .. } => None,
        }
    }

    /// The same.
    fn owner_mut(&mut self) -> Option<&mut Owner> {
        match self {
            Self::Unlock(owner) | Self::Relock(owner, _) => Some(owner),
            Self::GiveAway { .. } => None,
        }
    }

    fn is_due(&self, now: Time) -> bool {
        self.give_up_at().is_some_and(|time| time <= now)
    }

    fn gives_away(&self, whose: UserId, what: &Token) -> bool {
        matches!(self, Self::GiveAway { user, token, .. } if *user == whose && token == what)
    }
}

impl Owner {
    fn teller(&self) -> Option<(RequestId, Time)> {
        Some((self.request, self.give_up_at))
    }
}

impl Asked {
    /// The question may bring this owner the lock.
    fn is_for(&self, whose: UserId, what: &Token) -> bool {
        match &self.question {
            Question::Ask { user, token, .. } => *user == whose && token == what,
            Question::HandOver { user, to, .. } => *user == whose && to == what,
            _ => false,
        }
    }
}

/// One event being handled: when, under which rules, and what is to be done about it.
struct Turn<'a> {
    now: Time,
    settings: &'a Settings,
    todo: &'a mut Vec<Action>,
}

impl Turn<'_> {
    fn reply(&mut self, request: RequestId, reply: Reply) {
        self.todo.push(Action::Reply { request, reply });
    }

    fn give_up_at(&self, asked_at: Time) -> Time {
        asked_at.plus_millis(self.settings.answer_within_ms)
    }
}
