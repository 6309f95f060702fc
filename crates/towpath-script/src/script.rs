//! A script as data.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use towpath_mptcp::wire::{Ecn, Flags};

/// One file: what is shown, on what host, and step by step.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    /// Path below `specs/scripts/` without the ending: `tcp/zero-window`.
    pub name: String,
    /// A sentence that must hold.
    pub title: String,
    /// What demands it: `rfc9293 3.8.6.1`, or `linux` for what no document wants.
    pub sections: Vec<String>,
    /// Who opens the connection.
    pub role: Role,
    /// What the host offers.
    pub transport: Transport,
    /// What is not as it is by default.
    pub settings: Vec<Setting>,
    /// Subflows that are not where they are by default.
    pub routes: Vec<SubflowRoute>,
    /// In order.
    pub steps: Vec<ScriptStep>,
}

/// What the host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It opens the connection.
    Client,
    /// It listens.
    Server,
}

/// What the host's socket speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// Multipath TCP.
    Mptcp,
}

/// The two kinds of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostKind {
    /// The Linux kernel.
    Linux,
    /// Our own stack.
    Towpath,
}

impl HostKind {
    /// As scripts call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Towpath => "towpath",
        }
    }
}

/// `set: NAME VALUE`; each kind of host knows what to do with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Line of the file.
    pub line: usize,
    /// Name.
    pub name: String,
    /// Everything behind the name.
    pub value: String,
}

/// `line: NUMBER host PATH peer PATH port PORT`.
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
    /// Whether the peer opens it, not the host.
    pub by_peer: bool,
}

impl SubflowRoute {
    /// Where a subflow is unless the script says otherwise.
    pub fn usual(number: usize, role: Role) -> Self {
        let path = u8::try_from(number).unwrap_or(u8::MAX);
        Self { number, host: path, peer: path, port: 80, by_peer: role == Role::Server }
    }
}

/// The host's address on a path.
pub fn host_address(path: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, path, 1).into()
}

/// The peer's address on a path.
pub fn peer_address(path: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, path, 2).into()
}

/// Paths that a host has.
pub const MAX_PATHS: u8 = 4;

/// One line of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptStep {
    /// Line of the file.
    pub line: usize,
    /// As it stands there.
    pub text: String,
    /// Only for this kind of host, with the name of the difference.
    pub only: Option<(HostKind, String)>,
    /// After the step before.
    pub when: TimeWindow,
    /// What is done or expected.
    pub action: StepAction,
}

/// How long after the step before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeWindow {
    /// At the earliest.
    pub from: Duration,
    /// At the latest; what the script does, it does at the earliest time.
    pub to: Duration,
}

/// What is done or expected.
#[derive(Debug, Clone, PartialEq)]
pub enum StepAction {
    /// The usual three packets on subflow 0, with these fields in the peer's SYN.
    Handshake(PacketPattern),
    /// A whole MP_JOIN on this subflow, opened by whoever its route says.
    Join {
        /// Subflow.
        line: usize,
        /// The peer's B flag.
        backup: bool,
    },
    /// The peer sends a packet.
    Inject {
        /// Subflow.
        line: usize,
        /// Packet.
        packet: PacketPattern,
    },
    /// A router sends an ICMP error about the last packet of the host.
    Icmp {
        /// Subflow.
        line: usize,
        /// What it says.
        message: Icmp,
    },
    /// The host sends a packet.
    Expect {
        /// Subflow.
        line: usize,
        /// Packet.
        packet: PacketPattern,
    },
    /// The host sends nothing for so long.
    Silence(Duration),
    /// What the host sends in this time does not matter.
    Ignore(Duration),
    /// The application does something, and this is what becomes of it.
    Call(Call, CallOutcome),
}

/// An ICMP error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Icmp {
    /// Its kind.
    pub kind: IcmpError,
    /// The sequence number that it quotes, if not that of the host's last data.
    pub seq: Option<u32>,
}

