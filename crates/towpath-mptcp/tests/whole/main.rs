//! Whole connections between two of our stacks, in virtual time.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking"
)]

mod combinations;
mod endings;
mod paths;
mod transfer;
mod windows;
mod world;
