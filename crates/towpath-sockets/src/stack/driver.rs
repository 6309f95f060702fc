//! Driver thread that owns one host's [`Stack`], its devices and the connection handlers.
//!
//! Applications run inside the thread as [`ConnectionHandler`]s, which are called when their
//! connection is ready. No thread switch occurs between a packet's arrival and the application's
//! reply. Other threads send work with [`StackHandle::call`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use towpath_mptcp::stack::{
    ConnectionError, InterfaceId, ListenerId, Stack, StackDecision, StackEvent, StackNotice,
};
use towpath_multipath::scheduler::SwitchReason;
use towpath_net::Instant;
use towpath_os::clock::Clock;
use towpath_os::queue;
use towpath_os::queue::{QueueReceiver, QueueSender};
use towpath_os::sys;
use towpath_result::ReinjectionCause;
use towpath_run::decisions::{DecisionLog, WindowBlocked};
use towpath_wire::ConnectionId;

use super::StackDevice;

/// Packets read from one device before packets are sent.
const READ_BATCH: usize = 32;
/// Packets written before devices are read again.
const WRITE_BATCH: usize = 64;
/// Maximum events of one turn; more means that the stack emits events without end.
const EVENT_BATCH: usize = 4_096;

/// Handler of a connection: the application.
pub trait ConnectionHandler: Send {
    /// Called after the handshake of a connection that this host opened.
    fn connected(&mut self, now: Instant, stack: &mut Stack, connection: ConnectionId) {
        self.progress(now, stack, connection);
    }

    /// Reads and writes as much as possible; called when the connection has data or space.
    fn progress(&mut self, now: Instant, stack: &mut Stack, connection: ConnectionId);

    /// Called after the connection has closed; its status can be read for the last time.
    fn closed(
        &mut self,
        now: Instant,
        stack: &Stack,
        connection: ConnectionId,
        error: Option<ConnectionError>,
    );

    /// Returns when [`ConnectionHandler::progress`] must be called at the latest, even without an
    /// event.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

type AcceptFn = Box<dyn FnMut(ConnectionId) -> Option<Box<dyn ConnectionHandler>> + Send>;
type NoticeFn = Box<dyn FnMut(Instant, ConnectionId, StackNotice) + Send>;
type Task = Box<dyn FnOnce(&mut StackDriverContext<'_>) + Send>;

/// Context of work inside the driver thread.
#[derive(Debug)]
pub struct StackDriverContext<'a> {
    /// Start time of this work, on the host's clock.
    pub now: Instant,
    /// Stack of the host.
    pub stack: &'a mut Stack,
    handlers: &'a mut Handlers,
}

impl StackDriverContext<'_> {
    /// Attaches the handler of a connection and starts it.
    pub fn attach(&mut self, connection: ConnectionId, handler: Box<dyn ConnectionHandler>) {
        self.handlers.attach(self.now, self.stack, connection, handler);
    }

    /// Registers `accept`, which creates the handlers of a listener's connections. If it returns
    /// `None`, a handler is attached later.
    pub fn on_accept(
        &mut self,
        listener: ListenerId,
        accept: impl FnMut(ConnectionId) -> Option<Box<dyn ConnectionHandler>> + Send + 'static,
    ) {
        self.handlers.listeners.insert(listener, Box::new(accept));
    }

    /// Returns the decisions of a connection so far, also after it has closed; empty without any.
    pub(crate) fn decisions(&mut self, connection: ConnectionId) -> &mut DecisionTrace {
        self.handlers.decisions.entry(connection).or_default()
    }

    /// Registers `handler` for notices about subflows, addresses and fallbacks.
    pub fn on_notice(
        &mut self,
        handler: impl FnMut(Instant, ConnectionId, StackNotice) + Send + 'static,
    ) {
        self.handlers.notice_handler = Some(Box::new(handler));
    }
}

/// Handle of a running host. Dropping it ends the thread, and its connections silently.
pub struct StackHandle {
    name: String,
    tasks: QueueSender<Task>,
    thread: Option<JoinHandle<io::Result<Duration>>>,
}

impl fmt::Debug for StackHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackHandle").field("thread", &self.thread).finish_non_exhaustive()
    }
}

