//! Studies: many runs of one scenario, and what they say together.
//!
//! Reading order: a [`plan`] says which runs there are: variants of a scenario (a curve each), every
//! combination of some settings or random samples of them, and seeds. [`runs`] makes each of them:
//! a scenario of its own, and a key that says what is run. What came of it is a [`row`] of a table.
//! A [`sweep`] keeps rows in files, each a [`table`], so that it can be stopped and shared; a
//! [`summary`] is what a terminal shows. [`claims`] holds rows against what somebody says of them, and
//! [`figure`] draws them; a [`reproduction`] is all of this for one published figure. Whoever calls
//! decides how a run is done: this crate knows no world.

pub mod claims;
pub mod figure;
#[doc(hidden)]
pub mod fuzzing;
mod handover;
pub mod plan;
pub mod reproduction;
pub mod row;
pub mod runs;
pub mod summary;
pub mod sweep;
pub mod table;
