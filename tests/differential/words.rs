//! The words of a conversation: commands of every kind, in every form that Redis takes.

use crate::{
    case::{Step, send},
    locks::Lock,
    random::Random,
    support::{frame, words},
};

/// The client that says it.
pub(crate) struct Speaker {
    with_locks: bool,
    with_monitor: bool,
    with_others: bool,
    /// Favours one kind of command, so that rare things meet.
    favourite: usize,
    /// Replies may be off: a sign that everything was answered might not be seen.
    muted: bool,
    /// A socket that is closed with bytes unread loses what it has not sent: nothing large before that.
    said_big: bool,
    /// Replies that look like messages, and scripts that publish. Without transactions: in those, the two are
    /// indistinguishable (`src/relay/state.rs`).
    lookalikes: bool,
    locks: u32,
}

impl Speaker {
    pub(crate) fn new(random: &mut Random) -> Self {
        let with_locks = random.percent(40);
        Self {
            with_locks,
            // A monitor sees what lockgate itself does for locks.
            with_monitor: !with_locks && random.percent(20),
            with_others: random.percent(30),
            favourite: random.below(KINDS.len()),
            muted: false,
            said_big: false,
            lookalikes: random.percent(40),
            locks: 0,
        }
    }

    fn lock(&mut self, random: &mut Random) -> Lock {
        self.locks += 1;
        let n = self.locks;
        match random.below(13) {
            10.. => Lock::Whose(n),
            0 => Lock::Granted(n),
            1 => Lock::Released(n),
            2 | 3 => Lock::Placed(n),
            4 => Lock::NotHeld(n),
            5 => Lock::Nil(n),
            6 => Lock::WrongSyntax(n),
            7 => Lock::Skipped(n),
            8 => Lock::Cached(n),
            _ if random.percent(50) => Lock::WrongNumber(n),
            _ => {
                self.muted = true;
                Lock::InSilence(n)
            }
        }
    }
}

const PLAIN: &[&str] = &[
    "PING",
    "PING message",
    "ECHO hello",
    "GET s",
    "GET none",
    "SET s v",
    "SET s 12 GET",
    "APPEND s more",
    "STRLEN s",
    "GETRANGE s 0 2",
    "SETRANGE s 3 x",
    "INCR n",
    "INCR s",
    "DECRBY n 3",
    "INCRBYFLOAT n 0.5",
    "MSET s 1 n 2",
    "MGET s n none l",
    "GETDEL s",
    "SETNX s x",
    "DEL s l",
    "EXISTS s n none",
    "TYPE l",
    "RENAME s s2",
    "COPY s s3",
    "TOUCH s n",
    "EXPIREAT s 4000000000",
    "EXPIRETIME s",
    "PERSIST s",
    "LPUSH l a b c",
    "RPUSH l x",
    "LRANGE l 0 -1",
    "LPOP l",
    "RPOP l 2",
    "LLEN l",
    "LINDEX l 0",
    "LSET l 9 x",
    "LINSERT l BEFORE x y",
    "LMPOP 2 none l LEFT COUNT 2",
    "LPOS l x",
    "GET l",
    "LPUSH s x",
    "HSET h a 1 b 2",
    "HGETALL h",
    "HGET h f",
    "HGET h none",
    "HMGET h f none",
    "HDEL h f",
    "HINCRBY h a 5",
    "HKEYS h",
    "HRANDFIELD none 2",
    "ZADD z 3 three",
    "ZRANGE z 0 -1 WITHSCORES",
    "ZSCORE z one",
    "ZINCRBY z 1.5 one",
    "ZPOPMIN z",
    "ZMSCORE z one none",
    "ZADD z inf i",
    "SADD t 4 5",
    "SMEMBERS t",
    "SISMEMBER t 1",
    "SCARD t",
    "SINTER t t",
    "SREM t 1",
    "XADD x 1-1 f v",
    "XADD x 2-1 f v",
    "XRANGE x - +",
    "XREAD COUNT 1 STREAMS x 0",
    "XLEN x",
    "XGROUP CREATE x g 0",
    "XREADGROUP GROUP g c STREAMS x >",
    "XINFO GROUPS x",
    "SETBIT bits 7 1",
    "BITCOUNT bits",
    "BITFIELD bits GET u8 0",
    "PFADD p a b",
    "PFCOUNT p",
    "GEOADD geo 13.361389 38.115556 Palermo",
    "GEOPOS geo Palermo none",
    "SORT l ALPHA",
    "OBJECT ENCODING h",
    "DUMP n",
    "CLIENT SETNAME me",
    "CLIENT GETNAME",
    "CLIENT",
    "CLIENT NOPE",
    "CLIENT REPLY",
    "CLIENT REPLY maybe",
    "CLIENT REPLY on x",
    "CLIENT NO-EVICT on",
    "CONFIG GET maxmemory",
    "ACL WHOAMI",
    "COMMAND GETKEYS GET s",
    "WAIT 0 0",
    "OBJECT HELP",
    "NOPE",
    "NOPE with arguments",
    "GET",
    "SET s",
    "SET s v NX XX",
    "FLUSHDB",
    "SWAPDB 0 1",
    "WATCH s",
    "UNWATCH",
    "ASKING",
    "READONLY",
    "LASTSAVE x",
    "MONITOR x",
    "RESET x",
    "LCS s n",
    "DBSIZE x",
    "XAUTOCLAIM x g c 0 0",
    "FUNCTION LIST",
    "CLUSTER INFO",
    "REPLICAOF",
];

