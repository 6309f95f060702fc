//! Clients of hostile servers.
