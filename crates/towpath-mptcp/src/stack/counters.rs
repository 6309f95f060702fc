//! Counters of packets that belong to no connection.

/// Counters of packets that belong to no connection, and of handshakes that were not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StackCounters {
    /// Packets received from the driver.
    pub received: u64,
    /// Packets that could not be parsed or had a wrong checksum.
    pub malformed: u64,
    /// Packets of no connection: rejected with RST, or dropped. Includes refused subflows.
    pub unknown: u64,
    /// SYNs dropped because the backlog was full, or because no SYN cookie can encode their MSS.
    pub backlog_full: u64,
    /// MP_JOIN with a token of no connection.
    pub unknown_token: u64,
    /// MP_JOIN refused in its SYN or, with SYN flood protection ([`super::Stack`]), for its HMAC.
    pub refused_joins: u64,
    /// SYNs that were accepted with a cookie.
    pub cookies_sent: u64,
    /// Connections established by a valid cookie.
    pub cookies_accepted: u64,
    /// Segments that arrived while cookies were outstanding and carried no valid cookie.
    pub cookies_refused: u64,
    /// Replies to packets of no connection that were dropped, because too many were queued.
    pub replies_dropped: u64,
    /// Packets dropped because their address has not answered, with SYN flood protection.
    pub unanswered_dropped: u64,
}
