//! Common timeline of events of the path manager, of links, addresses and routes.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr};

use towpath_netlink::{
    InterfaceAddress, LinkEvent, LinkEvents, MptcpEvent, MptcpEventKind, NetlinkError, RouteEntry,
    RouteKind, RouteSocket,
};

use super::Monitor;
use crate::interface_map::{InterfaceMap, is_running};

/// Event on the monitored machine, as one line of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorEvent {
    /// Source of the event.
    pub source: EventSource,
    /// Description in one line.
    pub text: String,
}

/// Source of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventSource {
    /// Event of the kernel's MPTCP path manager.
    PathManager,
    /// Event of an interface or an address, from the kernel.
    Link,
    /// Event of a route, from the kernel.
    Route,
    /// Inferred from counters; the kernel sent no event.
    Inferred,
    /// Loss of events: the kernel dropped them because they came too fast.
    Lost,
}

impl EventSource {
    /// Returns the label for users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PathManager => "mptcp",
            Self::Link => "link",
            Self::Route => "route",
            Self::Inferred => "inferred",
            Self::Lost => "lost",
        }
    }
}

/// Follows the interfaces of a network namespace and describes their changes.
#[derive(Debug)]
pub struct EventTimeline {
    events: LinkEvents,
    route: RouteSocket,
    interfaces: InterfaceMap,
}

impl EventTimeline {
    /// Opens the netlink sockets in the calling thread's network namespace; needs no privilege.
    pub fn open() -> Result<Self, NetlinkError> {
        let events = LinkEvents::open_with_routes()?;
        let mut route = RouteSocket::open()?;
        let interfaces = InterfaceMap::read(&mut route)?;
        Ok(Self { events, route, interfaces })
    }

    /// Returns the name of the interface that has an address, and true if it can carry packets.
    pub fn interface(&self, address: IpAddr) -> Option<(String, bool)> {
        self.interfaces.lookup(address)
    }

    /// Returns the events since the last call, and separately those of the path manager.
    pub fn read(
        &mut self,
        monitor: &mut Monitor,
    ) -> Result<(Vec<MonitorEvent>, Vec<MptcpEvent>), NetlinkError> {
        let mut monitor_events = Vec::new();
        let received = self.events.drain()?;
        for event in received.events {
            monitor_events.extend(self.on_link_event(event));
        }
        if received.lost {
            monitor_events.push(events_lost("of interfaces and routes"));
            self.reload()?;
        }
        let (events, some_lost) = monitor.events()?;
        if some_lost {
            monitor_events.push(events_lost("of the path manager"));
        }
        let to_monitor_event = |event: &MptcpEvent| MonitorEvent {
            source: EventSource::PathManager,
            text: describe_event(event),
        };
        monitor_events.extend(events.iter().map(to_monitor_event));
        Ok((monitor_events, events))
    }

    fn reload(&mut self) -> Result<(), NetlinkError> {
        self.interfaces = InterfaceMap::read(&mut self.route)?;
        Ok(())
    }

    fn on_link_event(&mut self, event: LinkEvent) -> Option<MonitorEvent> {
        let link_event = |text: String| Some(MonitorEvent { source: EventSource::Link, text });
        let route_event = |text: Option<String>| {
            text.map(|text| MonitorEvent { source: EventSource::Route, text })
        };
        let is_new_link = matches!(&event, LinkEvent::Link(link)
            if self.interfaces.name(link.index).is_none());
        let is_change = self.interfaces.apply(&event);
        match event {
            LinkEvent::Link(_) if !is_change => None,
            LinkEvent::Link(link) => {
                let change = match is_new_link {
                    true => "is new",
                    false if is_running(&link) => "is up",
                    false if link.is_up() => "has lost its carrier",
                    false => "is down",
                };
                link_event(format!("{} {change}", link.name))
            }
            LinkEvent::LinkRemoved(link) => link_event(format!("{} is gone", link.name)),
            LinkEvent::AddressAdded(_) if !is_change => None,
            LinkEvent::AddressAdded(address) => {
                link_event(self.describe_address(&address, "has the address"))
            }
            LinkEvent::AddressRemoved(address) => {
                link_event(self.describe_address(&address, "has lost the address"))
            }
            LinkEvent::RouteAdded(route) => route_event(self.describe_route(&route, "new")),
            LinkEvent::RouteRemoved(route) => route_event(self.describe_route(&route, "gone")),
        }
    }

    fn link_name(&self, index: u32) -> &str {
        self.interfaces.name(index).unwrap_or("?")
    }

    fn describe_address(&self, address: &InterfaceAddress, verb: &str) -> String {
        format!("{} {verb} {}", self.link_name(address.link_index), address.local)
    }

