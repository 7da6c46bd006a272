//! The fuzz targets without a fuzzer: every input of the corpus, and as many inputs made from them as
//! there is time for, the same ones in every run. What a fuzzer found once is in the corpus.
//!
//! `FUZZ_SECONDS=60 cargo test --release --test fuzz` takes a minute for each target instead of a few
//! seconds, `FUZZ_SEED=7` makes other inputs. With a fuzzer (which needs a nightly Rust and `cargo install
//! cargo-fuzz`): `cargo +nightly fuzz run --fuzz-dir tests/fuzz/targets requests tests/fuzz/corpus/requests`; what it
//! finds that is new goes into the last of the folders named.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test that cannot go on says so by panicking"
)]

use std::{
    fs,
    io::Write,
    panic::{self, AssertUnwindSafe},
    path::Path,
    time::{Duration, Instant},
};

mod bodies;

/// For each target, where nothing else is wished.
const SECONDS: u64 = 4;

/// Longest input that is made.
const MOST_BYTES: usize = 4 * 1024;

/// Pieces of which interesting inputs are made.
const WORDS: [&[u8]; 45] = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b"*",
    b"$",
    b"*1\r\n$4\r\nPING\r\n",
    b"*2\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"$3\r\n",
    b"$536870912\r\n",
    b"*2147483647\r\n",
    b"9223372036854775807",
    b"LOCK k",
    b"TRYLOCK k TOKEN t",
    b"UNLOCK k t\r\n",
    b"RELOCK k t PX 100\r\n",
    b" WAIT 5",
    b" PX 50",
    b" FENCE SESSION",
    b"SET s t NX PX 9000\r\n",
    b"SET s u EX 9 NX\r\n",
    b"EVALSHA c3f8721cbb97f72bc19e972846bd7aaf91901658 1 s t\r\n",
    b"EVALSHA c3f8721cbb97f72bc19e972846bd7aaf91901658 1 s u\r\n",
    b"DEL s\r\n",
    b"HELLO 3\r\n",
    b"MULTI\r\n",
    b"EXEC\r\n",
    b"SUBSCRIBE a\r\n",
    b"CLIENT REPLY SKIP\r\n",
    b"+OK\r\n",
    b":1\r\n",
    b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
    b"+QUEUED\r\n",
    b">2\r\n",
    b"|1\r\n",
    b"%2\r\n",
    b"-ERR x\r\n",
    b"\"",
    b"\\x41",
    b"\xfe",
    b"\xff",
];

#[test]
fn requests() {
    holds_for_all("requests", bodies::requests::body);
}

#[test]
fn replies() {
    holds_for_all("replies", bodies::replies::body);
}

#[test]
fn counting() {
    holds_for_all("counting", bodies::counting::body);
}

#[test]
fn command() {
    holds_for_all("command", bodies::command::body);
}

#[test]
fn session() {
    holds_for_all("session", bodies::session::body);
}

fn holds_for_all(target: &str, body: fn(&[u8])) {
    let corpus = corpus(target);
    for input in &corpus {
        holds(body, input);
    }
    let number = |name: &str, default| {
        let value = std::env::var(name).ok();
        value.map_or(default, |value| value.parse().expect("a number"))
    };
    let mut random = Random(number("FUZZ_SEED", 0x9e37_79b9_7f4a_7c15) | 1);
    let end = Instant::now() + Duration::from_secs(number("FUZZ_SECONDS", SECONDS));
    let mut made = 0;
    while Instant::now() < end {
        let input = random.input(&corpus);
        holds(body, &input);
        made += 1;
    }
    // Past the test harness, which hides what a passing test prints.
    let _ = writeln!(
        std::io::stderr(),
        "{target}: {} inputs of the corpus and {made} more",
        corpus.len()
    );
    assert!(made > 0);
}

fn holds(body: fn(&[u8]), input: &[u8]) {
    let result = panic::catch_unwind(AssertUnwindSafe(|| body(input)));
    if result.is_err() {
        panic!(
            "an input to keep in the corpus: b\"{}\"",
            input.escape_ascii()
        );
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fuzz/corpus")
        .join(target);
    let files = fs::read_dir(directory).expect("a corpus");
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 3, "the corpus of {target} is there");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// The same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % most.max(1)
    }

    /// One of the corpus, changed in a few places.
    fn input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(4) {
            let at = self.below(input.len() + 1);
            let end = (at + 1 + self.below(8)).min(input.len());
            match self.below(7) {
                0 if at < input.len() => input[at] ^= 1 << self.below(8),
                1 if at < input.len() => input[at] = self.below(256) as u8,
                2 => drop(input.drain(at..end.max(at))),
                3 => {
                    let again = input[at..end.max(at)].to_vec();
                    input.splice(at..at, again);
                }
                4 => {
                    let other = &corpus[self.below(corpus.len())];
                    let from = self.below(other.len() + 1);
                    let to = (from + self.below(64)).min(other.len());
                    input.splice(at..at, other[from..to].iter().copied());
                }
                5 if at < input.len() && input[at].is_ascii_digit() => {
                    input[at] = b'0' + self.below(10) as u8;
                }
                _ => {
                    let word = WORDS[self.below(WORDS.len())];
                    input.splice(at..at, word.iter().copied());
                }
            }
        }
        input.truncate(MOST_BYTES);
        input
    }
}
