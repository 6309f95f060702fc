//! Settings of a host from text by name. Scenarios use them to configure this stack without
//! depending on its types.

use std::num::ParseIntError;
use std::time::Duration;

use towpath_multipath::congestion::HyStartRule;
use towpath_multipath::opportunistic::OpportunisticMode;
pub use towpath_multipath::settings::SettingError;

use crate::connection::{ConnectionConfig, ReceiveBuffer, ReceiveBufferMode, WindowShare};

/// Maximum payload of a super-segment: fits into one IP packet with its headers.
const MAX_SUPER_SEGMENT_BYTES: u32 = 65_160;

/// Configuration of a host: its connections, and the tasks of the driver.
#[derive(Debug, Clone)]
pub struct HostSettings {
    /// Configuration of all connections, opened and accepted.
    pub connection: ConnectionConfig,
    /// TCP small queues: the driver marks an interface as not ready
    /// ([`crate::stack::Stack::set_tx_ready`]) while the host's own queue holds about a
    /// millisecond.
    pub small_queues: bool,
    /// Processor time of each packet, sent or received.
    pub cpu_per_packet: Duration,
    /// The network card cuts super-segments: for the processor each is one packet.
    pub segmentation_offload: bool,
}

impl HostSettings {
    /// Returns the defaults of Linux 6.x.
    pub fn linux() -> Self {
        let connection = ConnectionConfig::linux();
        Self { small_queues: true, ..Self::without_limits(connection) }
    }

    /// Returns Linux 6.18, as measured on random networks.
    pub fn linux_6_18() -> Self {
        Self { connection: ConnectionConfig::linux_6_18(), ..Self::linux() }
    }

    /// Returns Linux 3.2 with the patch of mptcp.org: before small queues, autosizing and RACK,
    /// with M1 and M2, and with reinjection at every timeout.
    pub fn linux_3_2() -> Self {
        let mut settings = Self { small_queues: false, ..Self::linux() };
        let connection = &mut settings.connection;
        "min-rtt".clone_into(&mut connection.scheduler);
        connection.opportunistic.retransmission = OpportunisticMode::MptcpOrg;
        connection.opportunistic.penalisation = OpportunisticMode::MptcpOrg;
        connection.reinject_on_timeout = true;
        // `tcp_adv_win_scale` was 2: a quarter of the buffer was overhead (half since 3.4).
        connection.receive_buffer.window_share = WindowShare::Percent(75);
        connection.subflow.rack = false;
        connection.subflow.linear_syns = 0;
        connection.subflow.pacing = false;
        connection.subflow.tso_autosizing = false;
        connection.subflow.super_segment_bytes = MAX_SUPER_SEGMENT_BYTES;
        settings
    }

    /// Returns a host without limits.
    pub fn ideal() -> Self {
        let connection = ConnectionConfig::ideal();
        Self::without_limits(connection)
    }

    fn without_limits(connection: ConnectionConfig) -> Self {
        Self {
            connection,
            small_queues: false,
            cpu_per_packet: Duration::ZERO,
            segmentation_offload: false,
        }
    }

    /// Returns the profile named by `profile` (default `linux-6.18`), modified by the other
    /// settings. Sizes are bytes, times nanoseconds; a later setting overrides an earlier one.
    /// Names of schedulers, path managers and congestion controls are checked when a connection is
    /// made.
    pub fn from_texts<'a, S>(settings: S) -> Result<Self, SettingError>
    where
        S: IntoIterator<Item = (&'a str, &'a str)> + Clone,
    {
        let mut host = Self::linux_6_18();
        for (name, value) in settings.clone() {
            if name == "profile" {
                host = match value {
                    "linux-6.x" => Self::linux(),
                    "linux-6.18" => Self::linux_6_18(),
                    "linux-3.2-mptcp" => Self::linux_3_2(),
                    "ideal" => Self::ideal(),
                    _ => return Err(SettingError::value(name, value)),
                };
            }
        }
        for (name, value) in settings {
            host.set(name, value)?;
        }
        Ok(host)
    }