const BLOCKING: &[&str] = &[
    "BLPOP none 0.003",
    "BLPOP l 0.003",
    "BRPOP none l 0.003",
    "BLMOVE none l LEFT LEFT 0.002",
    "BLMPOP 0.002 1 none LEFT",
    "BZPOPMIN none 0.003",
    "BZPOPMAX z 0.003",
    "XREAD BLOCK 3 STREAMS x $",
    "BRPOPLPUSH none l 0.002",
    "BLPOP none -1",
    "BLPOP s 0.001",
    "WAIT 1 2",
];

const PROTOCOL: &[&str] = &[
    "DEBUG PROTOCOL string",
    "DEBUG PROTOCOL integer",
    "DEBUG PROTOCOL double",
    "DEBUG PROTOCOL null",
    "DEBUG PROTOCOL array",
    "DEBUG PROTOCOL set",
    "DEBUG PROTOCOL map",
    "DEBUG PROTOCOL attrib",
    "DEBUG PROTOCOL push",
    "DEBUG PROTOCOL verbatim",
    "DEBUG PROTOCOL true",
    "DEBUG PROTOCOL false",
    "DEBUG PROTOCOL bignum",
    "DEBUG PROTOCOL nope",
];

const SCRIPTS: &[&str] = &[
    "return {1,{2,{3,{}}},'x',{ok='fine'},false,true,3.7}",
    "return {ok='QUEUED'}",
    "return {ok='OK'}",
    "return redis.error_reply('QUEUED')",
    "return redis.error_reply('My Error')",
    "return {err='NOPERM no'}",
    "local t = {} for i = 1, 60 do t = {t, i} end return t",
    "redis.setresp(3) return redis.call('hgetall', 'h')",
    "return {double=3.25}",
    "return {map={a=1}}",
    "return {set={a=true}}",
    "return {big_number='123456789012345678901234567890'}",
    "return {verbatim_string={format='txt',string='text'}}",
    "return redis.pcall('incr', 'l')",
    "return redis.call('incr', 'l')",
    "return redis.call('client', 'reply', 'off')",
    "nonsense",
];

/// In transactions, too, these are no confirmations, though they read like them.
const CONFIRMATIONS: &[&str] = &[
    "return {'subscribe', 'a', 1}",
    "return {'unsubscribe', 'a', 0}",
    "return {'sunsubscribe', 'a', 0}",
    "return {'ssubscribe', 'a', 2}",
    "return {'server', 'redis'}",
    "return {'pong', 'x'}",
];

const LOOKALIKES: &[&str] = &[
    "return redis.call('publish', 'a', 'from a script')",
    "return {'message', 'a', 'not one'}",
    "return {'pmessage', 'a*', 'a', 'not one'}",
];

const FUNCTIONS: &[&[&str]] = &[
    &[
        "FUNCTION",
        "LOAD",
        "REPLACE",
        "#!lua name=lib\nredis.register_function('f', function() return {'sunsubscribe', 'a', 0} end)",
    ],
    &["FUNCTION", "LOAD", "#!lua name=lib\nlocal '"],
    &["FUNCTION", "LOAD", "nonsense"],
    &["FUNCTION", "LOAD"],
    &["FCALL", "f", "0"],
    &["FUNCTION", "DELETE", "lib"],
    &["SCRIPT", "LOAD", "return 1"],
    &["SCRIPT", "EXISTS", "x"],
];

const SUBSCRIPTIONS: &[&str] = &[
    "SUBSCRIBE a",
    "SUBSCRIBE a a b",
    "SUBSCRIBE b c d",
    "SUBSCRIBE",
    "PSUBSCRIBE a*",
    "PSUBSCRIBE a* b* a*",
    "SSUBSCRIBE a",
    "SSUBSCRIBE a b",
    "SSUBSCRIBE",
    "UNSUBSCRIBE",
    "UNSUBSCRIBE a",
    "UNSUBSCRIBE a a none",
    "PUNSUBSCRIBE",
    "PUNSUBSCRIBE a*",
    "SUNSUBSCRIBE",
    "SUNSUBSCRIBE b",
    "unsubscribe",
];

