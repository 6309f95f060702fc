//! Addresses: the same plan as in every world.

pub(crate) use towpath_measure::network::{address, path_of, prefix_bits};
