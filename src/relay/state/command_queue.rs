//! A queue of commands, in little memory.

use std::collections::VecDeque;

use super::command::Command;

/// A longer queue returns its memory when it is empty: thousands of connections are idle, and each was busy
/// once.
const KEPT_CAPACITY: usize = 16;

/// Commands, the oldest first. Ordinary commands in a row take one entry, as does a row of `PUBLISH`.
#[derive(Debug, Clone, Default)]
pub(super) struct CommandQueue(VecDeque<Command>);

impl CommandQueue {
    /// Appends a command.
    pub(super) fn push(&mut self, command: Command) {
        match (self.0.back_mut(), command) {
            (Some(Command::Ordinary(before)), Command::Ordinary(more))
            | (Some(Command::Publish(before)), Command::Publish(more)) => *before += more,
            _ => self.0.push_back(command),
        }
    }

    /// Removes the oldest command.
    pub(super) fn take_one(&mut self) -> Option<Command> {
        let taken = match self.0.front_mut() {
            Some(Command::Ordinary(times)) if *times > 1 => {
                *times -= 1;
                Some(Command::Ordinary(1))
            }
            Some(Command::Publish(times)) if *times > 1 => {
                *times -= 1;
                Some(Command::Publish(1))
            }
            _ => self.0.pop_front(),
        };
        if self.0.is_empty() && self.0.capacity() > KEPT_CAPACITY {
            self.0 = VecDeque::new();
        }
        taken
    }

    /// Removes `count` commands, all but the last one at most, from the row of ordinary ones at the front.
    pub(super) fn take_ordinary(&mut self, count: u64) {
        if let Some(Command::Ordinary(times)) = self.0.front_mut() {
            *times -= count;
        }
    }

    /// Returns the entry of the oldest command.
    pub(super) fn front(&self) -> Option<Command> {
        self.0.front().copied()
    }

    /// Returns the entry of the latest command.
    pub(super) fn back(&self) -> Option<Command> {
        self.0.back().copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Command> {
        self.0.iter().copied()
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
