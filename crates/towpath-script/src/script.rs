//! A script as data.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use towpath_wire::{Ecn, Flags};

/// One file: its claim, its host, and its steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    /// Path below `specs/scripts/` without the ending: `tcp/zero-window`.
    pub name: String,
    /// A sentence that the host must satisfy.
    pub title: String,
    /// Sources of the requirement: `rfc9293 3.8.6.1`, or `linux` for behaviour that no document
    /// requires.
    pub sections: Vec<String>,
    /// End that the host plays: client or server.
    pub role: Role,
    /// Protocol that the host's socket offers.
    pub transport: Transport,
    /// Settings that differ from the host's defaults.
    pub settings: Vec<Setting>,
    /// Subflows that differ from the default route.
    pub routes: Vec<SubflowRoute>,
    /// Steps in order of execution.
    pub steps: Vec<ScriptStep>,
}

/// Role of the host in opening the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The host opens the connection.
    Client,
    /// The host listens for a connection.
    Server,
}

/// Protocol of the host's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Plain TCP without Multipath TCP.
    Tcp,
    /// Multipath TCP (RFC 8684).
    Mptcp,
}

/// The two kinds of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostKind {
    /// The Linux kernel, in real time.
    Linux,
    /// Our own stack, in virtual time.
    Towpath,
}

impl HostKind {
    /// Returns the name used in scripts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Towpath => "towpath",
        }
    }
}

/// A line `set: NAME VALUE`; each kind of host interprets its own names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Line number in the file.
    pub line: usize,
    /// Name of the setting.
    pub name: String,
    /// Text after the name.
    pub value: String,
}

/// A line `line: NUMBER host PATH peer PATH port PORT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubflowRoute {
    /// Number of the subflow.
    pub number: usize,
    /// The host's address is `10.0.HOST.1`.
    pub host: u8,
    /// The peer's address is `10.0.PEER.2`.
    pub peer: u8,
    /// Port of the end that accepts this subflow.
    pub port: u16,
    /// True if the peer opens the subflow, not the host.
    pub by_peer: bool,
}

impl SubflowRoute {
    /// Returns the default route of a subflow.
    pub fn default_for(number: usize, role: Role) -> Self {
        let path = u8::try_from(number).unwrap_or(u8::MAX);
        Self { number, host: path, peer: path, port: 80, by_peer: role == Role::Server }
    }
}

/// Returns the host's address on a path.
pub fn host_address(path: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, path, 1).into()
}

/// Returns the peer's address on a path.
pub fn peer_address(path: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, path, 2).into()
}

/// Number of paths of a host.
pub const MAX_PATHS: u8 = 4;

/// One step: a line of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptStep {
    /// Line number in the file.
    pub line: usize,
    /// Text of the line, without comment.
    pub text: String,
    /// Kind of host that this step is limited to, with the name of the difference; `None` is all
    /// hosts.
    pub only: Option<(HostKind, String)>,
    /// Time after the previous step.
    pub when: TimeWindow,
    /// Action or expectation of the step.
    pub action: StepAction,
}

/// Time window after the previous step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeWindow {
    /// Earliest time after the previous step.
    pub from: Duration,
    /// Latest time. The script's own actions take place at the earliest time.
    pub to: Duration,
}

/// Action or expectation of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum StepAction {
    /// The usual three packets on subflow 0, with these fields in the peer's SYN.
    Handshake(PacketPattern),
    /// A whole MP_JOIN on this subflow, opened by the end that its route names.
    Join {
        /// Number of the subflow.
        subflow: usize,
        /// B flag of the peer.
        backup: bool,
    },
    /// The peer sends a packet.
    Inject {
        /// Number of the subflow.
        subflow: usize,
        /// Packet that the peer sends.
        packet: PacketPattern,
    },
    /// A router sends an ICMP error about the last packet of the host.
    Icmp {
        /// Number of the subflow.
        subflow: usize,
        /// Error that the router reports.
        message: Icmp,
    },
    /// The host sends a packet.
    Expect {
        /// Number of the subflow.
        subflow: usize,
        /// Fields that the host's packet must have.
        packet: PacketPattern,
    },
    /// The host sends nothing for this time.
    Silence(Duration),
    /// Packets of the host in this time are ignored.
    Ignore(Duration),
    /// The application makes a socket call, which must have this outcome.
    Call(Call, CallOutcome),
}

/// An ICMP error about a packet of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Icmp {
    /// Kind of the ICMP error.
    pub kind: IcmpError,
    /// Relative sequence number that the error quotes; `None` quotes the host's last data.
    pub seq: Option<u32>,
}

