//! Absorbed commands: commands of Redis's own about locks, which clients repeat until they are granted the lock.
//!
//! An absorbed command takes its turn like a lock command, and gets the reply that Redis would send. An attempt at a lock
//! that is held is parked: it waits in the queue for a moment, and is refused then.
//!
//! - **What the gate does not do goes to Redis as it came** ([`Session::fall_open`]), as long as the gate has done nothing:
//!   no client gets an error of lockgate's own for an absorbed command.
//! - **Nothing waits behind a parked attempt.** The client's next command ends the parking. A release overtakes first,
//!   since it may be the one that the attempt waits for.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use tracing::{info, warn};

use super::{
    Session, answer,
    lookahead::{Early, Started},
    peers::Place,
    turn::{Running, Turn},
};
use crate::{
    absorb::{Ask, Equal, Rules, Shape, Treatment},
    error::SHUTDOWN,
    gate::{Answer, Extension, Grant, LockOptions, Pending},
    limits::{LOCK_COMMAND_BYTES, PROBE_MS},
    lock::{Attempt, ConnectionId, GrantKind, Refusal, Time, Token},
    resp::{Writer, arguments},
    store::LockName,
    telemetry::metrics::absorb::{AttemptAnswer, EarlyEnd, Parked, PassedReason, ReleaseHow},
};

/// A command that takes a turn.
pub(super) enum Front {
    /// A lock command, one that may make this a plain pipe, or one for the guard.
    Own(Bytes),
    /// An absorbed command.
    Absorbed(Box<Absorbed>),
}

impl Front {
    pub(super) fn frame(&self) -> &Bytes {
        match self {
            Self::Own(frame) => frame,
            Self::Absorbed(absorbed) => &absorbed.frame,
        }
    }
}

/// An absorbed command, from its frame to its reply.
pub(super) struct Absorbed {
    /// The command as it came, in case it goes to Redis.
    frame: Bytes,
    /// What the command asks of a lock; its key is the name of the lock.
    shape: Shape,
    /// The database in which it was recognised.
    database: u32,
    treatment: Treatment,
    park_ms: u64,
    /// Set while the attempt is parked.
    parking: Option<Parking>,
}

/// The counts of a parked attempt, until it is over.
struct Parking {
    #[expect(dead_code, reason = "it is held, not used")]
    place: Place,
    #[expect(dead_code, reason = "it is held, not used")]
    parked: Parked,
    /// It may have kept the holder from its release.
    may_block_holder: bool,
}

impl Absorbed {
    fn new(shape: Shape, database: u32) -> Self {
        Self {
            frame: Bytes::new(),
            shape,
            database,
            treatment: Treatment::Try,
            park_ms: 0,
            parking: None,
        }
    }

    /// Returns whether it releases the lock of a token.
    pub(super) fn releases(&self) -> bool {
        matches!(self.shape.ask, Ask::Release { .. })
    }
}

/// Returns how attempts at the key of a command of Redis's own are treated, and what the command asks of that lock, with
/// the lock's name as its key. `None`: its key is that of no lock.
pub(super) fn recognise(
    rules: &Rules,
    command: &[Bytes],
    database: u32,
) -> Option<(Treatment, Option<Shape>)> {
    let key = command.get(Shape::key_at(command.first()?, command.len())?)?;
    let treatment = rules.treatment(key)?;
    let shape = || {
        let shape = Shape::of(command, rules.scripts(), database)?;
        let key = rules.lock_name(&shape.key)?.into();
        if matches!(shape.ask, Ask::Extend { adds: true, .. }) && !rules.are_for_every_key() {
            // Redis knows what is left of the lease.
            return None;
        }
        Some(Shape { key, ..shape })
    };
    Some((treatment, shape()))
}

/// Returns why a command about the key of a lock is no request about the lock, where that is worth a metric.
fn reason_to_pass(command: &[Bytes]) -> Option<PassedReason> {
    let [name, _, third, ..] = command else {
        return None;
    };
    let has = |word: &str| {
        let mut options = command.iter().skip(3);
        options.any(|option| option.eq_ignore_ascii_case(word.as_bytes()))
    };
    if name.eq_ignore_ascii_case(b"SET") {
        return match command.len() {
            4 if has("NX") => Some(PassedReason::NoExpiry),
            6 if has("NX") && (has("PX") || has("EX")) => Some(PassedReason::Lease),
            _ => None,
        };
    }
    let is_script = name.len() >= 4 && name[..4].eq_ignore_ascii_case(b"EVAL");
    is_script.then_some(match third == "1" {
        true => PassedReason::Script,
        false => PassedReason::Keys,
    })
}

