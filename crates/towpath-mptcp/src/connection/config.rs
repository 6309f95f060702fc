//! Configuration of a connection: every switch, with the two profiles.

use std::time::Duration;

use towpath_multipath::congestion::{
    self, CongestionConfig, CongestionControlFactory, HyStartRule,
};
use towpath_multipath::opportunistic::OpportunisticConfig;
use towpath_multipath::scheduler::{self, Scheduler, SchedulerFactory, UnknownScheduler};

use crate::stack::ConfigError;
use crate::{path_manager, subflow};

/// Time between two attempts of a blocked write in an emulated host: 20 ms, which end with the
/// sixth tick of 4 ms.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_millis(24);

/// Configuration of one connection.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct ConnectionConfig {
    /// Offer or accept Multipath TCP; false: plain TCP.
    pub multipath: bool,
    /// Configuration of each subflow's TCP.
    pub subflow: subflow::SubflowConfig,
    /// Scheduler, by its name in [`towpath_multipath::scheduler::ALL`].
    pub scheduler: String,
    /// Constructor of a scheduler that replaces [`ConnectionConfig::scheduler`].
    pub custom_scheduler: Option<SchedulerFactory>,
    /// Constructor of a control that replaces [`subflow::SubflowConfig::congestion_control`].
    pub custom_congestion_control: Option<CongestionControlFactory>,
    /// Path manager, by its name in [`crate::path_manager::ALL`].
    pub path_manager: String,
    /// Opportunistic retransmission (M1) and penalisation (M2).
    pub opportunistic: OpportunisticConfig,
    /// Require DSS checksums on the connection.
    pub checksum: bool,
    /// C flag: forbids subflows of the peer to our initial address and port.
    pub no_join_to_initial: bool,
    /// Accept the peer's MP_JOIN; false: reject all.
    pub accept_joins: bool,
    /// Send only one packet on an accepted subflow until the peer has replied. A Linux initiator
    /// resets a subflow whose data overtakes the fourth packet of the handshake.
    pub cautious_joins: bool,
    /// Maximum number of subflows, excluding the first.
    pub subflow_limit: u8,
    /// Maximum number of announced addresses that are used for subflows.
    pub accept_limit: u8,
    /// Send buffer in bytes: data not acknowledged at connection level. Not used if the buffer
    /// grows.
    pub send_buffer_bytes: u64,
    /// The send buffer is the sum of the subflows' buffers, which grow with their congestion
    /// windows (Linux `tcp_sndbuf_expand`, `__mptcp_sync_sndbuf`). A blocked writer is notified
    /// when a third of the buffer is free (`sk_stream_write_space`).
    pub send_buffer_grows: bool,
    /// Send buffer in addition to the subflows' buffers, where these are counted as memory (first
    /// value of `tcp_wmem`).
    pub send_buffer_min_bytes: u64,
    /// Interval after which a blocked writer tries again and fills any room there is. Models
    /// programs whose writes time out, as in emulated hosts.
    pub write_retry: Option<Duration>,
    /// Size and growth of the receive buffer.
    pub receive_buffer: ReceiveBuffer,
    /// Acknowledge after a read, as Linux does (`mptcp_cleanup_rbuf`). Data that the peer pushed is
    /// acknowledged immediately. A window that has doubled is advertised on every subflow. Without
    /// this, the window is advertised on one subflow when it has grown by two packets.
    pub acks_on_read: bool,
    /// A subflow may fill the connection's window, regardless of the window last advertised on it
    /// (Linux `mptcp_check_allowed_size`).
    pub shares_peer_window: bool,
    /// The raised window of a subflow counts as advertised with the next DATA_ACK there, until a
    /// window field replaces it. More is sent than the peer allows (Linux `ack_update_msk`).
    pub exceeds_peer_window: bool,
    /// Use the smallest packet size of all subflows (Barré et al. 2011); false: each subflow uses its
    /// own.
    pub smallest_mss: bool,
    /// Wait for full packets while data is unacknowledged (RFC 9293 §3.7.4).
    pub nagle: bool,
    /// Reinject a subflow's data on another one as soon as its retransmission timer fires
    /// (mptcp.org). Otherwise reinject only when the subflow is stale or closed, and the oldest
    /// data by the connection's own timer (Linux upstream).
    pub reinject_on_timeout: bool,
    /// Interval after which an ADD_ADDR without an echo is retransmitted.
    pub add_address_timeout: Duration,
    /// Lifetime of a connection without subflows (break before make; Linux `close_timeout`).
    pub close_timeout: Duration,
    /// Rounds of the connection's retransmission timer after which a silent subflow is stale (Linux
    /// `stale_loss_cnt`).
    pub stale_after_rounds: u32,
    /// Use as many octets for a DATA_ACK as the peer's mappings have, and 4 before there are any
    /// (Linux `use_64bit_ack`); otherwise always 8.
    pub short_data_acks: bool,
    /// SYNs with MP_CAPABLE that may be lost before one is sent without it (Linux: 2).
    pub syn_retries_with_multipath: u32,
}

