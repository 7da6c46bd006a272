//! The steps of the examination, each of which tries one need.

use std::{future::Future, sync::Arc};

use redis::{Cmd, Value};
use tokio::{
    sync::mpsc,
    time::{timeout, timeout_at},
};

use super::{
    super::{
        acker::ACK_KEY_LIVES_MS,
        acl_error,
        can_lock::class,
        credentials::{self, Line, Login, log_in},
        data_loss::field,
        grace::{self, MarkOperation},
        handshake::{
            EVICTS, Hello, NO_IDENTITY, NO_KILL, NO_MARK, NO_PUSHES, NoLink, Peer, dial, info,
            lossy, speak_resp3, start_tracking,
        },
        requests::SentRequest,
        scripts::{
            ACK_KEY, FENCE_CEILING, FENCE_KEY, Form, GRACE_KEY, Reading, Request, error_text,
        },
        server_info::ServerInfo,
        settings::RedisSettings,
        wire::{Receiver, Wire},
    },
    CONNECTION, DEADLINES, FENCES, Finding, IDENTITY, LATE, MARK, MEMORY, ONE_NODE, PUSHES,
    REPLICAS, RESET, SCRIPTS, State, WRITES, cure,
};
use crate::{
    lock::{Fence, Mark, Outcome, StoreRequest, Token, UserId},
    store::task::Task,
    telemetry::{escape::escape, metrics::upstream::Purpose},
};

/// The lease of the examination's own lock, in milliseconds: where the examination is killed, its key ends by itself.
const LEASE_MS: u64 = 10_000;

/// Pushes that are kept until they are looked at; a further one is dropped.
const KEPT_PUSHES: usize = 64;

/// The slots of a cluster.
const SLOTS: u32 = 16_384;

/// The script that returns the value of the last key, or the error if the user may not write it.
const MAY_WRITE: &str = include_str!("../lua/may_write.lua");

/// Opens a connection, and logs in as lockgate does. With a channel for pushes, the connection speaks RESP3.
async fn open(
    settings: &RedisSettings,
    pushes: Option<mpsc::Sender<Value>>,
) -> Result<(Arc<Wire>, Task), Hello> {
    let deadline = settings.connect_deadline();
    let opened = async {
        let mut stream = dial(settings, deadline).await?;
        if let Some(own) = &settings.own
            && let Login::Refused(text) = log_in(&mut stream, own).await?
        {
            return Err(NoLink::WrongPassword(text).into());
        }
        let resp3 = pushes.is_some();
        let (wire, driver) = Wire::new(stream, Arc::new(Pushes(pushes)), Arc::default());
        if resp3 {
            speak_resp3(&wire).await?;
        }
        Ok((wire, driver))
    };
    let late = || Err(NoLink::Failed("Redis does not answer to the handshake".into()).into());
    timeout_at(deadline, opened)
        .await
        .unwrap_or_else(|_| late())
}

/// Keeps pushes until they are looked at.
struct Pushes(Option<mpsc::Sender<Value>>);

impl Receiver for Pushes {
    fn changed(&self, keys: Value) {
        if let Some(pushes) = &self.0 {
            // A full channel has enough to look at.
            let _ = pushes.try_send(keys);
        }
    }

    // No queue asks on this connection.
    fn replied(&self, _: SentRequest, _: Value) {}
}

/// An examination under way.
pub(super) struct Examination<'a> {
    settings: &'a RedisSettings,
    wire: Arc<Wire>,
    /// Ends with the examination.
    _driver: Task,
    pushes: mpsc::Receiver<Value>,
    /// Why Redis does not speak RESP3.
    mute: Option<String>,
    /// The replicas that have to acknowledge a grant that names no number.
    replicas: u32,
    /// The key of the examination's own lock.
    key: Vec<u8>,
    pub(super) findings: Vec<Finding>,
}

