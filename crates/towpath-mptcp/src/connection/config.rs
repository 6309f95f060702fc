//! How a connection behaves: every switch, with the two profiles.

use std::time::Duration;

use towpath_multipath::congestion::{self, CongestionConfig, HyStartRule};
use towpath_multipath::opportunistic::OpportunisticConfig;
use towpath_multipath::scheduler;

use crate::stack::ConfigError;
use crate::{path_manager, subflow};

/// How long a program of the emulated world waits in a write: 20 ms, which end with the sixth tick of 4 ms.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_millis(24);

/// How a connection behaves.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct ConnectionConfig {
    /// Offer or accept Multipath TCP; else plain TCP.
    pub multipath: bool,
    /// Each subflow.
    pub subflow: subflow::SubflowConfig,
    /// Name in [`towpath_multipath::scheduler::ALL`].
    pub scheduler: String,
    /// Name in [`crate::path_manager::ALL`].
    pub path_manager: String,
    /// M1 and M2.
    pub opportunistic: OpportunisticConfig,
    /// Require DSS checksums.
    pub checksum: bool,
    /// C flag: ask the peer not to open subflows to our initial address and port.
    pub no_join_to_initial: bool,
    /// Accept MP_JOIN at all.
    pub accept_joins: bool,
    /// Send one packet on an accepted subflow, and more when something has come back. A Linux
    /// initiator resets a subflow whose data overtakes the fourth packet of the handshake.
    pub cautious_joins: bool,
    /// Most subflows besides the first.
    pub subflow_limit: u8,
    /// Most announced addresses that are answered.
    pub accept_limit: u8,
    /// Send buffer: bytes that are not acknowledged at connection level, unless it grows.
    pub send_buffer_bytes: u64,
    /// The send buffer is the sum of what the subflows have, whose buffers grow with their congestion
    /// windows (Linux `tcp_sndbuf_expand`, `__mptcp_sync_sndbuf`), and who writes is told of room when
    /// a third of it is free (`sk_stream_write_space`).
    pub send_buffer_grows: bool,
    /// What it has beside its subflows' buffers where these are counted as memory (`tcp_wmem`'s first).
    pub send_buffer_min_bytes: u64,
    /// Who waits for room to write tries again after this time, and takes what room there is: programs
    /// whose writes end after a time, as those of the emulated world do.
    pub write_retry: Option<Duration>,
    /// Receive buffer.
    pub receive_buffer: ReceiveBuffer,
    /// After a read, as Linux (`mptcp_cleanup_rbuf`): data that the peer pushed is acknowledged at
    /// once, and a window told, on every subflow, when it has doubled; else told on one subflow when it
    /// has grown by two packets.
    pub acks_on_read: bool,
    /// A subflow may fill the connection's window, whatever was last said on it (Linux
    /// `mptcp_check_allowed_size`).
    pub shares_peer_window: bool,
    /// What a subflow's window was raised to so counts as told with the next DATA_ACK there, until a
    /// field replaces it: more is sent than the peer admits (Linux `ack_update_msk`).
    pub exceeds_peer_window: bool,
    /// Packet size: each subflow's own, or the smallest of all (seed 003).
    pub smallest_mss: bool,
    /// Wait for full packets while data is unacknowledged (RFC 9293 §3.7.4).
    pub nagle: bool,
    /// Send the data of a subflow again elsewhere as soon as its retransmission timer fires
    /// (mptcp.org); else only when it is stale or closed, and the oldest by the connection's own
    /// timer (Linux upstream).
    pub reinject_on_timeout: bool,
    /// Unanswered ADD_ADDR is repeated after this time.
    pub add_address_timeout: Duration,
    /// A connection without subflows is kept for so long (break before make; Linux `close_timeout`).
    pub close_timeout: Duration,
    /// Rounds of the connection's retransmission timer after which a silent subflow is stale (Linux
    /// `stale_loss_cnt`).
    pub stale_after_rounds: u32,
    /// A DATA_ACK has as many octets as the numbers of the peer's mappings, 4 before there are any (Linux
    /// `use_64bit_ack`); else always 8.
    pub short_data_acks: bool,
    /// SYNs with MP_CAPABLE that may be lost before one is sent without (Linux: 2).
    pub syn_retries_with_multipath: u32,
}

/// How much may wait at the receiver: in order and unread, out of order, at both levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveBuffer {
    /// How it grows.
    pub mode: ReceiveBufferMode,
    /// At first (`fixed`: always). Bytes of memory; the window is a share of it.
    pub initial_bytes: u64,
    /// At most.
    pub max_bytes: u64,
    /// Share of the memory that the window offers.
    pub window_share: WindowShare,
}

