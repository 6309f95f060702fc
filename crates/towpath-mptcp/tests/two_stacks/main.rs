//! Whole connections between two of our stacks, in virtual time.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::struct_excessive_bools,
    reason = "tests fail by panicking, and plans are made of switches"
)]

mod combinations;
mod endings;
mod middlebox;
mod network;
mod operations;
mod paths;
mod properties;
#[path = "../repetitions/mod.rs"]
mod repetitions;
mod transfer;
mod windows;