/// Kind of an ICMP error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpError {
    /// The packet was too large for a link of this MTU.
    TooBig(u32),
    /// The host cannot be reached now.
    Unreachable,
    /// The port is closed.
    Refused,
}

/// Socket call of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Listens on port 80.
    Listen,
    /// Opens a connection to the peer's first address.
    Connect,
    /// Accepts a connection on the listening socket.
    Accept,
    /// Checks that the connection is open.
    Connected,
    /// Writes this number of bytes.
    Write(usize),
    /// Reads all available bytes.
    Read,
    /// Closes the sending direction of the connection.
    Shutdown,
    /// Closes the host's socket.
    Close,
    /// Aborts the connection at once.
    Abort,
    /// Removes the host's address on this path.
    RemoveAddress(u8),
    /// Adds an MPTCP endpoint: path and flags, as in `set: endpoint`.
    AddEndpoint(u8, EndpointUse),
}

/// Flags of an MPTCP endpoint of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags, each on its own")]
pub struct EndpointUse {
    /// Set when subflows are opened from this address.
    pub subflow: bool,
    /// Set when the address is announced to the peer.
    pub signal: bool,
    /// Set when its subflows have the B flag.
    pub backup: bool,
    /// Set when subflows are opened to every address of the peer.
    pub fullmesh: bool,
}

/// Expected outcome of a socket call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// The call succeeds; a write accepts all bytes.
    Done,
    /// The call transfers this number of bytes.
    Bytes(usize),
    /// The read reaches the end of the stream.
    End,
    /// The call would block.
    Nothing,
    /// The connection failed, for this reason if one is given.
    Error(Option<FailureReason>),
}

/// Reason for the failure of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    /// RST or MP_FASTCLOSE from the peer.
    Reset,
    /// RST in reply to the SYN.
    Refused,
    /// The peer did not answer in time.
    TimedOut,
    /// The peer cannot be reached any more.
    Unreachable,
    /// Call on a connection after its end.
    Closed,
}

/// Fields of a packet to send or to compare.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PacketPattern {
    /// Control bits; PSH is in `push`.
    pub flags: Flags,
    /// True if PSH must be set; `None` matches either in an expected packet.
    pub push: Option<bool>,
    /// First sequence number, relative to the initial one.
    pub seq: Option<u32>,
    /// Length of the payload in bytes.
    pub len: NumberRange,
    /// Acknowledgement number relative to the initial sequence number.
    pub ack: Option<u32>,
    /// Receive window in bytes, after scaling.
    pub window: Option<NumberRange>,
    /// ECN field of the IP header.
    pub ecn: Option<Ecn>,
    /// Options that must be present.
    pub options: Vec<OptionPattern>,
    /// Options that must be absent.
    pub without: Vec<OptionName>,
    /// True to send a wrong TCP checksum.
    pub bad_checksum: bool,
    /// Urgent pointer to send; `None` is 0. The URG flag is in `flags`.
    pub urgent: Option<u16>,
}

/// A range of numbers, or a single one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NumberRange {
    /// Smallest number in the range.
    pub from: u64,
    /// Largest number in the range.
    pub to: u64,
}

impl NumberRange {
    /// Returns the range of this number only.
    pub const fn exactly(number: u64) -> Self {
        Self { from: number, to: number }
    }

    /// Range of all numbers.
    pub const ANY: Self = Self { from: 0, to: u64::MAX };

    /// Returns true if the range contains `number`.
    pub const fn contains(self, number: u64) -> bool {
        self.from <= number && number <= self.to
    }
}

/// Name of a TCP or MPTCP option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionName {
    /// MSS, maximum segment size.
    Mss,
    /// Window scale (RFC 7323 §2.2).
    WindowScale,
    /// SACK permitted (RFC 2018 §2).
    SackPermitted,
    /// SACK blocks (RFC 2018 §3).
    Sack,
    /// Timestamps (RFC 7323 §3).
    Timestamps,
    /// Any option of Multipath TCP.
    Mptcp,
    /// DSS (RFC 8684 §3.3).
    Dss,
    /// MP_CAPABLE (RFC 8684 §3.1).
    Capable,
    /// MP_TCPRST (RFC 8684 §3.6).
    Reset,
    /// ADD_ADDR (RFC 8684 §3.4.1).
    AddAddress,
    /// MP_FAIL (RFC 8684 §3.7).
    Fail,
    /// MP_FASTCLOSE (RFC 8684 §3.5).
    FastClose,
}

