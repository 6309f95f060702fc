//! What a diagnosis says.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Everything that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// All in all.
    pub verdict: Health,
    /// Why it is not judged, or what there is one path of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Subflows of the connection that was tried, with their shares of its data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathShare>,
    /// Causes before their consequences.
    pub findings: Vec<Finding>,
    /// What was looked at.
    pub checked: Vec<String>,
    /// What was not, and what it takes.
    pub not_checked: Vec<SkippedCheck>,
}

/// All in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// Every path that is configured was seen to carry data, and there are several.
    Healthy,
    /// Multipath TCP works, and there is one path.
    OnePath,
    /// Nothing is known to be wrong, and that several paths carry data was not seen.
    #[serde(rename = "not-judged")]
    Undetermined,
    /// Multipath TCP works, and less well than it could.
    Impaired,
    /// There is no Multipath TCP, or no connection at all.
    Broken,
}

/// A subflow and what it carried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathShare {
    /// The interface of its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Our address.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
    /// Acknowledged and received.
    pub bytes: u64,
    /// Of all bytes of the connection.
    pub percent: u8,
    /// It is a backup, for one of both ends at least.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub backup: bool,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What.
    pub cause: Cause,
    /// How sure that is.
    pub confidence: Confidence,
    /// Where such a thing belongs.
    pub layer: Layer,
    /// Host, interface, address or hop.
    #[serde(rename = "where", default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The same for people.
    pub sentence: String,
    /// What it is concluded from.
    pub evidence: Vec<String>,
    /// Commands that mend it.
    pub fix: Vec<String>,
    /// Advice that is no command.
    pub hint: Option<String>,
    /// Only what the other host says of itself leads to it, so it may be untrue: nothing is mended
    /// for it.
    #[serde(rename = "claimed", default, skip_serializing_if = "std::ops::Not::not")]
    pub unverified: bool,
}

/// How sure a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// The evidence allows it, and other causes as well.
    Possible,
    /// Other causes are rare.
    Likely,
    /// The evidence allows no other cause.
    Certain,
}

/// Where a cause belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "in the order in which they are looked at")]
pub enum Layer {
    Kernel,
    Configuration,
    Application,
    Connection,
    Path,
}

/// What was not looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedCheck {
    /// What.
    pub what: String,
    /// What it takes.
    pub why: String,
}

macro_rules! causes {
    ($($variant:ident = $id:literal in $layer:ident,)+) => {
        /// What can be wrong, in the order in which it is told: what hides others comes first.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "docs/doctor.md explains each")]
        pub enum Cause {
            $(#[serde(rename = $id)] $variant,)+
        }

        impl Cause {
            /// Every cause.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Its name in JSON and in documents.
            pub const fn id(self) -> &'static str {
                match self { $(Self::$variant => $id,)+ }
            }

            /// Where it belongs.
            pub const fn layer(self) -> Layer {
                match self { $(Self::$variant => Layer::$layer,)+ }
            }
        }
    };
}

