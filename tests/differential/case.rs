//! One conversation: what a client says, and what another does meanwhile.

use std::fmt;

use crate::{
    absorbed,
    locks::Lock,
    random::Random,
    words::{self, Speaker},
};

/// A part of a conversation.
#[derive(Clone, PartialEq)]
pub(crate) enum Step {
    /// The client sends this.
    Send(Vec<u8>),
    /// Another client of the same Redis sends this once everything before it was answered. The next step follows once
    /// its own reply has come.
    Other(String),
    /// The client sends this when everything before was answered.
    Apart(Vec<u8>),
    /// The client sends this, which may change a lock by other means than lockgate recognises. The next step follows
    /// this many milliseconds later, when everything is answered and lockgate has got the push about the change.
    Foreign(Vec<u8>, u64),
    /// Through lockgate the client sends lock commands; directly, too, where nobody knows them.
    Lock(Lock),
    /// The client writes a value of so many bytes and reads it.
    Big(usize),
    /// The client turns the debugger of scripts on, says a few more things, and that is the last: from then on
    /// replies are not counted.
    Debug,
    /// The client sends this, and the server closes.
    Last(Vec<u8>),
}

/// A conversation. Where nothing else ends it, the client says `QUIT`.
#[derive(Clone, PartialEq)]
pub(crate) struct Case {
    pub(crate) steps: Vec<Step>,
    /// Where what is sent to lockgate is cut follows from this; zero is not at all.
    pub(crate) cuts: u64,
}

/// A step that sends these bytes.
pub(crate) fn send(bytes: impl AsRef<[u8]>) -> Step {
    Step::Send(bytes.as_ref().to_vec())
}

/// A step that has another client do this.
#[allow(dead_code, reason = "regressions are pasted")]
pub(crate) fn other(command: &str) -> Step {
    Step::Other(command.to_owned())
}

/// Most steps of a conversation.
const STEPS: u64 = 25;

/// Conversations of a hundred that are about keys that lockgate absorbs.
const ABOUT_LOCKS: u64 = 20;

impl Case {
    /// The conversation of this seed.
    pub(crate) fn generate(seed: u64) -> Self {
        // Neighbouring seeds have nothing in common.
        let mut random = Random::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let is_about_locks = random.percent(ABOUT_LOCKS);
        let mut speaker = Speaker::new(&mut random);
        let count = random.between(1, STEPS);
        let mut steps = Vec::new();
        for _ in 0..count {
            match is_about_locks {
                true => absorbed::say(&mut random, &mut steps),
                false => words::say(&mut random, &mut speaker, &mut steps),
            }
            if let Some(Step::Last(_) | Step::Debug) = steps.last() {
                break;
            }
        }
        let cuts = if random.percent(70) { random.next() } else { 0 };
        Self { steps, cuts }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "#[test]")?;
        writeln!(f, "fn some_name() {{")?;
        writeln!(f, "    same({}, &[", self.cuts)?;
        for step in &self.steps {
            match step {
                Step::Send(bytes) => writeln!(f, "        send(b\"{}\"),", bytes.escape_ascii())?,
                Step::Other(command) => writeln!(f, "        other({command:?}),")?,
                Step::Big(bytes) => writeln!(f, "        Step::Big({bytes}),")?,
                Step::Last(bytes) => {
                    let bytes = bytes.escape_ascii();
                    writeln!(f, "        Step::Last(b\"{bytes}\".to_vec()),")?;
                }
                Step::Apart(bytes) => {
                    let bytes = bytes.escape_ascii();
                    writeln!(f, "        Step::Apart(b\"{bytes}\".to_vec()),")?;
                }
                Step::Foreign(bytes, ms) => {
                    let bytes = bytes.escape_ascii();
                    writeln!(f, "        Step::Foreign(b\"{bytes}\".to_vec(), {ms}),")?;
                }
                Step::Debug => writeln!(f, "        Step::Debug,")?,
                Step::Lock(lock) => writeln!(f, "        Step::Lock({lock:?}),")?,
            }
        }
        writeln!(f, "    ]);")?;
        write!(f, "}}")
    }
}
