//! The client's commands: ordinary ones pass to Redis, a lock command takes the next turn.
//!
//! Most bytes are ordinary commands with nothing before them. They are scanned in the read buffer and
//! forwarded from there. Everything else waits in the inbox: the commands behind a lock command, bytes that
//! begin with a lock command, and frames too incomplete to classify.

use std::task::Context;

use bytes::Bytes;
use tracing::warn;

use super::{
    Session,
    absorbing::Front,
    lookahead::Early,
    requests::{Frame, Requests},
    turn::{Running, Turn},
};
use crate::{
    command::{Verb, is_cross_protocol},
    error::NOAUTH,
    limits::LOCK_COMMAND_BYTES,
    relay::state::{State, Uncountable, is_plain, is_plain_in_any_case},
    resp::{RequestScanner, Step, arguments, plain_request},
};

const LOST_WRITES: &str =
    "ERR the connection to Redis is another one than that of the earlier writes; connect anew";

impl Session {
    /// The path of most bytes: forwards ordinary commands that were just read, with nothing kept before them,
    /// to Redis without the inbox. Returns how many bytes passed.
    pub(super) fn pass_through(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> usize {
        let is_next = matches!(self.turn, Turn::Open) && self.requests.inbox.is_empty();
        let named = matches!(self.requests.frame, Frame::Unnamed | Frame::Ordinary);
        if !is_next || !named || self.backend.is_plain_pipe() || self.is_unauthenticated() {
            return 0;
        }
        if self.backend.pipe().is_none() {
            return 0;
        }
        let (mut read, mut passing, mut doubt) = (0, 0, None::<String>);
        while read < bytes.len() && self.has_room(passing) {
            if self.requests.frame == Frame::Unnamed && self.requests.scanner.between_frames() {
                let plain = self.count_plain(&bytes[read..], passing);
                if plain > 0 {
                    read += plain;
                    passing = read;
                    continue;
                }
            }
            let (count, step) = self.requests.scanner.scan(&bytes[read..]);
            read += count;
            match step {
                Ok(Step::More) => {}
                Ok(Step::Named) if self.requests.frame == Frame::Ordinary => {}
                Ok(Step::Named) if self.classify() == Frame::Ordinary => {
                    self.requests.frame = Frame::Ordinary;
                }
                Ok(Step::End) if self.requests.frame == Frame::Ordinary => {
                    self.requests.frame = Frame::Unnamed;
                    passing = read;
                    doubt = self.count_ordinary().err();
                    if doubt.is_some() || self.backend.is_plain_pipe() || self.quits() {
                        break;
                    }
                }
                // Redis already has the front of this frame.
                Err(error) if self.requests.frame == Frame::Ordinary => {
                    self.shared.counters().protocol_errors.count();
                    doubt = Some(format!("ERR {error}"));
                    break;
                }
                _ => break,
            }
            if self.requests.frame == Frame::Ordinary {
                passing = read;
            }
        }
        if passing < read {
            // The inbox is scanned from the start of this frame.
            self.requests.scanner = RequestScanner::new();
        }
        if let Some(pipe) = self.backend.pipe() {
            pipe.send(cx, &bytes[..passing]);
        }
        if let Some(text) = doubt {
            self.fail(text);
            return bytes.len();
        }
        match self.quits() {
            true => bytes.len(),
            false => passing,
        }
    }

    /// Returns whether the client has sent `QUIT`.
    fn quits(&self) -> bool {
        matches!(self.turn, Turn::Quitting)
    }

    /// Counts the whole commands at the front that need no further inspection: nearly all. Returns their
    /// bytes; `passing` bytes are on their way already.
    fn count_plain(&mut self, bytes: &[u8], passing: usize) -> usize {
        if !self.requests.lookahead.is_empty() {
            return 0;
        }
        let under_way = self.backend.backlog() + passing;
        let most_bytes = self.shared.limits.relay_bytes.saturating_sub(under_way);
        let rules = self.shared.live.absorb();
        let (mut count, mut end) = (0, 0);
        while end < most_bytes
            && let Some((frame, name)) = plain_request(&bytes[end..])
            && is_plain_in_any_case(name)
            && !rules
                .as_ref()
                .is_some_and(|rules| rules.concern(&bytes[end..end + frame], name))
        {
            end += frame;
            count += 1;
        }
        if count > 0 {
            self.backend.sent_plain(count);
        }
        end
    }

    /// Scans the inbox: ordinary commands pass, a lock command takes the next turn.
    pub(super) fn dispatch(&mut self) -> bool {
        let before = self.requests.unscanned();
        while matches!(self.turn, Turn::Open)
            && self.requests.unscanned() > 0
            && self.has_room(self.requests.passing)
            && (self.backend.streams() || self.keeps_more())
        {
            if self.backend.is_plain_pipe() {
                if self.shared.guard.is_some() {
                    return self.drop_unguarded();
                }
                self.requests.pass_all();
                break;
            }
            if self.requests.scanner.between_frames() && self.is_unauthenticated() {
                self.requests.scanner.begin_strangers();
            }
            match self.requests.scan() {
                Ok(step) => self.step(step),
                Err(error) => {
                    self.shared.counters().protocol_errors.count();
                    self.fail(format!("ERR {error}"));
                }
            }
        }
        self.pass_on();
        self.requests.unscanned() < before
    }

    /// Returns whether more may go to Redis, beside `passing` bytes on their way.
    fn has_room(&self, passing: usize) -> bool {
        self.backend.backlog() + passing < self.shared.limits.relay_bytes && self.backend.has_room()
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Blank => return self.blank(),
            Step::End => return self.end_frame(),
            Step::Named if self.requests.frame == Frame::Unnamed => {
                self.requests.frame = self.classify()
            }
            Step::Named | Step::More => {}
        }
        self.continue_frame();
    }