impl<'a> Examination<'a> {
    pub(super) async fn begin(settings: &'a RedisSettings, replicas: u32) -> Result<Self, NoLink> {
        let (sender, pushes) = mpsc::channel(KEPT_PUSHES);
        let mut mute = None;
        let mut opened = open(settings, Some(sender)).await;
        if let Err(Hello::OldServer(reason)) = opened {
            mute = Some(reason);
            opened = open(settings, None).await;
        }
        let (wire, driver) = opened.map_err(Hello::into_no_link)?;
        let name = format!("lockgate:doctor:{}", uuid::Uuid::new_v4());
        let mut examination = Self {
            settings,
            wire,
            _driver: driver,
            pushes,
            mute,
            replicas,
            key: [&settings.key_prefix[..], name.as_bytes()].concat(),
            findings: Vec::new(),
        };
        let means = match &settings.own {
            Some(own) => format!("examined as the user {}", escape(own.name())),
            None => "examined without logging in".to_owned(),
        };
        examination.works(CONNECTION, means);
        Ok(examination)
    }

    pub(super) async fn run(&mut self) -> Result<(), NoLink> {
        let sections = [&ServerInfo::SECTIONS[..], &["cluster"]].concat();
        let info = within(self.settings, info(&self.wire, &sections)).await?;
        let server = ServerInfo::read(info.as_deref().unwrap_or_default());
        if self.writes(&server).await? {
            if self.scripts().await? {
                self.deadlines().await?;
                self.pushes(&server).await?;
            }
            self.mark(&server).await?;
            self.fences().await?;
            self.replicas(&info).await?;
        }
        self.one_node(&info).await?;
        self.identity(&info, &server);
        self.late_requests().await?;
        self.reset().await?;
        self.memory(&info, &server);
        Ok(())
    }

    /// Deletes the key, and returns the findings.
    pub(super) async fn end(mut self) -> Vec<Finding> {
        let delete = command("DEL", &[&self.key]);
        // Without an answer, the key ends with its lease.
        let _ = self.ask(&delete).await;
        self.findings
    }

    /// Tries whether Redis takes writes. Returns whether the lock may be tried.
    async fn writes(&mut self, server: &ServerInfo) -> Result<bool, NoLink> {
        let write = command("SETRANGE", &[&self.key, b"0", b""]);
        let written = self.ask(&write).await?.map(drop);
        let refused = match (&written, &server.takes_no_writes) {
            (Err(error), _) if class(error.as_bytes()).is_some() => Some(error),
            (Err(error), _) if error.starts_with("MOVED ") => Some(error),
            (_, role) => role.as_ref(),
        };
        if let Some(error) = refused {
            self.denied(WRITES, State::Fails, "no lock can be taken", error);
            return Ok(false);
        }
        match written {
            Ok(()) => self.works(WRITES, ""),
            Err(error) => {
                let means = "/readyz relies on the errors that clients get";
                self.denied(WRITES, State::Degraded, means, &error);
            }
        }
        Ok(true)
    }

    /// Finds out whether this node serves all locks.
    async fn one_node(&mut self, info: &Result<String, String>) -> Result<(), NoLink> {
        let enabled = info.as_ref().ok();
        match enabled.and_then(|info| field(info, "cluster_enabled")) {
            Some("1") => {}
            Some(_) => {
                self.works(ONE_NODE, "cluster mode is off");
                return Ok(());
            }
            None => return Ok(()),
        }
        let nodes = self.ask(&command("CLUSTER", &[b"NODES"])).await?;
        let slots = nodes
            .ok()
            .and_then(text)
            .and_then(|nodes| own_slots(&nodes));
        let (state, means) = match slots {
            Some(SLOTS) => {
                let means = "cluster mode is on; this node serves every lock while it has all slots";
                (State::Degraded, means.to_owned())
            }
            Some(slots) => {
                let means = format!("this node refuses other locks (MOVED): it has {slots} of {SLOTS} slots");
                (State::Fails, means)
            }
            None => (
                State::Degraded,
                "cluster mode is on; other nodes may have slots, and their locks are refused (MOVED)"
                    .to_owned(),
            ),
        };
        self.note(
            ONE_NODE,
            state,
            means,
            "turn cluster mode off: lockgate serves one node",
        );
        Ok(())
    }

