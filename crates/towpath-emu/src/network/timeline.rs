//! The timeline of a scenario: changes in the link model and in the hosts' kernels.
//!
//! The emulator changes links at the exact time. Kernels change as soon after it as a thread wakes
//! up.

use std::os::fd::AsFd;
use std::sync::PoisonError;

use towpath_net::config::{DirectionConfig, Shaper};
use towpath_net::topology::DirectionId;
use towpath_net::{Instant, Rate};
use towpath_netlink::{MptcpPm, NetlinkError, RouteSocket};
use towpath_os::sys;
use towpath_scenario::{DownMode, Family, LinkSide, TimelineChange, TimelineEvent, TimelineTarget};
use towpath_sockets::stack;

use super::address::{address, prefix_bits};
use super::build::{
    CarrierControl, add_default_route, configure_interface, endpoint_flags, prefix,
};
use super::links::host_shaper;
use super::{EmulatedNetwork, NetworkError};
use crate::emulator::engine::{EngineCommand, LinkChange};
use crate::network::stack_plan as plan;

pub(crate) use towpath_scenario::network::endpoints;

/// Returns the address ID of an endpoint that replaces another.
///
/// The ID must be a new one. Given the old ID (which the kernel would choose), the peer applies the
/// late REMOVE_ADDR to the new address. Then it closes the new subflow (seen with Linux 6.18).
fn next_id(old: u8) -> u8 {
    const ID_STEP: u8 = 32;
    old.checked_add(ID_STEP).unwrap_or(old % ID_STEP + 1)
}

impl EmulatedNetwork {
    /// Passes all link changes to the emulator, with times counted from `start`.
    pub(crate) fn schedule_link_changes(&self, start: Instant) {
        let mut changes = Vec::new();
        for event in &self.scenario.timeline {
            let time = start + event.at;
            changes.extend(
                self.link_changes(event).into_iter().map(|(id, change)| (time, id, change)),
            );
        }
        self.emulator.send(EngineCommand::Schedule(changes));
    }

    fn link_changes(&self, event: &TimelineEvent) -> Vec<(DirectionId, LinkChange)> {
        let (side, change) = match &event.change {
            TimelineChange::Down(_) => (LinkSide::Both, LinkChange::Up(false)),
            TimelineChange::Up => (LinkSide::Both, LinkChange::Up(true)),
            TimelineChange::Rate(side, rate) => (*side, LinkChange::Shaper(Shaper::Line(*rate))),
            TimelineChange::Delay(side, delay) => (*side, LinkChange::Delay(*delay)),
            TimelineChange::Loss(side, loss) => (*side, LinkChange::Loss(*loss)),
            TimelineChange::Address { .. } => return Vec::new(),
        };
        let ids = self.links.of(event.target, side).into_iter();
        // The kernel of the sending host keeps this rate and is changed there.
        let is_rate = matches!(change, LinkChange::Shaper(_));
        let emulator_ids = ids.filter(|id| !(is_rate && self.is_shaped_at_host(event.target, *id)));
        emulator_ids.map(|id| (id, change.clone())).collect()
    }

    fn is_shaped_at_host(&self, target: TimelineTarget, id: DirectionId) -> bool {
        let TimelineTarget::Path(index) = target else { return false };
        let side = self
            .links
            .paths
            .get(index)
            .and_then(|ids| ids.iter().position(|direction| *direction == id));
        let shaped =
            self.shaped_at_host.get(index).zip(side).and_then(|(sides, side)| sides.get(side));
        shaped.copied().unwrap_or(false)
    }