    /// Returns the kind of the command whose name was just read.
    fn classify(&self) -> Frame {
        let name = self.requests.scanner.name();
        if is_cross_protocol(name) {
            Frame::CrossProtocol
        } else if self.is_for_the_guard() {
            Frame::Guarded
        } else if self.is_unauthenticated() {
            Frame::Unauthenticated
        } else if Verb::of(name).is_some() {
            Frame::Lock
        } else if self.may_be_absorbed() {
            Frame::Candidate
        } else if self.backend.keeps(name) {
            Frame::Kept
        } else {
            Frame::Ordinary
        }
    }

    /// Decides on the part of a frame that was read.
    fn continue_frame(&mut self) {
        let is_long = self.requests.part().len() > self.most_bytes(self.requests.frame);
        match self.requests.frame {
            Frame::CrossProtocol => self.drop_client(),
            Frame::Unnamed if is_long && self.is_unauthenticated() => {
                self.requests.frame = Frame::Unauthenticated
            }
            // No part of a line passes before its end, where its name is known.
            Frame::Unnamed | Frame::Kept | Frame::Candidate
                if self.requests.scanner.is_inline() => {}
            // No lock command has a name of this length. But a guard lets no unknown command pass.
            Frame::Unnamed if is_long && self.shared.guard.is_some() => {
                self.requests.frame = Frame::Excess
            }
            Frame::Kept if is_long && self.must_be_whole() => self.requests.frame = Frame::Excess,
            // A COMMAND of this length gets no amendment, and no attempt at a lock is as long.
            Frame::Unnamed | Frame::Kept | Frame::Candidate if is_long => {
                self.requests.frame = Frame::Ordinary
            }
            Frame::Ordinary if self.backend.streams() => self.requests.pass_scanned(),
            Frame::Ordinary | Frame::Lock | Frame::Guarded if is_long => {
                self.requests.frame = Frame::Excess
            }
            Frame::Excess | Frame::Unauthenticated => drop(self.take_frame()),
            _ => {}
        }
    }