    /// Describes a route; `None` for those that the kernel makes for its own addresses.
    fn describe_route(&self, route: &RouteEntry, change: &str) -> Option<String> {
        if route.kind != RouteKind::Unicast || route.to.address().is_multicast() {
            return None;
        }
        let destination =
            if route.is_default() { "default".to_owned() } else { route.to.to_string() };
        let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        let link = route.link_index.map(|index| format!(" on {}", self.link_name(index)));
        let table = if route.table == u32::from(libc::RT_TABLE_MAIN) {
            String::new()
        } else {
            format!(" (table {})", route.table)
        };
        Some(format!("{change}: {destination}{via}{}{table}", link.unwrap_or_default()))
    }
}

/// Describes an event: `SF_CLOSED 10.0.2.1:5000 → 10.0.0.1:80, error 111 (Connection refused)`.
fn describe_event(event: &MptcpEvent) -> String {
    let endpoint = |address: Option<IpAddr>, port: Option<u16>| match (address, port) {
        (Some(address), Some(port)) => Some(SocketAddr::new(address, port).to_string()),
        (Some(address), None) => Some(address.to_string()),
        (None, _) => None,
    };
    let mut text = event.kind.name().to_owned();
    if let Some(local) = endpoint(event.local, event.local_port) {
        let _ = write!(text, " {local}");
    }
    if let Some(remote) = endpoint(event.remote, event.remote_port) {
        let _ = write!(text, "{} {remote}", if event.local.is_some() { " →" } else { "" });
    }
    if let (MptcpEventKind::Announced | MptcpEventKind::Removed, Some(id)) =
        (event.kind, event.remote_id)
    {
        let _ = write!(text, " (id {id} of the peer)");
    }
    if event.backup == Some(true) {
        text.push_str(", backup");
    }
    if let Some(error) = event.error.filter(|&error| error != 0) {
        let meaning = io::Error::from_raw_os_error(error.into()).to_string();
        let meaning = meaning.split(" (os error").next().unwrap_or_default();
        let _ = write!(text, ", error {error} ({meaning})");
    }
    if let Some(reason) = event.reset_reason {
        let _ = write!(text, ", reset: {}", reset_reason(reason));
    }
    if event.is_server_side() == Some(true) {
        text.push_str(", accepted here");
    }
    if event.denies_join_to_first_address() {
        text.push_str(", no further subflows to this address");
    }
    if let Some(token) = event.token {
        let _ = write!(text, " [{token:08x}]");
    }
    text
}

/// Names the reason with which the peer reset a subflow (RFC 8684 §3.6).
fn reset_reason(reason: u32) -> String {
    let text = match reason {
        0 => "unspecified",
        1 => "MPTCP-specific error",
        2 => "lack of resources",
        3 => "administratively prohibited",
        4 => "too much outstanding data",
        5 => "unacceptable performance",
        6 => "middlebox interference",
        other => return format!("reason {other}"),
    };
    text.to_owned()
}

fn events_lost(origin: &str) -> MonitorEvent {
    let text = format!("events {origin} arrived too fast; some are missing here");
    MonitorEvent { source: EventSource::Lost, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an event with two ends, as in `ip mptcp monitor`.
    fn event(kind: MptcpEventKind, token: u32, [local, remote]: [&str; 2]) -> MptcpEvent {
        let end = |text: &str| text.parse::<SocketAddr>().ok();
        let (local, remote) = (end(local), end(remote));
        MptcpEvent {
            kind,
            token: Some(token),
            local_id: None,
            remote_id: None,
            local: local.map(|end| end.ip()),
            remote: remote.map(|end| end.ip()),
            local_port: local.map(|end| end.port()),
            remote_port: remote.map(|end| end.port()),
            backup: None,
            error: None,
            flags: None,
            timeout: None,
            link_index: None,
            reset_reason: None,
            reset_flags: None,
            server_side: None,
        }
    }

    #[test]
    fn an_event_is_printed_as_one_line() {
        let mut events = [
            event(MptcpEventKind::Created, 0xd320_90b2, ["10.0.0.1:44283", "10.0.1.1:38785"]),
            event(MptcpEventKind::Established, 0xc303_8cde, ["10.0.1.1:38785", "10.0.0.1:44283"]),
            event(MptcpEventKind::SubflowClosed, 0xc303_8cde, ["10.0.2.1:54349", "10.0.0.1:44283"]),
            event(MptcpEventKind::Announced, 0xe6b7_e4b2, ["", "10.0.1.2:4321"]),
        ];
        events[1].server_side = Some(true);
        events[2].error = Some(libc::ECONNREFUSED as u8);
        events[3].remote_id = Some(9);
        let lines = events.each_ref().map(describe_event);
        let expected = [
            "CREATED 10.0.0.1:44283 → 10.0.1.1:38785 [d32090b2]",
            "ESTABLISHED 10.0.1.1:38785 → 10.0.0.1:44283, accepted here [c3038cde]",
            "SF_CLOSED 10.0.2.1:54349 → 10.0.0.1:44283, error 111 (Connection refused) [c3038cde]",
            "ANNOUNCED 10.0.1.2:4321 (id 9 of the peer) [e6b7e4b2]",
        ];
        assert_eq!(lines, expected);
        assert_eq!(reset_reason(6), "middlebox interference");
    }
}
