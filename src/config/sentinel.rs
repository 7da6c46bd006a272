//! The section `[sentinel]`: how lockgate asks the sentinels that the upstream's URL names.

use std::time::Duration;

use super::{Error, HOUR, MILLISECOND, RedisAddress, Typed, Upstream, duration, secret, yes_or_no};
use crate::{
    auth::identity::{CREDENTIAL_BYTES, Credentials, DEFAULT},
    transport::endpoint::Place,
};

/// The section `[sentinel]`, where the upstream is a service that sentinels watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentinel {
    /// The account of lockgate at the sentinels.
    pub own: Option<Credentials>,
    /// Whether the sentinels speak TLS, as the upstream does.
    pub tls: bool,
    /// How often each sentinel is asked, beside the subscription.
    pub poll: Duration,
    /// Whether an instance that hears fewer than half of the sentinels stops to grant locks.
    pub stops_isolated: bool,
    /// Whether the locks stand still while a failover promotes a replica.
    pub pauses: bool,
}

impl Sentinel {
    /// Reads the section.
    pub(super) fn check(typed: &mut Typed, upstream: &Upstream) -> Result<Option<Self>, Error> {
        let of_sentinels = match upstream {
            Upstream::Redis(RedisAddress {
                place: Place::Master { .. },
                tls,
                ..
            }) => Some(*tls),
            _ => None,
        };
        let user = typed.parse("sentinel.user", "", |text| {
            only(text, of_sentinels.is_some(), text.to_owned())
        })?;
        let (key, file_key) = ("sentinel.password", "sentinel.password_file");
        let password = secret::check(typed, key, file_key, |text| {
            let is_text = std::str::from_utf8(text).is_ok();
            if of_sentinels.is_none() {
                return Err(ONLY_WITH_SENTINELS.to_owned());
            }
            let name = if user.is_empty() {
                DEFAULT
            } else {
                user.as_bytes()
            };
            let own = Credentials::new(name, text).filter(|_| is_text);
            own.ok_or_else(|| format!("UTF-8 of at most {CREDENTIAL_BYTES} bytes, with the user"))
        })?;
        let own = match password {
            Some((own, _)) => Some(own),
            // A user may need no password.
            None if !user.is_empty() => Credentials::new(user.as_bytes(), b""),
            None => None,
        };
        let tls = typed.parse("sentinel.tls", "as upstream", |text| match text {
            "as upstream" => Ok(of_sentinels == Some(true)),
            "off" => only(text, of_sentinels.is_some(), false),
            _ => Err("\"as upstream\" or \"off\"".to_owned()),
        })?;
        let stops_isolated = typed.parse("sentinel.isolated", "serve", |text| match text {
            "serve" => Ok(false),
            "stop" => only(text, of_sentinels.is_some(), true),
            _ => Err("\"serve\" or \"stop\"".to_owned()),
        })?;
        let poll = duration(typed, "sentinel.poll", "1s", MILLISECOND..=HOUR)?;
        let pauses = typed.parse("sentinel.pause", "true", yes_or_no)?;
        Ok(of_sentinels.map(|_| Self {
            own,
            tls,
            poll,
            stops_isolated,
            pauses,
        }))
    }
}

const ONLY_WITH_SENTINELS: &str =
    "nothing, unless upstream.url is redis+sentinel:// or rediss+sentinel://";

fn only<T>(text: &str, allowed: bool, value: T) -> Result<T, String> {
    match allowed || text.is_empty() {
        true => Ok(value),
        false => Err(ONLY_WITH_SENTINELS.to_owned()),
    }
}
