//! Probes: the benchmark restarts itself as a probe in each host of the measured network.
//!
//! A probe prints each of its measurements on standard error as `figure NAME VALUE`.

use std::io::{self, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use towpath_netlink::RouteSocket;

use crate::Failure;
use crate::cases::{PACKET_BYTES, RATE_BPS};

/// Port of every receiving probe.
pub(crate) const PORT: u16 = 5_301;
/// Bytes per read or write call, as in the project's own traffic and in `iperf3`.
const CHUNK_BYTES: usize = 128 * 1024;
/// Bytes of IPv4 and UDP headers.
const HEADER_BYTES: usize = 28;
/// Bytes of an Ethernet header, which a TUN device does not count.
const ETHERNET_HEADER_BYTES: u64 = 14;
/// Idle time after which a receiver ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a sender waits after its last packet.
const LINGER: Duration = Duration::from_millis(200);
/// Maximum wait for the other probe.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the probe that the command-line arguments select.
pub(crate) fn run(kind: &str, arguments: &[&str]) -> Result<(), Failure> {
    match (kind, arguments) {
        ("tcp-receive", []) => tcp_receive(),
        ("tcp-send", [target, millis]) => tcp_send(target, parse_millis(millis)?),
        ("udp-receive", [delay_millis]) => udp_receive(parse_millis(delay_millis)?),
        ("udp-send", [target, per_second, millis]) => {
            udp_send(target, per_second.parse()?, parse_millis(millis)?)
        }
        ("overload", [target, millis]) => {
            let per_second = RATE_BPS * 3 / 2 / 8 / PACKET_BYTES as u64;
            udp_send(target, u32::try_from(per_second)?, parse_millis(millis)?)
        }
        ("wire", [millis]) => measure_wire_rate(parse_millis(millis)?),
        _ => Err(format!("unknown probe `{kind}` {arguments:?}").into()),
    }
}

fn parse_millis(millis: &str) -> Result<Duration, Failure> {
    Ok(Duration::from_millis(millis.parse()?))
}

fn print_metric(name: &str, value: f64) -> Result<(), Failure> {
    // A single write, because two probes share the stream.
    io::stderr().write_all(format!("figure {name} {value}\n").as_bytes())?;
    Ok(())
}

/// Reads one connection to its end; measures time from the first byte.
fn tcp_receive() -> Result<(), Failure> {
    let (mut stream, _) = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?.accept()?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut bytes = stream.read(&mut buffer)?;
    let start = Instant::now();
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            length => bytes += length,
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    print_metric("bytes", bytes as f64)?;
    print_metric("gbps", bytes as f64 * 8.0 / 1e9 / seconds)
}

fn tcp_send(target: &str, length: Duration) -> Result<(), Failure> {
    let mut stream = connect(target)?;
    // CUBIC is not the default of every kernel, and BBR would measure its own pacing.
    socket2::SockRef::from(&stream).set_tcp_congestion(b"cubic")?;
    let (data, start) = (vec![0x74; CHUNK_BYTES], Instant::now());
    while start.elapsed() < length {
        stream.write_all(&data)?;
    }
    stream.shutdown(Shutdown::Write)?;
    // The network may vanish with this process, so the other side must have read everything.
    let _ = stream.read(&mut [0; 1])?;
    Ok(())
}

/// Connects as soon as the other probe listens.
fn connect(target: &str) -> Result<TcpStream, Failure> {
    let (target, start): (SocketAddr, _) = (target.parse()?, Instant::now());
    loop {
        match TcpStream::connect(target) {
            Err(_) if start.elapsed() < START_TIMEOUT => thread::sleep(Duration::from_millis(10)),
            result => return Ok(result?),
        }
    }
}

fn realtime() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Sends at a steady pace, open loop: a late packet does not delay the next.
///
/// Every packet carries the time just before it is sent.
fn udp_send(target: &str, per_second: u32, length: Duration) -> Result<(), Failure> {
    let _ = nix::sys::prctl::set_timerslack(1); // best effort: coarser timers otherwise
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(target.parse::<SocketAddr>()?)?;
    wait_for_receiver(&socket)?;
    let mut packet = vec![0; PACKET_BYTES - HEADER_BYTES];
    let (start, count) = (Instant::now(), f64::from(per_second) * length.as_secs_f64());
    for number in 0..count as u32 {
        let due = Duration::from_nanos(u64::from(number) * 1_000_000_000 / u64::from(per_second));
        let wait = due.saturating_sub(start.elapsed());
        if !wait.is_zero() {
            thread::sleep(wait);
        }
        let send_time_ns = realtime().as_nanos() as u64;
        for (byte_slot, byte) in packet.iter_mut().zip(send_time_ns.to_ne_bytes()) {
            *byte_slot = byte;
        }
        // A full queue of the interface rejects a packet, which counts as a loss.
        let _ = socket.send(&packet);
    }
    // The network may vanish with this process while packets are in flight.
    thread::sleep(LINGER);
    print_metric("sent", f64::from(count as u32))
}

/// Sends short packets, which are not counted, until the receiver replies.
///
/// The reply shows that the receiver listens and that link addresses are resolved.
fn wait_for_receiver(socket: &UdpSocket) -> Result<(), Failure> {
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let start = Instant::now();
    while start.elapsed() < START_TIMEOUT {
        let _ = socket.send(b"?"); // retried until the receiver answers
        if socket.recv(&mut [0; 8]).is_ok() {
            return Ok(());
        }
    }
    Err("the packet has no receiver".into())
}

fn udp_receiver() -> Result<UdpSocket, Failure> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
    socket.set_read_timeout(Some(START_TIMEOUT))?;
    let mut request = [0; 8];
    let (_, sender) = socket.recv_from(&mut request)?;
    socket.send_to(b"!", sender)?;
    socket.set_read_timeout(Some(IDLE_TIMEOUT))?;
    Ok(socket)
}

