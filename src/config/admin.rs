//! Where operators look in: section `[admin]`.

use std::net::SocketAddr;

use super::{Error, Typed, address};

/// Where operators look in over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// The address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
}

impl Admin {
    pub(super) fn check(typed: &mut Typed) -> Result<Option<Self>, Error> {
        let listen = typed.parse("admin.listen", "off", |text| match text {
            "off" => Ok(None),
            _ => address(text).map(Some),
        })?;
        Ok(listen.map(|listen| Self { listen }))
    }
}
