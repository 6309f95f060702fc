//! Studies: many runs of one scenario, and what they say together.
//!
//! Reading order: a [`plan`] says which runs there are: variants of a scenario (a curve each), every
//! combination of some settings or random samples of them, and seeds. [`runs`] makes each of them:
//! a scenario of its own, and a key that says what is run. What came of it is a [`row`] of a table.
//! [`claims`] holds rows against what somebody says of them, and [`figure`] draws them.
//! Whoever calls decides how a run is done: this crate knows no world.

pub mod claims;
pub mod figure;
mod handover;
pub mod plan;
pub mod reproduction;
pub mod row;
pub mod runs;
