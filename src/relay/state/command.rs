//! The facts about a command that counting its replies needs. Most commands are ordinary, with one reply and
//! no effect on the connection.

use std::num::NonZeroU32;

use crate::{
    command::Verb,
    resp::{NAME_BYTES, Protocol, RequestScanner},
};

/// A command forwarded to Redis. Small, since many may be in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    /// A row of ordinary commands, with one reply each.
    Ordinary(u64),
    /// An ordinary command whose reply is amended.
    Amended,
    /// `SUBSCRIBE`, `UNSUBSCRIBE` and their kind, confirmed once for each channel named.
    Confirm {
        confirmation: Confirmation,
        times: u32,
    },
    /// `UNSUBSCRIBE` and its kind without a channel, confirmed once for each subscription, or once if there
    /// is none.
    ConfirmAll {
        confirmation: Confirmation,
    },
    Multi,
    Exec,
    Discard,
    /// `None`: not a number in Redis's form.
    Select(Option<u32>),
    Auth {
        number: u64,
    },
    /// The requested protocol, and the number of the login.
    Hello {
        protocol: Option<Protocol>,
        login: Option<u64>,
        /// The number of its `SETNAME`.
        client_info: Option<NonZeroU32>,
    },
    /// A command that describes the client, as `CLIENT SETNAME` does, with its number.
    ClientInfoCommands {
        number: Option<NonZeroU32>,
    },
    Reset,
    Watch,
    Unwatch,
    /// An ordinary command after which Redis may remember something of the connection that lockgate does not follow.
    Remembered,
    Reply(ReplyModeCommand),
    Monitor,
    /// `SCRIPT DEBUG YES|SYNC`: from then on a debugger replies to scripts.
    Debug,
    /// A command of lockgate's own, whose reply the client does not see.
    Nobodys,
    /// A row of `PUBLISH`, whose replies are never arrays.
    Publish(u64),
    /// A frame without a command.
    Blank,
    /// The bytes that Redis sends from then on are no replies.
    Stream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyModeCommand {
    On,
    Off,
    Skip,
}

/// Redis's confirmation of a subscription command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Confirmation {
    Subscribe,
    Unsubscribe,
    PatternSubscribe,
    PatternUnsubscribe,
    ShardSubscribe,
    ShardUnsubscribe,
}

impl Confirmation {
    /// Returns the confirmation with this word, in lower case.
    pub(super) fn of(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"subscribe" => Self::Subscribe,
            b"unsubscribe" => Self::Unsubscribe,
            b"psubscribe" => Self::PatternSubscribe,
            b"punsubscribe" => Self::PatternUnsubscribe,
            b"ssubscribe" => Self::ShardSubscribe,
            b"sunsubscribe" => Self::ShardUnsubscribe,
            _ => return None,
        })
    }
}

/// The forms of `CLIENT` that describe the client in one argument.
const DESCRIBING: [&[u8]; 3] = [b"SETNAME", b"NO-EVICT", b"NO-TOUCH"];

/// The forms of `CLIENT` after which Redis remembers nothing of the connection. (Of those above, the other numbers of
/// arguments are errors.)
const FORGOTTEN: [&[u8]; 15] = [
    b"SETNAME",
    b"SETINFO",
    b"NO-EVICT",
    b"NO-TOUCH",
    b"ID",
    b"INFO",
    b"LIST",
    b"KILL",
    b"GETNAME",
    b"GETREDIR",
    b"TRACKINGINFO",
    b"PAUSE",
    b"UNPAUSE",
    b"UNBLOCK",
    b"HELP",
];

