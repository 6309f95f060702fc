//! Capacity account of request-reply flows, which leave most of the capacity unused because they
//! are small.

use std::fmt::Write as _;

use towpath_scenario::DataDirection;

use super::sentence::{MIN_CAUSE_PERCENT, SentenceContext, reason};
use super::unit::rate;
use crate::format;
use crate::{AccountSummary, Part};

/// Most causes named in addition to having nothing to send.
const MAX_CAUSES: usize = 2;
/// Smallest share of the capacity that is named, in per mille; less would be rounded to zero.
const MIN_PER_MILLE: u64 = 1;

/// Describes the use of one direction; `account` covers its links only.
pub(super) fn request_reply_text(
    account: &AccountSummary,
    direction: DataDirection,
    context: &SentenceContext<'_>,
) -> String {
    let total = &account.total;
    let capacity = total.capacity_bytes;
    let share = |bytes: u64| format::share(bytes as f64 / capacity.max(1) as f64);
    let idle = total.of(Part::Application);
    let direction_text = if direction == DataDirection::Down { "down" } else { "up" };
    let payload = rate(total.of(Part::Delivered), account.span_ns);
    let mut text = format!("{direction_text}: {payload} were payload");
    let not_idle: u64 = capacity.saturating_sub(idle);
    let is_notable = |(part, bytes): &(Part, u64)| {
        *part != Part::Application
            && bytes * 100 >= not_idle * MIN_CAUSE_PERCENT
            && bytes * 1_000 >= capacity * MIN_PER_MILLE
    };
    let other_causes = total.missing_parts().into_iter().filter(is_notable).take(MAX_CAUSES);
    let idle_cause =
        (idle * 1_000 >= capacity * MIN_PER_MILLE).then_some((Part::Application, idle));
    // Shares are of the capacity, not of the time: a path that is down removes its own capacity.
    let causes = idle_cause.into_iter().chain(other_causes);
    let causes: Vec<String> = (causes.enumerate())
        .map(|(index, (part, bytes))| {
            let unused = if index == 0 { " went unused" } else { "" };
            format!("{}{unused} because {}", share(bytes), reason(account, part, context))
        })
        .collect();
    if !causes.is_empty() {
        let _ = write!(text, "; of the capacity, {}", format::list(&causes));
    }
    text
}
