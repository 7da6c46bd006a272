//! What README.md and docs/ show and list, held against the program.

use std::collections::BTreeSet;

use crate::support::{Lockgate, Machine, Value};

const README: &str = include_str!("../../README.md");
const CLIENTS: &str = include_str!("../../docs/clients.md");
const COMMANDS: &str = include_str!("../../docs/commands.md");
const ERRORS: &str = include_str!("../../src/error.rs");

/// A technical reader's three minutes.
const README_WORDS: usize = 1_100;

/// The first block of code that begins with this line.
#[track_caller]
fn block<'a>(document: &'a str, first: &str) -> &'a str {
    let begin = document.find(&format!("```{first}\n"));
    let block = &document[begin.expect("the document has the block")..];
    let (_, block) = block.split_once('\n').unwrap();
    block.split_once("```").expect("the block ends").0
}

/// The part of a document from this heading to the next one.
#[track_caller]
fn section<'a>(document: &'a str, heading: &str) -> &'a str {
    let (_, section) = document.split_once(heading).expect("the heading is there");
    section.split("\n## ").next().unwrap()
}

/// A reply as redis-cli shows it.
fn shown(reply: &Value) -> String {
    match reply {
        Value::Nil => "(nil)".to_owned(),
        Value::Integer(number) => format!("(integer) {number}"),
        reply => format!("{:?}", reply.text()),
    }
}

#[test]
fn the_conversation_of_the_readme_goes_as_it_is_shown() {
    let _machine = Machine::shared();
    let gate = Lockgate::start(&[]);
    let mut client = gate.client();
    let (_, conversation) = block(README, "console\n$ redis-cli -p 6380")
        .split_once('\n')
        .unwrap();
    let mut lines = conversation.lines();
    let (mut in_readme, mut token) = (String::new(), String::new());
    let mut exchanges = 0;
    while let (Some(command), Some(reply)) = (lines.next(), lines.next()) {
        let command = command.strip_prefix("127.0.0.1:6380> ").unwrap();
        let said = if in_readme.is_empty() {
            // The token is another one each time.
            let said = client.say(command);
            in_readme = reply.trim_matches('"').to_owned();
            token = said.text();
            assert_eq!(token.len(), in_readme.len());
            said
        } else {
            client.say(&command.replace(&in_readme, &token))
        };
        assert_eq!(shown(&said).replace(&token, &in_readme), reply, "{command}");
        exchanges += 1;
    }
    assert_eq!(exchanges, 5);
}

#[test]
fn the_readme_is_read_in_three_minutes_and_shows_a_program_that_is_tested() {
    let prose = README.split("```").step_by(2);
    let words: usize = prose.map(|text| text.split_whitespace().count()).sum();
    assert!(words <= README_WORDS, "{words} words");
    // tests/clients/run runs the programs of docs/clients.md.
    let program = block(README, "python");
    assert!(program.contains("UNLOCK") && CLIENTS.contains(program));
}

#[test]
fn every_field_of_lockinfo_is_documented_and_no_other() {
    let _machine = Machine::shared();
    let gate = Lockgate::start(&[]);
    let Value::Array(reply) = gate.client().say("LOCKINFO k") else {
        panic!("a flat array was expected");
    };
    let replied: Vec<_> = reply.iter().step_by(2).map(Value::text).collect();
    let table = section(COMMANDS, "## The fields of LOCKINFO");
    let documented: Vec<_> = table
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned()))
        .collect();
    assert_eq!(documented, replied);
}

/// The upper-case words with which errors begin, as a document writes them in code.
fn codes(document: &str) -> BTreeSet<&str> {
    let quoted = document.split('`').skip(1).step_by(2);
    let errors = quoted.filter_map(|text| text.strip_prefix('-'));
    errors.filter_map(|text| text.split(' ').next()).collect()
}

#[test]
fn every_error_of_the_lock_commands_has_its_row_among_those_to_retry_or_not() {
    let advice = section(CLIENTS, "\n## Errors");
    let advised = codes(advice);
    let documented = codes(section(COMMANDS, "| error | means |"));
    assert!(documented.contains("UPSTREAM") && documented.contains("NOPERM"));
    let missing: Vec<_> = documented.difference(&advised).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // The constants and formats of src/error.rs begin with the code.
    let literals = ERRORS.split('"').skip(1).step_by(2);
    let of_the_program: BTreeSet<_> = literals
        .filter_map(|text| text.split_once(' '))
        .map(|(code, _)| code)
        .filter(|code| code.len() > 2 && code.bytes().all(|byte| byte.is_ascii_uppercase()))
        .collect();
    assert!(of_the_program.contains("DEADLOCK") && of_the_program.contains("EXPIRED"));
    for code in of_the_program {
        assert!(advised.contains(code), "{code}");
    }
    // Those that begin with ERR alone are told apart by their words.
    for words in [
        "wrong number of arguments",
        "syntax error",
        "value is not an integer or out of range",
        "timeout is negative",
        "invalid expire time",
        "SESSION takes a lease",
        "TOKEN must have",
        "lock name is longer",
        "a lock command has",
        "this key is lockgate's own",
        "max number of users and databases with locks reached",
        "the user of this connection cannot take locks",
        "which user this connection has is not known",
    ] {
        assert!(advice.contains(words), "{words}");
        assert!(COMMANDS.contains(words), "{words}");
    }
}