const PUBLISHED: &[&str] = &[
    "PUBLISH a own",
    "PUBLISH b own",
    "PUBLISH a message",
    "SPUBLISH a own",
    "PUBLISH none x",
    "PUBLISH a",
];

/// Those that `SESSION` selects.
pub(crate) const DATABASES: [u32; 3] = [0, 1, 3];

const SESSION: &[&str] = &[
    "HELLO 3",
    "HELLO 3",
    "HELLO 3",
    "HELLO 2",
    "HELLO",
    "HELLO 4",
    "HELLO x",
    "HELLO 3 AUTH weak weak",
    "HELLO 2 AUTH weak wrong",
    "HELLO 3 SETNAME me AUTH default any",
    "HELLO 3 SETNAME a SETNAME b",
    "HELLO 3 SETNAME a AUTH weak weak",
    "HELLO 3 SETNAME a AUTH weak weak bogus",
    "HELLO 2 AUTH weak weak AUTH default any SETNAME",
    "HELLO 3 AUTH weak weak AUTH weak wrong",
    "HELLO 3 NOPE",
    "SELECT 1",
    "SELECT 3",
    "SELECT 0",
    "SELECT 99",
    "SELECT 01",
    "SELECT x",
    "SELECT",
    "AUTH weak weak",
    "AUTH weak wrong",
    "AUTH default any",
    "AUTH",
    "AUTH a b c",
];

const TRANSACTIONS: &[&str] = &[
    "MULTI",
    "MULTI",
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "EXEC",
    "EXEC",
    "DISCARD",
    "MULTI x",
    "EXEC x",
    "DISCARD x",
    "WATCH s",
    "WATCH s n",
    "SET s w",
    "HELLO 2",
    "HELLO 3",
    "HELLO 3 AUTH weak weak",
    "AUTH weak wrong",
    "AUTH weak weak",
    "AUTH default any",
];

const TRACKING: &[&str] = &[
    "CLIENT TRACKING on",
    "CLIENT TRACKING on OPTIN",
    "CLIENT TRACKING on OPTOUT",
    "CLIENT TRACKING off",
    "CLIENT TRACKING on NOLOOP",
    "CLIENT CACHING yes",
    "CLIENT CACHING yes",
    "CLIENT CACHING no",
    "CLIENT TRACKINGINFO",
    "CLIENT GETREDIR",
    "GET s",
    "GET s",
    "SET s tracked",
    "MGET s n",
    "INCR n",
    "FLUSHALL",
    "HELLO 3",
];

const REPLIES: &[&str] = &[
    "CLIENT REPLY OFF",
    "CLIENT REPLY OFF",
    "CLIENT REPLY ON",
    "CLIENT REPLY ON",
    "CLIENT REPLY ON",
    "CLIENT REPLY SKIP",
    "CLIENT REPLY SKIP",
    "client reply skip",
    "RESET",
];

const OTHERS: &[&str] = &[
    "PUBLISH a hello",
    "PUBLISH b message",
    "SPUBLISH a hello",
    "SET s other",
    "INCR n",
    "DEL l",
    "PUBLISH c x",
    "FLUSHALL",
    "LPUSH none 1",
];

const RAW: &[&str] = &[
    "\r\n",
    "\n",
    "*0\r\n",
    "*-1\r\n",
    "*-7\r\n",
    "   \n",
    "\t \r\n",
    "ping\n",
    "SET 's' \"a\\x41 b\\n\"\r\n",
    "echo 'it\\'s'\r\n",
    "  ECHO   spaces  \r\n",
    "ECHO \"\"\r\n",
    "ECHO ''\n",
    "''\r\n",
    "\"\" x\r\n",
    "*1\r\n$4\r\nPINGXX",
    "*2\rX$4\rXECHO..$2\rXhi..",
    "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n",
    "client reply skip\r\n",
    "*1\r\n$0\r\n\r\n",
    "*2\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n",
];

/// Redis says why and closes. (`POST` and `Host:` are not among them: what was answered with them at
/// once is lost, and what that is depends on how the bytes arrive.)
const WRONG: &[&str] = &[
    "*x\r\n",
    "*1\r\nPING\r\n",
    "*1\r\n$x\r\n",
    "*1\r\n$-1\r\n",
    "*3000000000\r\n",
    "*1\r\n$600000000\r\n",
    "ECHO \"x\r\n",
    "ECHO 'x'y\r\n",
    "*3\r\n$3\r\nSET\r\n:1\r\n",
    "*01\r\n$4\r\nPING\r\n",
    "*+1\r\n$4\r\nPING\r\n",
    "*2\r\n$6\r\nCLIENT\r\n$ 1\r\n",
    "*1\r\n$+4\r\nPING\r\n",
    "*1 \r\n",
];