/// What an ICMP error says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpError {
    /// The packet was too large for a link of this MTU.
    TooBig(u32),
    /// The host cannot be reached now.
    Unreachable,
    /// The port is closed.
    Refused,
}

/// What an application does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Listens on port 80.
    Listen,
    /// Opens a connection to the peer's first address.
    Connect,
    /// Takes the connection that was accepted.
    Accept,
    /// Asks whether its connection is open.
    Connected,
    /// Gives so many bytes to send.
    Write(usize),
    /// Takes all that there is to read.
    Read,
    /// Sends no more.
    Shutdown,
    /// Closes the socket.
    Close,
    /// Ends the connection at once.
    Abort,
    /// Takes an address of the host away.
    RemoveAddress(u8),
    /// Announces or uses an address from now on: path and flags, as in `set: endpoint`.
    AddEndpoint(u8, EndpointUse),
}

/// What an MPTCP endpoint of the host is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags, each on its own")]
pub struct EndpointUse {
    /// Subflows are opened from here.
    pub subflow: bool,
    /// It is announced.
    pub signal: bool,
    /// B flag.
    pub backup: bool,
    /// To every address of the peer.
    pub fullmesh: bool,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// It works; of a write, all bytes are taken.
    Done,
    /// So many bytes.
    Bytes(usize),
    /// The end of the stream.
    End,
    /// Nothing now.
    Nothing,
    /// The connection failed, for this reason if one is given.
    Error(Option<FailureReason>),
}

/// Why a connection failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    /// By RST or MP_FASTCLOSE.
    Reset,
    /// RST to the SYN.
    Refused,
    /// No answer.
    TimedOut,
    /// The way is gone.
    Unreachable,
    /// Written to or read from after its end.
    Closed,
}

/// Fields of a packet: those to send, or those to compare.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PacketPattern {
    /// Control bits; PSH is in `push`.
    pub flags: Flags,
    /// Whether PSH is to be set; in what is expected, `None` does not matter.
    pub push: Option<bool>,
    /// First sequence number, relative to the initial one.
    pub seq: Option<u32>,
    /// Bytes of payload.
    pub len: NumberRange,
    /// Acknowledgement number, relative.
    pub ack: Option<u32>,
    /// Window in bytes.
    pub window: Option<NumberRange>,
    /// ECN field of the IP header.
    pub ecn: Option<Ecn>,
    /// Options that are there.
    pub options: Vec<OptionPattern>,
    /// Options that are not there.
    pub without: Vec<OptionName>,
    /// The TCP checksum is wrong.
    pub damaged: bool,
    /// The urgent pointer.
    pub urgent: Option<u16>,
}

/// A number that is known, or lies between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NumberRange {
    /// At least.
    pub from: u64,
    /// At most.
    pub to: u64,
}

impl NumberRange {
    /// Exactly this.
    pub const fn exactly(number: u64) -> Self {
        Self { from: number, to: number }
    }

    /// Anything.
    pub const ANY: Self = Self { from: 0, to: u64::MAX };

    /// Whether `number` lies in it.
    pub const fn holds(self, number: u64) -> bool {
        self.from <= number && number <= self.to
    }
}

/// An option by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionName {
    /// MSS.
    Mss,
    /// Window scale.
    WindowScale,
    /// SACK permitted.
    SackPermitted,
    /// SACK blocks.
    Sack,
    /// Timestamps.
    Timestamps,
    /// Any of Multipath TCP.
    Mptcp,
    /// DSS.
    Dss,
    /// MP_CAPABLE.
    Capable,
    /// MP_TCPRST.
    Reset,
    /// ADD_ADDR.
    AddAddress,
    /// MP_FAIL.
    Fail,
    /// MP_FASTCLOSE.
    FastClose,
}