    /// Sets a new rate in the sending hosts' kernels; queued packets stay.
    fn change_rate_at_hosts(
        &self,
        index: usize,
        side: LinkSide,
        rate: Rate,
    ) -> Result<(), NetworkError> {
        let (Some(path), Some(shaped)) =
            (self.scenario.paths.get(index), self.shaped_at_host.get(index))
        else {
            return Ok(());
        };
        let directions = [(&path.up, LinkSide::Up), (&path.down, LinkSide::Down)];
        for (end, ((config, direction), shaped)) in directions.into_iter().zip(shaped).enumerate() {
            if !shaped || (side != LinkSide::Both && side != direction) {
                continue;
            }
            let new_config = DirectionConfig {
                shaper: match config.shaper {
                    Shaper::TokenBucket { burst_bytes, .. } => {
                        Shaper::TokenBucket { rate, burst_bytes }
                    }
                    Shaper::Line(_) | Shaper::Unlimited | Shaper::Htb { .. } | Shaper::Trace(_) => {
                        Shaper::Line(rate)
                    }
                },
                ..config.clone()
            };
            let host = path.between.get(end).and_then(|host| self.hosts.get(*host));
            if let (Some(host), Some(tbf)) = (host, host_shaper(&new_config, path.mtu_bytes)) {
                let result = host.route().set_tbf(&path.name, &tbf);
                result.map_err(NetworkError::kernel(&host.name))?;
            }
        }
        Ok(())
    }

    /// Applies an event to the hosts' kernels now.
    pub(crate) fn apply_to_hosts(&self, event: &TimelineEvent) -> Result<(), NetworkError> {
        let TimelineTarget::Path(path) = event.target else { return Ok(()) };
        match &event.change {
            TimelineChange::Down(DownMode::Silent) => Ok(()),
            TimelineChange::Down(DownMode::Carrier) => self.set_carrier(path, false),
            TimelineChange::Down(DownMode::Interface { host }) => {
                self.set_interface_down(path, *host)
            }
            TimelineChange::Up => self.restore(path),
            TimelineChange::Address { host } => self.change_address(path, *host),
            TimelineChange::Rate(side, rate) => self.change_rate_at_hosts(path, *side, *rate),
            TimelineChange::Delay(..) | TimelineChange::Loss(..) => Ok(()),
        }
    }

    /// Notifies a host's own stack, if it has one, that the path's interface is up or down.
    fn notify_stack(&self, host: usize, path: usize, up: bool) -> Result<bool, NetworkError> {
        let Some(stack) = self.hosts.get(host).and_then(|host| host.stack.as_ref()) else {
            return Ok(false);
        };
        let result = stack.call(move |turn| turn.stack.set_up(turn.now, plan::interface(path), up));
        result.map_err(NetworkError::system("switch an interface"))?;
        Ok(true)
    }

    fn set_carrier(&self, path: usize, on: bool) -> Result<(), NetworkError> {
        let hosts = self.scenario.paths.get(path).map(|path| path.between).unwrap_or_default();
        for (carrier, host) in self.carriers.get(path).into_iter().flatten().zip(hosts) {
            match carrier {
                CarrierControl::Stack => {
                    self.notify_stack(host, path, on)?;
                }
                CarrierControl::Tun(fd) => sys::set_tun_carrier(fd.as_fd(), on)
                    .map_err(NetworkError::system("switch the carrier"))?,
                CarrierControl::Veth(name) => {
                    let result = RouteSocket::open().and_then(|mut emulator_route| {
                        if on { emulator_route.set_up(name) } else { emulator_route.set_down(name) }
                    });
                    result.map_err(NetworkError::kernel("emulator"))?;
                }
            }
        }
        Ok(())
    }

    fn set_interface_down(&self, path: usize, host: usize) -> Result<(), NetworkError> {
        if self.notify_stack(host, path, false)? {
            return Ok(());
        }
        let (Some(namespace), Some(path)) = (self.hosts.get(host), self.scenario.paths.get(path))
        else {
            return Ok(());
        };
        namespace.route().set_down(&path.name).map_err(NetworkError::kernel(&namespace.name))
    }

