//! Locks in the memory of this process.
