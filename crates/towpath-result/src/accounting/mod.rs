//! Capacity account: the use of each byte that the paths could have carried.
//!
//! The module [`capacity`] computes the capacity of links. A [`ledger`] keeps the account, so that
//! its parts sum to the capacity, and [`sentence`] explains it in words. For links without a
//! description, [`estimate`] derives the capacity. The callers provide the bytes that a link
//! carried and the limits of its senders (`docs/reference/metrics.md`, *Account of capacity*).

pub mod capacity;
pub mod estimate;
pub mod ledger;
pub mod reasons;
mod request_reply;
mod round_trip;
pub mod sentence;
mod unit;
mod users;

pub use capacity::{AccountedLink, OfferedCapacity, accounted_links};
pub use estimate::{EstimateInputs, ObservedPeriod, estimated_account};
pub use ledger::{CarriedBytes, IdleCause, Ledger, Period};
pub use reasons::{WeightedCauses, combine_causes, total_weight};
pub use sentence::{BufferSizes, bdp_bytes, buffer_bytes, sufficient_window_bytes};

#[cfg(test)]
mod tests;
