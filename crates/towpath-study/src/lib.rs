//! Studies: many runs of one scenario, and what they say together.
//!
//! A [`plan`] says which runs there are: variants of a scenario (a curve each), every combination of
//! some settings or random samples of them, and seeds. Each run ends as one [`row`](row::Row) of a
//! table. Whoever calls decides how a run is done: this crate knows no world.

pub mod plan;
pub mod row;
