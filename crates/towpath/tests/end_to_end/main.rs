//! Tests of the command from outside: exit code, standard output, standard error, files, and
//! cleanup.
//!
//! One binary, so that tests which need the emulator can wait for each other (see
//! [`program::acquire_emulator`]). `TOWPATH_BIN` names the command to test; the default is cargo's
//! own build.

#![expect(clippy::disallowed_methods, reason = "these tests wait for real processes")]
#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod account_kernel;
#[cfg(feature = "collect")]
mod agent;
#[cfg(feature = "collect")]
mod agent_walk;
mod cleanup;
#[cfg(feature = "collect")]
mod collector;
#[cfg(feature = "collect")]
mod collector_commands;
mod command_errors;
mod command_line;
mod compare;
mod docs;
mod doctor;
mod doctor_paths;
mod exec;
mod exec_moved;
mod failures;
mod first_hour;
mod formats;
mod hosts;
mod lab;
mod lab_order;
mod lab_programs;
mod live;
mod live_account;
mod live_paths;
mod live_reverse;
mod monitor;
mod processes;
mod program;
mod quic;
#[cfg(feature = "collect")]
mod registered_server;
mod report_page;
mod reports;
mod reproduce;
mod restricted;
mod runs;
mod scenario_errors;
mod security;
mod sequence;
mod setup;
mod simulated;
mod sweep;
mod sweep_jobs;
#[cfg(feature = "objects")]
mod sweep_store;
mod timeline;
mod trace;
mod transcript;
mod unprivileged;
mod worlds_agree;