/// Returns whether a command of this name is plain, whatever its arguments: it gets one reply, has no effect
/// that matters here, needs no amendment, and nothing of it is kept. Nearly every command is plain. (The
/// scanner reports a name that is too long as empty.)
pub fn is_plain(name: &[u8]) -> bool {
    Verb::of(name).is_none()
        && !matches!(
            name,
            b"" | b"SUBSCRIBE"
                | b"PSUBSCRIBE"
                | b"SSUBSCRIBE"
                | b"UNSUBSCRIBE"
                | b"PUNSUBSCRIBE"
                | b"SUNSUBSCRIBE"
                | b"MULTI"
                | b"EXEC"
                | b"DISCARD"
                | b"SELECT"
                | b"AUTH"
                | b"HELLO"
                | b"HOST:"
                | b"POST"
                | b"RESET"
                | b"QUIT"
                | b"CLIENT"
                | b"ASKING"
                | b"WATCH"
                | b"UNWATCH"
                | b"READONLY"
                | b"READWRITE"
                | b"WAIT"
                | b"WAITAOF"
                | b"SCRIPT"
                | b"COMMAND"
                | b"INFO"
                | b"MONITOR"
                | b"PUBLISH"
                | b"SPUBLISH"
                | b"SYNC"
                | b"PSYNC"
                | b"REPLCONF"
        )
}

/// Returns whether a command of this name waits for replicas to have the connection's writes.
pub fn awaits_replicas(name: &[u8]) -> bool {
    matches!(name, b"WAIT" | b"WAITAOF")
}

/// As [`is_plain`], for a name as the client sent it.
pub fn is_plain_in_any_case(name: &[u8]) -> bool {
    let mut upper = [0; NAME_BYTES];
    let Some(upper) = upper.get_mut(..name.len()) else {
        return false;
    };
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    is_plain(upper)
}

impl Command {
    /// Classifies a command. `None`: which command runs depends on chance in Redis's hash tables.
    pub(super) fn of(command: &RequestScanner) -> Option<Self> {
        use Confirmation as C;
        let arguments = command.argument_count();
        Some(match command.name() {
            b"SUBSCRIBE" => Self::confirmed(C::Subscribe, arguments),
            b"PSUBSCRIBE" => Self::confirmed(C::PatternSubscribe, arguments),
            b"SSUBSCRIBE" => Self::confirmed(C::ShardSubscribe, arguments),
            b"UNSUBSCRIBE" => Self::confirmed_or_all(C::Unsubscribe, arguments),
            b"PUNSUBSCRIBE" => Self::confirmed_or_all(C::PatternUnsubscribe, arguments),
            b"SUNSUBSCRIBE" => Self::confirmed_or_all(C::ShardUnsubscribe, arguments),
            b"MULTI" if arguments == 1 => Self::Multi,
            // With arguments, too: refused, it ends the transaction.
            b"EXEC" => Self::Exec,
            b"DISCARD" if arguments == 1 => Self::Discard,
            b"SELECT" => Self::Select(command.argument(1).and_then(decimal)),
            b"AUTH" => Self::Auth { number: 0 },
            b"HELLO" => Self::hello(command),
            b"RESET" if arguments == 1 => Self::Reset,
            b"WATCH" if arguments > 1 => Self::Watch,
            b"UNWATCH" if arguments == 1 => Self::Unwatch,
            b"READONLY" | b"READWRITE" => Self::Remembered,
            // Their replies are about the writes of this connection.
            name if awaits_replicas(name) => Self::Remembered,
            b"CLIENT" => return Self::client(command),
            b"MONITOR" if arguments == 1 => Self::Monitor,
            b"SCRIPT" => return Self::script(command),
            b"PUBLISH" | b"SPUBLISH" => Self::Publish(1),
            // Some forms of REPLCONF get no reply; only replicas send it.
            b"SYNC" | b"PSYNC" | b"REPLCONF" => Self::Stream,
            _ => Self::Ordinary(1),
        })
    }

    fn confirmed(confirmation: Confirmation, arguments: u64) -> Self {
        match u32::try_from(arguments - 1) {
            Ok(times @ 1..) => Self::Confirm {
                confirmation,
                times,
            },
            _ => Self::Ordinary(1),
        }
    }