impl Session {
    /// Returns whether the command whose name was read may be absorbed, so that it is to be read whole.
    pub(super) fn may_be_absorbed(&self) -> bool {
        if self.requests.lookahead.started_shape().is_some() {
            return true;
        }
        let scanner = &self.requests.scanner;
        let arguments = usize::try_from(scanner.argument_count()).unwrap_or(usize::MAX);
        Shape::key_at(scanner.name(), arguments).is_some() && self.shared.live.absorbs()
    }

    /// Decides on a command that may be absorbed, and was read whole.
    pub(super) fn candidate_command(&mut self) {
        let started = self.requests.lookahead.started_shape().cloned();
        let absorbed = match started {
            // The rules may have changed since.
            Some(shape) => Some(Absorbed::new(shape, self.backend.database())),
            None => {
                let arguments = self.requests.arguments();
                arguments.and_then(|arguments| self.absorbed(&arguments))
            }
        };
        let Some(mut absorbed) = absorbed else {
            return self.ordinary_command();
        };
        absorbed.frame = self.take_frame();
        self.is_shared |= !self.requests.inbox.is_empty();
        self.turn = match self.requests.lookahead.turn(absorbed.frame.len()) {
            // It overtook: its answer has arrived or is on its way.
            Some(Started {
                reply: Early::Pending(pending),
                ..
            }) => {
                self.hides_reply = self.backend.hides_reply();
                Turn::Running(Running::alone(pending, Some(Box::new(absorbed))))
            }
            _ => Turn::Next(Front::Absorbed(Box::new(absorbed))),
        };
    }

    fn absorbed(&self, command: &[Bytes]) -> Option<Absorbed> {
        let rules = self.shared.live.absorb()?;
        let (treatment, shape) = recognise(&rules, command, self.backend.database())?;
        let Some(shape) = shape else {
            self.count_passed(&rules, command);
            return None;
        };
        let park_ms = match shape.ask {
            Ask::Acquire { lease_ms, .. } => rules.park_ms(lease_ms),
            _ => 0,
        };
        Some(Absorbed {
            treatment,
            park_ms,
            ..Absorbed::new(shape, self.backend.database())
        })
    }

    /// Counts a command that is no request about its lock, and reports its script to the operator, once each.
    fn count_passed(&self, rules: &Rules, command: &[Bytes]) {
        let Some(reason) = reason_to_pass(command) else {
            return;
        };
        self.shared.absorb_metrics().passed(reason);
        if reason == PassedReason::Script
            && let Some(sha1) = rules.scripts().news(&command[0], &command[1])
            && let Some(left_out) = self.shared.warnings.unknown_scripts.is_due()
        {
            info!(
                left_out,
                "script {sha1} is used on absorbed keys and not known; if it only releases, name it in \
                 absorb.release_scripts"
            );
        }
    }

    /// Starts an absorbed command: everything before it is answered.
    pub(super) fn begin_absorbed(&mut self, mut absorbed: Box<Absorbed>) {
        if !self.backend.streams() {
            // Whatever becomes of the command, lockgate answers it.
            self.hides_reply = self.backend.hides_reply();
        }
        if absorbed.database != self.backend.database() {
            let command = arguments(&absorbed.frame, LOCK_COMMAND_BYTES).unwrap_or_default();
            match self.absorbed(&command) {
                Some(again) => {
                    let frame = std::mem::take(&mut absorbed.frame);
                    *absorbed = Absorbed { frame, ..again };
                }
                None => return self.fall_open(&absorbed, None),
            }
        }
        if let Err(reason) = self.may_absorb(&absorbed.shape) {
            return self.pass(&absorbed, reason);
        }
        if self.backend.streams() {
            self.hides_reply = self.backend.hides_reply();
        }
        self.admit(Front::Absorbed(absorbed));
    }

