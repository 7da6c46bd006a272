//! The backend of a client: its own connection to Redis, or, without an upstream, the few ordinary commands
//! that lockgate implements.

pub mod connection;
pub mod connector;
pub mod local;
mod reply_forwarder;
mod restoration;
pub mod rewrite;
mod servers;
pub mod state;

use std::{sync::Arc, task::Context};

use bytes::{Bytes, BytesMut};

use connection::{Broken, Relay};
use connector::Connector;
use local::{Local, Then, information::Facts};
use rewrite::Amendment;
use state::{Identity, State, Uncountable, awaits_replicas};

use crate::{
    absorb::Rules,
    clock,
    gate::ClientInfo,
    limits::{AMENDED_ENTRIES, OWED_ENTRIES, QUEUED_COMMANDS},
    lock::Token,
    resp::{Protocol, RequestScanner},
    telemetry::metrics::relays::{RelayMetrics, Traffic},
    transport::{pipe::Pipe, stream::Stream},
};

/// What a relay needs of the instance that it belongs to.
pub trait Instance {
    /// Opens connections to Redis. None: this process keeps the locks.
    fn connector(&self) -> Option<&Arc<Connector>>;
    /// The metrics of the clients' connections to Redis.
    fn relay_metrics(&self) -> &Arc<RelayMetrics>;
    /// What `INFO` says of the instance.
    fn facts(&self) -> Facts<'_>;
    /// The rules by which commands of Redis's own are about locks.
    fn rules(&self) -> Arc<Rules>;
    /// The token that holds the lock with this key, as far as this process knows.
    fn token_of(&self, database: u32, key: &[u8]) -> Option<Token>;
}

/// The backend of one client.
pub(crate) enum Backend {
    Relay(Box<Relay>),
    Local(Box<Local>),
}

/// Spends the effect of a `CLIENT CACHING` whose next command is a lock command, which Redis never sees.
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// Returns an error once a transaction has queued too many commands. Waiting would not help: only the
/// client's own `EXEC` ends the transaction.
fn is_not_endless(state: &State) -> Result<(), Uncountable> {
    if state.queued() > QUEUED_COMMANDS {
        return Err(Uncountable::Endless);
    }
    Ok(())
}

/// Returns whether a command of this name may state the client's identity.
fn is_login(name: &[u8]) -> bool {
    matches!(name, b"AUTH" | b"HELLO")
}

impl Backend {
    pub(crate) fn new(instance: &dyn Instance, stream: &Stream, peer: &str, id: u64) -> Self {
        match instance.connector() {
            Some(address) => Self::Relay(Box::new(Relay::new(Arc::clone(address)))),
            None => {
                // Over a Unix socket both addresses are the path of the socket.
                let here = stream.local_address();
                let here = here.map_or_else(|| peer.to_owned(), |address| address.to_string());
                Self::Local(Box::new(Local::new(id, peer, here, clock::now())))
            }
        }
    }

    /// Returns whether commands pass as they arrive, without being read whole.
    pub(crate) fn streams(&self) -> bool {
        matches!(self, Self::Relay(_))
    }

    /// Returns whether the connection is a plain pipe: lockgate can no longer count its replies and does not
    /// interpret its bytes.
    pub(crate) fn is_plain_pipe(&self) -> bool {
        matches!(self, Self::Relay(relay) if relay.state.uncountable())
    }

