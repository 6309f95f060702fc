//! Result of a diagnosis: findings, their confidence and their fixes.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::text;

/// Result of `towpath doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Overall health of Multipath TCP.
    pub verdict: Health,
    /// Reason for the verdict "undetermined", or the only path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Subflows of the test connection, with their shares of its data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathShare>,
    /// Interfaces that this connection could not use, although nothing is wrong with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused: Vec<UnusedInterface>,
    /// Findings, causes before their consequences.
    pub findings: Vec<Finding>,
    /// One claim about each cause, in the order of [`Cause::ALL`].
    #[serde(default)]
    pub claims: Vec<Claim>,
    /// Names of the completed checks.
    pub checked: Vec<String>,
    /// Skipped checks and their requirements.
    pub not_checked: Vec<SkippedCheck>,
}

/// Overall health, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// There are several paths, and every configured one carried data.
    Healthy,
    /// Multipath TCP works over a single path.
    OnePath,
    /// No problem was found, and data on several paths were not observed.
    Undetermined,
    /// Multipath TCP works, with a problem that degrades it.
    Impaired,
    /// Multipath TCP does not work, or no connection was established.
    Broken,
}

/// A subflow and its share of the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathShare {
    /// Interface that has the local address, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Local address of the subflow.
    pub local: IpAddr,
    /// Remote address of the subflow.
    pub remote: IpAddr,
    /// Payload bytes, acknowledged and received.
    pub bytes: u64,
    /// Percentage of all bytes of the connection.
    pub percent: u8,
    /// Set when either end treats the subflow as a backup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub backup: bool,
}

impl Diagnosis {
    /// Minimum of bytes for a conclusion about a path: about seven packets.
    pub(super) const MIN_DATA_BYTES: u64 = 10_000;

    /// Describes the paths that carried data: their number, all subflows, and the bytes on each
    /// path. Subflows over one interface are one path.
    pub fn traffic_text(&self) -> String {
        let mut paths: Vec<(String, u64)> = Vec::new();
        for share in self.paths.iter().filter(|share| share.bytes >= Self::MIN_DATA_BYTES) {
            let label = share.label();
            match paths.iter_mut().find(|(name, _)| *name == label) {
                Some((_, bytes)) => *bytes = bytes.saturating_add(share.bytes),
                None => paths.push((label, share.bytes)),
            }
        }
        let path_count = text::count(paths.len() as u64, "path");
        let verb = if paths.len() == 1 { "carries" } else { "carry" };
        let subflow_count = text::count(self.paths.len() as u64, "subflow");
        let bytes: Vec<_> =
            paths.iter().map(|(name, bytes)| format!("{name} {}", text::bytes(*bytes))).collect();
        format!("{path_count} {verb} data ({subflow_count}): {}", bytes.join(", "))
    }
}

impl PathShare {
    /// Returns the interface, or the local address if the interface is unknown.
    pub fn label(&self) -> String {
        self.interface.clone().unwrap_or_else(|| self.local.to_string())
    }
}

/// An interface without a subflow, for a reason that is not a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedInterface {
    /// Name of the interface.
    pub interface: String,
    /// One address of the interface.
    pub address: IpAddr,
    /// Reason, and the condition under which it is used, for people.
    pub sentence: String,
}

/// One problem, its evidence and its fix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Cause of the problem.
    pub cause: Cause,
    /// Confidence in the cause.
    pub confidence: Confidence,
    /// Layer to which the cause belongs.
    pub layer: Layer,
    /// Host, interface, address or hop concerned; `None` if not specific.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// Description of the problem for people.
    pub sentence: String,
    /// Facts that support the cause.
    pub evidence: Vec<String>,
    /// Commands that fix the problem.
    pub fix: Vec<String>,
    /// Commands that were tried before, each with its result; they are not advised again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<String>,
    /// Advice for people if no command fixes the problem.
    pub hint: Option<String>,
    /// Set when the finding relies on the other host's report alone, which may be untrue. Such a
    /// finding is never fixed automatically.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unverified: bool,
}

/// Claim about one cause, with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Cause that the claim is about.
    pub cause: Cause,
    /// Judgement of the cause.
    pub state: ClaimState,
    /// Sentence of the finding, the fact that contradicts it, or what would judge it.
    pub reason: String,
}

/// Judgement of a cause by the observations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimState {
    /// A rule found the cause, and no fact contradicts it.
    Shown,
    /// Nothing shows the cause, and no fact contradicts it.
    NotJudged,
    /// A fact contradicts the cause.
    Contradicted,
}

/// Confidence in a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// The evidence permits this cause, and others as well.
    Possible,
    /// Other causes are rare.
    Likely,
    /// The evidence excludes every other cause.
    Certain,
}

/// Layer at which a cause lies.
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

/// A check that was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedCheck {
    /// Name of the check.
    pub what: String,
    /// Requirement of the check, such as a privilege.
    pub why: String,
}

macro_rules! causes {
    ($($variant:ident = $id:literal in $layer:ident,)+) => {
        /// Causes in the order in which they are reported: a cause that hides others comes first.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "docs/reference/causes.md explains each")]
        pub enum Cause {
            $(#[serde(rename = $id)] $variant,)+
        }

        impl Cause {
            /// All causes in the order in which they are reported.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the name in JSON and in documents.
            pub const fn id(self) -> &'static str {
                match self { $(Self::$variant => $id,)+ }
            }

            /// Returns the layer to which the cause belongs.
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
    FirstPathUnusable = "first-path-unusable" in Path,
    SynOptionDropped = "syn-option-dropped" in Path,
    BlackholeFallbackActive = "blackhole-fallback-active" in Kernel,
    SynOptionStripped = "syn-option-stripped" in Path,
    SynackOptionStripped = "synack-option-stripped" in Path,
    ListenerPlainTcp = "listener-plain-tcp" in Application,
    PayloadRewritten = "payload-rewritten" in Path,
    OptionStrippedAfterHandshake = "option-stripped-after-handshake" in Path,
    ApplicationPlainTcp = "application-plain-tcp" in Application,
    DuplicateAddress = "duplicate-address" in Configuration,
    DuplicateManagers = "duplicate-managers" in Configuration,
    UserspacePathManagerWithoutDaemon = "userspace-path-manager-without-daemon" in Configuration,
    EndpointWrongRole = "endpoint-wrong-role" in Configuration,
    EndpointAddressMissing = "endpoint-address-missing" in Configuration,
    EndpointInterfaceDown = "endpoint-interface-down" in Configuration,
    EndpointWrongInterface = "endpoint-wrong-interface" in Configuration,
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
    PathRefused = "path-refused" in Path,
    JoinDropped = "join-dropped" in Path,
    ParallelLinkSilent = "parallel-link-silent" in Path,
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
    /// Creates a certain finding without a location.
    pub(super) fn new(cause: Cause, sentence: impl Into<String>) -> Self {
        Self {
            cause,
            confidence: Confidence::Certain,
            layer: cause.layer(),
            location: None,
            sentence: sentence.into(),
            evidence: Vec::new(),
            fix: Vec::new(),
            tried: Vec::new(),
            hint: None,
            unverified: false,
        }
    }

    /// Returns true if both have the same cause and location.
    pub(super) fn is_same_problem(&self, other: &Self) -> bool {
        (self.cause, &self.location) == (other.cause, &other.location)
    }

    pub(super) fn at_location(mut self, location: impl fmt::Display) -> Self {
        self.location = Some(location.to_string());
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

    /// Adds more evidence, if there is some.
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