    /// Changes one setting, given by name; fails if the name or the value is unknown.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        let connection = &mut self.connection;
        match name {
            "profile" => {}
            "multipath" => connection.multipath = parse_bool(name, value)?,
            "congestion-control" => value.clone_into(&mut connection.subflow.congestion_control),
            "scheduler" => value.clone_into(&mut connection.scheduler),
            "path-manager" => value.clone_into(&mut connection.path_manager),
            "opportunistic-retransmission" => {
                connection.opportunistic.retransmission = parse_opportunistic_mode(name, value)?;
            }
            "penalisation" => {
                connection.opportunistic.penalisation = parse_opportunistic_mode(name, value)?;
            }
            "checksum" => connection.checksum = parse_bool(name, value)?,
            "receive-buffer-mode" => {
                set_receive_buffer_mode(&mut connection.receive_buffer, name, value)?;
            }
            "receive-buffer" => {
                let [_, initial, max] = parse_sizes(name, value)?;
                let mode = connection.receive_buffer.mode;
                connection.receive_buffer.max_bytes = max;
                connection.receive_buffer.initial_bytes =
                    if mode == ReceiveBufferMode::Fixed { max } else { initial };
            }
            "send-buffer" => {
                let [min, initial, max] = parse_sizes(name, value)?;
                connection.send_buffer_bytes = max;
                connection.send_buffer_min_bytes = min;
                let saturate = |bytes| u32::try_from(bytes).unwrap_or(u32::MAX);
                connection.subflow.send_buffer_initial_bytes = saturate(initial);
                connection.subflow.send_buffer_max_bytes = saturate(max);
            }
            "mss" => connection.smallest_mss = parse_switch(name, value, ["own", "smallest"])?,
            "subflows" => connection.subflow_limit = parse_number(name, value)?,
            "add-addr-accepted" => connection.accept_limit = parse_number(name, value)?,
            _ => return self.switch(name, value),
        }
        Ok(())
    }

    /// Changes a setting of the subflows or of the driver.
    fn switch(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        let subflow = &mut self.connection.subflow;
        match name {
            "delayed-ack" => {
                if !parse_bool(name, value)? {
                    subflow.delayed_ack = Duration::ZERO;
                } else if subflow.delayed_ack.is_zero() {
                    subflow.delayed_ack = Self::linux().connection.subflow.delayed_ack;
                }
            }
            "tso-autosizing" => {
                subflow.tso_autosizing = parse_bool(name, value)?;
                if subflow.tso_autosizing {
                    subflow.super_segment_bytes = MAX_SUPER_SEGMENT_BYTES;
                }
            }
            "tsq" => self.small_queues = parse_bool(name, value)?,
            "linear-syn" => {
                let linux = Self::linux().connection.subflow.linear_syns;
                subflow.linear_syns = if parse_bool(name, value)? { linux } else { 0 };
            }
            "timer-granularity" => subflow.timer_granularity = parse_nanos(name, value)?,
            "hystart" => {
                subflow.hystart = match (parse_bool(name, value)?, subflow.hystart) {
                    (false, _) => HyStartRule::Off,
                    (true, HyStartRule::Off) => HyStartRule::Rfc9406,
                    (true, rule) => rule,
                };
            }
            "linux-hystart" => {
                let linux = parse_bool(name, value)?;
                subflow.hystart = if linux { HyStartRule::Linux } else { HyStartRule::Rfc9406 };
            }
            "pacing" => subflow.pacing = parse_bool(name, value)?,
            "rmem-scaling" => {
                let scaled = parse_bool(name, value)?;
                self.connection.receive_buffer.window_share =
                    if scaled { WindowShare::Percent(60) } else { WindowShare::Percent(100) };
            }
            "window-overstep" => {
                self.connection.exceeds_peer_window = parse_bool(name, value)?;
            }
            "cpu-per-packet" => self.cpu_per_packet = parse_nanos(name, value)?,
            "segmentation-offload" => self.segmentation_offload = parse_bool(name, value)?,
            _ => return Err(SettingError::Unknown(name.to_owned())),
        }
        Ok(())
    }
}