causes! {
    OldMptcpFork = "old-mptcp-fork" in Kernel,
    KernelWithoutMptcp = "kernel-without-mptcp" in Kernel,
    MptcpDisabled = "mptcp-disabled" in Kernel,
    NoRoute = "no-route" in Configuration,
    ListenerClosedAfterAccept = "listener-closed-after-accept" in Connection,
    RemoteRefused = "remote-refused" in Connection,
    RemoteSilent = "remote-silent" in Connection,
    SynOptionDropped = "syn-option-dropped" in Path,
    BlackholeFallbackActive = "blackhole-fallback-active" in Kernel,
    SynOptionStripped = "syn-option-stripped" in Path,
    SynackOptionStripped = "synack-option-stripped" in Path,
    ListenerPlainTcp = "listener-plain-tcp" in Application,
    PayloadRewritten = "payload-rewritten" in Path,
    OptionStrippedAfterHandshake = "option-stripped-after-handshake" in Path,
    ApplicationPlainTcp = "application-plain-tcp" in Application,
    DuplicateManagers = "duplicate-managers" in Configuration,
    UserspacePathManagerWithoutDaemon = "userspace-path-manager-without-daemon" in Configuration,
    EndpointWrongRole = "endpoint-wrong-role" in Configuration,
    EndpointAddressMissing = "endpoint-address-missing" in Configuration,
    EndpointInterfaceDown = "endpoint-interface-down" in Configuration,
    LinkDown = "link-down" in Path,
    JoinId0Denied = "join-id0-denied" in Connection,
    DeadAnnouncedAddressesUseLimits = "dead-announced-addresses-use-limits" in Connection,
    SubflowLimit = "subflow-limit" in Configuration,
    AnnouncementStripped = "announcement-stripped" in Path,
    AddAddrLimit = "add-addr-limit" in Configuration,
    PeerLimit = "peer-limit" in Configuration,
    SameSubnetArp = "same-subnet-arp" in Configuration,
    ReversePathFilter = "reverse-path-filter" in Configuration,
    NoSourceRoute = "no-source-route" in Configuration,
    NoGatewayOnInterface = "no-gateway-on-interface" in Configuration,
    NoEndpoints = "no-endpoints" in Configuration,
    AllEndpointsOneInterface = "all-endpoints-one-interface" in Configuration,
    LoadBalancerOtherHost = "load-balancer-other-host" in Connection,
    AnnouncedAddressPrivate = "announced-address-private" in Connection,
    AnnouncedAddressUnreachable = "announced-address-unreachable" in Connection,
    JoinProhibited = "join-prohibited" in Path,
    JoinUnreachable = "join-unreachable" in Path,
    JoinOptionStripped = "join-option-stripped" in Path,
    JoinReset = "join-reset" in Path,
    JoinDropped = "join-dropped" in Path,
    PathMtuHole = "path-mtu-hole" in Path,
    PathSilent = "path-silent" in Path,
    SubflowNotRecreated = "subflow-not-recreated" in Connection,
    NatTimeout = "nat-timeout" in Path,
    EndpointBackupOnly = "endpoint-backup-only" in Configuration,
    BackupFlagAsymmetric = "backup-flag-asymmetric" in Connection,
    BackupUsed = "backup-used" in Connection,
    PathLossy = "path-lossy" in Path,
    PathMuchSlower = "path-much-slower" in Path,
    ReceiveBufferTooSmall = "receive-buffer-too-small" in Path,
    SlowReader = "slow-reader" in Application,
    ReceiveWindowFull = "receive-window-full" in Connection,
    SendBufferFull = "send-buffer-full" in Configuration,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

impl Finding {
    /// A finding that is sure, without a place.
    pub(super) fn new(cause: Cause, sentence: impl Into<String>) -> Self {
        Self {
            cause,
            confidence: Confidence::Certain,
            layer: cause.layer(),
            location: None,
            sentence: sentence.into(),
            evidence: Vec::new(),
            fix: Vec::new(),
            hint: None,
            unverified: false,
        }
    }

    /// Whether both say the same of the same place.
    pub(super) fn is_about_the_same(&self, other: &Self) -> bool {
        (self.cause, &self.location) == (other.cause, &other.location)
    }

    pub(super) fn at_location(mut self, place: impl fmt::Display) -> Self {
        self.location = Some(place.to_string());
        self
    }

    pub(super) fn with_confidence(mut self, confidence: Confidence) -> Self {
        self.confidence = confidence;
        self
    }

    pub(super) fn with_evidence(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }

    /// More evidence, if there is some.
    pub(super) fn with_optional_evidence(mut self, evidence: Option<String>) -> Self {
        self.evidence.extend(evidence);
        self
    }

    pub(super) fn fix(mut self, command: impl Into<String>) -> Self {
        self.fix.push(command.into());
        self
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