    /// Acquires, hands over, extends and releases a lock. Returns whether that works.
    async fn scripts(&mut self) -> Result<bool, NoLink> {
        let (user, one, other) = (UserId::ANONYMOUS, Token::new("one"), Token::new("other"));
        let steps = [
            (acquire(&one), "granted"),
            // The script is known from here on.
            (acquire(&other), "held"),
            (
                StoreRequest::Handover {
                    user,
                    from: one,
                    only_if: None,
                    to: other.clone(),
                    lease_ms: LEASE_MS,
                    fence: false,
                    strict: false,
                },
                "granted",
            ),
            (extend(&other), "granted"),
            (StoreRequest::Check { user }, "held"),
            (release(&other), "free"),
        ];
        for (step, (request, expected)) in steps.into_iter().enumerate() {
            let outcome = self.request(request, step == 0).await?;
            let error = match &outcome {
                Outcome::Granted { .. } if expected == "granted" => continue,
                Outcome::Held { .. } if expected == "held" => continue,
                Outcome::Free if expected == "free" => continue,
                Outcome::Refused(error) | Outcome::NotNow(error) | Outcome::WrongType(error) => {
                    self.explained(error).await?
                }
                outcome => format!("a script of lockgate's found {outcome:?}"),
            };
            self.denied(SCRIPTS, State::Fails, "no lock can be taken", &error);
            return Ok(false);
        }
        self.works(
            SCRIPTS,
            "a lock was taken, handed over, extended and released",
        );
        Ok(true)
    }

    async fn deadlines(&mut self) -> Result<(), NoLink> {
        match self.ask(&command("PEXPIRETIME", &[&self.key])).await? {
            Ok(_) => self.works(DEADLINES, ""),
            Err(error) => {
                let means = "lockgate reckons deadlines from PTTL and TIME, to the millisecond";
                self.denied(DEADLINES, State::Degraded, means, &error);
            }
        }
        Ok(())
    }

    /// Tries whether Redis tells of the changes of others, and of no others.
    async fn pushes(&mut self, server: &ServerInfo) -> Result<(), NoLink> {
        let refusal = match self.mute.take() {
            Some(reason) => Some(reason),
            None => within(self.settings, start_tracking(&self.wire)).await?,
        };
        if let Some(error) = refusal.as_ref().or(server.echoes.as_ref()) {
            self.denied(PUSHES, State::Degraded, NO_PUSHES, error);
            return Ok(());
        }
        let token = Token::new("one");
        for request in [acquire(&token), extend(&token)] {
            self.request(request, false).await?;
        }
        // Pushes of own changes come before the reply to a later command.
        let _ = self.ask(&redis::cmd("PING")).await?;
        if self.was_pushed() {
            let means = "Redis pushes a connection's own changes back to it, so lockgate takes them for changes by others";
            self.note(
                PUSHES,
                State::Fails,
                means,
                "use a version without that fault",
            );
            return Ok(());
        }
        let other = self.another().await?;
        let set = command("SET", &[&self.key, b"changed", b"PX", b"10000"]);
        let _ = within(self.settings, say(&other.0, &set)).await?;
        let pushed = async {
            while let Some(keys) = self.pushes.recv().await {
                if names(&keys, &self.key) {
                    break;
                }
            }
        };
        if timeout(self.settings.timeout, pushed).await.is_ok() {
            self.works(PUSHES, "Redis tells of changes by others");
        } else {
            let means = "Redis accepts CLIENT TRACKING and tells nothing, so waiters notice a release elsewhere when the \
                         lease ends";
            let change = "connect to the node itself, without a proxy of another kind in between";
            self.note(PUSHES, State::Degraded, means, change);
        }
        Ok(())
    }

    /// Takes the pushes that have come. Returns whether one is about the lock.
    fn was_pushed(&mut self) -> bool {
        let mut found = false;
        while let Ok(keys) = self.pushes.try_recv() {
            found |= names(&keys, &self.key);
        }
        found
    }

