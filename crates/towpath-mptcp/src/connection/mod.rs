//! Several subflows as one connection (RFC 8684), or one subflow as plain TCP.
//!
//! Reading order: [`config`], `send` and `receive` (the two queues, in data offsets), `flow` (a
//! subflow as a part of the connection), `handshake` and `join` (how it begins), `input` (a segment's
//! way), `schedule` (who sends what), `emit` (the packet), `addresses`, `fallback` (options vanish),
//! `failure` (MP_FAIL, reinjection), `timers`, `close`.
//!
//! Numbers of the connection's data are offsets: 0 is the initial data sequence number, 1 the first
//! byte, in both directions. On the first subflow, before anything was reinjected, they equal its
//! subflow offsets; that is what fallback to plain TCP rests on.

mod addresses;
mod close;
pub mod config;
mod emit;
mod failure;
mod fallback;
mod flow;
mod handshake;
mod input;
mod join;
mod mapping;
mod receive;
mod receive_buffer;
mod schedule;
mod send;
mod status;
mod timers;
mod waiting;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use towpath_multipath::opportunistic::Opportunistic;
use towpath_multipath::scheduler::{self, Scheduler};
use towpath_multipath::{DataRange, PathId, PathView};
use towpath_net::Instant;

use crate::keys;
use crate::path_manager::{self, Action, LocalAddress, PathManager, RemoteAddress};
use crate::stack::{
    ConfigError, ConnectionError, ConnectionId, Event, Fallback, InterfaceId, Notice, Reinjection,
    SubflowStatus, Trace,
};
use crate::subflow::{self, FRAGMENT_BYTES, Subflow};
use crate::wire::AddAddress;

pub use config::{Config, ReceiveBuffer, ReceiveBufferMode, WindowShare};

use addresses::Announcement;
use fallback::Straight;
use flow::Flow;
use join::Join;
use receive::ReceiveQueue;
use receive_buffer::Tuning;
use send::SendStore;

/// What a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Plain TCP: from the start, or fallen back before anything depended on Multipath TCP.
    Plain,
    /// MP_CAPABLE was sent, the answer is open.
    Offered,
    /// Both keys are known. `confirmed`: the peer has shown that options pass in both directions; there
    /// is no way back to plain TCP without MP_FAIL (RFC 8684 §3.7).
    Multipath { confirmed: bool },
    /// Fallen back in the middle: the rest of the data is mapped one to one (RFC 8684 §3.7).
    Infinite,
}

/// What the stack must do for a connection.
#[derive(Debug)]
pub(crate) enum Output {
    Event(Event),
    /// The handshake of a connection that we accepted is complete.
    Accepted,
    /// Open a subflow: it needs a port and an initial sequence number.
    Open(Action),
    /// A subflow is gone: its addresses are free.
    Gone(SocketAddr, SocketAddr),
}

/// The first window that Linux offers: whole packets of what an unscaled field can say.
const FIRST_WINDOW_BYTES: u64 = 64_088;

/// Memory that all connections of a host use in turn, so that neither scheduling nor a segment
/// allocates any, and idle connections have none of it.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) out: Vec<Output>,
    views: Vec<PathView>,
    received: subflow::Received,
    mapped: Vec<mapping::Mapped>,
}

/// What a connection sees of its host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Host<'a> {
    pub(crate) now: Instant,
    pub(crate) local: &'a [LocalAddress],
    pub(crate) trace: bool,
}

/// What an interface would do with a packet now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// Take it.
    Free,
    /// Take it later.
    Full,
    /// Lose it: it is switched off.
    Down,
}

/// Addresses of a new subflow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tuple {
    pub(crate) interface: InterfaceId,
    pub(crate) mtu_bytes: u32,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) local_id: u8,
    pub(crate) remote_id: u8,
    pub(crate) backup: bool,
}