    fn confirmed_or_all(confirmation: Confirmation, arguments: u64) -> Self {
        if arguments == 1 {
            Self::ConfirmAll { confirmation }
        } else {
            Self::confirmed(confirmation, arguments)
        }
    }

    fn hello(command: &RequestScanner) -> Self {
        let protocol = match command.argument(1) {
            Some(b"2") => Some(Protocol::Resp2),
            Some(b"3") => Some(Protocol::Resp3),
            // Redis refuses it before it reads the options.
            _ => None,
        };
        // `HELLO 3 [AUTH user password] [SETNAME name]`, in any order: three words may contain an AUTH.
        let options = command.argument_count().saturating_sub(2);
        let login = options >= 3;
        Self::Hello {
            protocol,
            login: (login && protocol.is_some()).then_some(0),
            // Its arguments show whether it has a SETNAME.
            client_info: (options > 0 && protocol.is_some()).then_some(NonZeroU32::MIN),
        }
    }

    fn script(command: &RequestScanner) -> Option<Self> {
        let subcommand = command.argument_beginning(1).unwrap_or_default();
        if !c_equal(subcommand, b"DEBUG") {
            return Some(Self::Ordinary(1));
        }
        if subcommand.contains(&0) {
            return None;
        }
        let mode = command.argument_beginning(2).unwrap_or_default();
        let begins = c_equal(mode, b"YES") || c_equal(mode, b"SYNC");
        Some(match command.argument_count() == 3 && begins {
            true => Self::Debug,
            false => Self::Ordinary(1),
        })
    }

    fn client(command: &RequestScanner) -> Option<Self> {
        let Some(subcommand) = command.argument_beginning(1) else {
            return Some(Self::Ordinary(1));
        };
        if !c_equal(subcommand, b"REPLY") {
            let is = |word: &&[u8]| c_equal(subcommand, word);
            let describes = match command.argument_count() {
                3 => DESCRIBING.iter().any(is),
                4 => c_equal(subcommand, b"SETINFO"),
                _ => false,
            };
            return Some(if describes {
                Self::ClientInfoCommands { number: None }
            } else if FORGOTTEN.iter().any(is) {
                Self::Ordinary(1)
            } else {
                Self::Remembered
            });
        }
        if subcommand.contains(&0) {
            return None;
        }
        if command.argument_count() != 3 {
            return Some(Self::Ordinary(1));
        }
        // Redis ignores whatever follows a NUL.
        let mode = command.argument_beginning(2).unwrap_or_default();
        Some(if c_equal(mode, b"ON") {
            Self::Reply(ReplyModeCommand::On)
        } else if c_equal(mode, b"OFF") {
            Self::Reply(ReplyModeCommand::Off)
        } else if c_equal(mode, b"SKIP") {
            Self::Reply(ReplyModeCommand::Skip)
        } else {
            Self::Ordinary(1)
        })
    }

    /// Sets the number of its login, if it is one.
    pub(super) fn numbered(self, number: u64) -> Self {
        match self {
            Self::Auth { .. } => Self::Auth { number },
            Self::Hello {
                protocol,
                login: Some(_),
                client_info,
            } => Self::Hello {
                protocol,
                login: Some(number),
                client_info,
            },
            other => other,
        }
    }

    /// Returns whether it may name the client or its library.
    pub(super) fn names(self) -> bool {
        matches!(
            self,
            Self::ClientInfoCommands { .. }
                | Self::Hello {
                    client_info: Some(_),
                    ..
                }
        )
    }

    /// Sets the number of its naming.
    pub(super) fn named(self, number: NonZeroU32) -> Self {
        match self {
            Self::ClientInfoCommands { .. } => Self::ClientInfoCommands {
                number: Some(number),
            },
            Self::Hello {
                protocol, login, ..
            } => Self::Hello {
                protocol,
                login,
                client_info: Some(number),
            },
            other => other,
        }
    }

