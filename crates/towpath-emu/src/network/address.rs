//! Addresses: the same plan as for simulated runs and real hosts.

pub(crate) use towpath_scenario::network::{address, path_of, prefix_bits};
