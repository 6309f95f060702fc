//! A kernel at the other end of TUN devices.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use towpath_netlink::{MptcpLimits, MptcpPm, Prefix, RouteSocket};
use towpath_os::Namespace;
use towpath_sockets::stack::StackDevice;

use crate::Failure;

pub(crate) const PORT: u16 = 5_301;
pub(crate) const MTU: u16 = 1_500;
/// Length of a device's queue in packets.
const TX_QUEUE_PACKETS: u32 = 5_000;

/// Namespace whose kernel has one TUN device for each path.
///
/// Path *n* is `10.77.n.0/24`; the kernel's address is `.1`, ours `.2`.
pub(crate) struct Network {
    pub(crate) namespace: Namespace,
    pub(crate) devices: Vec<StackDevice>,
    /// TUN devices without virtio headers, if requested.
    pub(crate) plain_devices: Vec<File>,
}

impl Network {
    /// Creates a network whose devices pass whole super-segments.
    pub(crate) fn new(paths: u8) -> Result<Self, Failure> {
        let (namespace, devices) = create_with_devices(paths, |name| Ok(StackDevice::tun(name)?))?;
        Ok(Self { namespace, devices, plain_devices: Vec::new() })
    }

    /// Creates a network whose devices read and write one packet at a time.
    pub(crate) fn plain(paths: u8) -> Result<Self, Failure> {
        let open = |name: &str| Ok(File::from(StackDevice::plain_tun(name)?));
        let (namespace, plain_devices) = create_with_devices(paths, open)?;
        Ok(Self { namespace, devices: Vec::new(), plain_devices })
    }
}

fn create_with_devices<T: Send>(
    paths: u8,
    open: impl Fn(&str) -> Result<T, Failure> + Sync,
) -> Result<(Namespace, Vec<T>), Failure> {
    let namespace = Namespace::create()?;
    let devices = namespace.run(|| -> Result<Vec<T>, Failure> {
        let mut route = RouteSocket::open()?;
        route.set_up("lo")?;
        configure_kernel()?;
        (0..paths)
            .map(|path| {
                let name = format!("path{path}");
                let device = open(&name)?;
                route.set_mtu(&name, u32::from(MTU))?;
                route.set_tx_queue_len(&name, TX_QUEUE_PACKETS)?;
                route.set_up(&name)?;
                route.add_address(&name, Prefix::new(address(path, 1), 24)?)?;
                Ok(device)
            })
            .collect()
    })??;
    Ok((namespace, devices))
}

/// Configures the kernel of the calling thread's namespace; the same for both ends of a trial.
pub(crate) fn configure_kernel() -> Result<(), Failure> {
    for (name, value) in [
        ("ipv4/tcp_no_metrics_save", "1"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv4/tcp_rmem", "4096 131072 16777216"),
        ("ipv4/tcp_wmem", "4096 131072 16777216"),
    ] {
        std::fs::write(format!("/proc/sys/net/{name}"), value)?;
    }
    MptcpPm::open()?.set_limits(MptcpLimits { subflows: 8, add_addr_accepted: 8 })?;
    Ok(())
}

pub(crate) fn address(path: u8, host: u8) -> IpAddr {
    Ipv4Addr::new(10, 77, path, host).into()
}

/// Returns the address that the kernel listens on.
pub(crate) fn target() -> SocketAddr {
    SocketAddr::new(address(0, 1), PORT)
}
