//! The account of requests and answers, which leave most of the capacity because they are small.

use std::fmt::Write as _;

use super::sentence::{MIN_CAUSE_PERCENT, SentenceContext, reason};
use super::unit::rate;
use crate::format;
use crate::result::{AccountSummary, Part};
use crate::scenario::DataDirection;

/// Causes that are named beside having nothing to send.
const MAX_CAUSES: usize = 2;
/// Less than this part of the capacity would be rounded to nothing, in parts of a thousand.
const MIN_PER_MILLE: u64 = 1;

/// What one direction was used for; `account` is about its links only.
pub(super) fn request_reply_text(
    account: &AccountSummary,
    direction: DataDirection,
    told: &SentenceContext<'_>,
) -> String {
    let total = &account.total;
    let capacity = total.capacity_bytes;
    let share = |bytes: u64| format::share(bytes as f64 / capacity.max(1) as f64);
    let idle = total.of(Part::Application);
    let way = if direction == DataDirection::Down { "down" } else { "up" };
    let payload = rate(total.of(Part::Delivered), account.span_ns);
    let mut text = format!("{way}: {payload} were payload");
    let rest: u64 = capacity.saturating_sub(idle);
    let worth = |(part, bytes): &(Part, u64)| {
        *part != Part::Application
            && bytes * 100 >= rest * MIN_CAUSE_PERCENT
            && bytes * 1_000 >= capacity * MIN_PER_MILLE
    };
    let losses = total.missing_parts().into_iter().filter(worth).take(MAX_CAUSES);
    let nothing = (idle * 1_000 >= capacity * MIN_PER_MILLE).then_some((Part::Application, idle));
    // Shares of the capacity, not of the time: a path that is down takes its own with it.
    let causes = nothing.into_iter().chain(losses);
    let causes: Vec<String> = (causes.enumerate())
        .map(|(place, (part, bytes))| {
            let unused = if place == 0 { " went unused" } else { "" };
            format!("{}{unused} because {}", share(bytes), reason(account, part, told))
        })
        .collect();
    if !causes.is_empty() {
        let _ = write!(text, "; of the capacity, {}", format::list(&causes));
    }
    text
}