    /// Decides on a frame that was read to its end.
    fn end_frame(&mut self) {
        let frame = std::mem::replace(&mut self.requests.frame, Frame::Unnamed);
        let is_long = self.requests.frame_bytes() > self.most_bytes(frame);
        match frame {
            Frame::Excess => self.excess(),
            Frame::Lock | Frame::Guarded if is_long => self.excess(),
            Frame::Lock => self.lock_command(),
            Frame::Guarded => self.next_turn(),
            Frame::Unauthenticated => {
                self.take_command();
                self.turn = Turn::Refusing(NOAUTH.to_owned());
            }
            Frame::Kept => self.kept_command(),
            Frame::Candidate => self.candidate_command(),
            Frame::Ordinary if is_long && !self.backend.streams() => self.excess(),
            Frame::Ordinary => self.ordinary_command(),
            // Never: a name comes before the end of its frame.
            Frame::Unnamed | Frame::CrossProtocol => self.drop_client(),
        }
    }

    fn excess(&mut self) {
        // The scanner has read what matters, though the frame was not kept.
        if let Some(substitute) = self.backend.reply_mode_substitute(&self.requests.scanner) {
            return self.substitute(substitute);
        }
        self.take_command();
        let text = if self.is_for_the_guard() {
            format!("ERR AUTH or HELLO has {LOCK_COMMAND_BYTES} bytes at most")
        } else if Verb::of(self.requests.scanner.name()).is_some() {
            self.shared.counters().refused_lock_commands.count();
            let most = self.shared.bounds.command_bytes;
            format!("ERR a lock command has {most} bytes at most (limits.lock_command_bytes)")
        } else if self.must_be_whole() {
            format!("ERR CLIENT REPLY or SCRIPT DEBUG has {LOCK_COMMAND_BYTES} bytes at most")
        } else if self.backend.streams() {
            format!("ERR the name of a command has {LOCK_COMMAND_BYTES} bytes at most")
        } else {
            format!("ERR without a Redis a command has {LOCK_COMMAND_BYTES} bytes at most")
        };
        self.turn = Turn::Refusing(text);
    }

    fn must_be_whole(&self) -> bool {
        self.backend.streams() && State::must_be_whole(&self.requests.scanner)
    }

    /// Returns the longest frame of this kind that is read whole, in bytes.
    fn most_bytes(&self, frame: Frame) -> usize {
        match frame {
            Frame::Lock => self.shared.bounds.command_bytes,
            _ => LOCK_COMMAND_BYTES,
        }
    }

    /// Drops a client that speaks HTTP. Earlier commands are answered. The rest is not read.
    fn drop_client(&mut self) {
        self.shared.counters().cross_protocol_requests.count();
        if let Some(left_out) = self.shared.warnings.cross_protocol.is_due() {
            warn!(
                client = %self.who.label,
                left_out,
                "possible SECURITY ATTACK: somebody sends POST or Host: commands, most likely by a \
                 browser of another (cross protocol scripting); such clients are dropped"
            );
        }
        self.drop_unread();
        self.end_reading();
        self.turn = Turn::Dropping;
    }

    /// Closes a client that sends bytes through a plain pipe while lockgate has a password of its own.
    /// lockgate does not scan these bytes, and a command among them might change the client's identity, which
    /// only the guard may do.
    fn drop_unguarded(&mut self) -> bool {
        self.requests.clear();
        self.close();
        true
    }

    /// Sends the front of the inbox, up to the frame being read, to Redis.
    fn pass_on(&mut self) {
        let Requests { inbox, passing, .. } = &mut self.requests;
        if *passing > 0 {
            self.backend.pass_on(inbox, *passing);
            self.requests.passed();
        }
    }

    /// Takes the frame just read out of the inbox.
    pub(super) fn take_frame(&mut self) -> Bytes {
        self.pass_on();
        self.requests.take_scanned()
    }

    /// Takes the command just read out of the inbox, and advances to the next one.
    fn take_command(&mut self) -> Bytes {
        let frame = self.take_frame();
        self.requests.lookahead.turn(self.requests.frame_bytes());
        frame
    }

    /// Lets the command just read start once everything before it is answered.
    fn next_turn(&mut self) {
        self.turn = Turn::Next(Front::Own(self.take_command()));
    }

    fn blank(&mut self) {
        let blank = self.requests.part().len();
        self.requests.lookahead.passed_blank(blank);
        if self.backend.streams() && self.backend.is_used() {
            self.requests.pass_scanned();
            self.backend.sent_blank();
        } else {
            self.take_frame();
        }
    }

