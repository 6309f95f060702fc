//! One change of the host's configuration: as a command to paste, applied, and reverted.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use towpath_netlink::{
    Endpoint, EndpointFlags, MptcpLimits, MptcpPm, NetlinkError, Prefix, RouteSocket, RouteSpec,
    RuleSpec,
};
use towpath_os::sysctl::{Sysctl, SysctlError};

/// A change that can be reverted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum ConfigChange {
    /// Writes a setting under `/proc/sys`.
    Sysctl {
        /// Name of the setting under `/proc/sys`.
        sysctl: Sysctl,
        /// Value before the change, as text.
        from: String,
        /// Value after the change, as text.
        to: String,
    },
    /// Adds a route to a separate table.
    AddRoute(TableRoute),
    /// Deletes a route from a separate table.
    DeleteRoute(TableRoute),
    /// Adds a policy rule for a source address.
    AddRule(SourceRule),
    /// Deletes the policy rule of a source address.
    DeleteRule(SourceRule),
    /// Sets the path manager's limits.
    Limits {
        /// Limits before the change.
        from: StoredLimits,
        /// Limits after the change.
        to: StoredLimits,
    },
    /// Adds an endpoint to the path manager.
    AddEndpoint(NamedEndpoint),
    /// Deletes an endpoint from the path manager.
    DeleteEndpoint(NamedEndpoint),
    /// Sets the flags `backup` and `fullmesh` of an endpoint, the only ones that the kernel changes.
    SetEndpointFlags {
        /// Endpoint with its flags before the change.
        endpoint: NamedEndpoint,
        /// Flags after the change, as the kernel's bit set.
        to: u32,
    },
    /// Flushes the ARP entries of an interface. Its inverse is the same flush.
    ForgetNeighbours {
        /// Name of the interface.
        link: String,
    },
}

/// A route in a separate table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRoute {
    /// Destination as text, such as `10.0.0.0/24`.
    pub to: String,
    /// Name of the interface.
    pub link: String,
    /// Address of the router; `None` on the link itself.
    pub gateway: Option<IpAddr>,
    /// Number of the table.
    pub table: u32,
}

/// A rule for one source address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRule {
    /// Source address that the rule matches.
    pub from: IpAddr,
    /// Number of the table.
    pub table: u32,
    /// Priority of the rule; lower numbers match first.
    pub priority: u32,
}

/// The path manager's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLimits {
    /// Maximum of subflows beyond the first.
    pub subflows: u32,
    /// Maximum of announced addresses to connect to.
    pub add_addr_accepted: u32,
}

/// An endpoint with its interface by name, as indices of interfaces change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedEndpoint {
    /// Local address of the endpoint.
    pub address: IpAddr,
    /// Identifier; the kernel chooses one if `None`.
    pub id: Option<u8>,
    /// Port to announce; `None` announces the connection's own.
    pub port: Option<u16>,
    /// Flags as the kernel's bit set.
    pub flags: u32,
    /// Name of the interface.
    pub link: Option<String>,
}

/// Reason why a change could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The kernel refused a netlink request.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The kernel refused a setting.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// The destination of a stored route cannot be parsed.
    #[error("`{0}` is not a valid destination")]
    Destination(String),
    /// The change to revert no longer exists, or another program changed it.
    #[error("{0}")]
    Gone(String),
}

/// Handles to the kernel through which changes are applied.
#[derive(Debug)]
pub struct ConfigHandles {
    pub(super) route: RouteSocket,
    pub(super) manager: MptcpPm,
}

impl ConfigHandles {
    /// Opens the sockets in the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { route: RouteSocket::open()?, manager: MptcpPm::open()? })
    }
}