/// One connection.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about both directions")]
pub(crate) struct Connection {
    id: ConnectionId,
    config: Arc<Config>,
    client: bool,
    mode: Mode,
    local_key: u64,
    remote_key: Option<u64>,
    local_idsn: u64,
    remote_idsn: u64,
    /// DSS checksums are in use.
    checksum: bool,
    flows: Vec<Flow>,
    /// Last state of the subflows that are gone.
    gone: Vec<SubflowStatus>,
    next_number: u32,
    send: SendStore,
    receive: ReceiveQueue,
    tuning: Tuning,
    scheduler: Box<dyn Scheduler>,
    opportunistic: Opportunistic,
    path_manager: Box<dyn PathManager>,
    /// Data that must be sent again elsewhere.
    reinjections: VecDeque<Queued>,
    /// Addresses of the first subflow, ours first: their identifier is 0, also when it is gone.
    first: Option<(SocketAddr, SocketAddr)>,
    remote_addresses: Vec<RemoteAddress>,
    /// The peer's C flag.
    no_join_to_initial: bool,
    announcements: Vec<Announcement>,
    echoes: Vec<AddAddress>,
    withdrawals: Vec<u8>,
    /// The connection's own retransmission timer and its back-off.
    retransmit_at: Option<Instant>,
    /// How long it runs before back-off.
    retransmit_after: Duration,
    backoff: u32,
    /// When the timer fired first since something was acknowledged.
    unanswered_since: Option<Instant>,
    /// When a connection without subflows, or one that nobody waits for, is given up.
    give_up_at: Option<Instant>,
    established: bool,
    fallback: Option<Fallback>,
    /// After a fallback in the middle: data offset - subflow offset of what we send from that
    /// subflow offset on.
    sent_shift: Option<(u64, u64)>,
    straight: Straight,
    /// The application was told that it is over.
    closed: Option<Result<(), ConnectionError>>,
    /// DATA_FIN was sent at least once.
    fin_begun: bool,
    /// Both sides have ended their data; subflows are being closed.
    finishing: bool,
    /// The keys were sent just now, and DATA_FIN must follow them.
    fin_after_keys: bool,
    /// The application does not want to read any more.
    pub(crate) forgotten: bool,
    writer: Writer,
    /// The application knows that there is something, and has not looked since.
    readable_told: bool,
    /// What the subflows were told of what waits for them.
    waiting_bytes: u64,
    /// The scheduler waits for a better path, until then at the latest.
    ask_scheduler_at: Option<Instant>,
    /// How often in a row it waited in vain.
    scheduler_waits: u32,
    /// Options wait, because too many acknowledgements in a row would carry one (RFC 8684 §3).
    signals_held: bool,
    signals_again_at: Option<Instant>,
    end_was_read: bool,
    offer: Offer,
    out: Vec<Output>,
    /// As [`Scratch`], lent by the stack.
    views: Vec<PathView>,
    received: subflow::Received,
    mapped: Vec<mapping::Mapped>,
    last_scheduled: Option<(PathId, u64)>,
    window_blocked_since: Option<Instant>,
    counts: Counts,
    /// What the stack has registered for it.
    pub(crate) registered_timeout: Option<Instant>,
    pub(crate) queued: bool,
}

/// Data that must be sent again.
#[derive(Debug, Clone, Copy)]
struct Queued {
    range: DataRange,
    cause: Reinjection,
    /// The path that has begun with it.
    on: Option<PathId>,
}

/// Totals for [`crate::stack::Status`].
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    written_bytes: u64,
    reorder_peak_bytes: u64,
    reinjected_bytes: [u64; 5],
    discarded_bytes: u64,
    penalisations: u64,
    window_blocked: Duration,
}

/// The application that writes.
#[derive(Debug, Clone, Copy, Default)]
struct Writer {
    /// Not all that it had was taken.
    blocked: bool,
    /// When it tries again by itself.
    again_at: Option<Instant>,
}

/// What acknowledgements tell the peer: above all, the window.
#[derive(Debug, Clone, Copy)]
struct Offer {
    /// It may have changed since subflows were told.
    changed: bool,
    /// The application has read since then.
    was_read: bool,
    /// What the last segment said, on whatever subflow.
    told_bytes: u64,
    /// The peer's last mapping has a number of 8 octets.
    peer_maps_long: bool,
}

impl Offer {
    fn new() -> Self {
        Self { changed: true, was_read: false, told_bytes: 0, peer_maps_long: false }
    }
}

