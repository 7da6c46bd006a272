//! Conversations about keys that lockgate absorbs: one client takes, releases and extends locks by commands of
//! Redis's own, and changes the same keys by other means.
//!
//! The conversations avoid differences by design:
//! - A release overtakes the attempts before it, and may hand them the lock. An ordinary command stands between, or
//!   everything before was answered ([`Step::Apart`]).
//! - A refusal may lag behind a change that lockgate only hears of. Every such change is a [`Step::Foreign`] or a
//!   [`Step::Other`]: lockgate hears of it before anything more is sent.
//! - lockgate runs a script that it knows, whether Redis has it or not. Redis and lockgate know the same texts from the
//!   start, and no script is flushed.
//! - `DELEX` and `DELIFEQ` release a lock that lockgate knows, although this Redis has no such commands. They are said
//!   only in forms that pass.
//! - `CLIENT TRACKING` reports an absorbed command as another client's. `WAIT` does not wait for it. `OBJECT`, `DEBUG` and
//!   `MONITOR` show how it was done. `SWAPDB` pushes nothing.
//! - `PTTL` depends on the moment: of a long lease, only the first two digits are compared.

use crate::{
    case::{Step, send},
    random::Random,
    support::{frame, words},
};

/// The patterns that lockgate is started with.
pub(crate) const KEYS: &str = "lock:*";
pub(crate) const TRY_KEYS: &str = "try:*";

/// The users and the databases in which conversations take locks.
pub(crate) const USERS: [&str; 2] = ["", "AUTH weak weak"];
pub(crate) const DATABASES: [u32; 2] = [0, 1];

const LOCKS: [&str; 4] = ["lock:a", "lock:a", "lock:b", "try:a"];

/// Constant ones, as in everyday code, and one as libraries make it.
const TOKENS: [&str; 5] = ["1", "1", "t1", "t2", "7ad0c7d5-1f2e-4cb8-9f0a-3d0e6a3d5c11"];

/// Leases in milliseconds that no conversation outlasts, and that their first two digits tell apart at any moment.
const LEASES_MS: [&str; 2] = ["455000", "755000"];
const LEASES_S: [&str; 2] = ["455", "755"];

/// Longer than a busy machine takes to reply.
const SHORT_LEASE_MS: &str = "300";
const SHORT_LEASE_IS_OVER_MS: u64 = 330;

/// Longer than a key of 2 ms lives, and than a busy machine takes to notice.
const KEY_IS_OVER_MS: u64 = 30;

const ACQUISITIONS: [&str; 2] = [
    "return redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])",
    "return redis.call(\"SET\",KEYS[1],ARGV[1],\"PX\",ARGV[2],\"NX\")",
];

const RELEASES: [&str; 6] = [
    "if redis.call(\"get\",KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) else return 0 end",
    "\n        local token = redis.call('get', KEYS[1])\n        if not token or token ~= ARGV[1] then\n            return 0\n        end\n        redis.call('del', KEYS[1])\n        return 1\n    ",
    "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('unlink', KEYS[1]) return true end return false",
    "local value = redis.call('get', KEYS[1]) if value == ARGV[1] then return redis.call('del', KEYS[1]) elseif value == false then return -1 else return 0 end",
    "local v = redis.call('get', KEYS[1]) if not v then return redis.status_reply('OK') elseif v == ARGV[1] then return redis.call('del', KEYS[1]) else return redis.error_reply('ERROR') end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return tostring(redis.call('del', KEYS[1]) == 1) else return 'false' end",
];

const EXTENSIONS: [&str; 2] = [
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end",
    "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end redis.call('pexpire', KEYS[1], ARGV[2]) return 1",
];

/// Scripts about locks that lockgate does not know.
const UNKNOWN: [&str; 3] = [
    "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('publish', 'a', 'free') return redis.call('del', KEYS[1]) else return 0 end",
    "redis.call('del', KEYS[1]) return 'gone'",
    "return redis.call('set', KEYS[1], ARGV[1])",
];

/// Changes that lockgate does not recognise, `%` being the key of a lock.
const CHANGES: [&str; 33] = [
    "SET % other",
    "SET % t1 PX 455000",
    "SET % t2 XX PX 755000",
    "SET % 1 NX",
    "SET % t1 NX PX 455000 GET",
    "SET % t1 NX PXAT 99999999999999",
    "SETNX % 1",
    "SETEX % 455 t1",
    "PSETEX % 755000 1",
    "GETSET % t2",
    "GETDEL %",
    "GETEX % PERSIST",
    "GETEX % PX 755000",
    "PERSIST %",
    "EXPIRE % 455",
    "EXPIRE % -1",
    "PEXPIRE % 755000",
    "APPEND % x",
    "INCR %",
    "MSET % 1 s v",
    "DEL % s",
    "UNLINK lock:a lock:b try:a",
    "RENAME % lock:b",
    "COPY s % REPLACE",
    "MOVE % 1",
    "LPUSH % x",
    "SADD % x",
    "HSET % f v",
    "FLUSHDB",
    "FLUSHALL",
    "RESTORE % 0 x",
    "SORT % STORE %",
    "PUBLISH a %",
];

