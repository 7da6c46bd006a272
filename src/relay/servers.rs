//! The servers that the upstream was, one after the other. When a client's connection to Redis ends, they tell whether
//! Redis is gone, or lives and meant that client.
//!
//! A look at the server ([`ServerProbe`](crate::store::redis::ServerProbe)) shows which one it is. The first look that
//! began after a connection was opened shows the server of that connection; a look that began after its end shows
//! whether that server is still the upstream.

use std::collections::VecDeque;

use crate::{
    auth::identity::Credentials, limits::KNOWN_SERVERS, lock::Time, store::redis::Sighting,
};

/// What all looks showed.
#[derive(Debug, Default)]
pub(super) struct Servers {
    /// The servers, the latest last, each with the beginning of the last look that showed it.
    known: VecDeque<(String, Time)>,
    latest: Option<Look>,
}

#[derive(Debug)]
struct Look {
    begun: Time,
    claim: Option<Credentials>,
    sighting: Sighting,
}

impl Servers {
    /// Returns whether a look with these credentials would show no more than one that began at `since` or later did.
    pub(super) fn are_known(&self, since: Time, claim: Option<&Credentials>) -> bool {
        self.latest.as_ref().is_some_and(|latest| {
            let is_of_all = latest.sighting != Sighting::Unknown;
            latest.begun >= since && (is_of_all || latest.claim.as_ref() == claim)
        })
    }

    /// Adds a look.
    pub(super) fn add(&mut self, begun: Time, claim: Option<Credentials>, sighting: Sighting) {
        if let Sighting::Server(server) = &sighting {
            match self.known.back_mut() {
                Some((latest, seen)) if latest == server => *seen = begun,
                _ => {
                    if self.known.len() >= KNOWN_SERVERS {
                        self.known.pop_front();
                    }
                    self.known.push_back((server.clone(), begun));
                }
            }
        }
        self.latest = Some(Look {
            begun,
            claim,
            sighting,
        });
    }

    /// Returns whether the latest look showed the server of a connection that was opened at this time, or may have: in
    /// doubt it is the same.
    pub(super) fn are_same_since(&self, opened_at: Time) -> bool {
        match self.latest.as_ref().map(|latest| &latest.sighting) {
            Some(Sighting::Gone) => false,
            Some(Sighting::Unknown) | None => true,
            Some(Sighting::Server(now)) => {
                let first = self.known.iter().find(|(_, seen)| *seen >= opened_at);
                first.is_none_or(|(then, _)| then == now)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str) -> Sighting {
        Sighting::Server(name.to_owned())
    }

    fn at(micros: u64) -> Time {
        Time::from_micros(micros)
    }

    #[test]
    fn a_connection_belongs_to_the_first_server_seen_after_its_opening() {
        let mut servers = Servers::default();
        assert!(servers.are_same_since(at(0)), "nothing is known");
        servers.add(at(10), None, server("old"));
        assert!(servers.are_same_since(at(5)));
        servers.add(at(20), None, server("old"));
        servers.add(at(30), None, server("new"));
        assert!(!servers.are_same_since(at(5)) && !servers.are_same_since(at(20)));
        // Of these two nothing is known before the new server was seen.
        assert!(servers.are_same_since(at(21)) && servers.are_same_since(at(30)));
        servers.add(at(40), None, Sighting::Gone);
        assert!(!servers.are_same_since(at(30)));
        servers.add(at(50), None, Sighting::Unknown);
        assert!(servers.are_same_since(at(5)), "in doubt");
        servers.add(at(60), None, server("old"));
        assert!(servers.are_same_since(at(5)), "it came back");
        assert!(!servers.are_same_since(at(25)));
    }

    #[test]
    fn no_more_servers_are_remembered_than_may_be() {
        let mut servers = Servers::default();
        for number in 0..2 * KNOWN_SERVERS as u64 {
            servers.add(at(number), None, server(&number.to_string()));
        }
        assert_eq!(servers.known.len(), KNOWN_SERVERS);
        assert!(!servers.are_same_since(at(0)));
    }

    #[test]
    fn a_look_serves_all_that_waited_for_one() {
        let mut servers = Servers::default();
        let ann = Credentials::new(b"ann", b"pw");
        assert!(!servers.are_known(at(0), None));
        servers.add(at(10), ann.clone(), server("it"));
        assert!(servers.are_known(at(10), None) && !servers.are_known(at(11), None));
        // Another user may have the rights that this one lacks.
        servers.add(at(20), ann.clone(), Sighting::Unknown);
        assert!(servers.are_known(at(20), ann.as_ref()) && !servers.are_known(at(20), None));
    }
}
