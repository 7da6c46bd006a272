//! The banner that lockgate prints at the start on a terminal: where it listens, its upstream, and how to try it.
//! The log is for later; the banner is for this moment.

use std::{
    io::{self, IsTerminal, Write},
    net::{IpAddr, SocketAddr},
};

use lockgate::{Config, Listening, config::Upstream, transport::listener::Listener};

use super::{arguments::VERSION, log::wants_colours};

/// Prints the banner, where standard error is a terminal.
pub(crate) fn show(config: &Config, listening: Listening<'_>) {
    if io::stderr().is_terminal() {
        // The terminal may be gone.
        let _ = io::stderr().write_all(text(config, listening, wants_colours()).as_bytes());
    }
}

fn text(config: &Config, listening: Listening<'_>, with_colours: bool) -> String {
    let (bold, plain) = match with_colours {
        true => ("\x1b[1m", "\x1b[0m"),
        false => ("", ""),
    };
    let mut lines = vec![format!("{bold}lockgate {VERSION}{plain}")];
    for listener in listening.clients {
        let how = if listener.is_secure() { " (TLS)" } else { "" };
        lines.push(format!("listens on  {listener}{how}"));
    }
    lines.push(match &config.upstream.url {
        Upstream::Embedded => {
            "upstream    embedded: locks are kept in the memory of this process (--upstream redis://host)"
                .to_owned()
        }
        upstream => format!("upstream    {upstream}"),
    });
    if let Some(address) = listening.admin {
        lines.push(format!("look in     http://{address}"));
    }
    if let Some(way) = listening.clients.iter().rev().find_map(way_in) {
        let ask = if config.password.is_some() {
            " --askpass"
        } else {
            ""
        };
        lines.push(format!(
            "try it      {bold}redis-cli {way}{ask} LOCK order:42{plain}"
        ));
    }
    lines.push("end it      Ctrl-C".to_owned());
    format!("\n  {}\n\n", lines.join("\n  "))
}

/// Returns the arguments with which redis-cli connects to this listener.
fn way_in(listener: &Listener) -> Option<String> {
    let Some(address) = listener.address() else {
        return Some(format!("-s {listener}"));
    };
    let tls = if listener.is_secure() { " --tls" } else { "" };
    Some(format!("{}{tls}", way_to(address)))
}

/// Returns the arguments for this address. redis-cli's default is port 6379 of this machine.
fn way_to(address: SocketAddr) -> String {
    let port = address.port();
    match address.ip() {
        IpAddr::V4(ip) if ip.is_loopback() || ip.is_unspecified() => format!("-p {port}"),
        IpAddr::V6(ip) if ip.is_unspecified() => format!("-p {port}"),
        ip => format!("-h {ip} -p {port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_cli_is_told_no_more_than_it_needs() {
        for (address, way) in [
            ("127.0.0.1:6380", "-p 6380"),
            ("0.0.0.0:6380", "-p 6380"),
            ("[::]:6380", "-p 6380"),
            ("[::1]:6380", "-h ::1 -p 6380"),
            ("192.0.2.1:7000", "-h 192.0.2.1 -p 7000"),
        ] {
            assert_eq!(way_to(address.parse().unwrap()), way);
        }
    }
}
