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

/// Limit of the path records of an accepted connection on an untrusted network. Beyond it, the oldest
/// path that has ended is forgotten.
const MAX_PATH_RECORDS: usize = 256;

/// Record of a path, kept after the library has removed it.
#[derive(Debug, Clone)]
pub(crate) struct PathRecord {
    pub(crate) id: PathId,
    pub(crate) number: u32,
    established: bool,
    /// Time and reason of the end; `None` while the path lives.
    pub(crate) ended: Option<(Instant, AbandonReason)>,
    /// True if the opener prefers this path over others.
    primary: bool,
    /// Set when the peer has sent its first status of this path.
    status_received: bool,
    /// Time at which a datagram last arrived on the path.
    last_received_at: Instant,
    /// Status at the last refresh; `state` is not used.
    last_status: PathStatus,
}

impl PathRecord {
    /// Creates the record of the path on which the connection begins.
    pub(crate) fn first_path(now: Instant, local: SocketAddr, remote: SocketAddr) -> Self {
        Self::new(now, PathId::ZERO, (local, remote), true)
    }

    fn new(now: Instant, id: PathId, (local, remote): AddressPair, primary: bool) -> Self {
        let number = path_number(id);
        let last_status = PathStatus {
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
            last_status,
        }
    }

    fn is_live(&self) -> bool {
        self.ended.is_none()
    }
}

/// Our address and the peer's address.
type AddressPair = (SocketAddr, SocketAddr);

/// Returns the path number, which the library exposes as text only.
fn path_number(id: PathId) -> u32 {
    id.to_string().parse().unwrap_or(u32::MAX)
}

