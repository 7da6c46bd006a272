//! What stands behind a client: its own connection to Redis, or, where there is no Redis, the few
//! ordinary commands that are answered here.

use std::{sync::Arc, task::Context};

use bytes::{Bytes, BytesMut};

use super::{
    Shared,
    amend::{self, Amendment},
    local::{Local, Then},
    pipe::Pipe,
    relay::{Broken, Relay},
    state::{Identity, State, Uncountable},
};
use crate::{
    clock,
    gate::Said,
    limits::{AMENDED_ENTRIES, OWED_ENTRIES, QUEUED_COMMANDS},
    metrics::relays::Traffic,
    resp::{Protocol, RequestScanner},
    transport::stream::Stream,
};

/// What stands behind a client.
pub(super) enum Back {
    Relay(Box<Relay>),
    Local(Box<Local>),
}

/// Spends what `CLIENT CACHING` left for the next command, which lockgate runs itself.
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// To wait would be in vain: only the client's `EXEC` makes it fewer.
fn is_not_endless(state: &State) -> Result<(), Uncountable> {
    if state.queued() > QUEUED_COMMANDS {
        return Err(Uncountable::Endless);
    }
    Ok(())
}

/// A command of this name may say who the client is.
pub(super) fn is_login(name: &[u8]) -> bool {
    matches!(name, b"AUTH" | b"HELLO")
}

impl Back {
    pub(super) fn new(shared: &Shared, stream: &Stream, peer: &str, id: u64) -> Self {
        match &shared.upstream {
            Some(address) => Self::Relay(Box::new(Relay::new(Arc::clone(address)))),
            None => {
                // Who comes over a Unix socket is at its file, as is what it connected to.
                let here = stream.local_address();
                let here = here.map_or_else(|| peer.to_owned(), |address| address.to_string());
                Self::Local(Box::new(Local::new(id, peer, here, clock::now())))
            }
        }
    }

    /// Commands pass as they come, without being read whole.
    pub(super) fn streams(&self) -> bool {
        matches!(self, Self::Relay(_))
    }

    /// What passes can be counted no longer, and means nothing to lockgate.
    pub(super) fn is_plain_pipe(&self) -> bool {
        matches!(self, Self::Relay(relay) if relay.state.uncountable())
    }