/// An option to send or to compare; `None` means the usual value, or any.
#[derive(Debug, Clone, PartialEq)]
pub enum OptionPattern {
    /// MSS.
    Mss(Option<u16>),
    /// Window scale.
    WindowScale(Option<u8>),
    /// SACK permitted.
    SackPermitted,
    /// SACK blocks, relative.
    Sack(Vec<(u32, u32)>),
    /// Timestamps.
    Timestamps(TimestampPattern),
    /// MP_CAPABLE.
    Capable(CapablePattern),
    /// MP_JOIN.
    Join(JoinPattern),
    /// DSS.
    Dss(DssPattern),
    /// ADD_ADDR.
    AddAddress(AddAddressPattern),
    /// REMOVE_ADDR.
    RemoveAddress(Vec<u8>),
    /// MP_PRIO.
    Priority {
        /// B flag.
        backup: bool,
    },
    /// MP_FAIL: the data sequence number, relative.
    Fail(Option<u64>),
    /// MP_FASTCLOSE, with the right key or another.
    FastClose {
        /// Whether the key is that of the receiver.
        right: bool,
    },
    /// MP_TCPRST.
    Reset {
        /// Reason.
        reason: Option<u8>,
        /// T flag.
        transient: Option<bool>,
    },
    /// These bytes, kind and length included.
    Raw(Vec<u8>),
}

/// Timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimestampPattern {
    /// `TSval` of the peer; without, its clock of milliseconds.
    pub value: Option<u32>,
    /// `TSecr`; without, the last `TSval` of the other end.
    pub echo: Option<TsEcho>,
}

/// `TSecr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TsEcho {
    /// This number.
    Number(u32),
    /// The last value seen, less so much.
    Older(u32),
}

/// MP_CAPABLE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapablePattern {
    /// Version, if not 1.
    pub version: Option<u8>,
    /// The eight flags A to H, A the highest.
    pub flags: Option<u8>,
    /// Keys, if not those that belong to such a packet.
    pub keys: Option<CapableKeys>,
    /// Length of the data.
    pub len: Option<u16>,
    /// With a DSS checksum behind the length.
    pub checksum: bool,
}

/// Which keys MP_CAPABLE has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapableKeys {
    /// None.
    None,
    /// The sender's.
    Sender,
    /// Both.
    Both,
    /// Both, but that of the receiver is wrong.
    Wrong,
}

/// MP_JOIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinPattern {
    /// Address identifier; without, the number of the path and one.
    pub address_id: Option<u8>,
    /// B flag; without, clear, or any.
    pub backup: Option<bool>,
    /// Whether token or HMAC is as it must be.
    pub right: bool,
}

/// DSS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DssPattern {
    /// DATA_ACK, relative.
    pub ack: Presence<u64>,
    /// Octets of DATA_ACK.
    pub ack_octets: Option<u8>,
    /// Mapping.
    pub map: Presence<MapPattern>,
    /// DATA_FIN.
    pub fin: bool,
}

/// Whether a field is there, and with what in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Presence<T> {
    /// The usual one is sent; any or none is expected.
    #[default]
    Usual,
    /// Not there.
    Absent,
    /// There, with this.
    Given(T),
}

/// A mapping; what is `None` is usual, or any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MapPattern {
    /// Data sequence number, relative.
    pub dsn: Option<u64>,
    /// Subflow sequence number, relative.
    pub ssn: Option<u32>,
    /// Length.
    pub len: Option<u16>,
    /// Octets of the data sequence number.
    pub octets: Option<u8>,
    /// Checksum.
    pub checksum: Checksum,
}

/// The checksum of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksum {
    /// None is sent; none is expected.
    #[default]
    None,
    /// The right one.
    Right,
    /// A wrong one.
    Wrong,
}

/// ADD_ADDR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddAddressPattern {
    /// Identifier.
    pub address_id: u8,
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: Option<u16>,
    /// E flag: no HMAC.
    pub echo: bool,
    /// Whether the HMAC is right.
    pub right: bool,
}
