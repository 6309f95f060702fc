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

pub use capacity::{AccountedLink, OfferedCapacity, accounted_links};
pub use estimate::{EstimateInputs, ObservedPeriod, estimated_account};
pub use ledger::{CarriedBytes, IdleCause, Ledger, Period};
pub use reasons::{WeightedCauses, combine_causes, total_weight};
pub use sentence::{BufferSizes, bdp_bytes, buffer_bytes, sufficient_window_bytes};

#[cfg(test)]
mod tests;
