//! Conversations that once differed, as the test printed them, and some that would be hard to find.

use crate::{
    case::{Case, Step, send},
    locks::Lock,
    pair::Pair,
    support::{frame, words},
};

/// The release in Redis's documentation.
const RELEASE: &str = "if redis.call(\"get\",KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) else return 0 end";

const EXTENSION: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

/// The conversation is the same directly and through lockgate.
fn same(cuts: u64, steps: &[Step]) {
    let steps = steps.to_vec();
    if let Err(difference) = Pair::start().check(&Case { steps, cuts }) {
        panic!("{difference}");
    }
}

/// The mode of `CLIENT REPLY` ends at its first NUL for Redis, however long it is.
#[test]
fn a_client_reply_off_with_a_nul_behind_it() {
    same(0, &[
        send(b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$40\r\noff\0xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n"),
        send(b"ECHO hidden\r\nCLIENT REPLY ON\r\nECHO shown\r\n"),
    ]);
}

/// `CLIENT REPLY` inside a transaction takes replies out of the very reply of `EXEC`.
#[test]
fn a_transaction_that_silences_itself() {
    same(
        7,
        &[
            send(b"MULTI\r\nECHO 1\r\nCLIENT REPLY OFF\r\nECHO 2\r\nSELECT 1\r\nEXEC\r\n"),
            send(b"ECHO hidden\r\nCLIENT REPLY ON\r\n"),
            Step::Lock(Lock::Placed(1)),
        ],
    );
}

/// The bytes after `MONITOR` are replies to nothing, with `CLIENT REPLY OFF` or without.
#[test]
fn a_monitor_in_silence() {
    same(0, &[
        send(b"CLIENT REPLY OFF\r\nECHO hidden\r\nMONITOR\r\nECHO hidden\r\nCLIENT REPLY ON\r\nECHO shown\r\n"),
    ]);
}

/// After `MONITOR` a lock command goes to Redis, like everything else.
#[test]
fn a_lock_command_behind_monitor() {
    same(0, &[send(b"MONITOR\r\nLOCK k\r\nECHO shown\r\n")]);
}

/// Which database a connection is in is known, though nobody saw the reply of `SELECT`.
#[test]
fn a_select_in_silence() {
    same(
        0,
        &[
            send(b"CLIENT REPLY OFF\r\nSELECT 1\r\nSELECT 99\r\nCLIENT REPLY ON\r\n"),
            Step::Lock(Lock::Placed(1)),
        ],
    );
}

/// A list in the silence of a transaction that has subscribed is no message.
#[test]
fn a_transaction_that_subscribes_and_is_silent() {
    same(
        0,
        &[
            send(b"MULTI\r\nSUBSCRIBE a b\r\nCLIENT REPLY OFF\r\nMGET s\r\nMGET s n t\r\n"),
            send(b"PUBLISH a own\r\nHELLO\r\nEXEC\r\nPING\r\nPUNSUBSCRIBE\r\n"),
        ],
    );
}

/// Within EXEC a list that reads like a confirmation is a list, whatever the protocol has become.
#[test]
fn a_transaction_with_a_list_like_a_confirmation() {
    same(
        0,
        &[
            send(b"HELLO 3\r\nSSUBSCRIBE a b\r\nMULTI\r\nHELLO 2\r\n"),
            send(
                b"EVAL \"return {'sunsubscribe','a',0}\" 0\r\nAUTH weak wrong\r\nEXEC\r\nPING\r\n",
            ),
            send(b"SUNSUBSCRIBE\r\n"),
            Step::Lock(Lock::Whose(1)),
        ],
    );
}

/// A `HELLO` that is refused may have logged in before.
#[test]
fn a_hello_that_fails_behind_its_login() {
    same(
        0,
        &[
            send(b"HELLO 3 SETNAME a AUTH weak weak bogus\r\n"),
            Step::Lock(Lock::Whose(1)),
            send(b"MULTI\r\nHELLO 2 AUTH weak weak\r\nEXEC\r\n"),
            Step::Lock(Lock::Whose(2)),
        ],
    );
}

/// A token is its owner's proof, whichever user it has: Redis compares the token only.
#[test]
fn another_user_with_the_token_releases_and_extends() {
    for script in [
        &["EVAL", RELEASE, "1", "lock:a", "t"][..],
        &["EVAL", EXTENSION, "1", "lock:a", "t", "755000"],
    ] {
        same(
            0,
            &[
                send(frame(&words("SET lock:a t NX PX 455000"))),
                send(frame(&words("AUTH weak weak"))),
                Step::Apart(frame(script)),
                send(frame(&words("PTTL lock:a"))),
            ],
        );
    }
}

/// With the debugger on, nothing is counted.
#[test]
fn a_debugger() {
    same(0, &[Step::Debug]);
    same(
        0,
        &[
            send(b"MULTI\r\nSCRIPT DEBUG YES\r\nEXEC\r\n"),
            Step::Lock(Lock::Whose(1)),
        ],
    );
}
