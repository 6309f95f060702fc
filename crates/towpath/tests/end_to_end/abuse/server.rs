//! Strangers at a server.
