//! What must hold for every input, whoever made it. One module a target; a body panics on a finding.
//!
//! The scanners are held against [`reference`], which reads the same bytes the way Redis does, written
//! after its `networking.c` and not after the scanners. Nothing here knows how lockgate does it.
#![allow(dead_code, reason = "a fuzz target uses one body of all")]

pub(crate) mod command;
pub(crate) mod counting;
pub(crate) mod reference;
pub(crate) mod replies;
pub(crate) mod requests;
pub(crate) mod session;

/// Cuts bytes as `how` says: 0 into single bytes, else into pieces of up to so many, of sizes that
/// depend on it and nothing else.
pub(crate) fn pieces(bytes: &[u8], how: u8) -> impl Iterator<Item = &[u8]> {
    let (mut rest, mut state) = (bytes, u32::from(how) * 2 + 1);
    std::iter::from_fn(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let size = match how {
            0 => 1,
            most => 1 + (state >> 16) as usize % usize::from(most),
        };
        let (piece, after) = rest.split_at_checked(size).unwrap_or((rest, &[]));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}
