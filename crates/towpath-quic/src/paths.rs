//! The paths of a connection: opened, monitored, switched, abandoned and reopened.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use noq_proto::{
    FourTuple, PathAbandonReason, PathError, PathEvent, PathId, TransportErrorCode, VarInt,
};
use towpath_net::Instant;

use crate::congestion::{PathControllerHandle, PathMetrics};
use crate::connection::Connection;
use crate::host::LocalAddress;
use crate::policy::{self, PolicyPathView};
use crate::status::{AbandonReason, PathNotice, PathState, PathStatus, QuicEvent, SwitchReason};

/// Retry interval after a path could not be opened: mostly the peer's connection identifiers have
/// not arrived yet.
const OPEN_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Delay before an abandoned path is reopened; then the library repeats its challenge every 2 s
/// until it is answered.
const REOPEN_DELAY: Duration = Duration::from_millis(500);
/// Largest acknowledgement delay of our peers (RFC 9000 §18.2).
const MAX_ACK_DELAY: Duration = Duration::from_millis(25);
/// Timer granularity (RFC 9002 §6.1.2).
const GRANULARITY: Duration = Duration::from_millis(1);

/// Record of a path, kept after the library has removed it.
#[derive(Debug, Clone)]
pub(crate) struct PathRecord {
    pub(crate) id: PathId,
    pub(crate) number: u32,
    established: bool,
    pub(crate) ended: Option<(Instant, AbandonReason)>,
    /// True if the opener prefers this path over others.
    primary: bool,
    /// Set when the peer has sent its first status of this path.
    status_received: bool,
    /// Time at which a datagram last arrived on the path.
    last_received_at: Instant,
    /// Metrics at the last poll.
    last: PathStatus,
}

impl PathRecord {
    /// Creates the record of the path on which the connection begins.
    pub(crate) fn first(now: Instant, local: SocketAddr, remote: SocketAddr) -> Self {
        Self::new(now, PathId::ZERO, (local, remote), true)
    }

    fn new(now: Instant, id: PathId, (local, remote): AddressPair, primary: bool) -> Self {
        let number = number(id);
        let last = PathStatus {
            number,
            local,
            remote,
            state: PathState::Validating,
            backup: !primary,
            srtt: Duration::ZERO,
            rttvar: Duration::ZERO,
            min_rtt: Duration::ZERO,
            pto: Duration::ZERO,
            cwnd_bytes: 0,
            ssthresh_bytes: None,
            in_flight_bytes: 0,
            sent_bytes: 0,
            sent_datagrams: 0,
            acked_bytes: 0,
            received_bytes: 0,
            sent_stream_frames: 0,
            received_stream_frames: 0,
            lost_packets: 0,
            mtu_bytes: 0,
        };
        let (established, status_received) = (false, false);
        Self {
            id,
            number,
            established,
            ended: None,
            primary,
            status_received,
            last_received_at: now,
            last,
        }
    }

    fn is_live(&self) -> bool {
        self.ended.is_none()
    }
}

/// Our address and the peer's address.
type AddressPair = (SocketAddr, SocketAddr);

/// Returns the path number, which the library exposes as text only.
fn number(id: PathId) -> u32 {
    id.to_string().parse().unwrap_or(u32::MAX)
}

impl Connection {
    /// Records that a datagram arrived between these addresses.
    pub(crate) fn note_received(&mut self, now: Instant, (local, remote): AddressPair) {
        for path in self.paths.iter_mut().filter(|path| path.is_live()) {
            if path.last.local.ip() == local.ip() && path.last.remote == remote {
                path.last_received_at = now;
            }
        }
    }

    /// Records that the handshake has validated the first path.
    pub(crate) fn on_first_path_validated(&mut self, now: Instant) {
        if let Some(path) = self.paths.first_mut() {
            path.established = true;
            path.last_received_at = now;
        }
    }

    pub(crate) fn on_path(
        &mut self,
        now: Instant,
        event: PathEvent,
        events: &mut VecDeque<QuicEvent>,
    ) {
        match event {
            PathEvent::Established { id, .. } => {
                let path = self.record(now, id);
                path.last_received_at = now;
                if std::mem::replace(&mut path.established, true) {
                    return;
                }
                let (number, primary) = (path.number, path.primary);
                self.refresh(id);
                if self.opener && !primary {
                    self.send_path_status(id);
                }
                self.emit_notice(events, PathNotice::Established { path: number });
                self.next_path_check = Some(now);
            }
            PathEvent::Abandoned { id, reason, .. } => {
                let remote = matches!(reason, PathAbandonReason::RemoteAbandoned { .. });
                let why = if remote { AbandonReason::Peer } else { AbandonReason::Library };
                self.end_path(now, id, why, events);
            }
            PathEvent::RemoteStatus { id, status, .. } => {
                self.on_peer_status(now, id, status == noq_proto::PathStatus::Backup, events);
            }
            PathEvent::Discarded { .. } | PathEvent::ObservedAddr { .. } | _ => {}
        }
    }

