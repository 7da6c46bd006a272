//! Connections from clients and to Redis: TCP, TLS over TCP, or Unix sockets.
//!
//! - [`stream`]: one open connection of any kind.
//! - [`address`]: a host and a port, as an operator types them.
//! - [`endpoint`]: the address of Redis, and how a connection to it is opened.
//! - [`listener`]: listeners for clients, and the origin of a client.
//! - [`tls`]: certificates, and the TLS configurations made from them.
//!
//! Nothing here interprets the bytes.

pub mod address;
pub mod endpoint;
pub mod listener;
pub mod pipe;
pub mod stream;
pub mod tls;