    fn identity(&mut self, info: &Result<String, String>, server: &ServerInfo) {
        let reason = match (info, &server.identity) {
            (Ok(_), Ok(_)) => return self.works(IDENTITY, "a loss of data is noticed"),
            (Err(error), _) | (_, Err(error)) => error,
        };
        if self.settings.grace.is_none() {
            self.works(IDENTITY, "not needed: write_back.leases is off");
        } else {
            self.denied(IDENTITY, State::Degraded, NO_IDENTITY, reason);
        }
    }

    /// Tries the rights to the mark of the grace, without changing it.
    async fn mark(&mut self, server: &ServerInfo) -> Result<(), NoLink> {
        if self.settings.grace.is_none() {
            self.works(MARK, "not needed: write_back.leases is off");
            return Ok(());
        }
        let Ok(identity) = &server.identity else {
            return Ok(());
        };
        let look = grace::command(identity, MarkOperation::Look);
        let looked = self.ask(&look).await?;
        let write = command("EVAL", &[MAY_WRITE.as_bytes(), b"1", GRACE_KEY]);
        match looked.and(self.ask(&write).await?) {
            Ok(_) => self.works(MARK, ""),
            Err(error) => {
                let error = self.explained(error.as_bytes()).await?;
                self.denied(MARK, State::Degraded, NO_MARK, &error);
            }
        }
        Ok(())
    }

    /// Tries the rights to the counter of fences beside a lock, without changing it.
    async fn fences(&mut self) -> Result<(), NoLink> {
        let words = [MAY_WRITE.as_bytes(), b"2", &self.key, FENCE_KEY];
        let write = command("EVAL", &words);
        let error = match self.ask(&write).await? {
            Ok(Value::BulkString(counter)) => {
                let counter = std::str::from_utf8(&counter).map(str::parse::<u64>);
                match counter {
                    Ok(Ok(number)) if number < FENCE_CEILING => None,
                    _ => Some("its value is not a number that a clock reaches".to_owned()),
                }
            }
            Ok(_) => None,
            Err(error) => Some(self.explained(error.as_bytes()).await?),
        };
        match error {
            None => self.works(FENCES, ""),
            Some(error) => self.denied(FENCES, State::Degraded, "FENCE is refused", &error),
        }
        Ok(())
    }

    /// Ends a connection as lockgate ends a broken one.
    async fn late_requests(&mut self) -> Result<(), NoLink> {
        let other = self.another().await?;
        let Some(peer) = within(self.settings, Peer::of(&other.0)).await? else {
            self.denied(LATE, State::Degraded, NO_KILL, "CLIENT INFO");
            return Ok(());
        };
        match within(self.settings, peer.end(&self.wire)).await? {
            Err(error) => self.denied(LATE, State::Degraded, NO_KILL, &lossy(&error_text(&error))),
            Ok(()) => {
                let ping = redis::cmd("PING");
                let answer = within(self.settings, say(&other.0, &ping)).await;
                match answer {
                    Err(_) => self.works(LATE, "a broken connection is ended"),
                    Ok(_) => self.denied(LATE, State::Degraded, NO_KILL, "it is still open"),
                }
            }
        }
        Ok(())
    }

    async fn reset(&mut self) -> Result<(), NoLink> {
        let mut stream = dial(self.settings, self.settings.connect_deadline()).await?;
        let failed = |error: std::io::Error| NoLink::Failed(error.to_string());
        let answer = credentials::ask(&mut stream, &[b"RESET"]);
        let answer = within(self.settings, async { answer.await.map_err(failed) }).await?;
        let means = match self.settings.own {
            Some(_) => "INFO is asked as the client's user where clients do not log in",
            None => "each check of a password opens a connection",
        };
        match answer {
            Line::Good => self.works(RESET, ""),
            Line::Error(error) => self.denied(RESET, State::Degraded, means, &lossy(&error)),
        }
        Ok(())
    }