impl StackHandle {
    /// Starts the driver thread of `stack` with the device of each interface.
    pub fn start(
        name: &str,
        clock: Clock,
        stack: Stack,
        devices: Vec<(InterfaceId, StackDevice)>,
    ) -> io::Result<Self> {
        let (tasks, inbox) = queue::queue()?;
        let driver = StackDriver {
            clock,
            stack,
            devices,
            inbox,
            handlers: Handlers::default(),
            stopped: false,
        };
        let thread = thread::Builder::new().name(format!("stack {name}"));
        let thread = Some(thread.spawn(move || driver.run())?);
        Ok(Self { name: name.to_owned(), tasks, thread })
    }

    /// Returns the name of the host.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` inside the driver thread and waits for its result.
    pub fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut StackDriverContext<'_>) -> T + Send + 'static,
    ) -> io::Result<T> {
        let (result_sender, result) = mpsc::sync_channel(1);
        // False once the thread has ended.
        let _ = self.tasks.send(Box::new(move |context| {
            let _ = result_sender.send(work(context)); // the receiver may be gone
        }));
        result.recv().map_err(|_| io::Error::other("the stack's thread has ended"))
    }

    /// Ends the thread and returns its CPU time.
    pub fn finish(mut self) -> io::Result<Duration> {
        self.stop().unwrap_or_else(|| Err(io::Error::other("the stack's thread has ended")))
    }

    fn stop(&mut self) -> Option<io::Result<Duration>> {
        let thread = self.thread.take()?;
        // False once the thread has ended.
        let _ = self.tasks.send(Box::new(|context| context.handlers.stop_requested = true));
        Some(thread.join().unwrap_or_else(|_| Err(io::Error::other("the stack panicked"))))
    }
}

impl Drop for StackHandle {
    fn drop(&mut self) {
        let _ = self.stop(); // drop cannot report an error
    }
}

/// Decisions of a connection's endpoint.
#[derive(Debug, Default)]
pub(crate) struct DecisionTrace {
    /// Decisions since they were last taken.
    pub(crate) decisions: DecisionLog,
    /// Periods of a full window, on the host's clock.
    pub(crate) blocked: Vec<WindowBlocked>,
}

impl DecisionTrace {
    fn record(&mut self, now: Instant, decision: StackDecision) {
        match decision {
            StackDecision::Scheduled { number, run_bytes, reason } => {
                self.decisions.scheduled(number, run_bytes, reason.map(SwitchReason::name));
            }
            StackDecision::Reinjected { number, bytes, cause } => {
                self.decisions.reinjected(number, bytes, convert_cause(cause));
            }
            StackDecision::Penalised { number } => self.decisions.penalised(number),
            StackDecision::WindowBlocked(is_blocked) => {
                self.blocked.extend(self.decisions.window(now, is_blocked));
            }
        }
    }
}

fn convert_cause(cause: towpath_mptcp::stack::ReinjectionCause) -> ReinjectionCause {
    use towpath_mptcp::stack::ReinjectionCause as Cause;

    match cause {
        Cause::Timeout => ReinjectionCause::Timeout,
        Cause::Closed => ReinjectionCause::Closed,
        Cause::Connection => ReinjectionCause::Connection,
        Cause::Opportunistic => ReinjectionCause::Opportunistic,
        Cause::Scheduler => ReinjectionCause::Scheduler,
    }
}

/// Handlers of connections, listeners and notices.
#[derive(Default)]
struct Handlers {
    connections: BTreeMap<ConnectionId, Box<dyn ConnectionHandler>>,
    listeners: BTreeMap<ListenerId, AcceptFn>,
    notice_handler: Option<NoticeFn>,
    decisions: BTreeMap<ConnectionId, DecisionTrace>,
    stop_requested: bool,
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers")
            .field("connections", &self.connections.keys())
            .finish_non_exhaustive()
    }
}

impl Handlers {
    fn attach(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        connection: ConnectionId,
        mut handler: Box<dyn ConnectionHandler>,
    ) {
        handler.progress(now, stack, connection);
        self.connections.insert(connection, handler);
    }

