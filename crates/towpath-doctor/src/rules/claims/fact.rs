//! Facts that the doctor's checks establish, with their method and its limits.

use super::reading::{Reading, with_multipath, with_trial};
use super::{connection, host, paths, plain_tcp, programs};
use crate::rules::view::ObservationView;

/// Description of a fact in the documentation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FactDescription {
    /// Name in tables, such as `tcp-connects`.
    pub(crate) id: &'static str,
    /// Statement that a reading confirms or refutes.
    pub(crate) statement: &'static str,
    /// Method of the check.
    pub(crate) method: &'static str,
    /// Situations that the method cannot detect.
    pub(crate) blind_spot: &'static str,
}

macro_rules! facts {
    ($($variant:ident = $id:literal, $statement:literal, $method:literal, $blind_spot:literal,
        $reader:expr;)+) => {
        /// A fact about a host, its connection or its paths.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Fact {
            $(#[doc = $statement] $variant,)+
        }

        impl Fact {
            /// All facts, in the order of the checks.
            pub(crate) const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the description of the fact.
            pub(crate) const fn description(self) -> FactDescription {
                match self {
                    $(Self::$variant => FactDescription {
                        id: $id,
                        statement: $statement,
                        method: $method,
                        blind_spot: $blind_spot,
                    },)+
                }
            }

            /// Reads the fact from an observation.
            pub(super) fn read(self, view: &ObservationView<'_>) -> Reading {
                let reader: fn(&ObservationView<'_>) -> Reading = match self {
                    $(Self::$variant => $reader,)+
                };
                reader(view)
            }
        }
    };
}