impl ChangeError {
    /// Returns the error number of the operating system.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Netlink(error) => error.errno(),
            Self::Sysctl(error) => error.source.raw_os_error(),
            Self::Destination(_) | Self::Gone(_) => None,
        }
    }

    /// Returns true if a privilege is missing: EPERM, EACCES or EROFS.
    pub fn is_permission(&self) -> bool {
        matches!(self.errno(), Some(libc::EPERM | libc::EACCES | libc::EROFS))
    }

    /// Returns a remedy, if one is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self.errno() {
            Some(libc::EPERM | libc::EACCES) => Some(
                "this needs root (CAP_NET_ADMIN): run it with sudo, or paste the commands as root",
            ),
            Some(libc::EROFS) => {
                Some("/proc/sys cannot be written here, as in many containers: set it on the host")
            }
            Some(libc::ERANGE) => Some(
                "the kernel allows 8 endpoints: delete unused ones, or select interfaces with --dev",
            ),
            Some(libc::ENODEV) => {
                Some("the interface disappeared since the plan was made: try again")
            }
            Some(libc::EEXIST) => Some("another program configures this host at the same time"),
            _ => None,
        }
    }
}

impl ConfigChange {
    /// Returns the change that reverts this one.
    #[must_use]
    pub fn inverse(&self) -> Self {
        match self.clone() {
            Self::Sysctl { sysctl, from, to } => Self::Sysctl { sysctl, from: to, to: from },
            Self::AddRoute(route) => Self::DeleteRoute(route),
            Self::DeleteRoute(route) => Self::AddRoute(route),
            Self::AddRule(rule) => Self::DeleteRule(rule),
            Self::DeleteRule(rule) => Self::AddRule(rule),
            Self::Limits { from, to } => Self::Limits { from: to, to: from },
            Self::AddEndpoint(endpoint) => Self::DeleteEndpoint(endpoint),
            Self::DeleteEndpoint(endpoint) => Self::AddEndpoint(endpoint),
            Self::SetEndpointFlags { endpoint, to } => Self::SetEndpointFlags {
                to: endpoint.flags,
                endpoint: NamedEndpoint { flags: to, ..endpoint },
            },
            Self::ForgetNeighbours { link } => Self::ForgetNeighbours { link },
        }
    }

    /// Applies the change to the running kernel.
    pub fn apply(&self, handles: &mut ConfigHandles) -> Result<(), ChangeError> {
        match self {
            Self::Sysctl { sysctl, to, .. } => sysctl.write(to)?,
            Self::AddRoute(route) => handles.route.add_route(&route.spec()?)?,
            Self::DeleteRoute(route) => handles.route.delete_route(&route.spec()?)?,
            Self::AddRule(rule) => handles.route.add_rule(&rule.spec())?,
            Self::DeleteRule(rule) => handles.route.delete_rule(&rule.spec())?,
            Self::Limits { to, .. } => handles.manager.set_limits((*to).into())?,
            Self::ForgetNeighbours { link } => handles.route.forget_neighbours(link)?,
            Self::AddEndpoint(endpoint) => {
                let endpoint = endpoint.resolve(&mut handles.route)?;
                handles.manager.add_endpoint(&endpoint)?;
            }
            Self::DeleteEndpoint(endpoint) => {
                let id = endpoint.find(handles)?.and_then(|found| found.id);
                handles.manager.delete_endpoint(id.ok_or_else(|| endpoint.missing())?)?;
            }
            Self::SetEndpointFlags { endpoint, to } => {
                let id = endpoint.find(handles)?.and_then(|found| found.id);
                // The kernel ignores the other flags here.
                let changeable = (EndpointFlags::BACKUP | EndpointFlags::FULLMESH).bits();
                let flags = EndpointFlags::from_bits(to & changeable);
                handles.manager.set_endpoint_flags(id.ok_or_else(|| endpoint.missing())?, flags)?;
            }
        }
        Ok(())
    }

    /// Fills in the identifier that the kernel chose for a new endpoint.
    pub(super) fn resolve_ids(&mut self, handles: &mut ConfigHandles) -> Result<(), NetlinkError> {
        if let Self::AddEndpoint(endpoint) = self
            && endpoint.id.is_none()
        {
            endpoint.id = endpoint.find(handles)?.and_then(|found| found.id);
        }
        Ok(())
    }