    /// Counts an ordinary command that was read to its end; its reply is now owed.
    fn count_ordinary(&mut self) -> Result<(), String> {
        self.requests.lookahead.turn(self.requests.frame_bytes());
        if is_plain(self.requests.scanner.name()) {
            self.backend.sent_plain(1);
            return Ok(());
        }
        if self.requests.scanner.name() == b"QUIT" {
            self.left = true;
            self.turn = Turn::Quitting;
        }
        let counted = self.backend.sent(&self.requests.scanner);
        counted.map_err(|error| self.uncountable(error))
    }

    pub(super) fn ordinary_command(&mut self) {
        let counted = self.count_ordinary();
        if self.backend.streams() {
            self.requests.pass_scanned();
            if let Err(text) = counted {
                self.fail(text);
            } else if self.quits() {
                self.drop_unread();
            }
            return;
        }
        let frame = self.take_frame();
        match arguments(&frame, LOCK_COMMAND_BYTES) {
            Ok(arguments) => {
                let out = &mut self.client.outbox;
                if self.backend.answer(&arguments, out, &*self.shared) {
                    self.close();
                }
            }
            Err(error) => self.fail(format!("ERR {error}")),
        }
    }

    /// Counts the command just read, or its substitute, which was sent to Redis.
    pub(super) fn sent(&mut self) {
        let counted = self.backend.sent(&self.requests.scanner);
        self.fail_uncountable(counted);
    }

    fn fail_uncountable(&mut self, counted: Result<(), Uncountable>) {
        if let Err(error) = counted {
            self.fail(self.uncountable(error));
        }
    }

    /// Returns the error of a command that cannot be passed on.
    fn uncountable(&self, error: Uncountable) -> String {
        if error == Uncountable::Endless {
            self.shared.counters().refused_transactions.count();
            if let Some(left_out) = self.shared.warnings.endless.is_due() {
                let client = &self.who.label;
                warn!(%client, left_out, %error, "closing a client's connection");
            }
        }
        format!("ERR {error}")
    }

    fn kept_command(&mut self) {
        if self.backend.may_become_pipe(&self.requests.scanner) {
            return self.next_turn();
        }
        if let Some(substitute) = self.backend.reply_mode_substitute(&self.requests.scanner) {
            return self.substitute(substitute);
        }
        let name = self.requests.scanner.name();
        if self.backend.awaits_lost_writes(name) {
            self.take_command();
            return self.fail(LOST_WRITES.to_owned());
        }
        let arguments = self.requests.arguments();
        if let (Some(rules), Some(arguments)) = (self.shared.live.absorb(), &arguments) {
            rules.learn(arguments);
        }
        self.requests.lookahead.turn(self.requests.frame_bytes());
        self.requests.pass_scanned();
        let counted = match arguments {
            Some(arguments) => self.backend.sent_whole(&self.requests.scanner, &arguments),
            None => self.backend.sent(&self.requests.scanner),
        };
        self.fail_uncountable(counted);
    }

    /// Sends Redis this command in place of the one just read.
    fn substitute(&mut self, command: &[u8]) {
        self.take_command();
        self.backend.pass_on_own(command);
        self.sent();
    }

    fn lock_command(&mut self) {
        let frame = self.take_frame();
        self.turn = match self.requests.lookahead.turn(frame.len()) {
            // Its answer has arrived or is on its way.
            Some(started) => {
                self.hides_reply = self.backend.hides_reply();
                match (started.reply, started.request) {
                    (Early::Answered(answer), _) => Turn::Answered(answer, None),
                    (Early::Pending(pending), request) => {
                        let waits = request.is_some_and(|request| request.waits());
                        Turn::Running(Running::passable(pending, None, waits))
                    }
                }
            }
            None => Turn::Next(Front::Own(frame)),
        };
    }

    pub(super) fn fail(&mut self, text: String) {
        self.drop_unread();
        self.turn = Turn::Failing(text);
    }

    /// Drops the client's commands behind those that were scanned.
    fn drop_unread(&mut self) {
        self.pass_on();
        self.requests.clear();
    }
}