fn set_receive_buffer_mode(
    buffer: &mut ReceiveBuffer,
    name: &str,
    value: &str,
) -> Result<(), SettingError> {
    buffer.mode = match value {
        "linux" => ReceiveBufferMode::Linux,
        "fixed" => ReceiveBufferMode::Fixed,
        "barre2011" => ReceiveBufferMode::Barre2011,
        _ => return Err(SettingError::value(name, value)),
    };
    if buffer.mode == ReceiveBufferMode::Fixed {
        buffer.initial_bytes = buffer.max_bytes;
    }
    Ok(())
}

/// Returns true if the value is `on_word`, false if it is `off_word`.
fn parse_switch(
    name: &str,
    value: &str,
    [off_word, on_word]: [&str; 2],
) -> Result<bool, SettingError> {
    match value {
        _ if value == on_word => Ok(true),
        _ if value == off_word => Ok(false),
        _ => Err(SettingError::value(name, value)),
    }
}

fn parse_bool(name: &str, value: &str) -> Result<bool, SettingError> {
    parse_switch(name, value, ["false", "true"])
}

fn parse_opportunistic_mode(name: &str, value: &str) -> Result<OpportunisticMode, SettingError> {
    match value {
        "off" => Ok(OpportunisticMode::Off),
        "nsdi12" => Ok(OpportunisticMode::Nsdi12),
        "mptcp-org" => Ok(OpportunisticMode::MptcpOrg),
        _ => Err(SettingError::value(name, value)),
    }
}

fn parse_number<T: std::str::FromStr<Err = ParseIntError>>(
    name: &str,
    value: &str,
) -> Result<T, SettingError> {
    value.parse().map_err(|_| SettingError::value(name, value))
}

fn parse_nanos(name: &str, value: &str) -> Result<Duration, SettingError> {
    parse_number(name, value).map(Duration::from_nanos)
}

/// Parses minimum, default and maximum.
fn parse_sizes(name: &str, value: &str) -> Result<[u64; 3], SettingError> {
    let sizes: Result<Vec<u64>, _> = value.split(' ').map(str::parse).collect();
    let sizes = sizes.map_err(|_| SettingError::value(name, value))?;
    <[u64; 3]>::try_from(sizes).map_err(|_| SettingError::value(name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_overrides_the_profile_in_any_order() {
        let settings = [("tsq", "true"), ("profile", "linux-3.2-mptcp"), ("penalisation", "off")];
        let host = HostSettings::from_texts(settings).unwrap();
        assert!(host.small_queues && !host.connection.subflow.tso_autosizing);
        let m1_m2 = host.connection.opportunistic;
        assert_eq!(
            (m1_m2.retransmission, m1_m2.penalisation),
            (OpportunisticMode::MptcpOrg, OpportunisticMode::Off)
        );
    }

    #[test]
    fn a_fixed_buffer_begins_with_its_largest_size() {
        for order in [
            [("receive-buffer-mode", "fixed"), ("receive-buffer", "4096 100000 800000")],
            [("receive-buffer", "4096 100000 800000"), ("receive-buffer-mode", "fixed")],
        ] {
            let buffer = HostSettings::from_texts(order).unwrap().connection.receive_buffer;
            assert_eq!((buffer.initial_bytes, buffer.max_bytes), (800_000, 800_000));
        }
    }

    #[test]
    fn invalid_settings_are_refused_by_name() {
        let refuse =
            |name, value| HostSettings::from_texts([(name, value)]).unwrap_err().to_string();
        assert_eq!(refuse("tsq", "1"), "`tsq` cannot be `1`");
        assert_eq!(refuse("send-buffer", "1 2"), "`send-buffer` cannot be `1 2`");
        assert_eq!(refuse("colour", "blue"), "unknown setting `colour`");
    }
}