    /// Applies the peer's requested status. The acceptor follows the opener; with a dynamic policy
    /// only the first time.
    fn on_peer_status(
        &mut self,
        now: Instant,
        id: PathId,
        backup: bool,
        events: &mut VecDeque<QuicEvent>,
    ) {
        let follows = !self.opener;
        let dynamic = self.policy.is_dynamic();
        let path = self.record(now, id);
        let first = !std::mem::replace(&mut path.status_received, true);
        if !follows || (dynamic && !first) {
            return;
        }
        let number = path.number;
        path.primary = !backup;
        if self.set_backup(id, backup) && !first {
            self.emit_notice(
                events,
                PathNotice::Switched { path: number, backup, reason: SwitchReason::Peer },
            );
        }
    }

    /// Checks the paths: opens missing ones, abandons silent ones, and applies the policy.
    pub(crate) fn check_paths(
        &mut self,
        now: Instant,
        addresses: &[LocalAddress],
        events: &mut VecDeque<QuicEvent>,
    ) {
        self.next_path_check = None;
        if self.is_closed() || !self.established {
            return;
        }
        let mut next = None;
        if self.opener {
            next = self.follow_addresses(now, addresses, events);
        }
        if self.inner.is_multipath_negotiated() {
            self.monitor_paths(now, events);
            let several = self.live().filter(|path| path.established).count() > 1;
            if several && self.is_active(now) {
                let soon = now + policy::CHECK_INTERVAL;
                next = Some(next.map_or(soon, |at: Instant| at.min(soon)));
            }
        }
        self.next_path_check = next;
    }

    fn live(&self) -> impl Iterator<Item = &PathRecord> {
        self.paths.iter().filter(|path| path.is_live())
    }

    fn is_active(&self, now: Instant) -> bool {
        now.saturating_since(self.active) < policy::ACTIVE_WITHIN
            || self
                .live()
                .any(|path| path.established && self.path_metrics(path.id).in_flight_bytes > 0)
    }

    /// Opens missing paths and closes those whose address is gone. Returns the time of the next
    /// check.
    fn follow_addresses(
        &mut self,
        now: Instant,
        addresses: &[LocalAddress],
        events: &mut VecDeque<QuicEvent>,
    ) -> Option<Instant> {
        let known = |ip: IpAddr| addresses.iter().find(|own| own.address == ip);
        let lost = |path: &&PathRecord| !known(path.last.local.ip()).is_some_and(|own| own.up);
        if !self.inner.is_multipath_negotiated() {
            if self.live().any(|path| lost(&path)) {
                self.migrate(now, addresses, events);
            }
            return None;
        }
        let mut next: Option<Instant> = None;
        let mut later = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        // A loopback connection has a single path.
        let inside = self.remote.ip().is_loopback();
        let family =
            |ip: IpAddr| ip.is_ipv4() == self.remote.is_ipv4() && ip.is_loopback() == inside;
        let wanted: Vec<LocalAddress> = addresses
            .iter()
            .filter(|own| own.up && family(own.address))
            .filter(|own| own.subflow || own.address == self.local.ip())
            .filter(|own| !self.live().any(|path| path.last.local.ip() == own.address))
            .copied()
            .collect();
        for own in wanted {
            let due = self.reopen.get(&own.address).copied().unwrap_or(now);
            if due > now || !self.open(now, &own) {
                let at = if due > now { due } else { now + OPEN_RETRY_INTERVAL };
                self.reopen.insert(own.address, at);
                later(at);
            }
        }
        let gone: Vec<PathId> = self.live().filter(lost).map(|path| path.id).collect();
        for id in gone {
            if !self.abandon(now, id, AbandonReason::AddressGone, events) {
                // The last path is kept until there is another.
                later(now + OPEN_RETRY_INTERVAL);
            }
        }
        next
    }