    /// Applies the change to revert an earlier one. Returns [`ChangeError::Gone`] if another
    /// program has changed the value since, which stays, or if the object no longer exists.
    pub fn revert(&self, handles: &mut ConfigHandles) -> Result<(), ChangeError> {
        let changed_error = |name: &dyn fmt::Display,
                             current: &dyn fmt::Display,
                             expected: &dyn fmt::Display| {
            Err(ChangeError::Gone(format!("{name} is now {current}, not {expected}: not changed")))
        };
        match self {
            Self::Sysctl { sysctl, from, .. } => {
                let current =
                    sysctl.read().map_err(|error| ChangeError::Gone(error.to_string()))?;
                // The kernel separates several numbers with tabs.
                if !current.split_whitespace().eq(from.split_whitespace()) {
                    return changed_error(sysctl, &current, from);
                }
            }
            Self::Limits { from, .. } => {
                let current = StoredLimits::from(handles.manager.limits()?);
                if current != *from {
                    return changed_error(&"the path manager's limit", &current, from);
                }
            }
            Self::DeleteEndpoint(endpoint) | Self::SetEndpointFlags { endpoint, .. } => {
                let found = endpoint.find(handles)?.ok_or_else(|| endpoint.missing())?;
                if found.flags != endpoint.flags() {
                    return changed_error(&endpoint.label(), &found.flags, &endpoint.flags());
                }
            }
            Self::AddRoute(_)
            | Self::DeleteRoute(_)
            | Self::AddRule(_)
            | Self::DeleteRule(_)
            | Self::AddEndpoint(_)
            | Self::ForgetNeighbours { .. } => {}
        }
        self.apply(handles).map_err(|error| match error.errno() {
            Some(libc::ENOENT | libc::ESRCH | libc::ENODEV | libc::EEXIST) => {
                ChangeError::Gone(error.to_string())
            }
            _ => error,
        })
    }

    /// Returns the command of iproute2 or sysctl that does the same.
    pub fn command(&self) -> String {
        match self {
            Self::Sysctl { sysctl, to, .. } => {
                match (quoted(&sysctl.to_string()), to.contains(' ')) {
                    (name, true) if !name.starts_with('\'') => format!("sysctl -w {name}=\"{to}\""),
                    _ => format!("sysctl -w {}", quoted(&format!("{sysctl}={to}"))),
                }
            }
            Self::AddRoute(route) => format!("{} route add {route}", ip_command(route.is_v4())),
            Self::DeleteRoute(route) => {
                format!("{} route delete {route}", ip_command(route.is_v4()))
            }
            Self::AddRule(rule) => format!("{} rule add {rule}", ip_command(rule.from.is_ipv4())),
            Self::DeleteRule(rule) => {
                format!("{} rule delete {rule}", ip_command(rule.from.is_ipv4()))
            }
            Self::Limits { to, .. } => format!("ip mptcp limits set {to}"),
            Self::ForgetNeighbours { link } => {
                format!("ip -4 neighbour flush dev {}", quoted(link))
            }
            Self::AddEndpoint(endpoint) => format!("ip mptcp endpoint add {endpoint}"),
            Self::DeleteEndpoint(endpoint) => match endpoint.id {
                Some(id) => format!("ip mptcp endpoint delete id {id}"),
                None => format!("ip mptcp endpoint delete {endpoint}"),
            },
            Self::SetEndpointFlags { endpoint, to } => {
                let id = endpoint.id.unwrap_or_default();
                format!("ip mptcp endpoint change id {id} {}", flag_words(*to))
            }
        }
    }

    /// Returns the values before and after the change: `net.mptcp.enabled: 0 -> 1`.
    pub fn effect(&self) -> String {
        let joined = |value: &str| value.split_whitespace().collect::<Vec<_>>().join(" ");
        match self {
            Self::Sysctl { sysctl, from, to } => {
                format!("{sysctl}: {} -> {}", joined(from), joined(to))
            }
            Self::Limits { from, to } => {
                let pairs = [
                    ("subflows", from.subflows, to.subflows),
                    ("add_addr_accepted", from.add_addr_accepted, to.add_addr_accepted),
                ];
                let changed = pairs.iter().filter(|(_, from, to)| from != to);
                let texts = changed.map(|(name, from, to)| format!("{name} {from} -> {to}"));
                format!("limits: {}", texts.collect::<Vec<_>>().join(", "))
            }
            Self::AddEndpoint(endpoint) => {
                format!("{}: none -> {}", endpoint.label(), endpoint.flags())
            }
            Self::DeleteEndpoint(endpoint) => {
                format!("{}: {} -> none", endpoint.label(), endpoint.flags())
            }
            Self::SetEndpointFlags { endpoint, to } => {
                let to = EndpointFlags::from_bits(*to);
                format!("{}: {} -> {to}", endpoint.label(), endpoint.flags())
            }
            Self::AddRoute(_)
            | Self::DeleteRoute(_)
            | Self::AddRule(_)
            | Self::DeleteRule(_)
            | Self::ForgetNeighbours { .. } => self.command(),
        }
    }
}

