//! What sentinels say: their replies and their messages. Nothing here does I/O.
//!
//! The formats are those of Redis's documentation, "High availability with Redis Sentinel", and of `sentinel.c`.

use std::{collections::HashMap, time::Duration};

use redis::Value;

/// The channels that a watcher subscribes to.
pub(super) const CHANNELS: [&str; 7] = [
    SWITCHED,
    CHOOSING,
    "+promoted-slave",
    "+sentinel",
    "-failover-abort-not-elected",
    "-failover-abort-no-good-slave",
    "-failover-abort-slave-timeout",
];
const SWITCHED: &str = "+switch-master";
/// The leader of a failover looks for the replica that it then promotes.
const CHOOSING: &str = "+failover-state-select-slave";

/// The host and the port of a master, and the number of the configuration that made it one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) address: (String, u16),
    pub(super) epoch: u64,
    /// How many sentinels watch the service, as far as this one knows.
    pub(super) sentinels: usize,
    /// The silence after which sentinels take the master for dead.
    pub(super) down_after: Duration,
}

/// A message of a sentinel about the service.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A failover of this master is about to promote a replica.
    Begun((String, u16)),
    /// A failover of this master ended without a new one.
    Aborted((String, u16)),
    /// Something that a question will show.
    Other,
}

/// Another sentinel of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Other {
    pub(super) address: (String, u16),
    pub(super) id: String,
}

/// Reads the replies to `SENTINEL GET-MASTER-ADDR-BY-NAME` and `SENTINEL MASTER`. While a failover reconfigures the other
/// replicas, only the former names the new master, although both have its epoch.
pub(super) fn claim(address: Value, master: Value) -> Option<Claim> {
    let Value::Array(address) = address else {
        return None;
    };
    let mut address = address.into_iter().map(text);
    let (host, port) = (address.next()??, address.next()??);
    let fields = fields(master)?;
    let number = |name: &str| fields.get(name)?.parse::<u64>().ok();
    Some(Claim {
        address: (host, port.parse().ok().filter(|port| *port != 0)?),
        epoch: number("config-epoch")?,
        sentinels: usize::try_from(number("num-other-sentinels")?).ok()? + 1,
        down_after: Duration::from_millis(number("down-after-milliseconds")?),
    })
}

/// Reads the reply to `SENTINEL SENTINELS`.
pub(super) fn others(reply: Value) -> Vec<Other> {
    let (Value::Array(others) | Value::Set(others)) = reply else {
        return Vec::new();
    };
    let other = |value| {
        let mut fields = fields(value)?;
        let port = fields.get("port")?.parse().ok()?;
        Some(Other {
            address: (fields.remove("ip")?, port),
            id: fields.remove("runid")?,
        })
    };
    others.into_iter().filter_map(other).collect()
}

/// Reads the names in the reply to `SENTINEL MASTERS`.
pub(super) fn services(reply: Value) -> Vec<String> {
    let (Value::Array(masters) | Value::Set(masters)) = reply else {
        return Vec::new();
    };
    let name = |value| fields(value)?.remove("name");
    masters.into_iter().filter_map(name).collect()
}

/// Reads a message on one of the [`CHANNELS`]. None: it is about another service.
pub(super) fn event(service: &str, channel: &str, message: &str) -> Option<Event> {
    let words: Vec<&str> = message.split(' ').collect();
    match (channel, &words[..]) {
        // `NAME HOST PORT HOST PORT`.
        (SWITCHED, [name, ..]) => (*name == service).then_some(Event::Other),
        // `master NAME HOST PORT`, or `KIND NAME HOST PORT @ MASTER HOST PORT`.
        (_, ["master", name, host, port] | [_, _, _, _, "@", name, host, port])
            if *name == service =>
        {
            let master = ((*host).to_owned(), port.parse().ok()?);
            Some(match channel {
                CHOOSING => Event::Begun(master),
                _ if channel.starts_with("-failover-abort") => Event::Aborted(master),
                _ => Event::Other,
            })
        }
        _ => None,
    }
}

/// Reads a map of strings, which may come as an array.
fn fields(value: Value) -> Option<HashMap<String, String>> {
    let pairs: Vec<(Value, Value)> = match value {
        Value::Map(pairs) => pairs,
        Value::Array(flat) => {
            let mut flat = flat.into_iter();
            std::iter::from_fn(|| Some((flat.next()?, flat.next()?))).collect()
        }
        _ => return None,
    };
    let pair = |(name, value)| Some((text(name)?, text(value)?));
    Some(pairs.into_iter().filter_map(pair).collect())
}

/// Reads a string.
pub(super) fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(text) => String::from_utf8(text).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn address(host: &str, port: u16) -> (String, u16) {
        (host.to_owned(), port)
    }

    const MASTER: [(&str, &str); 5] = [
        ("name", "orders"),
        ("ip", "10.0.0.1"),
        ("config-epoch", "7"),
        ("num-other-sentinels", "2"),
        ("down-after-milliseconds", "500"),
    ];

    #[test]
    fn a_claim_is_read_from_a_map_and_from_an_array() {
        let pairs = MASTER.map(|(name, value)| (string(name), string(value)));
        let flat = MASTER.map(|(name, value)| [string(name), string(value)]);
        for master in [
            Value::Map(pairs.to_vec()),
            Value::Array(flat.into_iter().flatten().collect()),
        ] {
            let named = Value::Array(vec![string("10.0.0.2"), string("6379")]);
            let claim = claim(named, master).unwrap();
            assert_eq!(claim.address, address("10.0.0.2", 6_379));
            assert_eq!((claim.epoch, claim.sentinels), (7, 3));
            assert_eq!(claim.down_after, Duration::from_millis(500));
        }
        let pairs = MASTER.map(|(name, value)| (string(name), string(value)));
        assert_eq!(claim(Value::Nil, Value::Map(pairs.to_vec())), None);
    }

    #[test]
    fn events_of_other_services_are_left_out() {
        let of = || address("10.0.0.1", 1);
        let choosing = "+failover-state-select-slave";
        let aborted = "-failover-abort-no-good-slave";
        for (channel, message, expected) in [
            ("+switch-master", "orders2 10.0.0.1 1 10.0.0.2 2", None),
            (
                "+switch-master",
                "orders 10.0.0.1 1 ::1 2",
                Some(Event::Other),
            ),
            (
                choosing,
                "master orders 10.0.0.1 1",
                Some(Event::Begun(of())),
            ),
            (choosing, "master orders 10.0.0.1 x", None),
            (choosing, "master orders2 10.0.0.1 1", None),
            (
                aborted,
                "master orders 10.0.0.1 1",
                Some(Event::Aborted(of())),
            ),
            (
                "+promoted-slave",
                "slave 10.0.0.2:2 10.0.0.2 2 @ orders 10.0.0.1 1",
                Some(Event::Other),
            ),
            ("+sentinel", "sentinel x ::1 2 @ orders2 ::1 1", None),
            ("+sentinel", "", None),
        ] {
            assert_eq!(event("orders", channel, message), expected, "{message}");
        }
    }
}