impl Connection {
    fn new(
        id: ConnectionId,
        config: Arc<Config>,
        client: bool,
        local_key: u64,
        now: Instant,
    ) -> Result<Self, ConfigError> {
        let mode = if config.multipath { Mode::Offered } else { Mode::Plain };
        Ok(Self {
            id,
            client,
            mode,
            local_key,
            remote_key: None,
            local_idsn: keys::initial_dsn(local_key),
            remote_idsn: 0,
            checksum: config.checksum,
            flows: Vec::with_capacity(1),
            gone: Vec::new(),
            next_number: 0,
            send: SendStore::new(),
            receive: ReceiveQueue::new(),
            tuning: Tuning::new(config.receive_buffer, now),
            scheduler: scheduler::by_name(&config.scheduler)?,
            opportunistic: Opportunistic::new(config.opportunistic),
            path_manager: path_manager::by_name(&config.path_manager)?,
            reinjections: VecDeque::new(),
            first: None,
            remote_addresses: Vec::with_capacity(1),
            no_join_to_initial: false,
            announcements: Vec::new(),
            echoes: Vec::new(),
            withdrawals: Vec::new(),
            retransmit_at: None,
            retransmit_after: timers::RETRANSMIT_MIN,
            backoff: 0,
            unanswered_since: None,
            give_up_at: None,
            established: false,
            fallback: None,
            sent_shift: None,
            straight: Straight::new(),
            closed: None,
            fin_begun: false,
            finishing: false,
            fin_after_keys: false,
            forgotten: false,
            writer: Writer::default(),
            readable_told: false,
            waiting_bytes: u64::MAX,
            ask_scheduler_at: None,
            scheduler_waits: 0,
            signals_held: false,
            signals_again_at: None,
            end_was_read: false,
            offer: Offer::new(),
            out: Vec::new(),
            views: Vec::new(),
            received: subflow::Received::default(),
            mapped: Vec::new(),
            last_scheduled: None,
            window_blocked_since: None,
            counts: Counts::default(),
            registered_timeout: None,
            queued: false,
            config,
        })
    }

    pub(crate) fn token(&self) -> u32 {
        keys::token(self.local_key)
    }

    /// Does something with the memory that is lent to it; what the stack must do is in
    /// [`Scratch::out`] then, behind what was not carried out before.
    pub(crate) fn with_scratch<T>(
        &mut self,
        scratch: &mut Scratch,
        what: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let swap = |own: &mut Self, scratch: &mut Scratch| {
            std::mem::swap(&mut own.received, &mut scratch.received);
            std::mem::swap(&mut own.mapped, &mut scratch.mapped);
        };
        self.borrow(scratch, swap, what)
    }

    /// As [`Connection::with_scratch`], for what schedules and handles no segment.
    pub(crate) fn with_views<T>(
        &mut self,
        scratch: &mut Scratch,
        what: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let swap = |own: &mut Self, scratch: &mut Scratch| {
            std::mem::swap(&mut own.views, &mut scratch.views);
        };
        self.borrow(scratch, swap, what)
    }

    /// `swap` exchanges what is lent besides [`Scratch::out`].
    fn borrow<T>(
        &mut self,
        scratch: &mut Scratch,
        swap: impl Fn(&mut Self, &mut Scratch),
        what: impl FnOnce(&mut Self) -> T,
    ) -> T {
        scratch.out.append(&mut self.out);
        std::mem::swap(&mut self.out, &mut scratch.out);
        swap(self, scratch);
        let done = what(self);
        std::mem::swap(&mut self.out, &mut scratch.out);
        swap(self, scratch);
        done
    }

    /// Hands out what the stack must do.
    pub(crate) fn take_output(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.out)
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Whether nothing of it is left on the network.
    pub(crate) fn is_gone(&self) -> bool {
        self.closed.is_some() && self.flows.is_empty()
    }

    /// The identifier of our address on the wire: 0 is the one on which the connection began.
    pub(crate) fn local_id_of(&self, address: IpAddr) -> Option<u8> {
        if self.first.is_some_and(|(local, _)| local.ip() == address) {
            return Some(0);
        }
        self.flows.iter().find(|flow| flow.local.ip() == address).map(|flow| flow.local_id)
    }

    pub(crate) fn flow_index(&self, local: SocketAddr, remote: SocketAddr) -> Option<usize> {
        self.flows.iter().position(|flow| flow.local == local && flow.remote == remote)
    }

    fn is_multipath(&self) -> bool {
        matches!(self.mode, Mode::Multipath { .. })
    }

    fn is_confirmed(&self) -> bool {
        self.mode == Mode::Multipath { confirmed: true }
    }

