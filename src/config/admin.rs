//! The admin address: section `[admin]`.

use super::{Error, Typed, address};
use crate::transport::address::{Address, is_host_name};

/// The admin address, over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// The address to listen on; port 0 takes a free one.
    pub listen: Address,
    /// Its host names, in lower case, beside its IP addresses and `localhost`. The name in `listen` is one.
    pub hosts: Vec<String>,
}

impl Admin {
    pub(super) fn check(typed: &mut Typed) -> Result<Option<Self>, Error> {
        let listen = typed.parse("admin.listen", "off", |text| match text {
            "off" => Ok(None),
            _ => address(text).map(Some),
        })?;
        let mut hosts = typed.parse("admin.hosts", "", hosts)?;
        hosts.extend(
            listen
                .as_ref()
                .and_then(Address::name)
                .map(str::to_ascii_lowercase),
        );
        Ok(listen.map(|listen| Self { listen, hosts }))
    }
}

/// Reads host names, without ports.
fn hosts(text: &str) -> Result<Vec<String>, String> {
    let names = text.split(',').map(str::trim);
    let names: Vec<_> = names
        .filter(|name| !name.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    if names.iter().all(|name| is_host_name(name)) {
        Ok(names)
    } else {
        Err("names of hosts without ports, separated by commas".to_owned())
    }
}
