//! The claims that wait at the [probe](super::auth_probe), each with the clients that make it. Pure.
//!
//! Names take turns, so that many false passwords for one user do not delay another user. The claims of one
//! name are served in arrival order.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokio::sync::oneshot;

use crate::{auth::identity::Credentials, store::Admission};

/// A client's claim: these credentials, or none.
pub(super) type Claim = Option<Credentials>;

/// The channel for the reply to one client.
pub(super) type Asker = oneshot::Sender<Admission>;

/// A user's name; none for clients without credentials.
type Name = Option<Arc<[u8]>>;

/// The queue of claims.
#[derive(Debug, Default)]
pub(super) struct Claims {
    askers: HashMap<Claim, Vec<Asker>>,
    /// The claims of each name that wait for their turn.
    of_names: HashMap<Name, VecDeque<Claim>>,
    /// The names with waiting claims, the next one first.
    names: VecDeque<Name>,
    /// The number of clients.
    count: usize,
}

impl Claims {
    /// Returns the number of waiting clients.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Adds a client with its claim.
    pub(super) fn add(&mut self, claim: Claim, asker: Asker) {
        self.count += 1;
        if let Some(askers) = self.askers.get_mut(&claim) {
            return askers.push(asker);
        }
        self.askers.insert(claim.clone(), vec![asker]);
        self.wait(claim);
    }

    /// Takes the next claim of which at least one client is still there. The caller must [answer](Self::answer)
    /// it, or [queue](Self::wait) it again.
    pub(super) fn next(&mut self) -> Option<Claim> {
        loop {
            let name = self.names.pop_front()?;
            let claims = self.of_names.get_mut(&name)?;
            let claim = claims.pop_front()?;
            if claims.is_empty() {
                self.of_names.remove(&name);
            } else {
                self.names.push_back(name);
            }
            let askers = self.askers.get_mut(&claim)?;
            let before = askers.len();
            askers.retain(|asker| !asker.is_closed());
            self.count -= before - askers.len();
            if !askers.is_empty() {
                return Some(claim);
            }
            self.askers.remove(&claim);
        }
    }

    /// Queues the claim as the last of its name.
    pub(super) fn wait(&mut self, claim: Claim) {
        let name = claim.as_ref().map(Credentials::shared_name);
        let of_name = self.of_names.entry(name.clone()).or_default();
        if of_name.is_empty() {
            self.names.push_back(name);
        }
        of_name.push_back(claim);
    }

    /// Sends the reply to all clients with this claim.
    pub(super) fn answer(&mut self, claim: &Claim, admission: &Admission) {
        for asker in self.askers.remove(claim).into_iter().flatten() {
            self.count -= 1;
            // The client may have left.
            let _ = asker.send(admission.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, password: &str) -> Claim {
        Credentials::new(name.as_bytes(), password.as_bytes())
    }

    #[test]
    fn names_take_turns_and_a_claim_waits_once_for_all_of_its_clients() {
        let mut claims = Claims::default();
        let mut told = Vec::new();
        let mut comes = |claims: &mut Claims, claim: Claim| {
            let (asker, answer) = oneshot::channel();
            claims.add(claim, asker);
            told.push(answer);
        };
        for number in 0..100 {
            comes(&mut claims, claim("bob", &number.to_string()));
        }
        let others = [
            claim("ann", "x"),
            claim("ann", "x"),
            claim("cat", "y"),
            None,
        ];
        others
            .clone()
            .into_iter()
            .for_each(|it| comes(&mut claims, it));
        let [ann, _, cat, anonymous] = others;
        let bob = |number: usize| claim("bob", &number.to_string());
        for expected in [bob(0), ann.clone(), cat, anonymous, bob(1), bob(2)] {
            assert_eq!(claims.next(), Some(expected));
        }
        assert_eq!(claims.count(), 104);
        let answer = Admission::Refused("WRONGPASS".into());
        claims.answer(&ann, &answer);
        assert_eq!(claims.count(), 102);
        for asked in &mut told[100..102] {
            assert!(matches!(asked.try_recv(), Ok(Admission::Refused(_))));
        }
        // An unanswered claim goes behind the others of its name.
        claims.wait(bob(0));
        assert_eq!(claims.next(), Some(bob(3)));
    }

    #[test]
    fn clients_that_left_are_not_asked_about() {
        let mut claims = Claims::default();
        let (mut askers, mut answers) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (asker, answer) = oneshot::channel();
            askers.push(asker);
            answers.push(answer);
        }
        for password in ["gone", "here", "gone too"] {
            claims.add(claim("bob", password), askers.remove(0));
        }
        // One of the three clients stays.
        let _here = answers.swap_remove(1);
        drop(answers);
        assert_eq!(claims.next(), Some(claim("bob", "here")));
        claims.answer(&claim("bob", "here"), &Admission::Unanswered(None));
        assert_eq!(claims.next(), None);
        assert_eq!(claims.count(), 0);
        assert!(claims.askers.is_empty() && claims.of_names.is_empty() && claims.names.is_empty());
    }
}
