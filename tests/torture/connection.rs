//! A connection of a contender to one gate, opened again when it is needed. It tells replies from
//! pushes, and a broken connection from silence.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use crate::{
    history::now,
    support::{Client, Value, frame},
    world::World,
};

/// How long a new connection may take to speak RESP3; `HELLO` is for Redis to answer, in whatever
/// state it is.
const GREETING: Duration = Duration::from_secs(3);

pub(crate) struct Connection<'a> {
    world: &'a World,
    gate: SocketAddr,
    resp3: bool,
    client: Option<Client>,
    /// Tokens of which the gate said that they lost their lock.
    lost: Vec<String>,
}

pub(crate) enum Reply {
    Value(Value),
    Silence,
    Broken,
}

impl<'a> Connection<'a> {
    pub(crate) fn new(world: &'a World, gate: SocketAddr, resp3: bool) -> Self {
        Self {
            world,
            gate,
            resp3,
            client: None,
            lost: Vec::new(),
        }
    }

    pub(crate) fn close(&mut self) {
        self.client = None;
    }

    pub(crate) fn is_open(&self) -> bool {
        self.client.is_some()
    }

    /// Connects where there is no connection; waits a little where there can be none.
    pub(crate) fn is_open_or_opens(&mut self) -> bool {
        if self.is_open() {
            return true;
        }
        self.lost.clear();
        let why = match Client::try_connect(self.gate) {
            Err(_) => "(connection refused)",
            Ok(client) => {
                self.client = Some(client);
                if !self.resp3 {
                    return true;
                }
                let hello = ["HELLO", "3"].map(str::to_owned);
                match self.call(&hello, GREETING) {
                    Reply::Value(Value::Map(_)) => return true,
                    Reply::Value(_) => "HELLO: (an error)",
                    Reply::Silence => "HELLO: (silence)",
                    Reply::Broken => "HELLO: (connection closed)",
                }
            }
        };
        self.world.tally.error(why);
        self.close();
        thread::sleep(Duration::from_millis(20));
        false
    }

    /// Sends a command and waits so long for its reply.
    pub(crate) fn call(&mut self, words: &[String], within: Duration) -> Reply {
        let deadline = Instant::now() + within;
        let Some(client) = &mut self.client else {
            return Reply::Broken;
        };
        if client.try_write(&frame(words)).is_err() {
            self.close();
            return Reply::Broken;
        }
        self.read_until(deadline)
    }

    /// Listens for this long to what the gate says of this token; false where it says that its lock
    /// is lost, in whichever way.
    pub(crate) fn listens_for(&mut self, time: Duration, token: &str) -> bool {
        let deadline = Instant::now() + time;
        loop {
            if self.lost.iter().any(|lost| lost == token) {
                return false;
            }
            match self.read_until_push(deadline) {
                Reply::Value(value) => self.unasked(&value),
                Reply::Silence => return true,
                Reply::Broken => return false,
            }
        }
    }

    fn read_until(&mut self, deadline: Instant) -> Reply {
        loop {
            match self.read_until_push(deadline) {
                Reply::Value(Value::Push(_)) => {}
                reply => return reply,
            }
        }
    }

    /// The next reply or push.
    fn read_until_push(&mut self, deadline: Instant) -> Reply {
        let Some(client) = &mut self.client else {
            return Reply::Broken;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        match client
            .hears_within(left)
            .and_then(|heard| heard.then(|| client.try_read()).transpose())
        {
            Ok(None) => return Reply::Silence,
            Ok(Some(value)) => {
                self.note(&value);
                return Reply::Value(value);
            }
            Err(_) => {}
        }
        self.close();
        Reply::Broken
    }

    fn note(&mut self, value: &Value) {
        if let Value::Push(items) = value {
            match items.as_slice() {
                [what, _, token] if *what == "lock-lost" => self.lost.push(token.text()),
                _ => self.unasked(value),
            }
        }
    }

    /// A reply to nothing: somebody else's, or a second one.
    fn unasked(&mut self, value: &Value) {
        let is_loss = matches!(value, Value::Push(items) if items.first().is_some_and(|what| *what == "lock-lost"));
        if !is_loss {
            let moment = now();
            self.world.chronicle.write(|history| {
                history
                    .wrong
                    .push(format!("{moment}: unasked for: {value:?}"));
            });
        }
    }
}
