//! The admin address: section `[admin]`.

use std::net::SocketAddr;

use super::{Error, Typed, address};

/// Longest host name, in bytes, as in DNS.
const NAME_BYTES: usize = 253;

/// The admin address, over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// The address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Its host names, in lower case, beside its IP addresses and `localhost`.
    pub hosts: Vec<String>,
}

impl Admin {
    pub(super) fn check(typed: &mut Typed) -> Result<Option<Self>, Error> {
        let listen = typed.parse("admin.listen", "off", |text| match text {
            "off" => Ok(None),
            _ => address(text).map(Some),
        })?;
        let hosts = typed.parse("admin.hosts", "", hosts)?;
        Ok(listen.map(|listen| Self { listen, hosts }))
    }
}

/// Reads host names, without ports.
fn hosts(text: &str) -> Result<Vec<String>, String> {
    let is_name = |name: &str| {
        let mut bytes = name.bytes();
        (1..=NAME_BYTES).contains(&name.len())
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    let names = text.split(',').map(str::trim);
    let names: Vec<_> = names
        .filter(|name| !name.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    if names.iter().all(|name| is_name(name)) {
        Ok(names)
    } else {
        Err("names of hosts without ports, separated by commas".to_owned())
    }
}