    /// Restores carrier and interfaces, with the routes that the kernel dropped.
    fn restore(&self, index: usize) -> Result<(), NetworkError> {
        self.set_carrier(index, true)?;
        let Some(path) = self.scenario.paths.get(index) else { return Ok(()) };
        for (end, host) in path.between.iter().enumerate() {
            let Some(namespace) = self.hosts.get(*host) else { continue };
            if self.notify_stack(*host, index, true)? {
                continue;
            }
            let mut route = namespace.route();
            let result = route.set_up(&path.name).and_then(|()| {
                if end == 1 {
                    return Ok(());
                }
                add_default_route(&mut route, path, index, true)?;
                if path.mtu_bytes < 1_280 {
                    return Ok(());
                }
                add_default_route(&mut route, path, index, false)
            });
            result.map_err(NetworkError::kernel(&namespace.name))?;
        }
        Ok(())
    }

    /// Replaces an address by the next one of the subnet, and moves the MPTCP endpoint to it.
    ///
    /// A network manager does the same after a new DHCP lease.
    fn change_address(&self, index: usize, host: usize) -> Result<(), NetworkError> {
        let (Some(host_namespace), Some(path)) =
            (self.hosts.get(host), self.scenario.paths.get(index))
        else {
            return Ok(());
        };
        let Some(end) = super::end_of(path, host) else { return Ok(()) };
        let (old, new) = {
            let mut generations = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(generation) = generations.get_mut(index).and_then(|ends| ends.get_mut(end))
            else {
                return Ok(());
            };
            let old = *generation;
            *generation = generation.wrapping_add(1);
            (old, *generation)
        };
        if let Some(stack) = &host_namespace.stack {
            let result = self.move_address(stack, host, (index, end), (old, new));
            return result.map_err(NetworkError::system("change an address"));
        }
        let result = (|| {
            let mut route = host_namespace.route();
            for family in [Family::V4, Family::V6] {
                let old = prefix(address(index, end, family, old), prefix_bits(family));
                route.delete_address(&path.name, old)?;
            }
            configure_interface(&mut route, path, index, end, new)
        })();
        result.map_err(NetworkError::kernel(&host_namespace.name))?;
        let endpoint_result =
            host_namespace.namespace.run(|| self.move_endpoint(host, index, end, (old, new)));
        let endpoint_result = endpoint_result.map_err(NetworkError::system("enter a host"))?;
        endpoint_result.map_err(NetworkError::kernel(&host_namespace.name))
    }

    fn move_address(
        &self,
        stack: &stack::StackHandle,
        host: usize,
        (path, end): (usize, usize),
        (old, new): (u8, u8),
    ) -> std::io::Result<()> {
        let initial_addresses =
            plan::addresses(&self.scenario, host, &Self::families(&self.scenario));
        for family in Self::families(&self.scenario) {
            let old_address = address(path, end, family, old);
            let original = address(path, end, family, 0);
            let id = initial_addresses.iter().find(|a| a.address == original);
            let mut id = id.map_or(1, |a| a.address_id);
            for _ in 0..new {
                id = next_id(id);
            }
            let new_address =
                plan::local_address(&self.scenario, host, (path, end), family, new, id);
            stack.call(move |turn| {
                turn.stack.remove_address(turn.now, old_address);
                turn.stack.set_address(turn.now, new_address);
            })?;
        }
        Ok(())
    }

    fn move_endpoint(
        &self,
        host: usize,
        path: usize,
        end: usize,
        (old, new): (u8, u8),
    ) -> Result<(), NetlinkError> {
        let endpoint = endpoints(&self.scenario, host).into_iter().find(|e| e.path == path);
        let Some(endpoint) = endpoint else { return Ok(()) };
        let mut mptcp = MptcpPm::open()?;
        for family in Self::families(&self.scenario) {
            let (old, new) = (address(path, end, family, old), address(path, end, family, new));
            let existing = mptcp.endpoints()?;
            if let Some(kernel_endpoint) =
                existing.iter().find(|kernel_endpoint| kernel_endpoint.address == old)
            {
                let id = kernel_endpoint.id.unwrap_or(0);
                mptcp.delete_endpoint(id)?;
                mptcp.add_endpoint(&towpath_netlink::Endpoint {
                    address: new,
                    port: None,
                    id: Some(next_id(id)),
                    link_index: kernel_endpoint.link_index,
                    flags: endpoint_flags(endpoint),
                })?;
            }
        }
        Ok(())
    }
}