    /// The client has authenticated.
    pub(super) fn is_authenticated(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.state.authenticated(),
            Self::Local(local) => local.is_in(),
        }
    }

    /// What the guard handed on was answered, where there is no Redis.
    pub(super) fn entered(&mut self, command: &[Bytes]) {
        if let Self::Local(local) = self {
            let leaves = command
                .first()
                .map(|name| name.eq_ignore_ascii_case(b"RESET"));
            local.set_in(leaves == Some(false));
        }
    }

    /// There was something to send.
    pub(super) fn is_used(&self) -> bool {
        matches!(self, Self::Relay(relay) if relay.is_used())
    }

    /// Everything before was answered: a lock command may have its turn.
    pub(super) fn is_settled(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.is_settled(),
            Self::Local(_) => true,
        }
    }

    /// Messages may come at any time.
    pub(super) fn is_subscribed(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.state.subscriptions() > 0 || relay.state.uncountable(),
            Self::Local(_) => false,
        }
    }

    /// Nothing that Redis says has been passed on in part.
    pub(super) fn is_between_replies(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.is_between_replies(),
            Self::Local(_) => true,
        }
    }

    /// Nothing more will come from it.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.is_over(),
            Self::Local(_) => true,
        }
    }

    /// It closed the connection.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self, Self::Relay(relay) if relay.has_ended())
    }

    /// Bytes on their way to it.
    pub(super) fn backlog(&self) -> usize {
        match self {
            Self::Relay(relay) => relay.backlog(),
            Self::Local(_) => 0,
        }
    }

    /// It may be sent more commands. Where not, replies have to come first.
    pub(super) fn has_room(&self) -> bool {
        match self {
            Self::Relay(relay) => {
                relay.state.amendment_weight() < AMENDED_ENTRIES
                    && relay.state.owed_entries() < OWED_ENTRIES
            }
            Self::Local(_) => true,
        }
    }

    /// It has run a command for this client. Where a password is needed, the client has given it.
    pub(super) fn has_served(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.state.has_served(),
            Self::Local(_) => true,
        }
    }

    /// The protocol that the client speaks.
    pub(super) fn protocol(&self) -> Protocol {
        match self {
            Self::Relay(relay) => relay.state.protocol(),
            Self::Local(local) => local.protocol(),
        }
    }

    /// The database of the connection.
    pub(super) fn database(&self) -> u32 {
        match self {
            Self::Relay(relay) => relay.state.database(),
            Self::Local(local) => local.database(),
        }
    }

    /// It answers lock commands itself: inside `MULTI`, and in RESP2's subscribed mode.
    pub(super) fn takes_lock_commands(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.state.in_transaction() || relay.state.subscribed(),
            Self::Local(_) => false,
        }
    }

    /// Whatever is owed yet, a lock command means now what it will mean then.
    pub(super) fn changes_nothing(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.state.changes_nothing(),
            Self::Local(_) => true,
        }
    }

    /// A lock command has its turn: what the command before it left for the next one is spent.
    /// Whether it gets no reply (`CLIENT REPLY OFF` or `SKIP`).
    pub(super) fn silences(&mut self) -> bool {
        match self {
            Self::Relay(relay) => {
                if relay.state.primed() {
                    relay.state.sent_for_nobody();
                    relay.pass_on_own(PING);
                }
                relay.state.take_silence()
            }
            Self::Local(local) => local.takes_silence(),
        }
    }

    /// What to send in the place of the command that has just been read whole.
    pub(super) fn stand_in(&self, command: &RequestScanner) -> Option<&'static [u8]> {
        match self {
            Self::Relay(_) => State::stand_in(command),
            Self::Local(_) => None,
        }
    }

    /// The command may have to wait for its turn, or be replaced, or its reply be amended; so it is
    /// read whole first.
    pub(super) fn keeps(&self, name: &[u8]) -> bool {
        let may_end_counting = matches!(
            name,
            b"MONITOR" | b"SCRIPT" | b"SYNC" | b"PSYNC" | b"REPLCONF"
        );
        matches!(self, Self::Relay(_))
            && (name == b"CLIENT" || is_login(name) || may_end_counting || amend::is_amended(name))
    }

    /// What comes back after this command may be no replies any more.
    pub(super) fn may_become_pipe(&self, command: &RequestScanner) -> bool {
        matches!(self, Self::Relay(_)) && State::may_end_counting(command)
    }

    /// Such a command has its turn: what was hidden so far Redis keeps back itself from now on.
    pub(super) fn stop_hiding(&mut self) {
        if let Self::Relay(relay) = self
            && let Some(silence) = relay.state.silences_for_good()
        {
            relay.pass_on_own(silence);
        }
    }

    /// Returns the user that the client claims to be, and how often that has changed.
    ///
    /// # Errors
    /// It is not known: the error for the client, without the leading `-`.
    pub(super) fn identity(&self) -> Result<(&Identity, u64), &'static str> {
        let Self::Relay(relay) = self else {
            return Ok((&Identity::Anonymous, 0));
        };
        let identity = relay.state.identity();
        match identity {
            (Identity::NotKept, _) => {
                Err("ERR the user of this connection cannot take locks: its \
                                           name and password are too long to be kept; AUTH again")
            }
            _ if !relay.state.certain() => Err(
                "ERR which user this connection has is not known: a HELLO with AUTH or a RESET failed, \
                 which may have changed it; AUTH again",
            ),
            known => Ok(known),
        }
    }

    /// The first `count` bytes of the inbox go to Redis.
    pub(super) fn pass_on(&mut self, inbox: &mut BytesMut, count: usize) {
        match self {
            Self::Relay(relay) => relay.pass_on(inbox, count),
            Self::Local(_) => drop(inbox.split_to(count)),
        }
    }

    /// A command goes to Redis whole; the scanner has just read its end.
    pub(super) fn sent(&mut self, command: &RequestScanner) -> Result<(), Uncountable> {
        match self {
            Self::Relay(relay) => {
                relay.count_commands(1);
                relay.state.sent(command)?;
                is_not_endless(&relay.state)
            }
            Self::Local(_) => Ok(()),
        }
    }

    /// As [`sent`](Self::sent), for a command that [`is_login`], with what it says of who the client is, and of
    /// how it is called.
    pub(super) fn sent_login(
        &mut self,
        command: &RequestScanner,
        who: &[Bytes],
        called: &[Bytes],
    ) -> Result<(), Uncountable> {
        match self {
            Self::Relay(relay) => {
                relay.state.sent_login(command, who, called)?;
                is_not_endless(&relay.state)
            }
            Self::Local(_) => Ok(()),
        }
    }

    /// As [`sent`](Self::sent), for a command that may say something of the client itself, with its
    /// arguments.
    pub(super) fn sent_naming(
        &mut self,
        command: &RequestScanner,
        arguments: &[Bytes],
    ) -> Result<(), Uncountable> {
        match self {
            Self::Relay(relay) => {
                relay.count_commands(1);
                relay.state.sent_naming(command, arguments)?;
                is_not_endless(&relay.state)
            }
            Self::Local(_) => Ok(()),
        }
    }

    /// What the client said of itself.
    pub(super) fn said(&self) -> Said<'_> {
        match self {
            Self::Relay(relay) => relay.state.said(),
            Self::Local(local) => local.said(),
        }
    }

    /// As [`sent`](Self::sent); and the reply is to be amended.
    pub(super) fn sent_amended(&mut self, amendment: Amendment) {
        if let Self::Relay(relay) = self {
            relay.count_commands(1);
            relay.state.sent_amended(amendment);
        }
    }

    /// So many commands go to Redis whole, one at least, whose names are all such that
    /// [`is_plain`](super::state::is_plain).
    pub(super) fn sent_plain(&mut self, count: usize) {
        if let Self::Relay(relay) = self {
            relay.count_commands(count);
            relay.state.sent_plain(count);
        }
    }

    /// A frame without a command goes to Redis.
    pub(super) fn sent_blank(&mut self) {
        if let Self::Relay(relay) = self {
            relay.state.sent_blank();
        }
    }

    /// Something that the client did not send goes to Redis.
    pub(super) fn pass_on_own(&mut self, bytes: &[u8]) {
        if let Self::Relay(relay) = self {
            relay.pass_on_own(bytes);
        }
    }

    /// Answers an ordinary command where there is no Redis. Returns whether the client is to be
    /// closed.
    pub(super) fn answer(
        &mut self,
        arguments: &[Bytes],
        out: &mut BytesMut,
        shared: &Shared,
    ) -> bool {
        match self {
            Self::Relay(_) => false,
            Self::Local(local) => local.answer(arguments, &shared.facts(), out) == Then::Close,
        }
    }

    /// The open connection to Redis, on which ordinary commands pass as they are read.
    pub(super) fn pipe(&mut self) -> Option<&mut Pipe> {
        match self {
            Self::Relay(relay) => relay.pipe(),
            Self::Local(_) => None,
        }
    }

    /// Nothing more goes to Redis.
    pub(super) fn close_writing(&mut self) {
        if let Self::Relay(relay) = self {
            relay.close_writing();
        }
    }

    /// Something is to be sent to it.
    pub(super) fn is_due(&self) -> bool {
        matches!(self, Self::Relay(relay) if relay.is_due())
    }

    /// Sends what it takes.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>) {
        if let Self::Relay(relay) = self {
            relay.flush(cx);
        }
    }

    /// What passed to it and back since this was called last.
    pub(super) fn take_traffic(&mut self) -> Traffic {
        match self {
            Self::Relay(relay) => relay.take_traffic(),
            Self::Local(_) => Traffic::default(),
        }
    }

    /// Opens, and reads where it `reads`; what comes goes to `client`. Returns whether anything did.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Pipe,
        reads: bool,
        shared: &Shared,
    ) -> Result<bool, Broken> {
        match self {
            Self::Relay(relay) => relay.poll(cx, client, reads, shared),
            Self::Local(_) => Ok(false),
        }
    }
}
