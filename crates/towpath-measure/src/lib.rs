//! Scenarios, results, traffic patterns and metrics: what goes into a run and what comes out.
//!
//! Reading order: [`scenario`] (the input), [`result`] (the output), [`traffic`] (what is sent),
//! [`metrics`] (how goodput, stalls and recovery are defined), [`expect`] (checked after a run).

pub mod result;
pub mod scenario;
