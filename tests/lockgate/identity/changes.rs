//! Users, passwords and rules that change in Redis while lockgate runs: lock commands follow as ordinary
//! ones do.

use super::{House, NO_KEY, in_each_protocol, is_error, may_not};
use crate::support::{Value, eventually};

#[test]
fn a_deleted_user_is_gone_with_its_connections() {
    in_each_protocol(|house, protocol| {
        let mut owner = house.client("ben", protocol);
        assert_eq!(owner.say("LOCK s:1 TOKEN owner PX 60000"), "owner");
        let mut waiting = house.waiter("ben", "s:1", "waiting", 1);
        let mut idle = house.client("ben", protocol);
        let mut ann = house.waiter("ann", "s:1", "ann", 2);
        let mut admin = house.admin();
        assert_eq!(admin.say("ACL DELUSER ben"), 1);
        for client in [&mut owner, &mut waiting, &mut idle] {
            client.is_closed_by_the_server();
        }
        eventually("no connection is left of it", || {
            house.connections_of("ben") == 0
        });
        let mut client = house.gate.client();
        assert!(client.say("AUTH ben pw").error().starts_with("WRONGPASS"));
        // Its lock is left to its lease, and the next one to its turn.
        house.awaits_waiters("ann", "s:1", 1);
        assert_eq!(admin.say("DEL s:1"), 1);
        assert_eq!(ann.read_reply(), "ann");
        // A new user of the same name has its own rights, and no more.
        assert_eq!(admin.say("ACL SETUSER ben on >new ~b:* +@all"), "OK");
        assert_eq!(client.say("AUTH ben new"), "OK");
        is_error(&client.say("TRYLOCK s:1"), NO_KEY);
        assert_eq!(client.say("LOCK b:1 TOKEN t"), "t");
    });
}

/// As in Redis, who authenticated by the old password stays; a connection of lockgate's own that ends
/// is opened by a password that works, if anybody gave one.
#[test]
fn after_a_changed_password_each_client_goes_on_as_it_would_in_redis() {
    in_each_protocol(|house, protocol| {
        let mut old = house.client("ben", protocol);
        assert_eq!(old.say("LOCK b:1 TOKEN t PX 60000"), "t");
        let mut admin = house.admin();
        assert_eq!(admin.say("ACL SETUSER ben resetpass >new"), "OK");
        let mut late = house.gate.client();
        assert!(late.say("AUTH ben pw").error().starts_with("WRONGPASS"));
        assert_eq!(old.say("RELOCK b:1 t PX 60000"), 1);
        assert_eq!(old.say("SET b:2 x"), "OK");
        kill_shared(house, "ben");
        let wrong = "WRONGPASS invalid username-password pair or user is disabled.";
        for command in [
            "RELOCK b:1 t PX 60000",
            "UNLOCK b:1 t",
            "LOCK b:2 WAIT 5000",
            "LOCKINFO b:1",
        ] {
            is_error(&old.say(command), wrong);
        }
        assert_eq!(old.say("SET b:2 x"), "OK");
        // Others are not concerned.
        let mut ann = house.client("ann", protocol);
        assert_eq!(ann.say("LOCK a:1 TOKEN t"), "t");
        // Nor is who comes with the new one; and the connection that is open then serves both.
        let mut new = house.gate.client();
        assert_eq!(new.say("AUTH ben new"), "OK");
        assert_eq!(new.say("LOCK b:3 TOKEN t"), "t");
        assert_eq!(old.say("UNLOCK b:1 t"), 1);
    });
}

/// Ends the connection that lockgate shares among the clients of this user, and no client's.
fn kill_shared(house: &House, user: &str) {
    let shared = house.shared_by(user);
    assert!(!shared.is_empty(), "{user} has one");
    let mut admin = house.admin();
    for id in shared {
        assert_eq!(admin.call(&["CLIENT", "KILL", "ID", &id]), 1);
    }
}

#[test]
fn rules_count_from_the_moment_they_change() {
    in_each_protocol(|house, protocol| {
        let mut ben = house.client("ben", protocol);
        for key in ["b:1", "s:1"] {
            assert_eq!(ben.call(&["LOCK", key, "TOKEN", "t"]), "t");
        }
        let mut admin = house.admin();
        assert_eq!(admin.say("ACL SETUSER ben resetkeys ~s:*"), "OK");
        for command in [
            "UNLOCK b:1 t",
            "RELOCK b:1 t",
            "LOCK b:2",
            "TRYLOCK b:2",
            "LOCKINFO b:1",
        ] {
            is_error(&ben.say(command), NO_KEY);
        }
        assert_eq!(ben.say("UNLOCK s:1 t"), 1);
        assert_eq!(admin.say("ACL SETUSER ben ~b:* -del"), "OK");
        let words = "NOPERM this user has no permissions to run the 'del' command";
        is_error(&ben.say("UNLOCK b:1 t"), words);
        assert_eq!(admin.say("ACL SETUSER ben +del"), "OK");
        assert_eq!(ben.say("UNLOCK b:1 t"), 1);
        assert_eq!(admin.say("ACL SETUSER ben -@all"), "OK");
        may_not(
            &mut ben,
            "b:1",
            "t",
            "NOPERM this user has no permissions to run the '",
        );
    });
}

/// A disabled user may not authenticate, and stays authenticated where it was.
#[test]
fn a_disabled_user_is_treated_as_by_redis() {
    in_each_protocol(|house, protocol| {
        let mut ben = house.client("ben", protocol);
        assert_eq!(ben.say("LOCK b:1 TOKEN t"), "t");
        let mut admin = house.admin();
        assert_eq!(admin.say("ACL SETUSER ben off"), "OK");
        assert_eq!(ben.say("GET b:1"), "t");
        assert_eq!(ben.say("UNLOCK b:1 t"), 1);
        assert!(
            house
                .gate
                .client()
                .say("AUTH ben pw")
                .error()
                .starts_with("WRONGPASS")
        );
    });
}

/// A session whose user is gone ends, and its lock with its lease.
#[test]
fn the_lock_of_a_session_ends_with_its_user() {
    in_each_protocol(|house, protocol| {
        let mut ben = house.client("ben", protocol);
        assert_eq!(ben.say("LOCK s:1 TOKEN t SESSION PX 1000"), "t");
        let mut ann = house.waiter("ann", "s:1", "ann", 1);
        assert_eq!(house.admin().say("ACL DELUSER ben"), 1);
        ben.is_closed_by_the_server();
        assert_eq!(ann.read_reply(), "ann");
        assert_ne!(house.redis.client().say("GET s:1"), Value::Nil);
    });
}