    fn open(&mut self, now: Instant, own: &LocalAddress) -> bool {
        let first = own.address == self.local.ip();
        let primary = self.policy.is_primary(first, own.backup);
        let status = library_status(!primary);
        let tuple = FourTuple::new(self.remote, Some(own.address));
        match self.inner.open_path(tuple, status, self.clock.to_std(now)) {
            Ok(id) => {
                let local = SocketAddr::new(own.address, self.local.port());
                let record = PathRecord::new(now, id, (local, self.remote), primary);
                self.paths.push(record);
                true
            }
            Err(
                PathError::MultipathNotNegotiated
                | PathError::ServerSideNotAllowed
                | PathError::MaxPathIdReached
                | PathError::RemoteCidsExhausted
                | PathError::ValidationFailed
                | PathError::InvalidRemoteAddress(_),
            ) => false,
        }
    }

    /// Migrates a connection with a single path to the interface's new address.
    fn migrate(
        &mut self,
        now: Instant,
        addresses: &[LocalAddress],
        events: &mut VecDeque<QuicEvent>,
    ) {
        let old = self.source;
        let interface = self.interface;
        let fits = |own: &&LocalAddress| {
            own.up && own.interface == interface && own.address.is_ipv4() == old.is_ipv4()
        };
        let Some(new) = addresses.iter().find(fits).map(|own| own.address) else { return };
        self.source = new;
        let local = SocketAddr::new(new, self.local.port());
        if let Some(path) = self.paths.first_mut() {
            path.last.local = local;
        }
        self.inner.handle_network_change(None, self.clock.to_std(now));
        self.emit_notice(events, PathNotice::Migrated { local });
    }

    /// Sends pings, abandons silent paths, and applies the policy.
    fn monitor_paths(&mut self, now: Instant, events: &mut VecDeque<QuicEvent>) {
        let ids: Vec<PathId> =
            self.live().filter(|path| path.established).map(|path| path.id).collect();
        if ids.len() < 2 || !self.is_active(now) {
            // An idle connection is silent on all paths; silence counts only while data moves.
            for path in &mut self.paths {
                path.last_received_at = now;
            }
            return;
        }
        if now.saturating_since(self.pinged) >= policy::PING_INTERVAL {
            self.pinged = now;
            for id in &ids {
                // A path that is closed meanwhile needs no ping.
                let _ = self.inner.ping_path(*id);
            }
        }
        let views: Vec<PolicyPathView> = ids.iter().filter_map(|id| self.view(*id)).collect();
        if let Some((number, silence)) = policy::path_to_abandon(now, &views) {
            let id = self.paths.iter().find(|path| path.number == number).map(|path| path.id);
            if let Some(id) = id {
                self.abandon(now, id, AbandonReason::Silent(silence), events);
            }
            return;
        }
        for switch in self.policy.switches(now, &views) {
            let found = self.paths.iter().find(|path| path.number == switch.number);
            let Some(id) = found.map(|path| path.id) else { continue };
            if self.set_backup(id, switch.backup) {
                let (path, backup, why) = (switch.number, switch.backup, switch.reason);
                self.emit_notice(events, PathNotice::Switched { path, backup, reason: why });
            }
        }
    }

    fn view(&self, id: PathId) -> Option<PolicyPathView> {
        let path = self.live().find(|path| path.id == id)?;
        let metrics = self.path_metrics(id);
        Some(PolicyPathView {
            number: path.number,
            primary: path.primary,
            backup: self.is_backup(id)?,
            last_received_at: metrics
                .newest_acked_sent_at
                .map_or(path.last_received_at, |at| at.max(path.last_received_at)),
            waiting_since: metrics.waiting_since,
            srtt: metrics.srtt,
            pto: pto(&metrics),
        })
    }

    fn path_metrics(&self, id: PathId) -> PathMetrics {
        let handle = self.inner.congestion_state(id).and_then(PathControllerHandle::of);
        handle.map_or_else(PathMetrics::default, |handle| handle.path_metrics())
    }

    fn is_backup(&self, id: PathId) -> Option<bool> {
        let status = self.inner.path_status(id).ok()?;
        Some(status == noq_proto::PathStatus::Backup)
    }

    /// Sets the backup status of a path; returns true if it changed.
    fn set_backup(&mut self, id: PathId, backup: bool) -> bool {
        let wanted = library_status(backup);
        self.inner.set_path_status(id, wanted).is_ok_and(|before| before != wanted)
    }

    /// Sends the peer a path's status by toggling it. The library sends it only on a change, so a
    /// path opened as a backup would not be one for the peer.
    fn send_path_status(&mut self, id: PathId) {
        let backup = self.is_backup(id).unwrap_or(false);
        self.set_backup(id, !backup);
        self.set_backup(id, backup);
    }

