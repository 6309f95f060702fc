//! The kernel as the host of a script: real sockets in a network namespace, with a TUN device as
//! the wire.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use towpath_netlink::{Endpoint, EndpointFlags, MptcpLimits, MptcpPm, Prefix, RouteSocket};
use towpath_os::Namespace;
use towpath_os::sysctl::Sysctl;
use towpath_script::parse::endpoint;
use towpath_script::script::{
    Call, EndpointUse, FailureReason, HostKind, MAX_PATHS, Setting, Transport, host_address,
    peer_address,
};
use towpath_script::{CallResult, HostUnderTest, Tolerance};
use towpath_sockets::stack::StackDevice;

/// Name of the only interface.
const LINK: &str = "tun0";
/// Port for listening and connecting.
const PORT: u16 = 80;
/// Maximum size of an IP packet.
const MAX_PACKET_BYTES: usize = 65_536;

/// A host in a network namespace of its own, which the calling thread enters permanently.
#[derive(Debug)]
pub(crate) struct Kernel {
    transport: Transport,
    tun: File,
    route: RouteSocket,
    start: Instant,
    options: SocketOptions,
    limits: MptcpLimits,
    is_started: bool,
    listener: Option<Socket>,
    socket: Option<Socket>,
    buffer: Vec<u8>,
}

/// Options that are set on each socket.
#[derive(Debug, Default)]
struct SocketOptions {
    congestion: Option<String>,
    nagle: bool,
    receive_buffer: Option<usize>,
    send_buffer: Option<usize>,
    user_timeout: Option<Duration>,
    keepalive: Option<(u64, u64, u32)>,
}