    /// Whether data is one subflow's own stream.
    fn is_single(&self) -> bool {
        matches!(self.mode, Mode::Plain | Mode::Infinite)
    }

    fn event(&mut self, event: Event) {
        self.out.push(Output::Event(event));
    }

    fn notice(&mut self, notice: Notice) {
        let connection = self.id;
        self.event(Event::Notice { connection, notice });
    }

    fn trace(&mut self, host: &Host<'_>, trace: Trace) {
        if host.trace {
            let connection = self.id;
            self.event(Event::Trace { connection, trace });
        }
    }

    fn subflow_config(&self, tuple: &Tuple) -> subflow::Config {
        let (mtu_bytes, window_scale) = (tuple.mtu_bytes, self.window_scale());
        subflow::Config { mtu_bytes, window_scale, ..self.config.subflow.clone() }
    }

    /// No more scale than the buffer needs (RFC 7323 §2.3): a small window would round to zero.
    fn window_scale(&self) -> Option<u8> {
        let most = self.config.receive_buffer.largest_bytes();
        let needed = (0..14).find(|scale| u64::from(u16::MAX) << scale >= most).unwrap_or(14);
        self.config.subflow.window_scale.map(|scale| scale.min(needed))
    }

    /// A subflow's settings: packets leave room for the options of the connection.
    fn new_flow(
        &mut self,
        tuple: &Tuple,
        mut tcp: Subflow,
        join: Option<Join>,
        now: Instant,
    ) -> usize {
        tcp.set_ipv6(tuple.local.is_ipv6());
        tcp.set_waiting_bytes(now, self.waiting_bytes);
        let number = self.next_number;
        self.next_number += 1;
        let taken = |slot: &u8| self.flows.iter().any(|flow| flow.path.0 == *slot);
        let slot = (0..PathId::SLOTS).find(|slot| !taken(slot)).unwrap_or(PathId::SLOTS - 1);
        self.flows.push(Flow {
            path: PathId(slot),
            number,
            interface: tuple.interface,
            local: tuple.local,
            remote: tuple.remote,
            local_id: tuple.local_id,
            remote_id: tuple.remote_id,
            local_backup: tuple.backup,
            remote_backup: false,
            stale: false,
            silent_rounds: 0,
            heard_at: now,
            tcp,
            join,
            mappings: mapping::Mappings::default(),
            payloads: VecDeque::new(),
            priority_due: false,
            fail_due: None,
            signals: 0,
            data_ack_seen: false,
            data_answered: false,
            without_data_ack: false,
            reset_reason: None,
            fast_close: false,
            fast_closed: false,
            peer_reset: None,
            announced: false,
            last_data_at: now,
            window_limit: FIRST_WINDOW_BYTES,
            closed: None,
            closing: false,
        });
        self.offer.changed = true;
        self.update_data_options();
        self.flows.len() - 1
    }

    /// Tells TCP how many bytes of options its data packets carry.
    fn update_data_options(&mut self) {
        let bytes = if self.mode == Mode::Plain { 0 } else { self.data_option_bytes() };
        for flow in &mut self.flows {
            flow.tcp.set_data_option_bytes(bytes);
        }
        if self.config.smallest_mss {
            let usable = self.flows.iter().filter(|flow| flow.usable());
            let smallest = usable.map(|flow| flow.tcp.mss_bytes()).min();
            for flow in &mut self.flows {
                flow.tcp.set_mss_cap(smallest);
            }
        }
    }

    /// Room in the send buffer.
    pub(crate) fn writable_bytes(&self) -> u64 {
        if self.send.fin().is_some() || self.closed.is_some() {
            return 0;
        }
        let free = self.send_buffer_bytes().saturating_sub(self.held_memory_bytes());
        if free == 0 || !(self.grows_by_memory() && self.is_multipath()) {
            return free;
        }
        // Linux asks for room before each fragment, and fills that (`mptcp_sendmsg`).
        let end = self.send.end();
        (end + free).next_multiple_of(FRAGMENT_BYTES) - end
    }

    fn send_buffer_bytes(&self) -> u64 {
        if !self.config.send_buffer_grows {
            return self.config.send_buffer_bytes;
        }
        let usable = self.flows.iter().filter(|flow| flow.usable());
        let sum = usable.map(|flow| flow.tcp.send_buffer_bytes()).sum();
        if self.grows_by_memory() { sum } else { self.config.send_buffer_bytes.min(sum) }
    }

