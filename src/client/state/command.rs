//! What of a command the counting of replies needs: most are ordinary, with one reply and no
//! effect on the connection.

use std::num::NonZeroU32;

use crate::{
    client::command::Verb,
    resp::{NAME_BYTES, Protocol, RequestScanner},
};

/// A command forwarded to Redis. Small, since many may be on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    /// So many in a row that get one reply each.
    Ordinary(u64),
    /// An ordinary one whose reply lockgate adds to.
    Amended,
    /// `SUBSCRIBE`, `UNSUBSCRIBE` and their kind: confirmed once for each channel named.
    Confirm {
        confirmation: Confirmation,
        times: u32,
    },
    /// `UNSUBSCRIBE` without a channel: confirmed for each there is, or once.
    ConfirmAll {
        confirmation: Confirmation,
    },
    Multi,
    Exec,
    Discard,
    /// None: not a number as Redis wants it.
    Select(Option<u32>),
    Auth {
        number: u64,
    },
    /// The protocol asked for, and the number of its `AUTH`.
    Hello {
        protocol: Option<Protocol>,
        login: Option<u64>,
        /// The number of what it says of the client itself (`SETNAME`).
        naming: Option<NonZeroU32>,
    },
    /// `CLIENT SETNAME`, `CLIENT SETINFO`, by their number.
    Naming {
        number: Option<NonZeroU32>,
    },
    Reset,
    Reply(ReplyMode),
    Monitor,
    /// `SCRIPT DEBUG YES|SYNC`: scripts are answered by a debugger from then on.
    Debug,
    /// Sent by lockgate itself; nobody sees its reply.
    Nobodys,
    /// So many `PUBLISH` in a row: their replies are never arrays.
    Publish(u64),
    /// A frame without a command.
    Blank,
    /// What follows are no replies.
    Stream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyMode {
    On,
    Off,
    Skip,
}

/// What Redis says when it did what was asked of a subscription.
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
    /// By its word, in lower case.
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

/// A command of this name gets one reply and changes nothing that matters here, whatever its arguments
/// are; nor is its reply amended, or anything of it kept. That is nearly every one. (A name that is too
/// long to be told is empty.)
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

/// As [`is_plain`], for a name as it was sent.
pub fn is_plain_in_any_case(name: &[u8]) -> bool {
    let mut upper = [0; NAME_BYTES];
    let Some(upper) = upper.get_mut(..name.len()) else {
        return false;
    };
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    is_plain(upper)
}

/// This subcommand of `CLIENT` says something of the client itself.
pub fn is_naming(subcommand: &[u8]) -> bool {
    c_equal(subcommand, b"SETNAME") || c_equal(subcommand, b"SETINFO")
}