/// Limit for data held at the receiver: in order and unread, and out of order at both levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveBuffer {
    /// Growth of the buffer over time.
    pub mode: ReceiveBufferMode,
    /// Initial memory in bytes (`fixed`: always); the window is a share of it.
    pub initial_bytes: u64,
    /// Upper limit of the memory in bytes.
    pub max_bytes: u64,
    /// Share of the memory that the window offers.
    pub window_share: WindowShare,
}

/// Buffer size that a program may request by default (`net.core.rmem_max` since Linux 6.17).
const DEFAULT_RMEM_MAX_BYTES: u64 = 4 * 1024 * 1024;

impl ReceiveBuffer {
    /// Returns true if the window follows Linux's accounting of packet memory.
    pub(super) fn is_counted_in_packets(&self) -> bool {
        self.window_share == WindowShare::LinuxPackets
    }

    /// Returns the largest size that the window scale must allow for, since the scale cannot change
    /// later. Linux also counts the size that a program might request
    /// (`tcp_select_initial_window`).
    pub(super) fn max_bytes(&self) -> u64 {
        match self.window_share {
            WindowShare::Percent(_) => self.max_bytes,
            WindowShare::LinuxPackets => self.max_bytes.max(DEFAULT_RMEM_MAX_BYTES),
        }
    }
}

/// Share of a receive buffer's memory that is offered as window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowShare {
    /// Fixed percentage of the memory.
    Percent(u32),
    /// Payload share of the largest packet's memory, as it arrives from a TUN device or a simple
    /// card (Linux `scaling_ratio`). Out-of-order data in plain TCP also takes memory (`tcp_space`)
    /// and lets the buffer grow (`tcp_rcvbuf_grow`).
    LinuxPackets,
}

/// Growth policy of the receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveBufferMode {
    /// Constant size, without any growth.
    Fixed,
    /// Linux: dynamic right-sizing, twice the bytes that the application read in the longest
    /// subflow's round-trip time.
    Linux,
    /// Barré et al. 2011: 2 · Σ bandwidth · longest round-trip time.
    Barre2011,
}

impl ConnectionConfig {
    /// Returns the defaults of Linux 6.x.
    pub fn linux() -> Self {
        Self {
            multipath: true,
            subflow: subflow::SubflowConfig::linux(),
            scheduler: "linux".to_owned(),
            custom_scheduler: None,
            custom_congestion_control: None,
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

    /// Returns the observed behaviour of Linux 6.18, see [`subflow::SubflowConfig::linux_6_18`].
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

    /// Returns a host without limits of its own, for the limits of the protocol alone.
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

    /// Checks that the scheduler, path manager and congestion control are known by name.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.new_scheduler()?;
        path_manager::by_name(&self.path_manager)?;
        let congestion_config =
            CongestionConfig { mss_bytes: 1_460, initial_packets: 10, hystart: HyStartRule::Off };
        if self.custom_congestion_control.is_none() {
            congestion::by_name(&self.subflow.congestion_control, congestion_config)?;
        }
        Ok(())
    }

    /// Creates the scheduler of one connection.
    pub(super) fn new_scheduler(&self) -> Result<Box<dyn Scheduler>, UnknownScheduler> {
        self.custom_scheduler
            .as_ref()
            .map_or_else(|| scheduler::by_name(&self.scheduler), |factory| Ok(factory.make()))
    }
}