    fn grows_by_memory(&self) -> bool {
        self.config.send_buffer_grows && self.config.subflow.counts_memory
    }

    /// What of the send buffer is taken. In Linux, TCP alone counts the memory of its packets.
    fn held_memory_bytes(&self) -> u64 {
        let held = self.send.held_bytes();
        if !(self.is_single() && self.grows_by_memory()) {
            return held;
        }
        let notes = |flow: &Flow| {
            let data = flow.tcp.outstanding_bytes() + flow.tcp.queued_bytes();
            flow.tcp.send_memory_bytes().saturating_sub(data)
        };
        held + self.flows.iter().map(notes).sum::<u64>()
    }

    /// Whether who waits to write is told that there is room.
    fn may_wake_writer(&self) -> bool {
        let held = self.held_memory_bytes();
        !self.grows_by_memory() || self.send_buffer_bytes().saturating_sub(held) >= held / 2
    }

    /// See [`crate::stack::Stack::write`].
    pub(crate) fn write(&mut self, now: Instant, data: &mut Bytes) -> usize {
        if !self.grows_by_memory() {
            self.flows.iter_mut().for_each(|flow| flow.tcp.keep_send_buffer());
        }
        let taken = self.send.write(data, self.writable_bytes());
        self.counts.written_bytes += taken as u64;
        self.writer.blocked = !data.is_empty();
        let waits = self.config.write_retry.filter(|_| self.writer.blocked);
        let pending = self.writer.again_at.filter(|at| *at > now);
        self.writer.again_at = waits.map(|time| pending.unwrap_or(now + time));
        taken
    }

    /// Who could not write tries again, though nobody said that there is room.
    pub(super) fn try_to_write_again(&mut self, now: Instant) {
        if self.writer.again_at.is_none_or(|at| at > now) {
            return;
        }
        self.writer.again_at = None;
        if !self.writer.blocked || self.send.fin().is_some() || self.closed.is_some() {
            return;
        }
        if self.writable_bytes() > 0 {
            self.writer.blocked = false;
            self.event(Event::Writable(self.id));
        } else {
            self.writer.again_at = self.config.write_retry.map(|time| now + time);
        }
    }

    /// See [`crate::stack::Stack::read`].
    pub(crate) fn read(&mut self, now: Instant) -> Option<Bytes> {
        self.readable_told = false;
        if let Some(bytes) = self.receive.read() {
            self.tune_receive_buffer(now);
            (self.offer.changed, self.offer.was_read) = (true, true);
            return Some(bytes);
        }
        self.end_was_read |= self.receive.finished();
        (self.receive.finished() || self.closed.is_some()).then(Bytes::new)
    }

    fn tune_receive_buffer(&mut self, now: Instant) {
        if self.config.receive_buffer.mode == ReceiveBufferMode::Fixed {
            return;
        }
        let as_receiver = self.config.receive_buffer.window_share == WindowShare::LinuxPackets;
        let rtt = |flow: &Flow| {
            if as_receiver { flow.tcp.receiver_rtt() } else { flow.tcp.srtt() }
        };
        let rtt = self.flows.iter().map(rtt).max().unwrap_or_default();
        if !self.tuning.is_due(now, rtt) {
            return;
        }
        let mss = self.flows.iter().map(|flow| flow.tcp.mss_bytes()).max().unwrap_or_default();
        let arrived = self.receive.received_bytes() + self.receive.waiting_bytes();
        self.tuning.update(now, self.receive.read_bytes(), arrived, mss);
    }