/// What a program may ask for by default (`net.core.rmem_max` since Linux 6.17).
const DEFAULT_RMEM_MAX_BYTES: u64 = 4 * 1024 * 1024;

impl ReceiveBuffer {
    /// Whether the window is what Linux makes of the memory of packets.
    pub(super) fn is_counted_in_packets(&self) -> bool {
        self.window_share == WindowShare::LinuxPackets
    }

    /// The largest that the window's scale is chosen for, as it cannot change later: Linux counts with
    /// what a program might ask for, too (`tcp_select_initial_window`).
    pub(super) fn max_bytes(&self) -> u64 {
        match self.window_share {
            WindowShare::Percent(_) => self.max_bytes,
            WindowShare::LinuxPackets => self.max_bytes.max(DEFAULT_RMEM_MAX_BYTES),
        }
    }
}

/// What of a receive buffer's memory is offered as window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowShare {
    /// So many percent of it.
    Percent(u32),
    /// Linux (`scaling_ratio`): what payload is of the memory of the largest packet that came, as it
    /// arrives from a TUN device or a simple card. What waits in plain TCP for earlier data takes
    /// memory, too (`tcp_space`), and lets the buffer grow (`tcp_rcvbuf_grow`).
    LinuxPackets,
}

/// How the receive buffer grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveBufferMode {
    /// Not at all.
    Fixed,
    /// Linux: dynamic right-sizing, twice what the application read in the longest subflow's
    /// round-trip time.
    Linux,
    /// Seed 003 §4.1: 2 · Σ bandwidth · longest round-trip time.
    Barre2011,
}

impl ConnectionConfig {
    /// What Linux 6.x does without any setting.
    pub fn linux() -> Self {
        Self {
            multipath: true,
            subflow: subflow::SubflowConfig::linux(),
            scheduler: "linux".to_owned(),
            path_manager: "default".to_owned(),
            opportunistic: OpportunisticConfig::default(),
            checksum: false,
            no_join_to_initial: false,
            accept_joins: true,
            cautious_joins: false,
            subflow_limit: 8,
            accept_limit: 8,
            send_buffer_bytes: 32 * 1024 * 1024,
            send_buffer_grows: true,
            send_buffer_min_bytes: 4_096,
            write_retry: None,
            receive_buffer: ReceiveBuffer {
                mode: ReceiveBufferMode::Linux,
                initial_bytes: 131_072,
                max_bytes: 32 * 1024 * 1024,
                window_share: WindowShare::Percent(60),
            },
            acks_on_read: false,
            shares_peer_window: false,
            exceeds_peer_window: false,
            smallest_mss: false,
            nagle: false,
            reinject_on_timeout: false,
            add_address_timeout: Duration::from_secs(120),
            close_timeout: Duration::from_secs(60),
            stale_after_rounds: 4,
            short_data_acks: false,
            syn_retries_with_multipath: 2,
        }
    }

    /// What Linux 6.18 was seen to do, see [`subflow::ConnectionConfig::linux_6_18`].
    pub fn linux_6_18() -> Self {
        let linux = Self::linux();
        let receive_buffer =
            ReceiveBuffer { window_share: WindowShare::LinuxPackets, ..linux.receive_buffer };
        Self {
            subflow: subflow::SubflowConfig::linux_6_18(),
            receive_buffer,
            write_retry: Some(WRITE_RETRY_INTERVAL),
            acks_on_read: true,
            shares_peer_window: true,
            exceeds_peer_window: true,
            short_data_acks: true,
            ..linux
        }
    }

    /// A host without limits of its own: what the protocol alone can do.
    pub fn ideal() -> Self {
        Self {
            subflow: subflow::SubflowConfig::ideal(),
            scheduler: "min-rtt".to_owned(),
            send_buffer_bytes: 64 * 1024 * 1024,
            send_buffer_grows: false,
            receive_buffer: ReceiveBuffer {
                mode: ReceiveBufferMode::Fixed,
                initial_bytes: 64 * 1024 * 1024,
                max_bytes: 64 * 1024 * 1024,
                window_share: WindowShare::Percent(100),
            },
            reinject_on_timeout: true,
            add_address_timeout: Duration::from_secs(1),
            stale_after_rounds: 1,
            ..Self::linux()
        }
    }

    /// Whether every name in it is known.
    pub fn check(&self) -> Result<(), ConfigError> {
        scheduler::by_name(&self.scheduler)?;
        path_manager::by_name(&self.path_manager)?;
        let start =
            CongestionConfig { mss_bytes: 1_460, initial_packets: 10, hystart: HyStartRule::Off };
        congestion::by_name(&self.subflow.congestion_control, start)?;
        Ok(())
    }
}