/// An option to send or to compare; `None` sends the default value, or matches any.
#[derive(Debug, Clone, PartialEq)]
pub enum OptionPattern {
    /// MSS, in bytes of payload.
    Mss(Option<u16>),
    /// Window scale, as a shift count.
    WindowScale(Option<u8>),
    /// SACK permitted, without a value.
    SackPermitted,
    /// SACK blocks, as relative sequence numbers.
    Sack(Vec<(u32, u32)>),
    /// Timestamps with value and echo.
    Timestamps(TimestampPattern),
    /// MP_CAPABLE with flags and keys.
    Capable(CapablePattern),
    /// MP_JOIN of a SYN, SYN-ACK or ACK.
    Join(JoinPattern),
    /// DSS with acknowledgement and mapping.
    Dss(DssPattern),
    /// ADD_ADDR with address and HMAC.
    AddAddress(AddAddressPattern),
    /// REMOVE_ADDR with these address identifiers.
    RemoveAddress(Vec<u8>),
    /// MP_PRIO, a change of priority.
    Priority {
        /// B flag of the option.
        backup: bool,
    },
    /// MP_FAIL with the relative data sequence number.
    Fail(Option<u64>),
    /// MP_FASTCLOSE, with the right key or a wrong one.
    FastClose {
        /// True if the key is the receiver's.
        valid: bool,
    },
    /// MP_TCPRST with reason and flags.
    Reset {
        /// Reason code of the reset.
        reason: Option<u8>,
        /// T flag: the condition is transient.
        transient: Option<bool>,
    },
    /// Raw bytes, including kind and length.
    Raw(Vec<u8>),
}

/// Values of a timestamps option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimestampPattern {
    /// `TSval` of the peer; `None` sends its millisecond clock.
    pub value: Option<u32>,
    /// `TSecr`; `None` is the last `TSval` of the other end.
    pub echo: Option<TsEcho>,
}

/// Value of the `TSecr` field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TsEcho {
    /// Exactly this `TSecr` value.
    Number(u32),
    /// The last value seen, minus this number.
    Older(u32),
}

/// Fields of an MP_CAPABLE option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapablePattern {
    /// Protocol version; `None` sends 1, or matches any.
    pub version: Option<u8>,
    /// The eight flags A to H; A is the highest bit.
    pub flags: Option<u8>,
    /// Keys in the option; `None` sends those that belong to the kind of packet, or matches any.
    pub keys: Option<CapableKeys>,
    /// Data-level length; `None` sends the packet's own length if it has data and both keys.
    pub len: Option<u16>,
    /// True if a DSS checksum follows the length.
    pub checksum: bool,
}

/// Keys of an MP_CAPABLE option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapableKeys {
    /// The option carries no key.
    None,
    /// The key of the sender only.
    Sender,
    /// The keys of both ends.
    Both,
    /// Both keys, but the receiver's is wrong.
    Wrong,
}

/// Fields of an MP_JOIN option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinPattern {
    /// Address identifier; `None` sends the path number plus one, or matches any.
    pub address_id: Option<u8>,
    /// B flag; `None` sends it clear, or matches either.
    pub backup: Option<bool>,
    /// True if token or HMAC is valid.
    pub valid: bool,
}

/// Fields of a DSS option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DssPattern {
    /// DATA_ACK relative to the initial data sequence number.
    pub ack: Presence<u64>,
    /// Length of the DATA_ACK field in octets.
    pub ack_octets: Option<u8>,
    /// Data sequence mapping of the option.
    pub map: Presence<MapPattern>,
    /// DATA_FIN flag of the option.
    pub fin: bool,
}

/// Presence and value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Presence<T> {
    /// The default is sent; an expected packet may have the field or not.
    #[default]
    Default,
    /// The field is absent.
    Absent,
    /// The field is present with this value.
    Given(T),
}

/// A data sequence mapping; `None` sends the default value, or matches any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MapPattern {
    /// Data sequence number, relative to the initial one.
    pub dsn: Option<u64>,
    /// Subflow sequence number, relative to the initial one.
    pub ssn: Option<u32>,
    /// Length of the mapping in bytes.
    pub len: Option<u16>,
    /// Length of the data sequence number in octets.
    pub octets: Option<u8>,
    /// Presence and validity of the checksum.
    pub checksum: Checksum,
}

/// Checksum of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksum {
    /// The mapping is sent or expected without a checksum.
    #[default]
    None,
    /// The correct checksum of the mapping.
    Valid,
    /// A checksum that does not match.
    Invalid,
}

/// Fields of an ADD_ADDR option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddAddressPattern {
    /// Address identifier that is announced.
    pub address_id: u8,
    /// IP address that is announced.
    pub address: IpAddr,
    /// Port; `None` omits the field.
    pub port: Option<u16>,
    /// E flag: an echo, without HMAC.
    pub echo: bool,
    /// True if the HMAC is valid.
    pub valid: bool,
}