    /// Offers the shared window on every subflow.
    fn update_windows(&mut self) {
        self.offer.changed = false;
        let unit = 1 << self.window_scale().unwrap_or(0);
        self.note_waiting_below();
        let packets = self.flows.iter().filter_map(|flow| flow.tcp.received_packet_bytes());
        if let Some(largest) = packets.max() {
            self.tuning.note_packets(largest.into());
        }
        let offered = self.offered_bytes();
        let free = self.free_bytes();
        let shared = !self.is_single();
        let limit = self.flows.iter().map(|flow| flow.window_limit).max();
        let room = self.tuning.window_bytes(free, limit.unwrap_or(free), unit);
        // Linux keeps the connection's edge to the byte, and tells what of it fits into whole units
        // (`mptcp_set_rwin`).
        let exact = shared && self.config.receive_buffer.is_counted_in_packets();
        let window = if exact {
            self.receive.window(room, 1) / unit * unit
        } else {
            self.receive.window(room, unit)
        };
        for flow in &mut self.flows {
            flow.tcp.set_receive_window(window, shared);
        }
        if self.config.acks_on_read {
            return self.acknowledge_what_was_read(window, offered);
        }
        // One subflow is enough to tell the peer: the one that it used last.
        // What we have ended ourselves still receives in plain TCP.
        let latest = self.flows.iter_mut().filter(|flow| flow.usable() || !shared);
        if let Some(flow) = latest.max_by_key(|flow| (flow.last_data_at, flow.path))
            && flow.tcp.window_update_due()
        {
            flow.tcp.want_ack();
        }
    }

    /// What waits in the subflow of plain TCP takes memory of the same buffer, and lets it grow
    /// ([`WindowShare::LinuxPackets`]).
    fn note_waiting_below(&mut self) {
        if let Some(span) = self.sole_receiver().map(|flow| flow.tcp.reorder_span_bytes()) {
            self.tuning.note_waiting(span);
        }
    }

    fn sole_receiver(&self) -> Option<&Flow> {
        let counted = self.config.receive_buffer.is_counted_in_packets();
        self.flows.first().filter(|_| counted && self.is_single())
    }

    /// What may be offered while nothing waits to be read. In Linux what waits for earlier data takes
    /// memory of the buffer besides its place in the window, so that the window shrinks by it once more
    /// (`tcp_space`).
    fn offered_bytes(&self) -> u64 {
        let accounts = self.config.receive_buffer.window_share != WindowShare::Percent(100);
        let waiting = || {
            let below = self.sole_receiver().map_or(0, |flow| flow.tcp.reorder_bytes());
            self.receive.waiting_bytes() + below
        };
        self.tuning.offered_bytes().saturating_sub(if accounts { waiting() } else { 0 })
    }

    fn free_bytes(&self) -> u64 {
        self.offered_bytes().saturating_sub(self.receive.ready_bytes())
    }

    /// So many bytes came in order on a subflow: twice as many more may be offered, if there is room
    /// (`tcp_grow_window`).
    fn raise_window_limit(&mut self, index: usize, bytes: u64) {
        let free = self.free_bytes();
        if let Some(flow) = self.flows.get_mut(index).filter(|flow| flow.window_limit < free) {
            flow.window_limit = free.min(flow.window_limit + 2 * bytes);
        }
    }

    /// The application has read: what waits for that is acknowledged ([`Config::acks_on_read`]).
    fn acknowledge_what_was_read(&mut self, window: u64, offered: u64) {
        if !std::mem::take(&mut self.offer.was_read) {
            return;
        }
        let (single, drained) = (self.is_single(), !self.receive.has_unread());
        let mss = self.flows.iter().map(|flow| u64::from(flow.tcp.mss_bytes())).max();
        // RFC 9293 §3.8.6.2.2: no sliver.
        let tells = window >= mss.unwrap_or(1).min(offered.max(1));
        let window = if tells { window } else { 0 };
        let doubled = window > 0 && window >= 2 * self.offer.told_bytes;
        for flow in self.flows.iter_mut().filter(|flow| flow.usable() || single) {
            if single || doubled || flow.tcp.acknowledges_when_read(drained) {
                flow.tcp.on_read(drained, window, offered);
            }
        }
    }

    /// Subflows that may carry data, as the scheduler sees them.
    fn fill_views(&mut self, now: Instant, room: &dyn Fn(InterfaceId) -> Room) {
        self.views.clear();
        let cautious = self.config.cautious_joins;
        // Nobody should wait for a path whose interface is off, unless there is no other: then TCP
        // tries, and gives up in time.
        let up = |flow: &Flow| flow.usable() && room(flow.interface) != Room::Down;
        let any = self.flows.iter().any(up);
        for flow in self.flows.iter().filter(|flow| flow.usable()) {
            let room = if any { room(flow.interface) } else { Room::Free };
            if room != Room::Down {
                self.views.push(flow.view(now, room == Room::Free, cautious));
            }
        }
        if !self.views.is_sorted_by_key(|view| view.id) {
            self.views.sort_unstable_by_key(|view| view.id);
        }
    }
}
