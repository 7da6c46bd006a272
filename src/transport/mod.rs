//! What bytes travel on, from clients and to Redis: TCP, TLS over it, or Unix sockets.
//!
//! - [`stream`]: one open connection, of whatever kind.
//! - [`endpoint`]: where Redis is, and how a connection to it is opened.
//! - [`listener`]: where clients come in, and from where they come.
//! - [`tls`]: certificates, and what is made of them.
//!
//! Nothing here knows what the bytes mean.

pub mod endpoint;
pub mod listener;
pub mod stream;
pub mod tls;