    /// Checks whether the gate serves this request. The error is the reason why it does not, if that is worth a metric.
    fn may_absorb(&self, shape: &Shape) -> Result<(), Option<PassedReason>> {
        let (shared, bounds) = (&self.shared, &self.shared.bounds);
        let name = self.name(Arc::clone(&shape.key));
        let is_token = |token: &Token| (1..=bounds.token_bytes).contains(&token.as_bytes().len());
        if !self.backend.takes_absorbed_commands() {
            return Err(Some(PassedReason::Transaction));
        }
        let streams = self.backend.streams();
        let is_attempt = matches!(shape.ask, Ask::Acquire { .. });
        if self.draining && (streams || is_attempt) {
            return Err(Some(PassedReason::Draining));
        }
        if shape.key.len() > bounds.key_bytes || shared.gate.is_reserved(&name) {
            return Err(Some(PassedReason::Keys));
        }
        // Before its admission, the client may still count as an earlier user of the connection.
        if self.is_admitted() && self.is_unauthorized() {
            return Err(Some(PassedReason::Rights));
        }
        match &shape.ask {
            Ask::Acquire {
                token, lease_ms, ..
            } => {
                if !(bounds.min_lease_ms..=bounds.max_lease_ms).contains(lease_ms) {
                    return Err(Some(PassedReason::Lease));
                }
                if !is_token(token) {
                    return Err(Some(PassedReason::Token));
                }
                if streams && shared.gate.is_full_for(&name) {
                    return Err(Some(PassedReason::Limit));
                }
                // Attempts at free locks pass in a pipeline as fast as other commands.
                let again = self.last_passed.as_ref() == Some(&shape.key);
                let in_pipeline = self.requests.unscanned() > 0;
                if streams && in_pipeline && !again && !shared.gate.knows(&name) {
                    return Err(None);
                }
                Ok(())
            }
            // Redis knows at once.
            _ if !shared.gate.knows(&name) => Err(None),
            Ask::Extend { lease_ms, adds, .. }
                if !(bounds.min_lease_ms..=bounds.max_lease_ms)
                    .contains(&self.extended_ms(&name, *lease_ms, *adds)) =>
            {
                Err(Some(PassedReason::Lease))
            }
            Ask::Release { token } | Ask::Extend { token, .. } if !is_token(token) => {
                Err(Some(PassedReason::Token))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the rights of an admitted client's user do not suffice for lockgate's own commands.
    fn is_unauthorized(&self) -> bool {
        self.shared.unauthorized.has(self.who.user, self.asked_at())
    }

    /// Leaves a command to Redis, and counts the reason if there is one.
    fn pass(&mut self, absorbed: &Absorbed, reason: Option<PassedReason>) {
        if let Some(reason) = reason {
            self.shared.absorb_metrics().passed(reason);
        }
        self.last_passed = Some(Arc::clone(&absorbed.shape.key));
        self.fall_open(absorbed, None);
    }

    /// Runs an absorbed command of an admitted client.
    pub(super) fn run_absorbed(&mut self, mut absorbed: Box<Absorbed>) {
        if self.is_unauthorized() {
            return self.pass(&absorbed, Some(PassedReason::Rights));
        }
        let Ask::Acquire {
            token,
            lease_ms,
            equal,
        } = &absorbed.shape.ask
        else {
            self.turn = match self.start_absorbed(&absorbed.shape) {
                Some(pending) => Turn::Running(Running::alone(pending, Some(absorbed))),
                None => return self.fall_open(&absorbed, None),
            };
            return;
        };
        let (token, lease_ms, equal) = (token.clone(), *lease_ms, *equal);
        let asked_at = self.asked_at();
        absorbed.parking = self.park(&absorbed, &token, asked_at);
        let parks = absorbed.parking.is_some();
        let wish = LockOptions {
            asked_at,
            token: Some(token),
            lease_ms,
            wait_ms: Some(match self.connected.is_only() {
                true => absorbed.park_ms,
                false => some_of(absorbed.park_ms),
            }),
            try_only: !parks,
            fence: false,
            session: None,
            // Redis executes other such commands itself, and waits for no replica.
            replicas: 0,
            connection: ConnectionId(self.id),
            attempt: Some(Attempt {
                strict: equal == Equal::Refused,
                returns: absorbed.treatment == Treatment::Park,
            }),
        };
        let name = self.name(Arc::clone(&absorbed.shape.key));
        let pending = self.shared.gate.lock(&self.who, name, &wish);
        self.turn = Turn::Running(match parks {
            true => Running::passable(pending, Some(absorbed), true),
            false => Running::alone(pending, Some(absorbed)),
        });
    }

    fn park(&mut self, absorbed: &Absorbed, token: &Token, now: Time) -> Option<Parking> {
        if absorbed.treatment == Treatment::Try || absorbed.park_ms == 0 {
            return None;
        }
        let name = self.name(Arc::clone(&absorbed.shape.key));
        let returns = self.shared.gate.keeps_place(&name, self.who.user, token);
        let may_block_holder = !self.is_shared && self.connected.is_holders_only(now);
        let is_fair = !may_block_holder || self.probe_at <= now;
        let metrics = self.shared.absorb_metrics();
        let Some(place) = is_fair.then(|| self.connected.park(returns)).flatten() else {
            metrics.ended_early(EarlyEnd::Share);
            return None;
        };
        Some(Parking {
            place,
            parked: metrics.parked(),
            may_block_holder,
        })
    }

    /// Starts a release or an extension. `None`: the gate has nothing to do with it.
    pub(super) fn start_absorbed(&self, shape: &Shape) -> Option<Pending> {
        let (gate, who) = (&self.shared.gate, &self.who);
        let name = self.name(Arc::clone(&shape.key));
        if !self.is_admitted() || self.may_absorb(shape).is_err() {
            return None;
        }
        let asked_at = self.asked_at();
        match &shape.ask {
            Ask::Acquire { .. } => None,
            Ask::Release { token } => Some(gate.unlock(who, name, token.clone(), asked_at, true)),
            Ask::Extend {
                token,
                lease_ms,
                adds,
            } => {
                let extension = Extension {
                    lease_ms: self.extended_ms(&name, *lease_ms, *adds),
                    replicas: 0,
                };
                Some(gate.relock(who, name, token.clone(), extension, asked_at, true))
            }
            Ask::Delete => Some(gate.delete(who, name, asked_at)),
        }
    }

    /// Returns the lease that an extension gives the lock, from now.
    fn extended_ms(&self, name: &LockName, lease_ms: u64, adds: bool) -> u64 {
        let holder = adds.then(|| self.shared.gate.holder(name)).flatten();
        lease_ms.saturating_add(holder.map_or(0, |(_, left_ms)| left_ms))
    }

    /// Writes the reply of Redis's that fits the gate's answer, or lets Redis reply.
    pub(super) fn answer_absorbed(&mut self, answer: Answer, absorbed: &Absorbed) -> bool {
        let metrics = self.shared.absorb_metrics();
        let replies = absorbed.shape.replies;
        let is_attempt = matches!(absorbed.shape.ask, Ask::Acquire { .. });
        let is_release = matches!(absorbed.shape.ask, Ask::Release { .. } | Ask::Delete);
        let is_over = matches!(&answer, Answer::Granted(grant) if grant.is_over());
        let reply = match &answer {
            Answer::Granted(grant) if !is_over => {
                metrics.attempt(granted(grant));
                replies.done
            }
            Answer::Refused(Refusal::Expired) if !is_attempt => replies.refused,
            Answer::Granted(_)
            | Answer::Nil
            | Answer::Refused(Refusal::Expired | Refusal::Deadlock) => {
                metrics.attempt(match &absorbed.parking {
                    Some(parking) => {
                        // An attempt that is granted does not hold up the release.
                        if parking.may_block_holder {
                            self.probe_at = self.asked_at().plus_millis(PROBE_MS);
                        }
                        AttemptAnswer::RefusedParked
                    }
                    None => AttemptAnswer::RefusedAtOnce,
                });
                replies.refused
            }
            // It may yet be granted, so Redis must not execute it once more. The gate takes that grant back.
            Answer::Refused(Refusal::Upstream) if is_attempt => {
                metrics.attempt(AttemptAnswer::RefusedParked);
                replies.refused
            }
            Answer::Done => {
                if is_release {
                    metrics.release(ReleaseHow::Released);
                    self.connected.released();
                }
                replies.done
            }
            Answer::HeldByAnother => {
                metrics.release(ReleaseHow::FromMemory);
                replies.refused
            }
            Answer::NotHeld
                if replies.refused == replies.gone
                    && !matches!(absorbed.shape.ask, Ask::Delete) =>
            {
                if is_release {
                    metrics.release(ReleaseHow::NotHeld);
                }
                replies.refused
            }
            Answer::NotHeld => {
                self.fall_open(absorbed, None);
                return true;
            }
            // A second execution could end the lease of another client. As with a broken connection to Redis, the client
            // does not learn of the outcome.
            Answer::Refused(Refusal::Upstream) => {
                self.cut_off();
                return true;
            }
            Answer::Refused(refusal) => {
                let refusal = refusal.clone();
                self.pass_refused(absorbed, refusal);
                return true;
            }
        };
        let write = |out: &mut BytesMut, protocol| reply.write(&mut Writer::new(out, protocol));
        match answer {
            Answer::Granted(grant) if !is_over => {
                if let Ask::Acquire { lease_ms, .. } = absorbed.shape.ask {
                    self.connected.granted(self.asked_at(), lease_ms);
                }
                self.write_answer(write);
                self.deliver_grant(grant)
            }
            _ => self.write_answer(write),
        }
    }

    /// Counts a parked attempt that ends before its time.
    pub(super) fn ended_early(&self, why: EarlyEnd) {
        self.shared.absorb_metrics().ended_early(why);
        if why == EarlyEnd::Closed
            && let Some(left_out) = self.shared.warnings.impatient.is_due()
        {
            let client = &self.who.label;
            warn!(
                %client,
                left_out,
                "a client closed its connection while its attempt was parked: set absorb.park well below the shortest \
                 socket timeout of the clients that lock"
            );
        }
    }

    /// Ends the parking of an attempt, at shutdown. Returns whether there was one.
    pub(super) fn end_parking(&mut self) -> bool {
        if let Turn::Running(Running {
            passable: Some(_),
            absorbed: absorbed @ Some(_),
            ..
        }) = &mut self.turn
        {
            self.turn = Turn::Answered(Answer::Nil, absorbed.take());
            return true;
        }
        false
    }

    /// Passes a command on that the gate refused without doing anything.
    fn pass_refused(&mut self, absorbed: &Absorbed, refusal: Refusal) {
        let reason = match &refusal {
            Refusal::Store(text) if text.starts_with(b"NOPERM") => {
                let now = self.asked_at();
                self.shared.unauthorized.add(self.who.user, now);
                Some(PassedReason::Rights)
            }
            Refusal::TooManyLocks | Refusal::TooManyWaiters => Some(PassedReason::Limit),
            _ => None,
        };
        if let Some(reason) = reason {
            self.shared.absorb_metrics().passed(reason);
        }
        self.fall_open(absorbed, Some(refusal));
    }

    /// Returns whether Redis may grant the lock of an attempt although its holder's lease is about to be written back: this
    /// instance granted the lease, but its own connection does not work, perhaps because Redis lost its data.
    fn may_be_written_back(&self, shape: &Shape, refusal: Option<&Refusal>) -> bool {
        let is_cut_off = match refusal {
            Some(Refusal::NotSent | Refusal::Upstream) => true,
            Some(Refusal::Store(text)) => text.starts_with(b"UPSTREAM"),
            _ => false,
        };
        let is_attempt = matches!(shape.ask, Ask::Acquire { .. });
        is_cut_off
            && is_attempt
            && self
                .shared
                .gate
                .has_lease(&self.name(Arc::clone(&shape.key)))
    }

    /// Lets Redis execute a command of which the gate has done nothing. Without a Redis it gets an error, or the reply
    /// that no lock is there.
    pub(super) fn fall_open(&mut self, absorbed: &Absorbed, refusal: Option<Refusal>) {
        if self.may_be_written_back(&absorbed.shape, refusal.as_ref()) {
            let refused = absorbed.shape.replies.refused;
            self.write_answer(|out, protocol| refused.write(&mut Writer::new(out, protocol)));
            return;
        }
        if self.backend.streams() {
            return self.give_to_redis(absorbed.frame.clone());
        }
        let Shape { key, ask, replies } = &absorbed.shape;
        let knows = self.shared.gate.knows(&self.name(key.clone()));
        let draining = self.draining;
        self.write_answer(|out, protocol| match (refusal, ask) {
            (Some(refusal), _) => answer::refusal(out, protocol, &refusal),
            (None, Ask::Acquire { .. }) if draining => answer::error(out, protocol, SHUTDOWN),
            (None, Ask::Acquire { .. }) => answer::error(out, protocol, NO_LOCK),
            (None, Ask::Extend { .. }) if knows => answer::error(out, protocol, NO_LOCK),
            (None, _) => replies.gone.write(&mut Writer::new(out, protocol)),
        });
    }
}

/// Returns a random time between a quarter of `park_ms` and all of it. Clients that came in step and sleep equally long
/// between two attempts would otherwise be away at the same time, while the lock lies free.
fn some_of(park_ms: u64) -> u64 {
    let least = park_ms.div_ceil(4);
    // Each state hashes with other keys.
    let random = RandomState::new().hash_one(park_ms);
    least + random % (park_ms - least + 1)
}

/// The error for an attempt or an extension that is outside of the bounds, where no Redis could execute it.
const NO_LOCK: &str = "ERR without a Redis, locks must be within limits.key_bytes, limits.token_bytes, lock.min_lease \
                       and lock.max_lease";

fn granted(grant: &Grant) -> AttemptAnswer {
    match grant.how() {
        GrantKind::Free => AttemptAnswer::Free,
        GrantKind::Handover => AttemptAnswer::Handover,
        GrantKind::Waited => AttemptAnswer::Waited,
        GrantKind::Again => AttemptAnswer::Again,
    }
}
