//! A scenario: hosts, paths, a timeline, flows and what is expected of them.
//!
//! [`Scenario::parse`] reads TOML and reports every mistake with line, column and the way out.

mod model;

pub use model::{
    Bottleneck, Change, DataDirection, Down, Endpoint, Expectation, Family, Flow, Host, LinkSide,
    MptcpConfig, Operator, Path, Pattern, RunPlan, Scenario, Segments, Target, TimelineEvent,
    Transport, World,
};