    fn dispatch_event(&mut self, now: Instant, stack: &mut Stack, event: &StackEvent) {
        match event {
            StackEvent::Accepted { listener, connection } => {
                match self.listeners.get_mut(listener).map(|accept| accept(*connection)) {
                    Some(Some(handler)) => self.attach(now, stack, *connection, handler),
                    // A handler is attached later.
                    Some(None) => {}
                    None => {
                        stack.abort(now, *connection);
                        stack.release(now, *connection);
                    }
                }
            }
            StackEvent::Connected(connection) => {
                if let Some(handler) = self.connections.get_mut(connection) {
                    handler.connected(now, stack, *connection);
                }
            }
            StackEvent::Readable(connection) | StackEvent::Writable(connection) => {
                if let Some(handler) = self.connections.get_mut(connection) {
                    handler.progress(now, stack, *connection);
                }
            }
            StackEvent::Closed { connection, error } => {
                match self.connections.remove(connection) {
                    // The decisions stay for the last sample, like the connection's status.
                    Some(mut handler) => handler.closed(now, stack, *connection, *error),
                    None => drop(self.decisions.remove(connection)),
                }
            }
            StackEvent::Notice { connection, notice } => {
                if let Some(handler) = &mut self.notice_handler {
                    handler(now, *connection, *notice);
                }
            }
            StackEvent::Trace { connection, decision } => {
                self.decisions.entry(*connection).or_default().record(now, *decision);
            }
        }
    }

    /// Calls the handlers whose deadline has passed.
    fn run_timers(&mut self, now: Instant, stack: &mut Stack) {
        for (connection, handler) in &mut self.connections {
            if handler.deadline().is_some_and(|deadline| deadline <= now) {
                handler.progress(now, stack, *connection);
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.connections.values().filter_map(|handler| handler.deadline()).min()
    }
}

struct StackDriver {
    clock: Clock,
    stack: Stack,
    devices: Vec<(InterfaceId, StackDevice)>,
    inbox: QueueReceiver<Task>,
    handlers: Handlers,
    stopped: bool,
}

impl StackDriver {
    fn run(mut self) -> io::Result<Duration> {
        sys::set_minimal_timer_slack();
        let mut fds: Vec<libc::pollfd> = vec![sys::input_pollfd(&self.inbox)];
        fds.extend(self.devices.iter().map(|(_, device)| sys::input_pollfd(device)));
        while !self.stopped {
            let busy = self.run_once();
            // Under load, reading the devices directly is cheaper than polling.
            if !busy {
                let timeout =
                    self.deadline().map(|deadline| deadline.saturating_since(self.clock.now()));
                sys::poll(&mut fds, timeout)?;
            }
        }
        Ok(sys::thread_cpu_time())
    }

    fn deadline(&self) -> Option<Instant> {
        let stack = self.stack.poll_timeout().map(|(deadline, _)| deadline);
        [stack, self.handlers.deadline()].into_iter().flatten().min()
    }

    /// Does all pending work in bounded batches; returns true if there may be more.
    fn run_once(&mut self) -> bool {
        let mut busy = self.run_tasks();
        busy |= self.read();
        let now = self.clock.now();
        if self.stack.poll_timeout().is_some_and(|(deadline, _)| deadline <= now) {
            self.stack.handle_timeout(now);
            busy = true;
        }
        self.handlers.run_timers(now, &mut self.stack);
        busy |= self.deliver_events();
        busy | self.write()
    }

    fn run_tasks(&mut self) -> bool {
        let mut busy = false;
        while let Some(work) = self.inbox.receive() {
            let now = self.clock.now();
            work(&mut StackDriverContext {
                now,
                stack: &mut self.stack,
                handlers: &mut self.handlers,
            });
            busy = true;
        }
        self.stopped |= self.handlers.stop_requested;
        busy
    }

    fn read(&mut self) -> bool {
        let mut busy = false;
        for (interface, device) in &mut self.devices {
            for _ in 0..READ_BATCH {
                // A device whose interface is down returns errors until it is up again.
                let Ok(Some(packet)) = device.receive() else { break };
                self.stack.handle_packet(self.clock.now(), *interface, packet);
                busy = true;
            }
        }
        busy
    }

    fn deliver_events(&mut self) -> bool {
        let now = self.clock.now();
        for count in 0..EVENT_BATCH {
            let Some(event) = self.stack.poll_event() else { return count > 0 };
            self.handlers.dispatch_event(now, &mut self.stack, &event);
        }
        true
    }

    fn write(&mut self) -> bool {
        for count in 0..WRITE_BATCH {
            let now = self.clock.now();
            let Some((interface, packet)) = self.stack.poll_transmit(now) else { return count > 0 };
            let device = self.devices.iter().find(|(id, _)| *id == interface);
            if let Some((_, device)) = device {
                // An error means that the link is down: the packet is lost, as on a real wire.
                let _ = device.send(&packet);
            }
        }
        true
    }
}