facts! {
    SocketOpens = "socket-opens",
        "The kernel opens a Multipath TCP socket.",
        "`socket(IPPROTO_MPTCP)`",
        "a filter that applies to other programs only",
        host::socket_opens;
    OldForkSetting = "old-fork-setting",
        "The kernel has a setting of the former Multipath TCP.",
        "`net.mptcp.mptcp_enabled`",
        "a fork without that setting",
        host::old_fork_setting;
    Disabled = "disabled",
        "The setting disables Multipath TCP.",
        "`net.mptcp.enabled`",
        "a change after the test",
        host::disabled;
    KernelOpensSubflows = "kernel-opens-subflows",
        "The kernel's path manager or a daemon opens subflows.",
        "`net.mptcp.pm_type`, and the names of running programs",
        "a daemon with another name",
        host::kernel_opens_subflows;
    OneManager = "one-manager",
        "At most one program sets the endpoints.",
        "running programs, endpoints before and after the test, `RmAddrTx`",
        "a change that happens less often than the test lasts",
        host::one_manager;
    EndpointAddresses = "endpoint-addresses",
        "This host has the address of every endpoint and subflow.",
        "endpoints and addresses over netlink, `MPJoinSynTxBindErr`",
        "an address that was missing between the two snapshots only",
        host::endpoint_addresses;
    LinksUp = "links-up",
        "Every interface that is set up has a carrier, before and after the test.",
        "links over netlink",
        "a link that is interrupted further away",
        host::links_up;
    EndpointInterfacesUp = "endpoint-interfaces-up",
        "The interface of every endpoint is set up.",
        "links and addresses over netlink",
        "an endpoint without an address on this host",
        host::endpoint_interfaces_up;
    EndpointDevices = "endpoint-devices",
        "Every endpoint is bound to the interface that has its address, or to none.",
        "endpoints and addresses over netlink",
        "an address of the loopback interface, which any interface may use",
        host::endpoint_devices;
    UniqueAddresses = "unique-addresses",
        "No two interfaces have the same address.",
        "addresses over netlink",
        "another host with the same address",
        host::unique_addresses;
    SeparateNetworks = "separate-networks",
        "No two interfaces share a network and answer ARP for each other.",
        "addresses and `arp_ignore`; with `--peer` also those of the other host",
        "without `--peer`, the other host",
        host::separate_networks;
    FurtherEndpoint = "further-endpoint",
        "This host has an endpoint for another address than that of the first subflow.",
        "endpoints over netlink",
        "endpoints that a daemon adds for each connection",
        host::further_endpoint;
    RegularEndpoint = "regular-endpoint",
        "An endpoint for a further subflow is not a backup.",
        "flags of the endpoints",
        "a backup flag that the other host sets",
        host::regular_endpoint;
    RolesMatch = "roles-match",
        "The connecting host opens subflows, and the accepting host announces its addresses.",
        "flags of the endpoints; with `--peer` also those of the other host",
        "without `--peer`, the other host",
        host::roles_match;
    SeveralInterfaces = "several-interfaces",
        "Subflows use several interfaces of this host.",
        "local addresses of the subflows",
        "links that meet further away",
        |view| with_multipath(view, paths::several_interfaces);
    SourceRoutes = "source-routes",
        "Packets from each endpoint leave through its own interface and gateway.",
        "route lookups in the kernel for each source address",
        "the other host's routes",
        host::source_routes;
    RouteToServer = "route-to-server",
        "This host has a route to the server.",
        "a route lookup in the kernel",
        "routers further away",
        host::route_to_server;
    FilterPasses = "filter-passes",
        "No reverse path filter dropped a packet during the test.",
        "`IPReversePathFilter`; with `--peer` also that of the other host",
        "filters in routers; without `--peer`, the other host",
        host::filter_passes;
    BufferSuffices = "buffer-suffices",
        "The receive buffer may grow to 256 kB or more.",
        "`net.ipv4.tcp_rmem`; with `--peer` also that of the other host",
        "a smaller buffer that a program requests",
        host::buffer_suffices;
    TcpConnects = "tcp-connects",
        "Plain TCP connects to the server.",
        "a test connection over plain TCP",
        "firewalls that treat other programs differently",
        connection::tcp_connects;
    OptionRequested = "option-requested",
        "Linux requests Multipath TCP in its SYN packets.",
        "`MPCapableSYNTXDisabled` during the test connection",
        "an earlier hour in which it did not",
        connection::option_requested;
    SynAnswered = "syn-answered",
        "A SYN with MP_CAPABLE is answered.",
        "up to three attempts, compared with plain TCP",
        "a filter that drops only some of them",
        connection::syn_answered;
    OptionReturned = "option-returned",
        "The SYN/ACK confirms Multipath TCP.",
        "`MPTCP_INFO` of the test connection",
        "the place at which the option disappears",
        connection::option_returned;
    ServerMultipath = "server-multipath",
        "The server's listener uses Multipath TCP; with `--all`, those of this host as well.",
        "the test connection, the other host's list of listeners, `sock_diag`",
        "a program that accepts connections for another one",
        connection::server_multipath;
    StaysMultipath = "stays-multipath",
        "The connection is still Multipath TCP after data in both directions.",
        "`MPTCP_INFO` at the end, and counters such as `MPCapableDataFallback`",
        "a fallback later in a long connection",
        connection::stays_multipath;
    DataIntact = "data-intact",
        "The echoed data are unmodified.",
        "comparison with an echo, checksums, resets with reason 6",
        "a device that modifies other contents only, such as FTP commands",
        connection::data_intact;
    ListenerStays = "listener-stays",
        "The port still accepts connections after the test connection.",
        "plain TCP over each path",
        "a listener that closes later",
        |view| with_trial(view, plain_tcp::listener_stays);
    SomeJoin = "some-join",
        "At least one further subflow was established.",
        "`tcp_info` of each subflow",
        "its use",
        |view| with_multipath(view, paths::some_join);
    EveryJoin = "every-join",
        "Every endpoint of this host has a subflow, and none failed.",
        "`tcp_info` of each subflow, path manager events",
        "interfaces without an endpoint",
        |view| with_multipath(view, paths::every_join);
    JoinEnds = "join-ends",
        "A further subflow was refused, reset or closed, and not merely unanswered.",
        "path manager events, `tcp_info` of each subflow, `MPJoinSynTx`",
        "without root, the reason",
        |view| with_multipath(view, paths::join_ends);
    RegularJoin = "regular-join",
        "A further subflow that is not a backup was established.",
        "flags of each subflow",
        "a flag that changes later (MP_PRIO)",
        |view| with_multipath(view, paths::regular_join);
    JoinToFirstAddress = "join-to-first-address",
        "The server accepts further subflows to its first address.",
        "remote addresses of the subflows, the flag C of the SYN/ACK",
        "a load balancer that accepts only some of them",
        |view| with_multipath(view, paths::join_to_first_address);
    LimitSuffices = "limit-suffices",
        "The limit of this host allows another subflow.",
        "`ip mptcp limits`, number of started subflows",
        "the limit of the other host",
        |view| with_multipath(view, paths::limit_suffices);
    AnnouncementArrives = "announcement-arrives",
        "An address of the other host was announced to this host.",
        "`AddAddr`, path manager events",
        "announcements that were lost on the way",
        |view| with_multipath(view, paths::announcement_arrives);
    AnnouncementAccepted = "announcement-accepted",
        "The limit of this host accepts announced addresses.",
        "`ip mptcp limits`",
        "addresses beyond the limit",
        |view| with_multipath(view, paths::announcement_accepted);
    AnnouncedReached = "announced-reached",
        "Every announced address has a subflow.",
        "path manager events, remote addresses of the subflows",
        "without root, addresses that were not tried",
        |view| with_multipath(view, paths::announced_reached);
    PeerAnnounces = "peer-announces",
        "The other host announces an address.",
        "its endpoints and its counter `AddAddrTx`",
        "everything without `--peer`",
        |view| with_multipath(view, paths::peer_announces);
    PeerAccepts = "peer-accepts",
        "The other host does not reject established subflows.",
        "subflows of this host; with `--peer` its counter `MPJoinRejected`",
        "without root and `--peer`, subflows that end at once",
        |view| with_multipath(view, paths::peer_accepts);
    EveryPathPlainTcp = "every-path-plain-tcp",
        "Plain TCP connects over every path.",
        "one connection bound to each address and interface",
        "devices that treat later connections differently",
        |view| with_trial(view, plain_tcp::every_path);
    MissingPathPlainTcp = "missing-path-plain-tcp",
        "Plain TCP connects over a path that has no subflow.",
        "one connection bound to each address and interface",
        "devices that treat later connections differently",
        |view| with_trial(view, plain_tcp::missing_path);
    PortsAgree = "ports-agree",
        "Connections from different ports over one path have the same outcome.",
        "16 connections over a path on which a SYN was not answered",
        "a path on which every SYN of the test happened to pass",
        |view| with_trial(view, plain_tcp::ports_agree);
    EveryPathAnswers = "every-path-answers",
        "Every subflow of the test connection gets acknowledgements.",
        "`tcp_info` of each subflow at the end",
        "a path that fails after the test",
        |view| with_multipath(view, paths::every_path_answers);
    LargePackets = "large-packets",
        "Packets of full size pass on every path, in both directions.",
        "an echo over plain TCP on each path, and bytes of each subflow",
        "servers that do not echo",
        |view| with_multipath(view, paths::large_packets);
    SmallPackets = "small-packets",
        "Small packets at intervals are not lost on any path.",
        "40 small packets over plain TCP on each path",
        "losses below about 5 %, and losses that depend on the load",
        |view| with_multipath(view, paths::small_packets);
    SimilarDelays = "similar-delays",
        "The round-trip times of the paths differ by less than 150 ms or a factor of 10.",
        "minimum round-trip time of small packets on each path",
        "delays that grow under load",
        |view| with_multipath(view, paths::similar_delays);
    BackupFlagsAgree = "backup-flags-agree",
        "The other host marks no subflow as a backup that this host does not.",
        "flags of each subflow",
        "a flag that changes later (MP_PRIO)",
        |view| with_multipath(view, paths::backup_flags_agree);
    BackupsIdle = "backups-idle",
        "Backups carry little data while another path works.",
        "bytes of each subflow",
        "servers that accept too little data",
        |view| with_multipath(view, paths::backups_idle);
    ProgramsMultipath = "programs-multipath",
        "No program of this host uses plain TCP.",
        "`sock_diag`, with `--all` or `--pid`",
        "short connections between two samples",
        programs::all_multipath;
    ProgramSubflowsAnswer = "program-subflows-answer",
        "No subflow of a program or of the test connection waits for acknowledgements for long.",
        "`sock_diag`",
        "idle connections",
        programs::subflows_answer;
    ProgramsHaveEveryPath = "programs-have-every-path",
        "No program's connection lacks a subflow that the test connection has.",
        "`sock_diag`, compared with the test connection",
        "connections to other servers",
        programs::have_every_path;
    SendersUnlimited = "senders-unlimited",
        "No busy connection was limited by a window or send buffer for half of its time.",
        "samples of `tcp_info` for one second",
        "connections that are idle in that second",
        programs::senders_unlimited;
}