/// Commands about locks that change nothing.
const READS: [&str; 12] = [
    "GET %",
    "GET %",
    "PTTL %",
    "PTTL %",
    "EXISTS %",
    "TYPE %",
    "STRLEN %",
    "MGET lock:a lock:b try:a",
    "PING",
    "ECHO %",
    "GETRANGE % 0 1",
    "PERSIST none",
];

/// Commands about locks that are wrong, or of other servers.
const WRONG: [&str; 26] = [
    "SET %",
    "SET % t NX PX",
    "SET % t NX PX 0",
    "SET % t NX PX -1",
    "SET % t NX PX x",
    "SET % t NX PX 9223372036854775807",
    "SET % t NX EX 9223372036854775807",
    "SET % t NX XX EX",
    "SET % t NX NX PX",
    "SET % t PX 5 EX 5",
    "SET % t NX KEEPTTL PX 5",
    "DEL",
    "UNLINK",
    "EVAL",
    "EVAL nonsense 1 % t",
    "EVAL nonsense 2 % t",
    "EVAL nonsense 9 % t",
    "EVAL nonsense -1 % t",
    "EVALSHA c3f8721cbb97f72bc19e972846bd7aaf91901659 1 % t",
    "EVALSHA ffffffffffffffffffffffffffffffffffffffff 1 % 1",
    "EVALSHA short 1 % t",
    "DELEX",
    "DELEX %",
    "DELEX % IFNE t",
    "DELIFEQ %",
    "SETNX %",
];

const SESSION: [&str; 13] = [
    "SELECT 1",
    "SELECT 1",
    "SELECT 0",
    "SELECT 99",
    "HELLO 3",
    "HELLO 3",
    "HELLO 2",
    "HELLO 3 AUTH weak weak",
    "AUTH weak weak",
    "AUTH weak wrong",
    "RESET",
    "WATCH lock:a",
    "UNWATCH",
];

/// A command of another client of the same Redis.
const OTHERS: [&str; 8] = [
    "SET lock:a other",
    "SET lock:a 1 NX PX 455000",
    "SET lock:b t1 PX 455000",
    "DEL lock:a",
    "DEL lock:a lock:b try:a",
    "EXPIRE lock:a -1",
    "SET try:a t2 PX 755000",
    "RPUSH lock:b x",
];

/// The scripts that Redis has from the start: as commands.
pub(crate) fn scripts() -> impl Iterator<Item = Vec<u8>> {
    let texts = ACQUISITIONS.iter().chain(&RELEASES).chain(&EXTENSIONS);
    texts.map(|text| frame(&["SCRIPT", "LOAD", text]))
}

/// Adds what is said next about locks.
pub(crate) fn say(random: &mut Random, steps: &mut Vec<Step>) {
    let key = random.one_of(&LOCKS);
    let about = |line: &str| line.replace('%', key);
    steps.push(match random.below(100) {
        0..30 => Step::Send(attempt(random, key)),
        30..42 => Step::Apart(release(random, key)),
        42..50 => send(
            [
                frame(&words(&about(random.one_of(&["PING", "GET %"])))),
                release(random, key),
            ]
            .concat(),
        ),
        50..56 => Step::Send(extension(random, key)),
        56..61 => Step::Send(deletion(random, key)),
        61..72 => {
            let read = about(random.one_of(&READS));
            Step::Send(said(random, &words(&read)))
        }
        72..79 => change(random, key),
        79..82 => expiry(random, key),
        82..86 => {
            let wrong = about(random.one_of(&WRONG));
            Step::Send(said(random, &words(&wrong)))
        }
        86..91 => {
            let line = random.one_of(&SESSION);
            Step::Send(said(random, &words(line)))
        }
        91..94 => transaction(random),
        94..96 => modes(random),
        96..98 => Step::Other(random.one_of(&OTHERS).to_owned()),
        _ => send(random.one_of(&["\r\n", "*0\r\n", "client reply skip\r\n\r\n", "ping\n"])),
    });
}

/// One in any form of a command.
fn said(random: &mut Random, command: &[&str]) -> Vec<u8> {
    let is_inline = command.iter().all(|word| {
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\'';
        !word.is_empty() && word.bytes().all(plain)
    });
    match random.below(8) {
        0 if is_inline => format!("{}\r\n", command.join(" ")).into_bytes(),
        1 => {
            let mut command = command.to_vec();
            let name = command[0].to_lowercase();
            command[0] = &name;
            frame(&command)
        }
        _ => frame(command),
    }
}

