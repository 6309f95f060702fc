//! Events of every host's kernel on one time axis: path manager, links, addresses, and the final
//! state of closed subflows.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use towpath_kernel::sample::TcpInfo;
use towpath_netlink::{
    DestroyedSockets, Link, LinkEvent, LinkEvents, MptcpEvent, MptcpEventKind, MptcpEvents,
};
use towpath_os::sys;
use towpath_result::{Event, EventKind, Record};

use crate::network::{EmulatedNetwork, HostNamespace, NetworkError};
use crate::traffic::TrafficContext;

/// Poll interval for the end of the run.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Final state of a destroyed socket: its ends and its `tcp_info`.
pub(super) type FinalTcpInfo = (SocketAddr, SocketAddr, TcpInfo);

/// Subscriptions of one host.
#[derive(Debug)]
struct HostEvents {
    host: String,
    mptcp: Option<MptcpEvents>,
    links: LinkEvents,
    destroyed: Option<DestroyedSockets>,
    /// Last known state of each interface: name, up, running.
    link_states: BTreeMap<u32, (String, bool, bool)>,
    /// Set when events were lost since the last round.
    events_lost: bool,
}

/// Subscriptions of all hosts of a run.
#[derive(Debug)]
pub(super) struct KernelEventWatcher {
    hosts: Vec<HostEvents>,
}

impl KernelEventWatcher {
    /// Subscribes on every host, before the traffic starts.
    pub(super) fn open(hosts: &[HostNamespace]) -> Result<Self, NetworkError> {
        let hosts = hosts.iter().map(HostEvents::open).collect::<Result<_, _>>()?;
        Ok(Self { hosts })
    }

    /// Reports events until `done`; returns the final states of closed sockets.
    pub(super) fn run(
        mut self,
        context: &TrafficContext,
        records: &Sender<Record>,
        done: &AtomicBool,
    ) -> Vec<FinalTcpInfo> {
        let mut fds: Vec<libc::pollfd> = self.hosts.iter().flat_map(HostEvents::fds).collect();
        let mut final_tcp_info = Vec::new();
        loop {
            // Read before the last round, so that events that arrived meanwhile are still
            // reported.
            let is_last_round = done.load(Ordering::Acquire);
            for host in &mut self.hosts {
                host.drain(context, records, &mut final_tcp_info);
            }
            if is_last_round || sys::poll(&mut fds, Some(POLL_INTERVAL)).is_err() {
                return final_tcp_info;
            }
        }
    }
}

impl HostEvents {
    fn open(host: &HostNamespace) -> Result<Self, NetworkError> {
        let subscriptions = host.namespace.run(|| {
            // A kernel without Multipath TCP has no such events; older ones report no destroyed
            // sockets.
            let mptcp = MptcpEvents::open().ok();
            let destroyed = DestroyedSockets::open().ok();
            LinkEvents::open().map(|links| (mptcp, links, destroyed))
        });
        let subscriptions =
            subscriptions.map_err(NetworkError::system(format!("enter host `{}`", host.name)))?;
        let (mptcp, links, destroyed) = subscriptions
            .map_err(|source| NetworkError::Kernel { host: host.name.clone(), source })?;
        let links_now = host
            .route()
            .links()
            .map_err(|source| NetworkError::Kernel { host: host.name.clone(), source })?;
        let link_states =
            links_now.into_iter().map(|link| (link.index, link_state(&link))).collect();
        Ok(Self {
            host: host.name.clone(),
            mptcp,
            links,
            destroyed,
            link_states,
            events_lost: false,
        })
    }

    fn fds(&self) -> Vec<libc::pollfd> {
        let mut fds = vec![sys::input_pollfd(&self.links.as_fd())];
        fds.extend(self.mptcp.as_ref().map(|events| sys::input_pollfd(&events.as_fd())));
        fds.extend(self.destroyed.as_ref().map(|events| sys::input_pollfd(&events.as_fd())));
        fds
    }

    fn drain(
        &mut self,
        context: &TrafficContext,
        records: &Sender<Record>,
        final_tcp_info: &mut Vec<FinalTcpInfo>,
    ) {
        let t_ns = context.now().as_nanos();
        let mut events = Vec::new();
        if let Some(received) = self.mptcp.as_mut().and_then(|mptcp| mptcp.drain().ok()) {
            self.events_lost |= received.lost;
            events.extend(received.events.iter().map(|event| path_manager_event(context, event)));
        }
        if let Ok(received) = self.links.drain() {
            self.events_lost |= received.lost;
            for event in received.events {
                events.extend(self.on_link_event(&event));
            }
        }
        if let Some(received) = self.destroyed.as_mut().and_then(|sockets| sockets.drain().ok()) {
            final_tcp_info.extend(
                received
                    .events
                    .iter()
                    .map(|socket| (socket.local, socket.remote, TcpInfo::parse(&socket.info))),
            );
        }
        if self.events_lost {
            self.events_lost = false;
            let text =
                "the kernel dropped events because its queue was full; some are missing".to_owned();
            events.push(Event { path: None, ..build_event(EventKind::Link, "", text) });
        }
        for event in events {
            let event = Event { t_ns, host: Some(self.host.clone()), ..event };
            let _ = records.send(Record::Event(event)); // the receiver may be gone
        }
    }