type Kind = (u64, fn(&mut Random, &mut Speaker, &mut Vec<Step>));

/// How often each kind is said, of all their sum.
const KINDS: [Kind; 12] = [
    (24, |random, _, steps| steps.push(spoken(random, PLAIN))),
    (2, |random, _, steps| steps.push(spoken(random, BLOCKING))),
    (4, |random, _, steps| steps.push(spoken(random, PROTOCOL))),
    (5, script),
    (12, |random, _, steps| {
        steps.push(spoken(random, SUBSCRIPTIONS));
    }),
    (7, |random, _, steps| steps.push(spoken(random, PUBLISHED))),
    (9, |random, _, steps| steps.push(spoken(random, SESSION))),
    (12, |random, speaker, steps| {
        let lines = if speaker.lookalikes {
            PLAIN
        } else {
            TRANSACTIONS
        };
        steps.push(spoken(random, lines));
    }),
    (7, |random, _, steps| steps.push(spoken(random, TRACKING))),
    (7, |random, speaker, steps| {
        speaker.muted = true;
        steps.push(spoken(random, REPLIES));
    }),
    (4, raw),
    (1, big),
];

/// Adds what is said next.
pub(crate) fn say(random: &mut Random, speaker: &mut Speaker, steps: &mut Vec<Step>) {
    if speaker.with_locks && random.percent(20) {
        let lock = speaker.lock(random);
        return steps.push(Step::Lock(lock));
    }
    if speaker.with_others && !speaker.muted && random.percent(12) {
        return steps.push(Step::Other(random.one_of(OTHERS).to_owned()));
    }
    // Where it may not say why, Redis forgets to close.
    if !speaker.muted && random.percent(1) {
        return steps.push(match random.below(4) {
            0 if !speaker.said_big => Step::Last(random.one_of(WRONG).as_bytes().to_vec()),
            1 if !speaker.said_big => Step::Last(b"QUIT\r\nPING\r\n".to_vec()),
            _ if speaker.with_monitor && random.percent(50) => Step::Debug,
            _ if speaker.with_monitor => send("MONITOR\r\n"),
            _ => spoken(random, &["RESET"]),
        });
    }
    let say = if random.percent(25) {
        KINDS[speaker.favourite].1
    } else {
        kind(random)
    };
    say(random, speaker, steps);
}

fn kind(random: &mut Random) -> fn(&mut Random, &mut Speaker, &mut Vec<Step>) {
    let sum = KINDS.iter().map(|kind| kind.0).sum();
    let mut at = random.between(1, sum);
    for (weight, say) in KINDS {
        if at <= weight {
            return say;
        }
        at -= weight;
    }
    KINDS[0].1
}

/// One of these, in one of the forms of a command.
fn spoken(random: &mut Random, lines: &[&str]) -> Step {
    let line = random.one_of(lines);
    send(match random.below(12) {
        0 => format!("{line}\r\n").into_bytes(),
        1 => format!(" {}\n", line.to_lowercase()).into_bytes(),
        // Redis does not look at the byte behind a CR, nor at what is behind an argument.
        2 => sloppy(&words(line)),
        _ => frame(&words(line)),
    })
}

fn sloppy(arguments: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r*", arguments.len());
    for argument in arguments {
        bytes += &format!("${}\r$", argument.len());
        bytes += argument;
        bytes += "\n\n";
    }
    bytes.into_bytes()
}

fn script(random: &mut Random, speaker: &mut Speaker, steps: &mut Vec<Step>) {
    let scripts = match random.below(4) {
        0 => return steps.push(send(frame(random.one_of(FUNCTIONS)))),
        1 => CONFIRMATIONS,
        2 if speaker.lookalikes => LOOKALIKES,
        _ => SCRIPTS,
    };
    steps.push(send(frame(&["EVAL", random.one_of(scripts), "0"])));
}

fn raw(random: &mut Random, speaker: &mut Speaker, steps: &mut Vec<Step>) {
    let bytes = random.one_of(RAW);
    speaker.muted |= bytes.contains("skip");
    steps.push(send(bytes));
}

fn big(random: &mut Random, speaker: &mut Speaker, steps: &mut Vec<Step>) {
    speaker.said_big = true;
    let most = 1 << random.between(0, 18);
    steps.push(Step::Big(random.below(most)));
}
