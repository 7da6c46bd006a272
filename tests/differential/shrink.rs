//! Makes a conversation smaller as long as it still fails.

use crate::case::Case;

/// Most conversations that are tried.
const TRIES: usize = 300;

/// A smallest conversation that still fails, as far as was tried.
pub(crate) fn shrink(mut case: Case, mut fails: impl FnMut(&Case) -> bool) -> Case {
    let mut tries = 0;
    let mut still = |case: &Case| {
        tries += 1;
        tries <= TRIES && fails(case)
    };
    let whole = Case {
        cuts: 0,
        ..case.clone()
    };
    if case.cuts != 0 && still(&whole) {
        case = whole;
    }
    let mut chunk = case.steps.len().div_ceil(2);
    while chunk > 0 {
        let mut at = 0;
        while at < case.steps.len() {
            let mut less = case.clone();
            less.steps.drain(at..(at + chunk).min(case.steps.len()));
            if still(&less) {
                case = less;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    case
}
