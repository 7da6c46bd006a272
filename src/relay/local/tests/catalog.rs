use std::collections::BTreeSet;

use super::{BOTH, Client};
use crate::{
    command::table::{LOCK_COMMANDS, ORDINARY_COMMANDS},
    testing::{Redis, Value},
};

/// Returns the entries of `COMMAND`, including subcommands, with their names.
fn entries(command: Value) -> Vec<(String, Vec<Value>)> {
    let mut found = vec![];
    for entry in command.into_elements() {
        let fields = entry.into_elements();
        assert_eq!(fields.len(), 10, "{fields:?}");
        found.extend(entries(fields[9].clone()));
        found.push((fields[0].clone().into_text(), fields));
    }
    found
}

/// Returns the members of a set, in either protocol.
fn members(set: &Value) -> BTreeSet<Value> {
    set.clone().into_elements().into_iter().collect()
}

#[test]
fn command_says_of_ordinary_commands_what_redis_says() {
    let redis = Redis::start();
    for protocol in BOTH {
        let mut theirs = redis.connect();
        theirs.hello(protocol);
        let theirs = entries(theirs.say("COMMAND"));
        let mut client = Client::new();
        client.hello(protocol);
        let reply = client.say("COMMAND");
        assert_eq!(client.say("COMMAND INFO"), reply);
        let count = i64::try_from(reply.clone().into_elements().len()).unwrap();
        assert_eq!(client.say("COMMAND COUNT"), Value::Integer(count));
        let mut not_in_theirs = vec![];
        for (name, ours) in entries(reply) {
            let Some((_, theirs)) = theirs.iter().find(|(known, _)| *known == name) else {
                not_in_theirs.push(name);
                continue;
            };
            // Name, arity, first key, last key, step.
            for field in [0, 1, 3, 4, 5] {
                assert_eq!(ours[field], theirs[field], "{name}, field {field}");
            }
            // Flags and categories.
            for field in [2, 6] {
                assert_eq!(
                    members(&ours[field]),
                    members(&theirs[field]),
                    "{name}, field {field}"
                );
            }
            // Tips, key specifications, subcommands: only the type is compared.
            for field in [7, 8, 9] {
                assert_eq!(
                    std::mem::discriminant(&ours[field]),
                    std::mem::discriminant(&theirs[field]),
                    "{name}, field {field}"
                );
            }
        }
        not_in_theirs.retain(|name| !LOCK_COMMANDS.iter().any(|entry| entry.name == name));
        not_in_theirs.sort();
        assert_eq!(
            not_in_theirs,
            ["client|no-touch", "client|setinfo"],
            "they came with 7.2"
        );
    }
}

#[test]
fn command_says_of_lock_commands_what_redis_could_have_said() {
    let redis = Redis::start();
    for protocol in BOTH {
        let mut theirs = redis.connect();
        theirs.hello(protocol);
        let all = entries(theirs.say("COMMAND"));
        let get = &all.iter().find(|(name, _)| name == "get").unwrap().1;
        let known = |field: usize| -> BTreeSet<Value> {
            all.iter()
                .flat_map(|(_, fields)| members(&fields[field]))
                .collect()
        };
        let (known_flags, known_categories) = (known(2), known(6));
        let mut client = Client::new();
        client.hello(protocol);
        let ours = entries(client.say("COMMAND INFO lock TRYLOCK unlock relock lockinfo locks"));
        assert_eq!(ours.len(), LOCK_COMMANDS.len());
        for (name, fields) in ours {
            assert!(members(&fields[2]).is_subset(&known_flags), "{name}");
            assert!(members(&fields[6]).is_subset(&known_categories), "{name}");
            let expected: Vec<i64> = if name == "locks" {
                vec![0; 3]
            } else {
                vec![1; 3]
            };
            let positions: Vec<Value> = expected.into_iter().map(Value::Integer).collect();
            assert_eq!(fields[3..6], positions[..], "{name}");
            let specifications = fields[8].clone().into_elements();
            if name == "locks" {
                assert_eq!(specifications, []);
                continue;
            }
            // The key is in the same place as that of GET; its flags differ.
            let theirs = &get[8].clone().into_elements()[0];
            for part in ["begin_search", "find_keys"] {
                assert_eq!(specifications[0].at(part), theirs.at(part), "{name}");
            }
            assert!(
                !members(&specifications[0].at("flags")).is_empty(),
                "{name}"
            );
        }
    }
}

