//! Two users with different keys: neither gets at the other's, in any way.

use super::{NO_KEY, in_each_protocol, is_error, lock_commands, may_not};
use crate::support::{Client, Value};

#[test]
fn alone_a_user_has_its_own_keys_and_no_others() {
    in_each_protocol(|house, protocol| {
        let (mut ann, mut ben) = (house.client("ann", protocol), house.client("ben", protocol));
        for (client, own, other) in [(&mut ann, "a:1", "b:1"), (&mut ben, "b:1", "a:1")] {
            // Free, then held by this user itself and not by the other.
            may_not(client, other, "t", NO_KEY);
            assert_eq!(client.call(&["LOCK", own, "TOKEN", own]), own);
            may_not(client, other, "t", NO_KEY);
        }
        // And held by the other one, whose token is no secret here.
        may_not(&mut ann, "b:1", "b:1", NO_KEY);
        may_not(&mut ben, "a:1", "a:1", NO_KEY);
        let mut redis = house.redis.client();
        assert_eq!(redis.say("GET a:1"), "a:1");
        assert_eq!(redis.say("GET b:1"), "b:1");
        assert_eq!(ann.say("UNLOCK a:1 a:1"), 1);
        assert_eq!(ben.say("UNLOCK b:1 b:1"), 1);
        assert_eq!(redis.say("DBSIZE"), 1, "the mark of the grace");
    });
}

#[test]
fn a_fence_needs_the_right_to_its_counter() {
    in_each_protocol(|house, protocol| {
        let mut ann = house.client("ann", protocol);
        is_error(&ann.say("LOCK a:1 FENCE"), NO_KEY);
        is_error(&ann.say("TRYLOCK a:1 FENCE"), NO_KEY);
        let mut admin = house.admin();
        assert_eq!(admin.say("ACL SETUSER ann ~lockgate:fence"), "OK");
        assert_eq!(ann.say("LOCK a:1 TOKEN t FENCE").items()[0], "t");
        is_error(&house.client("ben", protocol).say("LOCK a:1 FENCE"), NO_KEY);
    });
}

/// lockgate serves the commands behind one that Redis refused by the user's rights.
#[test]
fn in_one_packet_each_command_has_its_own_answer() {
    in_each_protocol(|house, protocol| {
        let mut ben = house.client("ben", protocol);
        for command in [
            "LOCK a:1",
            "LOCK b:1 TOKEN t",
            "GET a:1",
            "UNLOCK b:1 t",
            "PING",
        ] {
            ben.write_raw(format!("{command}\r\n").as_bytes());
        }
        is_error(&ben.read_reply(), NO_KEY);
        assert_eq!(ben.read_reply(), "t");
        is_error(&ben.read_reply(), NO_KEY);
        assert_eq!(ben.read_reply(), 1);
        assert_eq!(ben.read_reply(), "PONG");
    });
}

/// The database is the one that Redis confirmed, whatever was asked for.
#[test]
fn a_select_that_redis_refused_changes_nothing() {
    in_each_protocol(|house, protocol| {
        let mut admin = house.admin();
        assert_eq!(admin.say("ACL SETUSER ben -select"), "OK");
        let mut ben = house.client("ben", protocol);
        for select in ["SELECT 1", "SELECT 99", "SELECT x"] {
            ben.write_raw(
                format!("{select}\r\nLOCK b:1 TOKEN t\r\nLOCK a:1 TOKEN t\r\n").as_bytes(),
            );
            assert!(matches!(ben.read_reply(), Value::Error(_)), "{select}");
            assert_eq!(ben.read_reply(), "t", "{select}");
            is_error(&ben.read_reply(), NO_KEY);
        }
        assert_eq!(admin.say("GET b:1"), "t");
        assert_eq!(ben.say("UNLOCK b:1 t"), 1);
        assert_eq!(admin.say("ACL SETUSER ben +select"), "OK");
        ben.write_raw(b"SELECT 1\r\nLOCK b:1 TOKEN t\r\nLOCK a:1 TOKEN t\r\nTRYLOCK a:1\r\n");
        assert_eq!(ben.read_reply(), "OK");
        assert_eq!(ben.read_reply(), "t");
        is_error(&ben.read_reply(), NO_KEY);
        is_error(&ben.read_reply(), NO_KEY);
        assert_eq!(admin.say("GET b:1"), Value::Nil);
    });
}

#[test]
fn inside_a_transaction_redis_does_not_know_lock_commands() {
    in_each_protocol(|house, protocol| {
        let mut ann = house.client("ann", protocol);
        assert_eq!(ann.say("LOCK a:1 TOKEN t"), "t");
        for mut client in [ann, house.client("ben", protocol)] {
            for command in lock_commands("a:1", "t").chain(["LOCKS".to_owned()]) {
                assert_eq!(client.say("MULTI"), "OK");
                let unknown = client.say(&command);
                assert!(
                    unknown.error().starts_with("ERR unknown command"),
                    "{command}"
                );
                assert!(client.say("EXEC").error().starts_with("EXECABORT"));
            }
            // A SELECT that is queued there counts when it has run.
            for command in [
                "MULTI",
                "SELECT 2",
                "EXEC",
                "LOCK a:1 TOKEN u",
                "LOCK b:1 TOKEN u",
            ] {
                client.write_raw(format!("{command}\r\n").as_bytes());
            }
            let replies: Vec<Value> = (0..5).map(|_| client.read_reply()).collect();
            assert_eq!(replies.iter().filter(|reply| **reply == "u").count(), 1);
            is_error(
                replies[3..].iter().find(|reply| **reply != "u").unwrap(),
                NO_KEY,
            );
        }
        let mut redis = house.redis.client();
        assert_eq!(
            redis.say("DBSIZE"),
            2,
            "of the locks of database 2 none is here"
        );
    });
}

#[test]
fn the_names_of_locks_are_for_those_who_may_scan() {
    in_each_protocol(|house, protocol| {
        let mut ann = house.client("ann", protocol);
        assert_eq!(ann.say("LOCK a:1 TOKEN t"), "t");
        // To them Redis shows every name anyway.
        let mut ben = house.client("ben", protocol);
        assert_eq!(ben.say("LOCKS").items(), [Value::Bulk("a:1".into())]);
        assert_eq!(house.admin().say("ACL SETUSER ben -scan"), "OK");
        let words = "NOPERM this user has no permissions to run the 'scan' command";
        for command in ["LOCKS", "LOCKS MATCH b:* COUNT 1"] {
            is_error(&ben.say(command), words);
        }
        assert_eq!(ann.say("LOCKS MATCH a:*").items().len(), 1);
    });
}

/// Which names are known here shows nobody anything, not even where no more may be.
#[test]
fn a_gate_that_is_full_tells_nothing_of_others_keys() {
    let house = super::House::with(&[], &[("LOCKGATE_LIMITS_LOCKS", "2")]);
    let mut ann = house.client("ann", 2);
    for key in ["a:1", "a:2"] {
        assert_eq!(ann.call(&["LOCK", key, "TOKEN", "t"]), "t");
    }
    let full = |reply: &Value| assert!(reply.error().starts_with("MAXLOCKS"), "{reply:?}");
    full(&ann.say("LOCK a:3"));
    let mut ben: Client = house.client("ben", 2);
    full(&ben.say("LOCK b:1"));
    for key in ["a:1", "a:2", "a:3"] {
        may_not(&mut ben, key, "t", NO_KEY);
    }
}
