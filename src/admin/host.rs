//! The host names by which a browser may reach the admin address.
//!
//! There is no password, so only the browser's same-origin policy keeps another site's page from reading this one.
//! To a browser two pages are of one origin where their *names* are the same. An attacker defeats that with a name
//! that resolves first to the attacker's server and then to this address (DNS rebinding). But that name stands in
//! the `Host` of the request. So lockgate shows names and addresses of clients only under an IP address,
//! `localhost`, or a name that the operator has listed (`admin.hosts`).

use std::net::{Ipv4Addr, Ipv6Addr};

/// The listed names.
#[derive(Debug)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    /// Creates the list from names in lower case.
    pub(super) fn new(listed: Vec<String>) -> Self {
        Self(listed)
    }

    /// Returns whether a request may have this `Host`. A request without one comes from no browser.
    pub(super) fn allow(&self, host: Option<&str>) -> bool {
        let Some(host) = host else { return true };
        if let Some((address, port)) = host.strip_prefix('[').and_then(|host| host.split_once(']'))
        {
            let ends = port.is_empty() || port.starts_with(':');
            return ends && address.parse::<Ipv6Addr>().is_ok();
        }
        let name = host.split_once(':').map_or(host, |(name, _port)| name);
        // The final dot, the DNS root, is optional.
        let name = name.strip_suffix('.').unwrap_or(name);
        name.parse::<Ipv4Addr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self
                .0
                .iter()
                .any(|listed| name.eq_ignore_ascii_case(listed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_listed_names_are_allowed() {
        let hosts = Hosts::new(vec!["gate.example".to_owned()]);
        for host in [
            "127.0.0.1",
            "192.0.2.1:9380",
            "[::1]",
            "[2001:db8::1]:9380",
            "localhost:9380",
            "LocalHost",
            "gate.example",
            "Gate.Example.:9380",
        ] {
            assert!(hosts.allow(Some(host)), "{host}");
        }
        assert!(hosts.allow(None));
        for host in [
            "",
            "evil.example:9380",
            "gate.example.evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "2130706433",
            "[::1].evil.example",
            "[evil.example]",
        ] {
            assert!(!hosts.allow(Some(host)), "{host}");
        }
    }
}