/// Returns the words of `ip mptcp endpoint change` that leave exactly these flags.
///
/// `ip` clears `fullmesh` unless it is named.
pub fn flag_words(flags: u32) -> String {
    let has = |flag| EndpointFlags::from_bits(flags).contains(flag);
    let backup = if has(EndpointFlags::BACKUP) { "backup" } else { "nobackup" };
    let fullmesh = if has(EndpointFlags::FULLMESH) { " fullmesh" } else { "" };
    format!("{backup}{fullmesh}")
}

const fn ip_command(v4: bool) -> &'static str {
    if v4 { "ip" } else { "ip -6" }
}

/// Quotes a word for a shell: an interface's name may contain almost any character.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:/=@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl TableRoute {
    fn is_v4(&self) -> bool {
        !self.to.contains(':')
    }

    fn spec(&self) -> Result<RouteSpec<'_>, ChangeError> {
        let to = self.to.parse().map_err(|_| ChangeError::Destination(self.to.clone()))?;
        let Self { link, gateway, table, .. } = self;
        let (gateway, table) = (*gateway, Some(*table));
        Ok(RouteSpec { to, link, gateway, source: None, table, metric: None })
    }
}

impl SourceRule {
    fn spec(&self) -> RuleSpec {
        let Self { from, table, priority } = *self;
        RuleSpec { from: Prefix::host(from), to: None, table, priority: Some(priority) }
    }
}

impl NamedEndpoint {
    /// Returns the flags as a typed bit set.
    pub fn flags(&self) -> EndpointFlags {
        EndpointFlags::from_bits(self.flags)
    }

    /// Returns true if `endpoint` has this address, port and, if one is set, this number.
    fn matches(&self, endpoint: &Endpoint) -> bool {
        (endpoint.address, endpoint.port) == (self.address, self.port)
            && self.id.is_none_or(|id| endpoint.id == Some(id))
    }

    /// Finds this endpoint in the kernel's list.
    fn find(&self, handles: &mut ConfigHandles) -> Result<Option<Endpoint>, NetlinkError> {
        Ok(handles.manager.endpoints()?.into_iter().find(|endpoint| self.matches(endpoint)))
    }

    fn missing(&self) -> ChangeError {
        ChangeError::Gone(format!("there is no endpoint {self}"))
    }

    fn label(&self) -> String {
        match self.id {
            Some(id) => format!("endpoint {id} ({})", self.address),
            None => format!("endpoint {}", self.address),
        }
    }

    fn resolve(&self, route: &mut RouteSocket) -> Result<Endpoint, NetlinkError> {
        let link_index = match &self.link {
            Some(link) => Some(route.link(link)?.index),
            None => None,
        };
        let (address, id, port, flags) = (self.address, self.id, self.port, self.flags());
        Ok(Endpoint { address, id, port, flags, link_index })
    }
}

impl From<StoredLimits> for MptcpLimits {
    fn from(limits: StoredLimits) -> Self {
        let StoredLimits { subflows, add_addr_accepted } = limits;
        Self { subflows, add_addr_accepted }
    }
}

impl From<MptcpLimits> for StoredLimits {
    fn from(limits: MptcpLimits) -> Self {
        let MptcpLimits { subflows, add_addr_accepted } = limits;
        Self { subflows, add_addr_accepted }
    }
}

impl fmt::Display for TableRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to, link, gateway, table } = self;
        let is_default = to.ends_with("/0");
        write!(f, "{}", if is_default { "default" } else { to })?;
        gateway.map_or(Ok(()), |gateway| write!(f, " via {gateway}"))?;
        write!(f, " dev {} table {table} proto static", quoted(link))
    }
}

