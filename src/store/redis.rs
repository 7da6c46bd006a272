//! Locks in a Redis node.
