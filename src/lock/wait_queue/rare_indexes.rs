//! The indexes of a queue that most locks do without.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use super::WaiterId;
use crate::lock::event::{ConnectionId, RequestId, Time, Token, UserId};

/// The indexes that most locks do without: they have memory only where they have been used.
#[derive(Debug, Default)]
pub(super) struct RareIndexes {
    /// The places where strict attempts wait, and those that are kept for them.
    pub(super) strict: BTreeSet<(Token, UserId, WaiterId)>,
    pub(super) kept_strict: BTreeSet<(Token, UserId, WaiterId)>,
    /// The kept places by user, in the order in which they lapse.
    pub(super) kept_by_user: BTreeMap<UserId, BTreeSet<(Time, WaiterId)>>,
    /// The kept places of clients that spin, by their latest connection.
    pub(super) kept_of: BTreeSet<(UserId, ConnectionId, WaiterId)>,
    /// The kept places of other clients, by their latest connection.
    pub(super) kept_by_connection: BTreeSet<(ConnectionId, WaiterId)>,
    /// Requests with an `UNLOCK` behind them, by the token of the `UNLOCK`. Thousands may stand behind each request.
    pub(super) blocked: BTreeSet<(Token, WaiterId, RequestId)>,
    /// The tokens of those `UNLOCK`s, by request.
    pub(super) behind: BTreeMap<RequestId, Vec<Token>>,
}

/// Returns the range of an owner's places in an index of strict ones.
pub(super) fn strict_of(token: &Token, user: UserId) -> RangeInclusive<(Token, UserId, WaiterId)> {
    let first = (token.clone(), user, WaiterId::MIN);
    first..=(token.clone(), user, WaiterId::MAX)
}
