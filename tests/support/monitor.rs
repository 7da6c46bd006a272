//! Sees every command that a Redis executes for its clients, by `MONITOR`.
//!
//! What scripts call is left out (Redis says `lua` in place of the client's address): a script is
//! one command. So is what only keeps connections alive and set up.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
};

use super::{Client, RedisServer, SOON};

/// Commands about connections, not about data.
const HOUSEKEEPING: [&str; 8] = [
    "PING", "CLIENT", "HELLO", "AUTH", "SELECT", "INFO", "SCRIPT", "COMMAND",
];

pub(crate) struct Monitor {
    seen: Arc<Seen>,
    redis: Client,
    marks: usize,
}

#[derive(Default)]
struct Seen {
    commands: Mutex<Vec<Vec<String>>>,
    changed: Condvar,
}

impl Monitor {
    /// Watches this Redis from now on.
    pub(crate) fn start(redis: &RedisServer) -> Self {
        let mut observer = redis.client();
        assert_eq!(observer.call(&["MONITOR"]), "OK");
        observer.is_patient();
        let seen = Arc::new(Seen::default());
        let into = Arc::clone(&seen);
        thread::spawn(move || {
            // Ends with the connection, at the end of the Redis.
            while let Ok(line) = observer.try_read() {
                let Some(command) = parse(&line.text()) else {
                    continue;
                };
                into.commands
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(command);
                into.changed.notify_all();
            }
        });
        Self {
            seen,
            redis: redis.client(),
            marks: 0,
        }
    }

    /// The commands seen so far of which some argument is `key`, in order; everything that Redis
    /// executed before this call is among them.
    pub(crate) fn commands_on(&mut self, key: &str) -> Vec<Vec<String>> {
        self.commands_where(|argument| argument == key)
    }

    /// The same where this holds of some argument.
    pub(crate) fn commands_where(&mut self, holds: impl Fn(&str) -> bool) -> Vec<Vec<String>> {
        let mut commands = self.everything();
        commands.retain(|command| {
            !HOUSEKEEPING.contains(&command[0].as_str()) && command[1..].iter().any(|a| holds(a))
        });
        commands
    }

    /// All commands seen so far, in order; everything that Redis executed before this call is among them.
    pub(crate) fn everything(&mut self) -> Vec<Vec<String>> {
        self.marks += 1;
        let mark = vec![
            "ECHO".to_owned(),
            format!("mark {} of the monitor", self.marks),
        ];
        assert_eq!(self.redis.call(&mark), mark[1]);
        let commands = self
            .seen
            .commands
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (commands, timeout) = self
            .seen
            .changed
            .wait_timeout_while(commands, SOON, |commands| !commands.contains(&mark))
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "MONITOR shows what was executed");
        commands.clone()
    }
}

/// The command, its name in capitals, in `1700000000.123456 [0 127.0.0.1:5000] "SET" "a" "1"`;
/// none where a script called it.
fn parse(line: &str) -> Option<Vec<String>> {
    let (source, rest) = line.split_once(" [")?.1.split_once("] ")?;
    if source.ends_with(" lua") {
        return None;
    }
    let mut arguments = quoted(rest);
    *arguments.first_mut()? = arguments.first()?.to_uppercase();
    Some(arguments)
}

/// The strings in `"a" "b\"c"`. Escapes but those of quote and backslash stay as they are.
fn quoted(text: &str) -> Vec<String> {
    let mut strings = Vec::new();
    let mut current: Option<String> = None;
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match (c, current.as_mut()) {
            ('"', None) => current = Some(String::new()),
            ('"', Some(_)) => strings.extend(current.take()),
            ('\\', Some(string)) => match characters.next_if(|c| matches!(c, '"' | '\\')) {
                Some(escaped) => string.push(escaped),
                None => string.push('\\'),
            },
            (c, Some(string)) => string.push(c),
            (_, None) => {}
        }
    }
    strings
}
