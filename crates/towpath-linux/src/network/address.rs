//! Addresses: the same plan as for simulated runs and real hosts.

pub(crate) use towpath_measure::network::{address, path_of, prefix_bits};
