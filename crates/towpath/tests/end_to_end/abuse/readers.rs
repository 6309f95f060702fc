//! Files of others.
