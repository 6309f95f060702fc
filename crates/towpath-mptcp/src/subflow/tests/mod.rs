//! Two subflows over a link that loses, delays, reorders and doubles; scripts of single segments;
//! anything at all.

mod anything;
mod link;
mod recovery;
mod script;
mod states;
mod transfers;
