//! Every cause as a hypothesis: the facts that it predicts and those that it forbids.

use super::fact::Fact;
use crate::finding::Cause;

/// A cause with its consequences. An observation that contradicts one of them excludes the cause.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hypothesis {
    /// Cause that the hypothesis assumes.
    pub(crate) cause: Cause,
    /// Meaning in the documentation.
    pub(crate) meaning: &'static str,
    /// Facts that hold if the cause is present.
    pub(crate) predicts: &'static [Fact],
    /// Facts that cannot hold if the cause is present.
    pub(crate) forbids: &'static [Fact],
}

macro_rules! hypotheses {
    ($($cause:ident: $meaning:literal,
        predicts [$($predicted:ident),*], forbids [$($forbidden:ident),*];)+) => {
        /// Hypotheses in the order of [`Cause::ALL`].
        pub(crate) const HYPOTHESES: &[Hypothesis] = &[$(Hypothesis {
            cause: Cause::$cause,
            meaning: $meaning,
            predicts: &[$(Fact::$predicted),*],
            forbids: &[$(Fact::$forbidden),*],
        },)+];
    };
}

hypotheses! {
    OldMptcpFork:
        "the kernel has the former Multipath TCP of multipath-tcp.org (version 0), which no current host supports",
        predicts [OldForkSetting], forbids [SocketOpens];
    KernelWithoutMptcp:
        "the kernel does not support Multipath TCP, or its sockets are forbidden here",
        predicts [], forbids [SocketOpens, OldForkSetting, Disabled];
    MptcpDisabled:
        "Multipath TCP is disabled (`net.mptcp.enabled`)",
        predicts [Disabled], forbids [SocketOpens];
    NoRoute:
        "this host has no route to the server",
        predicts [], forbids [RouteToServer, TcpConnects, SynAnswered];
    ListenerClosedAfterAccept:
        "the program closes its listener after it accepts a connection, so further subflows are refused",
        predicts [], forbids [ListenerStays, EveryJoin];
    RemoteRefused:
        "no program listens on the port",
        predicts [], forbids [TcpConnects, SynAnswered];
    RemoteSilent:
        "the server does not answer",
        predicts [], forbids [TcpConnects, SynAnswered];
    FirstPathUnusable:
        "the server answers from one address of this host, but new connections start on another path, which fails",
        predicts [], forbids [SynAnswered];
    SynOptionDropped:
        "the path drops SYN packets with the option",
        predicts [TcpConnects], forbids [SynAnswered];
    BlackholeFallbackActive:
        "Linux has turned Multipath TCP off for an hour, after a server answered only SYNs without the Multipath TCP option",
        predicts [], forbids [OptionRequested];
    SynOptionStripped:
        "the path removes the option from the SYN",
        predicts [SynAnswered], forbids [OptionReturned];
    SynackOptionStripped:
        "the path removes the option from the SYN/ACK",
        predicts [SynAnswered], forbids [OptionReturned];
    ListenerPlainTcp:
        "the program that listens uses plain TCP",
        predicts [], forbids [ServerMultipath];
    PayloadRewritten:
        "the path modifies the data",
        predicts [], forbids [DataIntact];
    OptionStrippedAfterHandshake:
        "the path removes the option from packets with data",
        predicts [OptionReturned], forbids [StaysMultipath];
    ApplicationPlainTcp:
        "a program opens its connections with plain TCP",
        predicts [], forbids [ProgramsMultipath];
    DuplicateAddress:
        "several interfaces have the same address, as identical modems give it, so only one of them can be a path",
        predicts [], forbids [UniqueAddresses];
    DuplicateManagers:
        "several programs set the endpoints and undo each other's changes",
        predicts [], forbids [OneManager];
    UserspacePathManagerWithoutDaemon:
        "a daemon should create the subflows, but none runs",
        predicts [], forbids [KernelOpensSubflows];
    EndpointWrongRole:
        "an endpoint is `signal` at the client, or `subflow` at the server",
        predicts [], forbids [RolesMatch];
    EndpointAddressMissing:
        "this host does not have the address of an endpoint, or of a subflow of a program",
        predicts [], forbids [EndpointAddresses];
    EndpointInterfaceDown:
        "the interface of an endpoint is down",
        predicts [], forbids [EndpointInterfacesUp];
    EndpointWrongInterface:
        "an endpoint is bound to another interface than the one that has its address",
        predicts [], forbids [EndpointDevices, EveryJoin];
    LinkDown:
        "the link of the interface is down",
        predicts [], forbids [LinksUp];
    JoinId0Denied:
        "the other host forbids further subflows to its first address, and announces no other address",
        predicts [], forbids [JoinToFirstAddress, EveryJoin];
    DeadAnnouncedAddressesUseLimits:
        "unreachable addresses use up the limit, so the remaining ones are not tried",
        predicts [AnnouncementArrives], forbids [AnnouncedReached];
    SubflowLimit:
        "the limit allows no further subflow",
        predicts [], forbids [LimitSuffices];
    AnnouncementStripped:
        "the path removes the announcement, or it does not fit into a packet",
        predicts [PeerAnnounces], forbids [AnnouncementArrives];
    AddAddrLimit:
        "the limit prevents the use of announced addresses",
        predicts [AnnouncementArrives], forbids [AnnouncementAccepted];
    PeerLimit:
        "the other host's limit is reached",
        predicts [], forbids [PeerAccepts];
    SameSubnetArp:
        "two interfaces in one network share one link, because they answer ARP for each other",
        predicts [], forbids [SeparateNetworks];
    ReversePathFilter:
        "a strict filter drops packets, because the route back uses another interface",
        predicts [], forbids [FilterPasses];
    NoSourceRoute:
        "packets from an address leave through another interface",
        predicts [], forbids [SourceRoutes];
    NoGatewayOnInterface:
        "an interface has no gateway to the server",
        predicts [], forbids [SourceRoutes];
    NoEndpoints:
        "the host has several paths, but no endpoint for a second one",
        predicts [], forbids [FurtherEndpoint, SomeJoin];
    AllEndpointsOneInterface:
        "all endpoints are on one interface, so all subflows share one link",
        predicts [], forbids [SeveralInterfaces];
    LoadBalancerOtherHost:
        "over this path, a different host answers",
        predicts [JoinEnds], forbids [EveryJoin];
    AnnouncedAddressPrivate:
        "the other host announces a private address that this host cannot reach",
        predicts [AnnouncementArrives], forbids [AnnouncedReached];
    AnnouncedAddressUnreachable:
        "an announced address does not answer, or no program listens there",
        predicts [AnnouncementArrives], forbids [AnnouncedReached];
    JoinProhibited:
        "a firewall forbids further subflows",
        predicts [JoinEnds], forbids [EveryJoin];
    JoinUnreachable:
        "a router on the path has no route to the server",
        predicts [JoinEnds], forbids [EveryJoin];
    JoinOptionStripped:
        "the path removes the option from further subflows",
        predicts [JoinEnds], forbids [EveryJoin];
    JoinReset:
        "further subflows are reset, probably by a firewall, but plain TCP passes",
        predicts [JoinEnds], forbids [EveryJoin];
    PathRefused:
        "the path refuses further subflows and plain TCP",
        predicts [JoinEnds], forbids [EveryJoin, EveryPathPlainTcp];
    JoinDropped:
        "the path drops further subflows, but passes plain TCP",
        predicts [MissingPathPlainTcp], forbids [EveryJoin];
    ParallelLinkSilent:
        "the path has parallel links (ECMP), of which one gets no answer: some connections pass, others do not",
        predicts [], forbids [PortsAgree];
    PathMtuHole:
        "small packets pass, large packets do not",
        predicts [], forbids [LargePackets];
    PathSilent:
        "the path gets no answer, from the beginning or during the connection",
        predicts [], forbids [EveryPathAnswers];
    SubflowNotRecreated:
        "a connection lacks a subflow that a new connection has",
        predicts [], forbids [ProgramsHaveEveryPath];
    NatTimeout:
        "a subflow is silent, but a new one over the same path is not",
        predicts [], forbids [ProgramSubflowsAnswer];
    EndpointBackupOnly:
        "all other paths are backups",
        predicts [], forbids [RegularEndpoint, RegularJoin];
    BackupFlagAsymmetric:
        "the other host marks a subflow as a backup, but this host does not",
        predicts [SomeJoin], forbids [BackupFlagsAgree];
    BackupUsed:
        "a backup carries data while another path works",
        predicts [SomeJoin], forbids [BackupsIdle];
    PathLossy:
        "the path loses packets, and not because of a full queue",
        predicts [], forbids [SmallPackets];
    PathMuchSlower:
        "the round-trip time is much longer than on another path",
        predicts [], forbids [SimilarDelays];
    ReceiveBufferTooSmall:
        "the receive buffer is too small for several paths: the faster path waits for the slower one",
        predicts [], forbids [BufferSuffices];
    SlowReader:
        "the receiving program reads more slowly than data arrives",
        predicts [], forbids [SendersUnlimited];
    ReceiveWindowFull:
        "the receiver's window limits the connection",
        predicts [], forbids [SendersUnlimited];
    SendBufferFull:
        "the send buffer limits the connection",
        predicts [], forbids [SendersUnlimited];
}

/// Returns the hypothesis of a cause.
pub(crate) fn hypothesis(cause: Cause) -> Option<&'static Hypothesis> {
    HYPOTHESES.iter().find(|hypothesis| hypothesis.cause == cause)
}