impl fmt::Display for SourceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, table, priority } = self;
        write!(f, "from {from} lookup {table} priority {priority}")
    }
}

impl fmt::Display for StoredLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subflows, add_addr_accepted } = self;
        write!(f, "subflows {subflows} add_addr_accepted {add_addr_accepted}")
    }
}

impl fmt::Display for NamedEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, id, port, flags: _, link } = self;
        write!(f, "{address}")?;
        link.as_ref().map_or(Ok(()), |link| write!(f, " dev {}", quoted(link)))?;
        port.map_or(Ok(()), |port| write!(f, " port {port}"))?;
        id.map_or(Ok(()), |id| write!(f, " id {id}"))?;
        write!(f, " {}", self.flags())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> NamedEndpoint {
        let flags = (EndpointFlags::SUBFLOW | EndpointFlags::BACKUP).bits();
        let link = Some("wifi".to_owned());
        NamedEndpoint { address: "10.0.0.1".parse().unwrap(), id: Some(3), port: None, flags, link }
    }

    #[test]
    fn a_change_is_shown_as_the_command_that_does_the_same() {
        let add = ConfigChange::AddEndpoint(endpoint());
        let command = "ip mptcp endpoint add 10.0.0.1 dev wifi id 3 subflow backup";
        assert_eq!(add.command(), command);
        assert_eq!(add.inverse().command(), "ip mptcp endpoint delete id 3");
        let to = "::/0".to_owned();
        let gateway = Some("fd00::1".parse().unwrap());
        let route = TableRoute { to, link: "wifi".to_owned(), gateway, table: 1_003 };
        let command = "ip -6 route add default via fd00::1 dev wifi table 1003 proto static";
        assert_eq!(ConfigChange::AddRoute(route).command(), command);
        let rule = SourceRule { from: "10.0.0.1".parse().unwrap(), table: 1_003, priority: 999 };
        let command = "ip rule add from 10.0.0.1 lookup 1003 priority 999";
        assert_eq!(ConfigChange::AddRule(rule).command(), command);
    }

    #[test]
    fn a_change_of_flags_names_each_flag_that_stays() {
        let to = (EndpointFlags::SUBFLOW | EndpointFlags::FULLMESH).bits();
        let change = ConfigChange::SetEndpointFlags { endpoint: endpoint(), to };
        assert_eq!(change.command(), "ip mptcp endpoint change id 3 nobackup fullmesh");
        assert_eq!(change.inverse().command(), "ip mptcp endpoint change id 3 backup");
        let effect = "endpoint 3 (10.0.0.1): subflow backup -> subflow fullmesh";
        assert_eq!(change.effect(), effect);
    }

    #[test]
    fn the_effect_of_limits_names_only_what_changes() {
        let from = StoredLimits { subflows: 2, add_addr_accepted: 4 };
        let change = ConfigChange::Limits { from, to: StoredLimits { subflows: 8, ..from } };
        assert_eq!(change.effect(), "limits: subflows 2 -> 8");
    }

    #[test]
    fn a_name_is_quoted_as_one_shell_word() {
        assert_eq!(quoted("eth0.100"), "eth0.100");
        assert_eq!(quoted("a;reboot"), "'a;reboot'");
        assert_eq!(quoted("a'b"), r"'a'\''b'");
    }

    #[test]
    fn inverting_a_change_twice_restores_it() {
        let (from, to) = ("1".to_owned(), "2".to_owned());
        let sysctl = Sysctl::ipv4("wifi", "rp_filter");
        let flags = EndpointFlags::SUBFLOW.bits();
        for change in [
            ConfigChange::AddEndpoint(endpoint()),
            ConfigChange::SetEndpointFlags { endpoint: endpoint(), to: flags },
            ConfigChange::Sysctl { sysctl, from, to },
        ] {
            assert_eq!(change.inverse().inverse(), change);
            let text = serde_json::to_string(&change).unwrap();
            assert_eq!(serde_json::from_str::<ConfigChange>(&text).unwrap(), change, "{text}");
        }
    }
}
