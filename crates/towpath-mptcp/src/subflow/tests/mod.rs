//! Two subflows over a link that loses, delays, reorders and doubles; scripts of single segments;
//! anything at all.

mod acknowledging;
mod anything;
mod congestion;
mod ecn;
mod link;
mod opening;
mod recovery;
#[path = "../../../tests/repeat/mod.rs"]
mod repeat;
mod script;
mod spurious;
mod stamps;
mod states;
mod tail;
mod transfers;
mod windows;
