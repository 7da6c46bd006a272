//! The identity of clients, and its proof.
//!
//! - [`identity`]: the users that clients are to Redis, and their verified credentials.
//! - [`password`]: this instance's own password.
//! - [`guard`]: checks clients' credentials where lockgate has a password of its own.

pub mod guard;
pub mod identity;
pub mod password;
