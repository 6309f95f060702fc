//! Studies: many runs of one scenario, and their joint evaluation.
//!
//! Reading order: a [`plan`] defines the runs. These are variants of a scenario (a curve each),
//! every combination of some settings or random samples of them, and seeds. The module [`runs`]
//! creates each run, with a scenario of its own and a key that identifies the input. The result is
//! a [`row`] of a table. A [`sweep`] stores rows in files, each a [`table`], so that it can be
//! stopped and shared. A [`summary`] is the terminal's view. The module [`claims`] checks rows
//! against the claims of a source, and [`figure`] draws them. A [`reproduction`] is all of this
//! for one published figure. The caller executes the runs, so this crate does not depend on any
//! world.

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
