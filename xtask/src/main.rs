//! Repository chores: `cargo xtask test`, `cargo xtask tidy`.
fn main() {}
