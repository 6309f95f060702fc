//! The virtual clock: runs a scenario over our own stack, in no time and always the same.