    /// Tries what the acknowledgement of a grant needs. A `SET` with `XX` creates no key.
    async fn replicas(&mut self, info: &Result<String, String>) -> Result<(), NoLink> {
        let wanted = self.replicas;
        let (state, cost) = match wanted {
            0 => (
                State::Degraded,
                "replicas cannot acknowledge a grant (REPLICAS)".to_owned(),
            ),
            _ => (
                State::Fails,
                format!("no lock can be taken: lock.replicas is {wanted}"),
            ),
        };
        let wait = self.ask(&command("WAIT", &[b"0", b"1"])).await?;
        let lives = ACK_KEY_LIVES_MS.to_string();
        let write = [ACK_KEY, b"1", b"XX", b"PX", lives.as_bytes()];
        let write = self.ask(&command("SET", &write)).await?;
        let refusals = [
            ("WAIT", wait.err()),
            ("SET lockgate:ack", write.err()),
            ("INFO", info.clone().err()),
        ];
        let refusals: Vec<_> = refusals
            .into_iter()
            .filter_map(|(name, error)| Some((name, error?)))
            .collect();
        if let Some((_, first)) = refusals.first() {
            let named = |(name, error): &(&str, String)| format!("{name}: {}", printable(error));
            let refusals: Vec<_> = refusals.iter().map(named).collect();
            let means = format!("{cost}: {}", refusals.join("; "));
            self.note(REPLICAS, state, means, cure(REPLICAS, first));
            return Ok(());
        }
        let connected = field(info.as_deref().unwrap_or_default(), "connected_slaves");
        let number = connected.and_then(|it| it.parse::<u32>().ok());
        let connected = format!(
            "connected replicas: {}",
            escape(connected.unwrap_or("unknown").as_bytes())
        );
        if number.is_some_and(|number| number < wanted) {
            let change = "connect as many replicas as lock.replicas asks for";
            self.note(REPLICAS, state, format!("{cost}, {connected}"), change);
        } else {
            self.works(REPLICAS, connected);
        }
        Ok(())
    }

    fn memory(&mut self, info: &Result<String, String>, server: &ServerInfo) {
        let Ok(info) = info else {
            return;
        };
        let is = |name, value| field(info, name) == Some(value);
        match &server.evicts {
            Some(policy) => {
                let means = format!("{EVICTS}: {}", escape(policy.as_bytes()));
                let change = "set maxmemory-policy to noeviction";
                self.note(MEMORY, State::Degraded, means, change);
            }
            None if is("maxmemory", "0") || is("maxmemory_policy", "noeviction") => {
                self.works(MEMORY, "Redis evicts nothing");
            }
            None => {
                let means = "INFO does not show maxmemory and maxmemory_policy: where Redis evicts keys, locks are lost";
                let change =
                    "find out whether the service evicts keys, and set its policy to noeviction";
                self.note(MEMORY, State::Unknown, means, change);
            }
        }
    }

    /// Sends a request about the lock, as lockgate does, or at once with the whole script.
    async fn request(&mut self, request: StoreRequest, in_full: bool) -> Result<Outcome, NoLink> {
        let request = Request::new(self.key.clone().into(), request, 0);
        let mut form = match in_full {
            true => Form::InFull,
            false => request.first_form(),
        };
        loop {
            let purpose = request.purpose(form);
            let reply = self
                .wire
                .send_bytes(purpose, |bytes| request.write(form, bytes));
            let reply = within(self.settings, async { Ok(reply.await?) }).await?;
            match request.read(form, reply) {
                Reading::Again(next) => form = next,
                Reading::Done { outcome, .. } => return Ok(outcome),
            }
        }
    }

    /// Returns the error that Redis gives outside of a script, where it says more.
    async fn explained(&mut self, error: &[u8]) -> Result<String, NoLink> {
        if acl_error::is_by_script(error) {
            let commands: Vec<_> = acl_error::harmless(&self.key).collect();
            for command in commands {
                if let Err(error) = self.ask(&command).await?
                    && error.starts_with("NOPERM")
                {
                    return Ok(error);
                }
            }
        }
        Ok(lossy(error))
    }

