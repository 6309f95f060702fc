//! The command line of towpath.
fn main() {}
