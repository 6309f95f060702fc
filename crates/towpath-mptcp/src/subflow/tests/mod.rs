//! Tests of subflows: pairs over a link that drops, delays, reorders and duplicates; scripts of
//! single segments; arbitrary segments.

mod acknowledging;
mod anything;
mod congestion;
mod ecn;
mod link;
mod opening;
mod recovery;
#[path = "../../../tests/repetitions/mod.rs"]
mod repetitions;
mod script;
mod spurious;
mod stamps;
mod states;
mod tail;
mod transfers;
mod windows;