    /// Sends a command. The inner error is Redis's refusal.
    async fn ask(&mut self, command: &Cmd) -> Result<Result<Value, String>, NoLink> {
        within(self.settings, say(&self.wire, command)).await
    }

    /// Opens another connection as the same user.
    async fn another(&self) -> Result<(Arc<Wire>, Task), NoLink> {
        open(self.settings, None).await.map_err(Hello::into_no_link)
    }

    fn works(&mut self, need: &'static str, means: impl Into<String>) {
        self.note(need, State::Works, means, "");
    }

    /// Notes a need that Redis refuses with this error.
    fn denied(&mut self, need: &'static str, state: State, means: &str, error: &str) {
        let error = printable(error);
        self.note(need, state, format!("{means}: {error}"), cure(need, &error));
    }

    fn note(
        &mut self,
        need: &'static str,
        state: State,
        means: impl Into<String>,
        change: &'static str,
    ) {
        self.findings.push(Finding {
            need,
            state,
            means: means.into(),
            change,
        });
    }
}

/// Bounds the wait for a reply.
async fn within<T>(
    settings: &RedisSettings,
    answer: impl Future<Output = Result<T, NoLink>>,
) -> Result<T, NoLink> {
    let late = Err(NoLink::Failed("Redis does not answer".to_owned()));
    timeout(settings.timeout, answer).await.unwrap_or(late)
}

async fn say(wire: &Wire, command: &Cmd) -> Result<Result<Value, String>, NoLink> {
    match wire.send(Purpose::Setup, command).await? {
        Value::ServerError(error) => Ok(Err(lossy(&error_text(&error)))),
        value => Ok(Ok(value)),
    }
}

fn command(name: &str, words: &[&[u8]]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(words);
    command
}

/// Returns Redis's error for the report. Redis repeats the arguments of a command that it does not know.
fn printable(error: &str) -> String {
    let (error, _) = error.split_once(", with args").unwrap_or((error, ""));
    escape(error.trim().as_bytes()).to_string()
}

fn acquire(token: &Token) -> StoreRequest {
    StoreRequest::Acquire {
        user: UserId::ANONYMOUS,
        token: token.clone(),
        lease_ms: LEASE_MS,
        fence: Fence::No,
        expects: None,
        bare: false,
        strict: false,
        replicas: 0,
    }
}

fn extend(token: &Token) -> StoreRequest {
    StoreRequest::Extend {
        user: UserId::ANONYMOUS,
        token: token.clone(),
        lease_ms: LEASE_MS,
        expects: None,
        mark: Mark::None,
        replicas: 0,
    }
}

fn release(token: &Token) -> StoreRequest {
    StoreRequest::Release {
        user: UserId::ANONYMOUS,
        token: token.clone(),
        only_if: None,
    }
}

/// Returns whether the push is about this key.
fn names(keys: &Value, key: &[u8]) -> bool {
    match keys {
        Value::Array(keys) => keys
            .iter()
            .any(|it| matches!(it, Value::BulkString(it) if it == key)),
        _ => false,
    }
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(text) => Some(lossy(&text)),
        Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// Returns how many slots the node has that wrote this `CLUSTER NODES`.
fn own_slots(nodes: &str) -> Option<u32> {
    let own = nodes.lines().find(|line| line.contains("myself"))?;
    // Slots that move have brackets.
    let ranges = own.split(' ').skip(8).filter(|it| !it.starts_with('['));
    let slots = ranges.map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        Some(last.checked_sub(first)? + 1)
    });
    slots.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slots_of_a_node_are_counted() {
        let line = |slots: &str| {
            format!(
                "a 127.0.0.1:1@2 master - 0 0 2 connected 5-9\nb 127.0.0.1:2@3 myself,master - 0 0 1 connected{slots}\n"
            )
        };
        assert_eq!(own_slots(&line(" 0-16383")), Some(SLOTS));
        assert_eq!(own_slots(&line(" 0-99 200 [7->-a]")), Some(101));
        assert_eq!(own_slots(&line("")), Some(0));
        assert_eq!(own_slots(""), None);
        assert_eq!(own_slots(&line(" x")), None);
    }
}
