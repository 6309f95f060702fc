//! Two subflows over a link that loses, delays, reorders and doubles.

mod link;
mod transfers;
