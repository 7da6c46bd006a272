//! The commands of Redis's own that take and release locks: section `[absorb]`.

use std::time::Duration;

use super::{Error, Typed, duration, millis};
use crate::absorb::{AbsorbSettings, KeyPatterns, ReleaseScripts};

/// Longest `absorb.park`.
const LONGEST_PARK: Duration = Duration::from_secs(10);

pub(super) fn check(typed: &mut Typed, key_prefix: &[u8]) -> Result<AbsorbSettings, Error> {
    let patterns = |text: &str| patterns(text, key_prefix);
    let park = duration(typed, "absorb.park", "50ms", Duration::ZERO..=LONGEST_PARK)?;
    Ok(AbsorbSettings {
        keys: typed.parse("absorb.keys", "", patterns)?,
        try_keys: typed.parse("absorb.try_keys", "", patterns)?,
        park_ms: millis(park),
        release_scripts: typed.parse("absorb.release_scripts", "", |text| {
            ReleaseScripts::parse(text).map_err(|error| error.to_string())
        })?,
    })
}

/// Reads patterns of keys. The name of a lock is what follows the prefix, so a key without it has none.
fn patterns(text: &str, key_prefix: &[u8]) -> Result<KeyPatterns, String> {
    let patterns = KeyPatterns::parse(text).map_err(|error| error.to_string())?;
    if patterns.begin_with(key_prefix) {
        return Ok(patterns);
    }
    let prefix = String::from_utf8_lossy(key_prefix);
    Err(format!(
        "patterns that begin with lock.key_prefix, {prefix:?}"
    ))
}