/// Compares each packet's timestamp with the kernel's time of receipt.
fn udp_receive(delay: Duration) -> Result<(), Failure> {
    let socket = udp_receiver()?;
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
    let mut buffer = vec![0; PACKET_BYTES];
    let mut control_buffer = nix::cmsg_space!(TimeSpec);
    let mut delay_errors: Vec<f64> = Vec::new();
    loop {
        let mut slices = [IoSliceMut::new(&mut buffer)];
        let result = recvmsg::<SockaddrIn>(
            socket.as_raw_fd(),
            &mut slices,
            Some(&mut control_buffer),
            MsgFlags::empty(),
        );
        let Ok(message) = result else { break };
        if message.bytes < PACKET_BYTES - HEADER_BYTES {
            continue;
        }
        let received = message.cmsgs()?.find_map(|control| {
            let ControlMessageOwned::ScmTimestampns(time) = control else { return None };
            Some(Duration::from(time))
        });
        let sent = buffer.first_chunk().map(|stamp| u64::from_ne_bytes(*stamp));
        if let (Some(received), Some(sent)) = (received, sent) {
            delay_errors.push((received.as_nanos() as f64 - sent as f64) - delay.as_nanos() as f64);
        }
    }
    print_metric("received", delay_errors.len() as f64)?;
    print_percentiles(delay_errors)
}

/// Prints percentiles of times in nanoseconds.
pub(crate) fn print_percentiles(mut errors: Vec<f64>) -> Result<(), Failure> {
    errors.sort_by(f64::total_cmp);
    let percentiles = [("p1", 1.0), ("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)];
    for (name, percent) in percentiles.into_iter().chain([("max", 100.0)]) {
        let rank = (percent / 100.0 * errors.len() as f64).ceil() as usize;
        let error = errors.get(rank.saturating_sub(1)).ok_or("nothing was received")?;
        print_metric(name, error / 1e3)?;
    }
    Ok(())
}

/// Returns the delay in nanoseconds after each deadline of a steady pace.
///
/// The thread sleeps until each deadline, or polls the clock if `spin`.
pub(crate) fn deadline_delays(per_second: u32, spin: bool, length: Duration) -> Vec<f64> {
    let _ = nix::sys::prctl::set_timerslack(1); // best effort: coarser timers otherwise
    let count = (f64::from(per_second) * length.as_secs_f64()) as u64;
    let start = Instant::now();
    let deadline = |number| Duration::from_nanos(number * 1_000_000_000 / u64::from(per_second));
    let delays = (1..=count).map(|number| {
        let due = deadline(number);
        while spin && start.elapsed() < due {}
        let wait = due.saturating_sub(start.elapsed());
        if !wait.is_zero() {
            thread::sleep(wait);
        }
        start.elapsed().saturating_sub(due).as_nanos() as f64
    });
    delays.collect()
}

/// Counts the bytes that arrive over the interface, with Ethernet headers, for `length`.
///
/// Counting starts a second after the first packet: then queues and buckets are in their steady
/// state.
fn measure_wire_rate(length: Duration) -> Result<(), Failure> {
    let socket = udp_receiver()?;
    let counter_thread = thread::spawn(move || -> Result<f64, Failure> {
        let mut route = RouteSocket::open()?;
        let name = route.links()?.into_iter().find(|link| link.name != "lo" && link.is_up());
        let name = name.ok_or("no interface")?.name;
        thread::sleep(Duration::from_secs(1));
        let (before, start) = (route.link(&name)?, Instant::now());
        thread::sleep(length);
        let (after, seconds) = (route.link(&name)?, start.elapsed().as_secs_f64());
        let packets = after.stats.rx_packets - before.stats.rx_packets;
        let mut bytes = after.stats.rx_bytes - before.stats.rx_bytes;
        if after.mac.is_none() {
            bytes += packets * ETHERNET_HEADER_BYTES;
        }
        Ok(bytes as f64 * 8.0 / 1e6 / seconds)
    });
    let mut buffer = vec![0; PACKET_BYTES];
    while socket.recv(&mut buffer).is_ok() {}
    let mbps = counter_thread.join().map_err(|_| "the watcher panicked")??;
    print_metric("interface_mbps", mbps)
}