/// Collects the fields of an explanation at any depth, with the type of each.
fn fields_of(map: &Value, found: &mut BTreeSet<(String, String)>) {
    for (field, value) in map.clone().into_pairs() {
        match (field.as_str(), &value) {
            ("arguments", Value::Array(arguments)) => {
                arguments
                    .iter()
                    .for_each(|argument| fields_of(argument, found));
            }
            ("subcommands", subcommands) => {
                let each = subcommands.clone().into_pairs();
                each.iter()
                    .for_each(|(_, subcommand)| fields_of(subcommand, found));
            }
            // The types form a closed list.
            ("type", kind) => {
                found.insert(("a type".into(), kind.clone().into_text()));
            }
            ("flags", flags) => {
                for flag in members(flags) {
                    found.insert(("a flag".into(), flag.into_text()));
                }
            }
            _ => {}
        }
        let kind = match value {
            Value::Bulk(_) => "bulk",
            Value::Integer(_) => "integer",
            Value::Array(_) => "array",
            Value::Map(_) => "map",
            Value::Set(_) => "set",
            other => panic!("{field} is {other:?}"),
        };
        found.insert((field, kind.into()));
    }
}

fn all_fields(docs: Value) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    let each = docs.into_pairs();
    each.iter()
        .for_each(|(_, docs)| fields_of(docs, &mut found));
    found
}

#[test]
fn explanations_have_the_form_of_those_of_redis() {
    let redis = Redis::start();
    for protocol in BOTH {
        let mut theirs = redis.connect();
        theirs.hello(protocol);
        let theirs = all_fields(theirs.say("COMMAND DOCS"));
        let mut client = Client::new();
        client.hello(protocol);
        let docs = client.say("COMMAND DOCS");
        let ours = all_fields(docs.clone());
        let more: Vec<_> = ours.difference(&theirs).collect();
        assert!(more.is_empty(), "{more:?}");
        assert_eq!(
            client.say("COMMAND DOCS LOCK client|ID").into_pairs().len(),
            2
        );
        for command in ["client", "client|list", "hello"] {
            let docs = client.say(&format!("COMMAND DOCS {command}"));
            let texts = docs.at(command).into_pairs().into_iter();
            let fields: Vec<_> = texts.map(|(field, _)| field).collect();
            assert_eq!(fields, ["complexity", "group", "since", "summary"]);
        }
        let Value::Integer(count) = client.say("COMMAND COUNT") else {
            panic!("no number")
        };
        assert_eq!(i64::try_from(docs.into_pairs().len()), Ok(count));
    }
}

#[test]
fn command_list_can_be_filtered() {
    let mut client = Client::new();
    let mut list = |words: &str| -> Vec<String> {
        let names = client.say(words).into_elements().into_iter();
        names.map(Value::into_text).collect()
    };
    let all = list("COMMAND LIST");
    assert!(
        all.contains(&"lock".into()) && all.contains(&"ping".into()),
        "{all:?}"
    );
    assert!(all.contains(&"client|setname".into()), "{all:?}");
    assert_eq!(
        list("COMMAND LIST FILTERBY PATTERN *LOCK"),
        ["lock", "trylock", "unlock", "relock"]
    );
    assert_eq!(list("COMMAND LIST FILTERBY ACLCAT Blocking"), ["lock"]);
    assert_eq!(
        list("COMMAND LIST FILTERBY PATTERN client|set*"),
        ["client|setname", "client|setinfo"]
    );
}

#[test]
fn every_command_of_the_table_is_served() {
    for protocol in BOTH {
        for entry in ORDINARY_COMMANDS
            .iter()
            .flat_map(|entry| std::iter::once(entry).chain(entry.subcommands))
        {
            let mut words: Vec<&[u8]> = entry.name.split('|').map(str::as_bytes).collect();
            let least = usize::try_from(entry.arity.unsigned_abs()).unwrap();
            words.resize(least.max(words.len()), b"on");
            if ["client", "script"].contains(&entry.name) {
                continue; // it is nothing without a subcommand
            }
            let mut client = Client::new();
            client.hello(protocol);
            let reply = client.ask(&words);
            assert!(reply.is_some(), "{}", entry.name);
            let text = format!("{reply:?}");
            assert!(!text.contains("unknown"), "{}: {text}", entry.name);
        }
    }
}