fn error_text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Kernel {
    /// Creates a host with default settings.
    pub(crate) fn new(transport: Transport) -> Result<Self, String> {
        Namespace::create().and_then(|namespace| namespace.enter()).map_err(error_text)?;
        let tun = File::from(StackDevice::plain_tun(LINK).map_err(error_text)?);
        let mut route = RouteSocket::open().map_err(error_text)?;
        for (name, value) in [
            ("net.ipv6.conf.all.disable_ipv6", "1"),
            ("net.ipv6.conf.default.disable_ipv6", "1"),
            // Large enough for a script's single writes.
            ("net.ipv4.tcp_wmem", "4096 1048576 4194304"),
        ] {
            Sysctl::new(name).write(value).map_err(error_text)?;
        }
        route.set_up("lo").map_err(error_text)?;
        for path in 0..MAX_PATHS {
            let address = Prefix::new(host_address(path), 24).map_err(error_text)?;
            route.add_address(LINK, address).map_err(error_text)?;
        }
        Ok(Self {
            transport,
            tun,
            route,
            start: Instant::now(),
            options: SocketOptions::default(),
            limits: MptcpLimits { subflows: 8, add_addr_accepted: 8 },
            is_started: false,
            listener: None,
            socket: None,
            buffer: vec![0; MAX_PACKET_BYTES],
        })
    }

    fn start_once(&mut self) -> Result<(), String> {
        if std::mem::replace(&mut self.is_started, true) {
            return Ok(());
        }
        self.route.set_up(LINK).map_err(error_text)?;
        if self.transport == Transport::Mptcp {
            MptcpPm::open().and_then(|mut pm| pm.set_limits(self.limits)).map_err(error_text)?;
        }
        self.start = Instant::now();
        Ok(())
    }

    fn create_socket(&self) -> io::Result<Socket> {
        let protocol = match self.transport {
            Transport::Tcp => Protocol::TCP,
            Transport::Mptcp => Protocol::MPTCP,
        };
        let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(protocol))?;
        let options = &self.options;
        // Set per socket: a namespace has no such setting.
        let congestion = options.congestion.as_deref().unwrap_or("cubic");
        socket.set_tcp_congestion(congestion.as_bytes())?;
        socket.set_tcp_nodelay(!options.nagle)?;
        if let Some(bytes) = options.receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(bytes) = options.send_buffer {
            socket.set_send_buffer_size(bytes)?;
        }
        if let Some(time) = options.user_timeout {
            socket.set_tcp_user_timeout(Some(time))?;
        }
        if let Some((idle, interval, count)) = options.keepalive {
            let seconds = Duration::from_secs;
            let keepalive = TcpKeepalive::new()
                .with_time(seconds(idle))
                .with_interval(seconds(interval))
                .with_retries(count);
            socket.set_tcp_keepalive(&keepalive)?;
        }
        Ok(socket)
    }

    fn listen(&mut self) -> io::Result<CallResult> {
        let socket = self.create_socket()?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)).into())?;
        socket.listen(10)?;
        self.listener = Some(socket);
        Ok(CallResult::Done)
    }

    fn connect(&mut self) -> io::Result<CallResult> {
        let socket = self.create_socket()?;
        let target = SocketAddr::new(peer_address(0), PORT);
        match socket.connect(&target.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        self.socket = Some(socket);
        Ok(CallResult::Done)
    }

    fn accept(&mut self) -> io::Result<CallResult> {
        let Some(listener) = &self.listener else { return Ok(CallResult::Nothing) };
        let (socket, _) = listener.accept()?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(!self.options.nagle)?;
        self.socket = Some(socket);
        Ok(CallResult::Done)
    }

    fn poll_connected(socket: &Socket) -> io::Result<CallResult> {
        if let Some(error) = socket.take_error()? {
            return Err(error);
        }
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
        let _ = nix::poll::poll(&mut fds, PollTimeout::ZERO)?;
        let [fd] = fds;
        let revents = fd.revents().unwrap_or(PollFlags::empty());
        let is_open = revents.contains(PollFlags::POLLOUT)
            && !revents.intersects(PollFlags::POLLHUP | PollFlags::POLLERR);
        Ok(if is_open { CallResult::Done } else { CallResult::Nothing })
    }

    fn read(&mut self) -> io::Result<CallResult> {
        let Some(socket) = &mut self.socket else { return Ok(CallResult::Nothing) };
        let mut received = Vec::new();
        loop {
            match socket.read(&mut self.buffer) {
                Ok(0) if received.is_empty() => return Ok(CallResult::End),
                Ok(0) => break,
                Ok(count) => received.extend_from_slice(&self.buffer[..count]),
                Err(_) if !received.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(CallResult::Data(received))
    }

    fn with_socket(
        &mut self,
        operation: impl FnOnce(&mut Socket) -> io::Result<CallResult>,
    ) -> io::Result<CallResult> {
        match &mut self.socket {
            Some(socket) => operation(socket),
            None => Err(io::Error::other("there is no connection yet")),
        }
    }

    fn perform(&mut self, call: Call, data: &[u8]) -> io::Result<CallResult> {
        match call {
            Call::Listen => self.listen(),
            Call::Connect => self.connect(),
            Call::Accept => self.accept(),
            Call::Connected => self.with_socket(|socket| Self::poll_connected(socket)),
            Call::Write(_) => self.with_socket(|socket| socket.write(data).map(CallResult::Taken)),
            Call::Read => self.read(),
            Call::Shutdown => self.with_socket(|socket| {
                socket.shutdown(Shutdown::Write)?;
                Ok(CallResult::Done)
            }),
            Call::Close => {
                self.socket = None;
                Ok(CallResult::Done)
            }
            Call::Abort => {
                self.with_socket(|socket| {
                    socket.set_linger(Some(Duration::ZERO))?;
                    Ok(CallResult::Done)
                })?;
                self.socket = None;
                Ok(CallResult::Done)
            }
            Call::RemoveAddress(path) => {
                let result = MptcpPm::open().and_then(|mut pm| pm.delete_endpoint(path + 1));
                result.map_err(io::Error::other)?;
                Ok(CallResult::Done)
            }
            Call::AddEndpoint(path, usage) => {
                add_endpoint(path, usage).map_err(io::Error::other)?;
                Ok(CallResult::Done)
            }
        }
    }
}

fn add_endpoint(path: u8, usage: EndpointUse) -> Result<(), String> {
    let EndpointUse { subflow, signal, backup, fullmesh } = usage;
    let mut flags = EndpointFlags::default();
    for (is_set, flag) in [
        (subflow, EndpointFlags::SUBFLOW),
        (signal, EndpointFlags::SIGNAL),
        (backup, EndpointFlags::BACKUP),
        (fullmesh, EndpointFlags::FULLMESH),
    ] {
        if is_set {
            flags = flags | flag;
        }
    }
    let (address, id) = (host_address(path), Some(path + 1));
    let endpoint = Endpoint { address, id, port: None, flags, link_index: None };
    MptcpPm::open().and_then(|mut pm| pm.add_endpoint(&endpoint)).map_err(error_text)
}

/// Maps a socket error to the reason for its connection's failure.
fn failure_reason(error: &io::Error) -> Option<FailureReason> {
    Some(match error.raw_os_error()? {
        libc::ECONNRESET => FailureReason::Reset,
        libc::ECONNREFUSED => FailureReason::Refused,
        libc::ETIMEDOUT => FailureReason::TimedOut,
        libc::EHOSTUNREACH | libc::ENETUNREACH => FailureReason::Unreachable,
        libc::EPIPE | libc::ENOTCONN => FailureReason::Closed,
        _ => return None,
    })
}

impl HostUnderTest for Kernel {
    fn kind(&self) -> HostKind {
        HostKind::Linux
    }

    fn tolerance(&self) -> Tolerance {
        let millis = Duration::from_millis;
        Tolerance { early: millis(10), late: millis(60), at_once: millis(25) }
    }

    fn now(&self) -> Duration {
        if self.is_started { self.start.elapsed() } else { Duration::ZERO }
    }

    fn set(&mut self, setting: &Setting) -> Result<(), String> {
        let value = setting.value.as_str();
        let switch = if value == "on" { "1" } else { "0" };
        let sysctl = |name: &str, value: &str| Sysctl::new(name).write(value).map_err(error_text);
        let options = &mut self.options;
        match setting.name.as_str() {
            "nagle" => options.nagle = value == "on",
            "receive-buffer" => options.receive_buffer = Some(parse_number(value)?),
            "send-buffer" => options.send_buffer = Some(parse_number(value)?),
            "user-timeout" => {
                options.user_timeout = Some(Duration::from_millis(parse_number(value)?));
            }
            "keepalive" => {
                let numbers: Vec<u64> =
                    value.split(' ').map(parse_number).collect::<Result<_, _>>()?;
                options.keepalive = Some((numbers[0], numbers[1], numbers[2] as u32));
            }
            "congestion" => options.congestion = Some(value.to_owned()),
            "timestamps" => sysctl("net.ipv4.tcp_timestamps", switch)?,
            "sack" => sysctl("net.ipv4.tcp_sack", switch)?,
            "window-scaling" => sysctl("net.ipv4.tcp_window_scaling", switch)?,
            "ecn" => sysctl("net.ipv4.tcp_ecn", switch)?,
            "idle-restart" => sysctl("net.ipv4.tcp_slow_start_after_idle", switch)?,
            "mtu-probing" => sysctl("net.ipv4.tcp_mtu_probing", switch)?,
            "syn-retries" => {
                sysctl("net.ipv4.tcp_syn_retries", value)?;
                sysctl("net.ipv4.tcp_synack_retries", value)?;
            }
            "retries" => sysctl("net.ipv4.tcp_retries2", value)?,
            "checksum" => sysctl("net.mptcp.checksum_enabled", switch)?,
            "add-addr-timeout" => sysctl("net.mptcp.add_addr_timeout", value)?,
            "close-timeout" => sysctl("net.mptcp.close_timeout", value)?,
            "subflows" => self.limits.subflows = parse_number(value)?,
            "add-addr-accepted" => self.limits.add_addr_accepted = parse_number(value)?,
            "mtu" => self.route.set_mtu(LINK, parse_number(value)?).map_err(error_text)?,
            "endpoint" => {
                let (path, usage) = endpoint(value)?;
                add_endpoint(path, usage)?;
            }
            _ => return Err("the kernel has no such setting".to_owned()),
        }
        Ok(())
    }

    fn inject(&mut self, packet: &[u8]) -> Result<(), String> {
        self.start_once()?;
        self.tun.write_all(packet).map_err(error_text)
    }

    fn next(&mut self, until: Duration) -> Result<Option<(Duration, Vec<u8>)>, String> {
        self.start_once()?;
        loop {
            match self.tun.read(&mut self.buffer) {
                Ok(count) => return Ok(Some((self.now(), self.buffer[..count].to_vec()))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error_text(error)),
            }
            let remaining = until.saturating_sub(self.now());
            if remaining.is_zero() {
                return Ok(None);
            }
            let mut fds = [PollFd::new(self.tun.as_fd(), PollFlags::POLLIN)];
            // Rounded up to whole milliseconds: a little lateness is better than a busy loop.
            let remaining = PollTimeout::try_from(remaining + Duration::from_micros(900))
                .map_err(error_text)?;
            let _ = nix::poll::poll(&mut fds, remaining).map_err(error_text)?;
        }
    }

    fn call(&mut self, call: Call, data: &[u8]) -> Result<CallResult, String> {
        self.start_once()?;
        match self.perform(call, data) {
            Ok(result) => Ok(result),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(CallResult::Nothing),
            Err(error) => {
                failure_reason(&error).map(CallResult::Failed).ok_or_else(|| error_text(error))
            }
        }
    }
}

fn parse_number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("`{value}` is not a number"))
}