    /// Returns whether the client has authenticated.
    pub(crate) fn is_authenticated(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.state.authenticated(),
            Self::Local(local) => local.is_in(),
        }
    }

    /// Records the login or the `RESET` that the guard forwarded to the local backend.
    pub(crate) fn entered(&mut self, command: &[Bytes]) {
        if let Self::Local(local) = self {
            let leaves = command
                .first()
                .map(|name| name.eq_ignore_ascii_case(b"RESET"));
            local.set_in(leaves == Some(false));
        }
    }

    /// Returns whether there is a connection to Redis, or was one that has not been detached.
    pub(crate) fn is_used(&self) -> bool {
        matches!(self, Self::Relay(relay) if relay.is_used())
    }

    /// Returns whether every earlier command was answered, so that a lock command may start.
    pub(crate) fn is_settled(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.is_settled(),
            Self::Local(_) => true,
        }
    }

    /// Returns whether messages may arrive at any time.
    pub(crate) fn is_subscribed(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.state.subscriptions() > 0 || relay.state.uncountable(),
            Self::Local(_) => false,
        }
    }

    /// Returns whether no reply or message has been forwarded in part.
    pub(crate) fn is_between_replies(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.is_between_replies(),
            Self::Local(_) => true,
        }
    }

    /// Returns whether the backend sends nothing more.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.is_over(),
            Self::Local(_) => true,
        }
    }

    /// Returns whether Redis closed the connection.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Relay(relay) if relay.has_ended())
    }

    /// Returns the number of bytes on their way to Redis.
    pub(crate) fn backlog(&self) -> usize {
        match self {
            Self::Relay(relay) => relay.backlog(),
            Self::Local(_) => 0,
        }
    }

    /// Returns whether the backend takes more commands. If not, replies have to arrive first.
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Self::Relay(relay) => {
                relay.state.amendment_weight() < AMENDED_ENTRIES
                    && relay.state.owed_entries() < OWED_ENTRIES
            }
            Self::Local(_) => true,
        }
    }

    /// Returns whether the backend has run a command for this client. Where Redis requires a password, the
    /// client has then given it.
    pub(crate) fn has_served(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.state.has_served(),
            Self::Local(_) => true,
        }
    }

    /// Returns the client's protocol.
    pub(crate) fn protocol(&self) -> Protocol {
        match self {
            Self::Relay(relay) => relay.state.protocol(),
            Self::Local(local) => local.protocol(),
        }
    }

    /// Returns the selected database.
    pub(crate) fn database(&self) -> u32 {
        match self {
            Self::Relay(relay) => relay.state.database(),
            Self::Local(local) => local.database(),
        }
    }

    /// Returns whether Redis answers lock commands itself: inside `MULTI`, and in RESP2's subscribed mode.
    pub(crate) fn takes_lock_commands(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.state.in_transaction() || relay.state.subscribed(),
            Self::Local(_) => false,
        }
    }

    /// Returns whether a command of Redis's own may be answered in its place: nothing that came before has an effect on
    /// its reply, or on what it means.
    pub(crate) fn takes_absorbed_commands(&self) -> bool {
        match self {
            Self::Relay(relay) => {
                let state = &relay.state;
                !self.takes_lock_commands() && !state.one_shot_pending() && !state.silences_next()
            }
            Self::Local(_) => true,
        }
    }

    /// Returns whether no reply still owed changes the meaning of a lock command.
    pub(crate) fn changes_nothing(&self) -> bool {
        match self {
            Self::Relay(relay) => relay.state.changes_nothing(),
            Self::Local(_) => true,
        }
    }

    /// Starts a lock command: spends what the previous command left for the next one. Returns whether the
    /// lock command gets no reply (`CLIENT REPLY OFF` or `SKIP`).
    pub(crate) fn hides_reply(&mut self) -> bool {
        match self {
            Self::Relay(relay) => {
                if relay.state.one_shot_pending() {
                    relay.state.sent_for_nobody();
                    relay.pass_on_own(PING);
                }
                relay.state.take_hides_reply()
            }
            Self::Local(local) => local.takes_silence(),
        }
    }

    /// Returns what to send in place of the command that was just read whole.
    pub(crate) fn reply_mode_substitute(&self, command: &RequestScanner) -> Option<&'static [u8]> {
        match self {
            Self::Relay(_) => State::reply_mode_substitute(command),
            Self::Local(_) => None,
        }
    }

    /// Returns whether the command must be read whole: it may have to wait for its turn, or be replaced, or
    /// have its reply amended.
    pub(crate) fn keeps(&self, name: &[u8]) -> bool {
        let may_end_counting = matches!(
            name,
            b"MONITOR" | b"SCRIPT" | b"SYNC" | b"PSYNC" | b"REPLCONF"
        );
        matches!(self, Self::Relay(_))
            && (name == b"CLIENT"
                || is_login(name)
                || may_end_counting
                || awaits_replicas(name)
                || rewrite::is_amended(name))
    }

    /// Returns whether the command waits for replicas to have writes that went over an earlier connection: Redis would
    /// reply about those of the present one.
    pub(crate) fn awaits_lost_writes(&self, name: &[u8]) -> bool {
        matches!(self, Self::Relay(relay) if relay.was_detached()) && awaits_replicas(name)
    }

    /// Returns whether Redis may stop sending countable replies after this command.
    pub(crate) fn may_become_pipe(&self, command: &RequestScanner) -> bool {
        matches!(self, Self::Relay(_)) && State::may_end_counting(command)
    }

    /// Prepares for such a command: Redis itself suppresses from now on the replies that lockgate has hidden
    /// so far.
    pub(crate) fn reply_mode_on(&mut self) {
        if let Self::Relay(relay) = self
            && let Some(silence) = relay.state.silences_for_good()
        {
            relay.pass_on_own(silence);
        }
    }

    /// Returns the user that the client claims to be, and how often that has changed.
    ///
    /// # Errors
    /// The identity is unknown: the error for the client, without the leading `-`.
    pub(crate) fn identity(&self) -> Result<(&Identity, u64), &'static str> {
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

    /// Sends the first `count` bytes of the inbox to Redis.
    pub(crate) fn pass_on(&mut self, inbox: &mut BytesMut, count: usize) {
        match self {
            Self::Relay(relay) => relay.pass_on(inbox, count),
            Self::Local(_) => drop(inbox.split_to(count)),
        }
    }

    /// Records a command that goes to Redis whole; the scanner has just read its end.
    pub(crate) fn sent(&mut self, command: &RequestScanner) -> Result<(), Uncountable> {
        match self {
            Self::Relay(relay) => {
                relay.count_commands(1);
                relay.state.sent(command)?;
                is_not_endless(&relay.state)
            }
            Self::Local(_) => Ok(()),
        }
    }

    /// As [`sent`](Self::sent), for a command that [`is_login`]: `who` states the client's identity, or lockgate itself
    /// has let the client in; `called` states its name.
    pub(crate) fn sent_login(
        &mut self,
        command: &RequestScanner,
        who: Option<&[Bytes]>,
        called: &[Bytes],
    ) -> Result<(), Uncountable> {
        match self {
            Self::Relay(relay) => {
                relay.count_commands(1);
                relay.state.sent_login(command, who, called)?;
                is_not_endless(&relay.state)
            }
            Self::Local(_) => Ok(()),
        }
    }

    /// As [`sent`](Self::sent), for a command with these arguments: its reply may be amended, and it may state
    /// the client's identity, its name or its library.
    pub(crate) fn sent_whole(
        &mut self,
        command: &RequestScanner,
        arguments: &[Bytes],
    ) -> Result<(), Uncountable> {
        if is_login(command.name()) {
            return self.sent_login(command, Some(arguments), arguments);
        }
        let Self::Relay(relay) = self else {
            return Ok(());
        };
        relay.count_commands(1);
        if let Some(amendment) = Amendment::of(arguments) {
            relay.state.sent_amended(amendment);
            return Ok(());
        }
        relay.state.sent_naming(command, arguments)?;
        is_not_endless(&relay.state)
    }

    /// Returns the client's name and library, as stated by the client.
    pub(crate) fn client_info(&self) -> ClientInfo<'_> {
        match self {
            Self::Relay(relay) => relay.state.client_info(),
            Self::Local(local) => local.client_info(),
        }
    }

    /// Records `count` commands, at least one, that go to Redis whole and whose names all satisfy
    /// [`is_plain`](super::state::is_plain).
    pub(crate) fn sent_plain(&mut self, count: usize) {
        if let Self::Relay(relay) = self {
            relay.count_commands(count);
            relay.state.sent_plain(count);
        }
    }

    /// Records a frame without a command that goes to Redis.
    pub(crate) fn sent_blank(&mut self) {
        if let Self::Relay(relay) = self {
            relay.state.sent_blank();
        }
    }

    /// Sends Redis bytes that the client did not send.
    pub(crate) fn pass_on_own(&mut self, bytes: &[u8]) {
        if let Self::Relay(relay) = self {
            relay.pass_on_own(bytes);
        }
    }

    /// Answers an ordinary command without Redis. Returns whether to close the client.
    pub(crate) fn answer(
        &mut self,
        arguments: &[Bytes],
        out: &mut BytesMut,
        instance: &dyn Instance,
    ) -> bool {
        match self {
            Self::Relay(_) => false,
            Self::Local(local) => local.answer(arguments, instance, out) == Then::Close,
        }
    }

    /// Returns the open connection to Redis, on which ordinary commands pass as they are read.
    pub(crate) fn pipe(&mut self) -> Option<&mut Pipe> {
        match self {
            Self::Relay(relay) => relay.pipe(),
            Self::Local(_) => None,
        }
    }

    /// Closes the sending side of the connection to Redis.
    pub(crate) fn close_writing(&mut self) {
        if let Self::Relay(relay) = self {
            relay.close_writing();
        }
    }

    /// Ends what is under way beside the connection to Redis. The caller polls no more.
    pub(crate) fn stop(&mut self) {
        if let Self::Relay(relay) = self {
            relay.stop();
        }
    }

    /// Returns whether bytes wait to be sent to Redis.
    pub(crate) fn is_due(&self) -> bool {
        matches!(self, Self::Relay(relay) if relay.is_due())
    }

    /// Sends as much as Redis takes.
    pub(crate) fn flush(&mut self, cx: &mut Context<'_>) {
        if let Self::Relay(relay) = self {
            relay.flush(cx);
        }
    }

    /// Returns whether the connection to Redis has ended without the client since the previous call.
    pub(crate) fn take_detached(&mut self) -> bool {
        match self {
            Self::Relay(relay) => relay.take_detached(),
            Self::Local(_) => false,
        }
    }

    /// Where the connection of a client that was detached could not be opened: drops what waits for it. Returns how many
    /// replies it would have got; none where each cannot get an error instead.
    pub(crate) fn refuse_waiting(&mut self) -> Option<usize> {
        match self {
            Self::Relay(relay) => relay.refuse_waiting(),
            Self::Local(_) => None,
        }
    }

    /// Returns the traffic since the previous call.
    pub(crate) fn take_traffic(&mut self) -> Traffic {
        match self {
            Self::Relay(relay) => relay.take_traffic(),
            Self::Local(_) => Traffic::default(),
        }
    }

    /// Opens the connection, and reads from it if `reads`; forwards to `client`. If the connection ends, it may do so
    /// without its client if `detaches`. Returns whether anything was read.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Pipe,
        reads: bool,
        detaches: bool,
        instance: &dyn Instance,
    ) -> Result<bool, Broken> {
        match self {
            Self::Relay(relay) => relay.poll(cx, client, reads, detaches, instance),
            Self::Local(_) => Ok(false),
        }
    }
}