    /// Abandons a path; returns true if the library did, which keeps the last one.
    fn abandon(
        &mut self,
        now: Instant,
        id: PathId,
        reason: AbandonReason,
        events: &mut VecDeque<QuicEvent>,
    ) -> bool {
        self.refresh(id);
        let code = VarInt::from(TransportErrorCode::PATH_UNSTABLE_OR_POOR);
        if self.inner.close_path(self.clock.to_std(now), id, code).is_err() {
            return false;
        }
        self.end_path(now, id, reason, events);
        true
    }

    fn end_path(
        &mut self,
        now: Instant,
        id: PathId,
        why: AbandonReason,
        events: &mut VecDeque<QuicEvent>,
    ) {
        if let Some(handle) = self.inner.congestion_state(id).and_then(PathControllerHandle::of) {
            handle.abandon();
        }
        self.refresh(id);
        let path = self.record(now, id);
        if path.ended.is_some() {
            return;
        }
        path.ended = Some((now, why));
        let (number, local) = (path.number, path.last.local.ip());
        self.reopen.insert(local, now + REOPEN_DELAY);
        self.next_path_check = Some(now);
        self.emit_notice(events, PathNotice::Abandoned { path: number, reason: why });
    }

    fn emit_notice(&self, events: &mut VecDeque<QuicEvent>, notice: PathNotice) {
        events.push_back(QuicEvent::Notice { connection: self.id, notice });
    }

    /// Returns the record of a path; creates it if the peer opened the path.
    fn record(&mut self, now: Instant, id: PathId) -> &mut PathRecord {
        let at = self.paths.iter().position(|path| path.id == id).unwrap_or_else(|| {
            let tuple = self.inner.network_path(id).ok();
            let remote = tuple.map_or(self.remote, |tuple| tuple.remote());
            let ip = tuple.and_then(|tuple| tuple.local_ip()).unwrap_or(self.source);
            let local = SocketAddr::new(ip, self.local.port());
            self.paths.push(PathRecord::new(now, id, (local, remote), true));
            self.paths.len() - 1
        });
        // The index is valid: it was found or has just been added.
        #[expect(clippy::indexing_slicing, reason = "found or made above")]
        &mut self.paths[at]
    }

    /// Updates a path's metrics, while the library has them.
    fn refresh(&mut self, id: PathId) {
        let metrics = self.path_metrics(id);
        let Some(stats) = self.inner.path_stats(id) else { return };
        let tuple = self.inner.network_path(id).ok();
        let backup = self.is_backup(id);
        let source = self.source;
        let Some(path) = self.paths.iter_mut().find(|path| path.id == id) else { return };
        let last = &mut path.last;
        if let Some(tuple) = tuple {
            last.remote = tuple.remote();
            last.local.set_ip(tuple.local_ip().unwrap_or(source));
        }
        last.backup = backup.unwrap_or(last.backup);
        last.srtt = metrics.srtt;
        last.rttvar = metrics.rttvar;
        last.min_rtt = metrics.min_rtt;
        last.pto = pto(&metrics);
        last.cwnd_bytes = metrics.cwnd_bytes;
        last.ssthresh_bytes = metrics.ssthresh_bytes;
        last.in_flight_bytes = metrics.in_flight_bytes;
        last.acked_bytes = metrics.acked_bytes;
        last.sent_bytes = stats.udp_tx.bytes;
        last.sent_datagrams = stats.udp_tx.datagrams;
        last.received_bytes = stats.udp_rx.bytes;
        last.sent_stream_frames = stats.frame_tx.stream;
        last.received_stream_frames = stats.frame_rx.stream;
        last.lost_packets = stats.lost_packets;
        last.mtu_bytes = stats.current_mtu;
    }

    pub(crate) fn path_statuses(&mut self) -> Vec<PathStatus> {
        let live: Vec<PathId> = self.live().map(|path| path.id).collect();
        for id in live {
            self.refresh(id);
        }
        let state = |path: &PathRecord| match path.ended {
            Some((at, why)) => PathState::Abandoned { at, reason: why },
            None if path.established => PathState::Established,
            None => PathState::Validating,
        };
        let mut all: Vec<PathStatus> =
            self.paths.iter().map(|path| PathStatus { state: state(path), ..path.last }).collect();
        all.sort_by_key(|path| path.number);
        all
    }
}

fn library_status(backup: bool) -> noq_proto::PathStatus {
    if backup { noq_proto::PathStatus::Backup } else { noq_proto::PathStatus::Available }
}

/// Computes the probe timeout (RFC 9002 §6.2.1).
fn pto(metrics: &PathMetrics) -> Duration {
    metrics.srtt + (4 * metrics.rttvar).max(GRANULARITY) + MAX_ACK_DELAY
}