fn attempt(random: &mut Random, key: &str) -> Vec<u8> {
    let token = random.one_of(&TOKENS);
    if random.percent(15) {
        let lease = random.one_of(&LEASES_MS);
        return script(random, &ACQUISITIONS, &[key, token, lease]);
    }
    let (unit, lease) = match random.percent(70) {
        true => (
            random.one_of(&["PX", "px", "Px"]),
            random.one_of(&LEASES_MS),
        ),
        false => (random.one_of(&["EX", "ex"]), random.one_of(&LEASES_S)),
    };
    let nx = random.one_of(&["NX", "nx", "nX"]);
    let options = match random.percent(50) {
        true => [nx, unit, lease],
        false => [unit, lease, nx],
    };
    said(random, &[&["SET", key, token], &options[..]].concat())
}

fn release(random: &mut Random, key: &str) -> Vec<u8> {
    let token = random.one_of(&TOKENS);
    script(random, &RELEASES, &[key, token])
}

fn extension(random: &mut Random, key: &str) -> Vec<u8> {
    let (token, lease) = (random.one_of(&TOKENS), random.one_of(&LEASES_MS));
    script(random, &EXTENSIONS, &[key, token, lease])
}

fn deletion(random: &mut Random, key: &str) -> Vec<u8> {
    let name = random.one_of(&["DEL", "UNLINK"]);
    said(random, &[name, key])
}

/// By its text or its SHA1.
fn script(random: &mut Random, texts: &[&str], values: &[&str]) -> Vec<u8> {
    let text = random.one_of(texts);
    let sha1 = sha1(text);
    let (name, script) = match random.below(3) {
        0 => ("EVAL", text),
        1 => ("EVALSHA", &sha1[..]),
        _ => {
            let load = said(random, &["SCRIPT", "LOAD", text]);
            let run = said(random, &[&["EVALSHA", &sha1, "1"], values].concat());
            return [load, run].concat();
        }
    };
    said(random, &[&[name, script, "1"], values].concat())
}

/// Returns the name that Redis has for a script.
fn sha1(text: &str) -> String {
    use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    hash.as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn change(random: &mut Random, key: &str) -> Step {
    let line = random.one_of(&CHANGES).replace('%', key);
    let token = random.one_of(&TOKENS);
    let long = "x".repeat(300);
    let bytes = match random.below(20) {
        0..2 => script(random, &UNKNOWN, &[key, token]),
        2 => script(random, &EXTENSIONS, &[key, token, "0"]),
        3 => script(random, &EXTENSIONS, &[key, token, "-5"]),
        4 => frame(&["SET", key, &long, "NX", "PX", "455000"]),
        5 => frame(&["SET", key, "", "NX", "PX", "455000"]),
        6 => frame(&["SET", key, token, "NX", "PX", "95555555555"]),
        _ => said(random, &words(&line)),
    };
    Step::Foreign(bytes, 0)
}

/// A lease that is over before anything more is said.
fn expiry(random: &mut Random, key: &str) -> Step {
    let token = random.one_of(&TOKENS);
    match random.below(5) {
        0 => {
            let attempt = ["SET", key, token, "NX", "PX", SHORT_LEASE_MS];
            Step::Foreign(said(random, &attempt), SHORT_LEASE_IS_OVER_MS)
        }
        // Shorter than `lock.min_lease`.
        1 => Step::Foreign(frame(&["SET", key, token, "NX", "PX", "2"]), KEY_IS_OVER_MS),
        2 => Step::Foreign(
            script(random, &EXTENSIONS, &[key, token, "2"]),
            KEY_IS_OVER_MS,
        ),
        _ => Step::Foreign(said(random, &["PEXPIRE", key, "1"]), KEY_IS_OVER_MS),
    }
}

fn transaction(random: &mut Random) -> Step {
    let end = random.one_of(&["EXEC", "EXEC", "EXEC", "DISCARD"]);
    let within = several(random);
    Step::Foreign([frame(&["MULTI"]), within, frame(&[end])].concat(), 0)
}

/// In these modes the commands pass.
fn modes(random: &mut Random) -> Step {
    let (begin, end) = random.one_of(&[
        ("CLIENT REPLY OFF", "CLIENT REPLY ON"),
        ("CLIENT REPLY SKIP", "PING"),
        ("SUBSCRIBE a", "UNSUBSCRIBE a"),
        ("SUBSCRIBE a b", "UNSUBSCRIBE"),
    ]);
    let [begin, end] = [begin, end].map(|line| frame(&words(line)));
    Step::Foreign([begin, several(random), end].concat(), 0)
}

/// Some commands about locks, each behind an ordinary one.
fn several(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.between(1, 4) {
        let key = random.one_of(&LOCKS);
        bytes.extend(frame(&["PING"]));
        bytes.extend(match random.below(5) {
            0 | 1 => attempt(random, key),
            2 => release(random, key),
            3 => extension(random, key),
            _ => deletion(random, key),
        });
    }
    bytes
}