    /// Returns one command of a row, or the command itself. In a transaction, no reply is amended.
    pub(super) fn alone(self) -> Self {
        match self {
            Self::Ordinary(_) | Self::Amended => Self::Ordinary(1),
            Self::Publish(_) => Self::Publish(1),
            other => other,
        }
    }

    /// Returns how many commands it stands for.
    pub(super) fn times(self) -> u64 {
        match self {
            Self::Ordinary(times) | Self::Publish(times) => times,
            _ => 1,
        }
    }

    /// Returns whether it gets one reply of any kind, and no state that is followed here depends on it.
    pub(super) fn replies_freely(self) -> bool {
        matches!(self, Self::Ordinary(_) | Self::Remembered)
    }

    /// Returns whether Redis runs it inside `MULTI` instead of queueing it. (It also runs `WATCH` and `QUIT`, as their
    /// replies show.)
    pub(super) fn runs_in_transaction(self) -> bool {
        matches!(self, Self::Multi | Self::Exec | Self::Discard | Self::Reset)
    }

    pub(super) fn confirmed_by(self) -> Option<Confirmation> {
        match self {
            Self::Confirm { confirmation, .. } | Self::ConfirmAll { confirmation } => {
                Some(confirmation)
            }
            _ => None,
        }
    }
}

/// Returns whether an effect is pending for the command after this one.
pub(super) fn leaves_one_shot_pending(command: &RequestScanner, one_shot_pending: bool) -> bool {
    let first = |word: &[u8]| {
        command
            .argument(1)
            .is_some_and(|argument| c_equal(argument, word))
    };
    match command.name() {
        b"ASKING" => true,
        b"CLIENT" if first(b"CACHING") => true,
        // Redis keeps the effect of CLIENT CACHING across other forms of CLIENT.
        b"CLIENT" => one_shot_pending,
        _ => false,
    }
}

/// Returns whether two words are equal to Redis: case-insensitively, up to the first NUL.
pub(super) fn c_equal(given: &[u8], word: &[u8]) -> bool {
    given
        .split(|&byte| byte == 0)
        .next()
        .is_some_and(|given| given.eq_ignore_ascii_case(word))
}

/// Parses a number as Redis does.
fn decimal(text: &[u8]) -> Option<u32> {
    let canonical =
        matches!(text, [b'0'] | [b'1'..=b'9', ..]) && text.iter().all(u8::is_ascii_digit);
    if canonical {
        std::str::from_utf8(text).ok()?.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All names that this crate compares with, and a few others.
    const NAMES: &str = "post host: subscribe psubscribe ssubscribe unsubscribe punsubscribe sunsubscribe multi exec \
        discard select auth hello reset quit client script asking readonly command info monitor publish spublish \
        sync psync replconf watch unwatch readwrite wait waitaof lock trylock relock unlock lockinfo locks get set eval config";

    #[test]
    fn a_plain_command_is_ordinary_whatever_its_arguments_are() {
        let mut plain = Vec::new();
        for name in NAMES.split_whitespace() {
            for arguments in ["", " 1", " reply off", " caching yes", " 3 auth a b"] {
                let mut scanner = RequestScanner::new();
                let frame = format!("{name}{arguments}\n");
                let (named, _) = scanner.scan(frame.as_bytes());
                scanner.scan(&frame.as_bytes()[named..]).1.ok();
                assert_eq!(
                    is_plain_in_any_case(name.as_bytes()),
                    is_plain(scanner.name())
                );
                if is_plain(scanner.name()) {
                    assert_eq!(Command::of(&scanner), Some(Command::Ordinary(1)), "{frame}");
                    assert!(!leaves_one_shot_pending(&scanner, true), "{frame}");
                    plain.push(name);
                }
            }
        }
        assert!(
            !is_plain_in_any_case(&[b'x'; NAME_BYTES + 1]),
            "too long to be told"
        );
        plain.dedup();
        let plain = plain.join(" ");
        assert_eq!(plain, "get set eval config");
    }
}
