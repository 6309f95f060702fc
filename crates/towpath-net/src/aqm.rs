//! Active queue management.

pub(crate) mod codel;
pub(crate) mod pie;

pub(crate) use codel::Codel;
pub(crate) use pie::Pie;