impl Connection {
    /// Records that a datagram arrived between these addresses.
    pub(crate) fn on_received(&mut self, now: Instant, (local, remote): AddressPair) {
        for path in self.paths.iter_mut().filter(|path| path.is_live()) {
            if path.last_status.local.ip() == local.ip() && path.last_status.remote == remote {
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

    pub(crate) fn on_path_event(
        &mut self,
        now: Instant,
        event: PathEvent,
        events: &mut VecDeque<QuicEvent>,
    ) {
        match event {
            PathEvent::Established { id, .. } => {
                self.on_path_validated(id);
                let path = self.record(now, id);
                path.last_received_at = now;
                if std::mem::replace(&mut path.established, true) {
                    return;
                }
                let (number, primary) = (path.number, path.primary);
                self.refresh(id);
                if self.opener && !primary {
                    self.resend_path_status(id);
                }
                self.emit_notice(events, PathNotice::Established { path: number });
                self.next_path_check = Some(now);
            }
            PathEvent::Abandoned { id, reason: cause, .. } => {
                let by_peer = matches!(cause, PathAbandonReason::RemoteAbandoned { .. });
                let reason = if by_peer { AbandonReason::Peer } else { AbandonReason::Library };
                self.end_path(now, id, reason, events);
            }
            PathEvent::RemoteStatus { id, status, .. } => {
                self.on_peer_status(now, id, status == noq_proto::PathStatus::Backup, events);
            }
            PathEvent::Discarded { .. } | PathEvent::ObservedAddr { .. } | _ => {}
        }
    }

    /// Applies the status that the peer requests. Only the acceptor does so; with a dynamic policy
    /// only the first time.
    fn on_peer_status(
        &mut self,
        now: Instant,
        id: PathId,
        backup: bool,
        events: &mut VecDeque<QuicEvent>,
    ) {
        let is_acceptor = !self.opener;
        let dynamic = self.policy.is_dynamic();
        let path = self.record(now, id);
        let is_first = !std::mem::replace(&mut path.status_received, true);
        if !is_acceptor || (dynamic && !is_first) {
            return;
        }
        let number = path.number;
        path.primary = !backup;
        if self.set_backup(id, backup) && !is_first {
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
        let mut next_check = None;
        if self.opener {
            next_check = self.follow_addresses(now, addresses, events);
        }
        if self.inner.is_multipath_negotiated() {
            self.monitor_paths(now, events);
            let has_several_paths = self.live_paths().filter(|path| path.established).count() > 1;
            if has_several_paths && self.is_active(now) {
                let next_interval = now + policy::CHECK_INTERVAL;
                next_check =
                    Some(next_check.map_or(next_interval, |at: Instant| at.min(next_interval)));
            }
        }
        self.next_path_check = next_check;
    }

    fn live_paths(&self) -> impl Iterator<Item = &PathRecord> {
        self.paths.iter().filter(|path| path.is_live())
    }

    fn is_active(&self, now: Instant) -> bool {
        now.saturating_since(self.last_activity_at) < policy::ACTIVE_WITHIN
            || self
                .live_paths()
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
        let find_address = |ip: IpAddr| addresses.iter().find(|a| a.address == ip);
        let is_unusable =
            |path: &&PathRecord| !find_address(path.last_status.local.ip()).is_some_and(|a| a.up);
        if !self.inner.is_multipath_negotiated() {
            if self.live_paths().any(|path| is_unusable(&path)) {
                self.migrate(now, addresses, events);
            }
            return None;
        }
        let mut next_check: Option<Instant> = None;
        let mut check_at =
            |at: Instant| next_check = Some(next_check.map_or(at, |next| next.min(at)));
        // A loopback connection has a single path.
        let is_loopback = self.remote.ip().is_loopback();
        let is_same_family =
            |ip: IpAddr| ip.is_ipv4() == self.remote.is_ipv4() && ip.is_loopback() == is_loopback;
        let missing: Vec<LocalAddress> = addresses
            .iter()
            .filter(|a| a.up && is_same_family(a.address))
            .filter(|a| a.subflow || a.address == self.local.ip())
            .filter(|a| !self.live_paths().any(|path| path.last_status.local.ip() == a.address))
            .copied()
            .collect();
        for local in missing {
            let due = self.reopen_at.get(&local.address).copied().unwrap_or(now);
            if due > now || !self.open_path(now, &local) {
                let at = if due > now { due } else { now + OPEN_RETRY_INTERVAL };
                self.reopen_at.insert(local.address, at);
                check_at(at);
            }
        }
        let unusable: Vec<PathId> =
            self.live_paths().filter(is_unusable).map(|path| path.id).collect();
        for id in unusable {
            if !self.abandon(now, id, AbandonReason::AddressGone, events) {
                // The last path is kept until there is another.
                check_at(now + OPEN_RETRY_INTERVAL);
            }
        }
        next_check
    }

    fn open_path(&mut self, now: Instant, address: &LocalAddress) -> bool {
        let is_first = address.address == self.local.ip();
        let primary = self.policy.is_primary(is_first, address.backup);
        let status = library_status(!primary);
        let tuple = FourTuple::new(self.remote, Some(address.address));
        match self.inner.open_path(tuple, status, self.clock.to_std(now)) {
            Ok(id) => {
                let local = SocketAddr::new(address.address, self.local.port());
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
        let old_ip = self.source;
        let interface = self.interface;
        let is_replacement = |a: &&LocalAddress| {
            a.up && a.interface == interface && a.address.is_ipv4() == old_ip.is_ipv4()
        };
        let Some(new_ip) = addresses.iter().find(is_replacement).map(|a| a.address) else { return };
        self.source = new_ip;
        let local = SocketAddr::new(new_ip, self.local.port());
        if let Some(path) = self.paths.first_mut() {
            path.last_status.local = local;
        }
        self.inner.handle_network_change(None, self.clock.to_std(now));
        self.emit_notice(events, PathNotice::Migrated { local });
    }

    /// Sends pings, abandons silent paths, and applies the policy.
    fn monitor_paths(&mut self, now: Instant, events: &mut VecDeque<QuicEvent>) {
        let ids: Vec<PathId> =
            self.live_paths().filter(|path| path.established).map(|path| path.id).collect();
        if ids.len() < 2 || !self.is_active(now) {
            // An idle connection is silent on all paths; silence counts only while data moves.
            for path in &mut self.paths {
                path.last_received_at = now;
            }
            return;
        }
        if now.saturating_since(self.last_ping_at) >= policy::PING_INTERVAL {
            self.last_ping_at = now;
            for id in &ids {
                // A path that is closed meanwhile needs no ping.
                let _ = self.inner.ping_path(*id);
            }
        }
        let views: Vec<PolicyPathView> =
            ids.iter().filter_map(|id| self.policy_view(*id)).collect();
        if let Some((number, silence)) = policy::path_to_abandon(now, &views) {
            let id = self.paths.iter().find(|path| path.number == number).map(|path| path.id);
            if let Some(id) = id {
                self.abandon(now, id, AbandonReason::Silent(silence), events);
            }
            return;
        }
        for switch in self.policy.switches(now, &views) {
            let path = self.paths.iter().find(|path| path.number == switch.number);
            let Some(id) = path.map(|path| path.id) else { continue };
            if self.set_backup(id, switch.backup) {
                let (path, backup, reason) = (switch.number, switch.backup, switch.reason);
                self.emit_notice(events, PathNotice::Switched { path, backup, reason });
            }
        }
    }

    fn policy_view(&self, id: PathId) -> Option<PolicyPathView> {
        let path = self.live_paths().find(|path| path.id == id)?;
        let metrics = self.path_metrics(id);
        Some(PolicyPathView {
            number: path.number,
            primary: path.primary,
            backup: self.is_backup(id)?,
            last_received_at: metrics
                .newest_acked_sent_at
                .map_or(path.last_received_at, |at| at.max(path.last_received_at)),
            oldest_unacked_sent_at: metrics.oldest_unacked_sent_at,
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
        let status = library_status(backup);
        self.inner.set_path_status(id, status).is_ok_and(|old_status| old_status != status)
    }

    /// Sends the peer a path's status by toggling it. The library sends it only on a change, so a
    /// path opened as a backup would not be one for the peer.
    fn resend_path_status(&mut self, id: PathId) {
        let backup = self.is_backup(id).unwrap_or(false);
        self.set_backup(id, !backup);
        self.set_backup(id, backup);
    }

    /// Abandons a path; returns false if the library keeps it, because it is the last one.
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
        reason: AbandonReason,
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
        path.ended = Some((now, reason));
        let (number, local) = (path.number, path.last_status.local.ip());
        self.reopen_at.insert(local, now + REOPEN_DELAY);
        self.next_path_check = Some(now);
        self.emit_notice(events, PathNotice::Abandoned { path: number, reason });
    }

    fn emit_notice(&self, events: &mut VecDeque<QuicEvent>, notice: PathNotice) {
        events.push_back(QuicEvent::Notice { connection: self.id, notice });
    }

    /// Returns the record of a path; creates it if the peer opened the path.
    fn record(&mut self, now: Instant, id: PathId) -> &mut PathRecord {
        let index = self.paths.iter().position(|path| path.id == id).unwrap_or_else(|| {
            let tuple = self.inner.network_path(id).ok();
            let remote = tuple.map_or(self.remote, |tuple| tuple.remote());
            let ip = tuple.and_then(|tuple| tuple.local_ip()).unwrap_or(self.source);
            let local = SocketAddr::new(ip, self.local.port());
            if self.paths.len() >= MAX_PATH_RECORDS
                && self.limits_remotes()
                && let Some(oldest) = self.paths.iter().position(|path| !path.is_live())
            {
                self.paths.remove(oldest);
            }
            self.paths.push(PathRecord::new(now, id, (local, remote), true));
            self.paths.len() - 1
        });
        // The index is valid: it was found or has just been added.
        #[expect(clippy::indexing_slicing, reason = "found or made above")]
        &mut self.paths[index]
    }

    /// Updates a path's status, if the library still knows the path.
    fn refresh(&mut self, id: PathId) {
        let metrics = self.path_metrics(id);
        let Some(counters) = self.inner.path_stats(id) else { return };
        let tuple = self.inner.network_path(id).ok();
        let backup = self.is_backup(id);
        let source = self.source;
        let Some(path) = self.paths.iter_mut().find(|path| path.id == id) else { return };
        let status = &mut path.last_status;
        if let Some(tuple) = tuple {
            status.remote = tuple.remote();
            status.local.set_ip(tuple.local_ip().unwrap_or(source));
        }
        status.backup = backup.unwrap_or(status.backup);
        status.srtt = metrics.srtt;
        status.rttvar = metrics.rttvar;
        status.min_rtt = metrics.min_rtt;
        status.pto = pto(&metrics);
        status.cwnd_bytes = metrics.cwnd_bytes;
        status.ssthresh_bytes = metrics.ssthresh_bytes;
        status.in_flight_bytes = metrics.in_flight_bytes;
        status.acked_bytes = metrics.acked_bytes;
        status.sent_bytes = counters.udp_tx.bytes;
        status.sent_datagrams = counters.udp_tx.datagrams;
        status.received_bytes = counters.udp_rx.bytes;
        status.sent_stream_frames = counters.frame_tx.stream;
        status.received_stream_frames = counters.frame_rx.stream;
        status.lost_packets = counters.lost_packets;
        status.mtu_bytes = counters.current_mtu;
    }

    pub(crate) fn path_statuses(&mut self) -> Vec<PathStatus> {
        let live: Vec<PathId> = self.live_paths().map(|path| path.id).collect();
        for id in live {
            self.refresh(id);
        }
        let state = |path: &PathRecord| match path.ended {
            Some((at, reason)) => PathState::Abandoned { at, reason },
            None if path.established => PathState::Established,
            None => PathState::Validating,
        };
        let mut statuses: Vec<PathStatus> = self
            .paths
            .iter()
            .map(|path| PathStatus { state: state(path), ..path.last_status })
            .collect();
        statuses.sort_by_key(|path| path.number);
        statuses
    }
}

fn library_status(backup: bool) -> noq_proto::PathStatus {
    if backup { noq_proto::PathStatus::Backup } else { noq_proto::PathStatus::Available }
}

/// Computes the probe timeout (RFC 9002 §6.2.1).
fn pto(metrics: &PathMetrics) -> Duration {
    metrics.srtt + (4 * metrics.rttvar).max(GRANULARITY) + MAX_ACK_DELAY
}
