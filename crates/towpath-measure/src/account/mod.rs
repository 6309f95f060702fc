//! The account of capacity: of what the paths could have carried, where each byte went.
//!
//! [`capacity`] says what links could carry, [`ledger`] keeps the books and makes the parts sum to
//! it, [`sentence`] says it to people. Where nobody describes the links, [`estimate`] says what they
//! could carry. Who fills the books is a world's affair: it knows what a
//! link carried and what held the sender back (`docs/metrics.md`, *Account of capacity*).

pub mod capacity;
pub mod estimate;
pub mod ledger;
pub mod reasons;
mod round_trip;
pub mod sentence;
mod talk;
mod unit;
mod users;

pub use capacity::{AccountedLink, Offered, accounted_links};
pub use estimate::{Seen, SeenPeriod, estimated};
pub use ledger::{Carried, Ledger, Period, Why};
pub use reasons::{Reasons, combined, total_weight};
pub use sentence::{Sizes, buffer_bytes, enough_window_bytes, needed_window_bytes};

#[cfg(test)]
mod tests;