impl Command {
    /// None where it depends on the chance of Redis's hash tables what is run.
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
            // With arguments too: refused, it ends the transaction.
            b"EXEC" => Self::Exec,
            b"DISCARD" if arguments == 1 => Self::Discard,
            b"SELECT" => Self::Select(command.argument(1).and_then(decimal)),
            b"AUTH" => Self::Auth { number: 0 },
            b"HELLO" => Self::hello(command),
            b"RESET" if arguments == 1 => Self::Reset,
            b"CLIENT" => return Self::client(command),
            b"MONITOR" if arguments == 1 => Self::Monitor,
            b"SCRIPT" => return Self::script(command),
            b"PUBLISH" | b"SPUBLISH" => Self::Publish(1),
            // Of REPLCONF, some forms are not answered; only replicas send it.
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
            // Refused before its options are read.
            _ => None,
        };
        // `HELLO 3 [AUTH user password] [SETNAME name]`, in any order: with three words there may be an AUTH.
        let options = command.argument_count().saturating_sub(2);
        let login = options >= 3;
        Self::Hello {
            protocol,
            login: (login && protocol.is_some()).then_some(0),
            // Whether it says anything, its arguments tell.
            naming: (options > 0 && protocol.is_some()).then_some(NonZeroU32::MIN),
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
            let says = match command.argument_count() {
                3 => c_equal(subcommand, b"SETNAME"),
                4 => c_equal(subcommand, b"SETINFO"),
                _ => false,
            };
            return Some(match says {
                true => Self::Naming { number: None },
                false => Self::Ordinary(1),
            });
        }
        if subcommand.contains(&0) {
            return None;
        }
        if command.argument_count() != 3 {
            return Some(Self::Ordinary(1));
        }
        // Whatever follows a NUL does not count, however much it is.
        let mode = command.argument_beginning(2).unwrap_or_default();
        Some(if c_equal(mode, b"ON") {
            Self::Reply(ReplyMode::On)
        } else if c_equal(mode, b"OFF") {
            Self::Reply(ReplyMode::Off)
        } else if c_equal(mode, b"SKIP") {
            Self::Reply(ReplyMode::Skip)
        } else {
            Self::Ordinary(1)
        })
    }

    /// With the number of its login, where it has one.
    pub(super) fn numbered(self, number: u64) -> Self {
        match self {
            Self::Auth { .. } => Self::Auth { number },
            Self::Hello {
                protocol,
                login: Some(_),
                naming,
            } => Self::Hello {
                protocol,
                login: Some(number),
                naming,
            },
            other => other,
        }
    }

    /// It may say something of the client itself.
    pub(super) fn names(self) -> bool {
        matches!(
            self,
            Self::Naming { .. }
                | Self::Hello {
                    naming: Some(_),
                    ..
                }
        )
    }

    /// With the number of what it says of the client itself.
    pub(super) fn named(self, number: NonZeroU32) -> Self {
        match self {
            Self::Naming { .. } => Self::Naming {
                number: Some(number),
            },
            Self::Hello {
                protocol, login, ..
            } => Self::Hello {
                protocol,
                login,
                naming: Some(number),
            },
            other => other,
        }
    }

    /// One of a row of ordinary commands; any other as it is. In a transaction, nothing is amended.
    pub(super) fn alone(self) -> Self {
        match self {
            Self::Ordinary(_) | Self::Amended => Self::Ordinary(1),
            Self::Publish(_) => Self::Publish(1),
            other => other,
        }
    }

    /// How many commands this stands for.
    pub(super) fn times(self) -> u64 {
        match self {
            Self::Ordinary(times) | Self::Publish(times) => times,
            _ => 1,
        }
    }

    /// Redis runs it inside `MULTI` instead of queueing it. (Of the ordinary ones, `WATCH` and
    /// `QUIT`; their replies tell.)
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

/// Whether something is armed for the command after this one.
pub(super) fn primes_next(command: &RequestScanner, primed: bool) -> bool {
    let first = |word: &[u8]| {
        command
            .argument(1)
            .is_some_and(|argument| c_equal(argument, word))
    };
    match command.name() {
        b"ASKING" => true,
        b"CLIENT" if first(b"CACHING") => true,
        // Redis keeps what CLIENT CACHING said over other forms of CLIENT.
        b"CLIENT" => primed,
        _ => false,
    }
}

/// Equal as Redis compares words: without regard to case, up to the first NUL.
pub(super) fn c_equal(given: &[u8], word: &[u8]) -> bool {
    given
        .split(|&byte| byte == 0)
        .next()
        .is_some_and(|given| given.eq_ignore_ascii_case(word))
}

/// A number as Redis reads it.
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

    /// The names that anything in this crate asks for, and a few that mean nothing to it.
    const NAMES: &str = "post host: subscribe psubscribe ssubscribe unsubscribe punsubscribe sunsubscribe multi exec \
        discard select auth hello reset quit client script asking readonly command info monitor publish spublish \
        sync psync replconf watch unwatch lock trylock relock unlock lockinfo locks get set eval config";

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
                    assert!(!primes_next(&scanner, true), "{frame}");
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
        assert_eq!(plain, "readonly watch unwatch get set eval config");
    }
}
