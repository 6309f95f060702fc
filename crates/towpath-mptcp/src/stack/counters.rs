//! What became of packets that no connection took.

/// What became of packets that no connection took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StackCounters {
    /// Packets that were handed in.
    pub received: u64,
    /// Not understood, or with a wrong checksum.
    pub malformed: u64,
    /// For no connection and no listener: answered by RST.
    pub unknown: u64,
    /// SYNs dropped because the backlog was full.
    pub backlog_full: u64,
    /// MP_JOIN with a token that nobody has.
    pub unknown_token: u64,
    /// MP_JOIN that was refused, in its SYN or, by a [`super::Stack`] that faces strangers, for its HMAC.
    pub refused_joins: u64,
    /// SYNs that were answered by a cookie.
    pub cookies_sent: u64,
    /// Connections that began with one.
    pub cookies_accepted: u64,
    /// What came while cookies might come back, and was none.
    pub cookies_refused: u64,
    /// Answers to packets of no connection that were not sent, because too many waited.
    pub answers_dropped: u64,
}