    fn on_link_event(&mut self, event: &LinkEvent) -> Option<Event> {
        match event {
            LinkEvent::Link(link) => {
                let state = link_state(link);
                let previous = self.link_states.insert(link.index, state.clone());
                if previous.as_ref() == Some(&state) {
                    return None;
                }
                let description = match (state.1, state.2) {
                    (false, _) => "is down",
                    (true, false) => "is up without carrier",
                    (true, true) => "is up",
                };
                Some(build_event(
                    EventKind::Link,
                    &link.name,
                    format!("interface {} {description}", link.name),
                ))
            }
            LinkEvent::LinkRemoved(link) => {
                let text = format!("interface {} is gone", link.name);
                Some(build_event(EventKind::Link, &link.name, text))
            }
            LinkEvent::AddressAdded(address) => {
                self.address_event(address.link_index, &format!("address {} added", address.local))
            }
            LinkEvent::AddressRemoved(address) => self
                .address_event(address.link_index, &format!("address {} removed", address.local)),
            LinkEvent::RouteAdded(_) | LinkEvent::RouteRemoved(_) => None,
        }
    }

    fn address_event(&self, index: u32, text: &str) -> Option<Event> {
        let (name, _, _) = self.link_states.get(&index)?;
        Some(build_event(EventKind::Address, name, format!("{text} on {name}")))
    }
}

/// Returns the link's name, and true if it is up and if it has a carrier.
fn link_state(link: &Link) -> (String, bool, bool) {
    let has_flag = |flag: libc::c_int| link.flags & flag as u32 != 0;
    (link.name.clone(), has_flag(libc::IFF_UP), has_flag(libc::IFF_RUNNING))
}

fn build_event(kind: EventKind, path: &str, text: String) -> Event {
    let path = Some(path.to_owned());
    Event { t_ns: 0, kind, host: None, path, text, detail: BTreeMap::new() }
}

/// Formats the kernel's event like `ip mptcp monitor`, with its details.
fn path_manager_event(context: &TrafficContext, event: &MptcpEvent) -> Event {
    let mut detail = BTreeMap::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            detail.insert(name.to_owned(), value);
        }
    };
    add("token", event.token.map(|token| format!("{token:08x}")));
    add("local_id", event.local_id.map(|id| id.to_string()));
    add("remote_id", event.remote_id.map(|id| id.to_string()));
    add("backup", event.backup.map(|backup| backup.to_string()));
    add("error", event.error.map(|error| error.to_string()));
    add("reset_reason", event.reset_reason.map(|reason| reason.to_string()));
    let endpoint = |ip: Option<std::net::IpAddr>, port: Option<u16>| {
        ip.map(|ip| SocketAddr::new(ip, port.unwrap_or(0)).to_string())
    };
    add("local", endpoint(event.local, event.local_port));
    add("remote", endpoint(event.remote, event.remote_port));
    let path = event
        .local
        .zip(event.remote)
        .and_then(|(local, remote)| EmulatedNetwork::path_of(local, remote))
        .and_then(|index| context.network.scenario.paths.get(index))
        .map(|path| path.name.clone());
    let on_path = path.as_ref().map(|path| format!(" on {path}")).unwrap_or_default();
    let remote = event.remote.map(|ip| format!(" {ip}")).unwrap_or_default();
    let text = match event.kind {
        MptcpEventKind::Created => format!("CREATED{on_path}"),
        MptcpEventKind::Established => format!("ESTABLISHED{on_path}"),
        MptcpEventKind::Closed => "CLOSED".to_owned(),
        MptcpEventKind::Announced => format!("ANNOUNCED{remote}"),
        MptcpEventKind::Removed => "REMOVED".to_owned(),
        MptcpEventKind::SubflowEstablished => format!("SF_ESTABLISHED{on_path}"),
        MptcpEventKind::SubflowClosed => format!("SF_CLOSED{on_path}"),
        MptcpEventKind::SubflowPriority => format!("SF_PRIO{on_path}"),
        MptcpEventKind::ListenerCreated => "LISTENER_CREATED".to_owned(),
        MptcpEventKind::ListenerClosed => "LISTENER_CLOSED".to_owned(),
        MptcpEventKind::Other(number) => format!("event {number}"),
    };
    Event { t_ns: 0, kind: EventKind::PathManager, host: None, path, text, detail }
}
