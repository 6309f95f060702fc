//! Test servers of a campaign: which there are, and which is the nearest.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use towpath_campaign::{Access, AddressFamily, Campaign, MissingReason, ServerOffer};
use towpath_live as live;
use towpath_live::{Fingerprint, PINGS};
use towpath_result::format;
use towpath_scenario::Transport;

use crate::upload::{DeviceClient, DeviceError};

/// Test server of a campaign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CampaignServer {
    pub(super) name: String,
    /// Names or addresses.
    hosts: Vec<String>,
    /// Port for pings; `None` for that of the campaign.
    ping_port: Option<u16>,
    /// Available transports; `None` if they are unknown.
    transports: Option<Vec<Transport>>,
    pub(super) access: Option<Access>,
    pub(super) certificate: Option<Fingerprint>,
}

/// Nearest server, with its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NearestServer {
    pub(super) server: CampaignServer,
    pub(super) addresses: Vec<IpAddr>,
    /// Reason for choosing this server; `None` for the only one.
    pub(super) choice: Option<String>,
}

/// Reason why a run is not made, with a detail for people.
pub(super) type MissingRun = (MissingReason, String);

impl CampaignServer {
    /// Returns a registered server; `None` if the fingerprint of its certificate is damaged.
    fn registered(offer: ServerOffer) -> Option<Self> {
        let heartbeat = offer.heartbeat;
        let certificate = heartbeat.certificate.map(|text| text.parse()).transpose().ok()?;
        Some(Self {
            name: offer.name,
            hosts: heartbeat.hosts,
            ping_port: heartbeat.ports.first().copied(),
            transports: Some(heartbeat.transports),
            access: Some(offer.access),
            certificate,
        })
    }

    /// Returns a server that only the campaign names.
    fn named(host: &str) -> Self {
        Self {
            name: host.to_owned(),
            hosts: vec![host.to_owned()],
            ping_port: None,
            transports: None,
            access: None,
            certificate: None,
        }
    }

    fn resolve(&self) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        for host in &self.hosts {
            let resolved = (host.as_str(), 0).to_socket_addrs().into_iter().flatten();
            for address in resolved.map(|address| address.ip().to_canonical()) {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        addresses
    }
}

impl NearestServer {
    /// Returns the addresses for a run, of one family.
    pub(super) fn targets(
        &self,
        (family, port): (AddressFamily, u16),
        transport: Transport,
    ) -> Result<Vec<SocketAddr>, MissingRun> {
        let name = &self.server.name;
        if self.server.transports.as_ref().is_some_and(|known| !known.contains(&transport)) {
            let detail = format!("{name} does not offer {transport}");
            return Err((MissingReason::Unreachable, detail));
        }
        let is_v4 = family == AddressFamily::Ipv4;
        let of_family = self.addresses.iter().filter(|address| address.is_ipv4() == is_v4);
        let targets: Vec<_> = of_family.map(|address| SocketAddr::new(*address, port)).collect();
        if targets.is_empty() {
            return Err((MissingReason::NoAddress, format!("{name} has no {family} address")));
        }
        Ok(targets)
    }
}

/// Returns the servers of a campaign: registered ones, and hosts that the campaign names.
pub(super) fn servers(
    client: &DeviceClient,
    campaign: &Campaign,
) -> Result<Vec<CampaignServer>, DeviceError> {
    let registered = match client.servers(&campaign.name) {
        Ok(list) => list.servers,
        // The campaign names hosts that need no access.
        Err(DeviceError::Refused(_)) if !campaign.servers.is_empty() => Vec::new(),
        Err(error) => return Err(error),
    };
    Ok(merge(registered, &campaign.servers))
}

fn merge(registered: Vec<ServerOffer>, named: &[String]) -> Vec<CampaignServer> {
    let is_meant = |offer: &ServerOffer| named.is_empty() || named.contains(&offer.name);
    let is_registered = |host: &&String| registered.iter().any(|offer| offer.name == **host);
    let hosts: Vec<_> = named
        .iter()
        .filter(|host| !is_registered(host))
        .map(|host| CampaignServer::named(host))
        .collect();
    let registered = registered.into_iter().filter(is_meant);
    registered.filter_map(CampaignServer::registered).chain(hosts).collect()
}

/// Returns the server with the lowest median of five pings. No server is contacted over an
/// interface that `verify` refuses.
pub(super) fn nearest(
    servers: Vec<CampaignServer>,
    port: u16,
    verify: &dyn Fn(IpAddr) -> Result<(), String>,
) -> Result<NearestServer, MissingRun> {
    if servers.is_empty() {
        return Err((MissingReason::NoServer, "the campaign has no test server".to_owned()));
    }
    let mut refusal = None;
    let mut candidates = Vec::new();
    for server in servers {
        let mut addresses = server.resolve();
        addresses.retain(|address| match verify(*address) {
            Ok(()) => true,
            Err(reason) => {
                refusal = Some(reason);
                false
            }
        });
        candidates.push(NearestServer { server, addresses, choice: None });
    }
    candidates.retain(|candidate| !candidate.addresses.is_empty());
    if candidates.is_empty() {
        return Err(match refusal {
            Some(reason) => (MissingReason::OwnerLimit, reason),
            None => (MissingReason::NoServer, "no test server has an address".to_owned()),
        });
    }
    let targets = candidates.iter().map(|candidate| {
        let port = candidate.server.ping_port.unwrap_or(port);
        candidate.addresses.iter().map(|address| SocketAddr::new(*address, port)).collect()
    });
    let pings = live::ping(&targets.collect::<Vec<Vec<_>>>());
    let medians = pings.iter().map(live::PingResult::median);
    choose(candidates.into_iter().zip(medians).collect())
}

/// Returns the server with the lowest median, and the reason. Of equal ones, the first wins.
fn choose(candidates: Vec<(NearestServer, Option<Duration>)>) -> Result<NearestServer, MissingRun> {
    let text = |(candidate, median): &(NearestServer, Option<Duration>)| {
        let median = median.map_or("no answer".to_owned(), format::time);
        format!("{}: {median}", candidate.server.name)
    };
    let all: Vec<_> = candidates.iter().map(text).collect();
    let answering = candidates.into_iter().filter_map(|(server, median)| Some((server, median?)));
    let Some((nearest, _)) = answering.min_by_key(|(_, median)| *median) else {
        return Err((MissingReason::NoServer, format!("no server answers ({})", all.join(", "))));
    };
    let choice =
        (all.len() > 1).then(|| format!("the lowest median of {PINGS} pings: {}", all.join("; ")));
    Ok(NearestServer { choice, ..nearest })
}

#[cfg(test)]
mod tests {
    use towpath_campaign::Heartbeat;

    use super::*;

    fn offer(name: &str, certificate: Option<&str>) -> ServerOffer {
        ServerOffer {
            name: name.to_owned(),
            heartbeat: Heartbeat {
                place: String::new(),
                hosts: vec!["192.0.2.1".to_owned(), "192.0.2.1".to_owned()],
                ports: vec![443, 6_121],
                transports: vec![Transport::Tcp],
                certificate: certificate.map(str::to_owned),
                version: String::new(),
                tests: 0,
                max_tests: 1,
            },
            access: Access { grant: "tpa1/…".to_owned(), secret: "00".to_owned() },
        }
    }

    #[test]
    fn registered_servers_come_first_and_named_hosts_need_no_access() {
        let hosts = ["eu-1".to_owned(), "test.example".to_owned()];
        let registered = vec![offer("eu-1", None), offer("us-1", None), offer("x", Some("bad"))];
        let servers = merge(registered.clone(), &hosts);
        let names: Vec<_> = servers.iter().map(|server| server.name.as_str()).collect();
        assert_eq!(names, ["eu-1", "test.example"]);
        assert!(servers[0].access.is_some() && servers[1].access.is_none());
        let all = merge(registered, &[]);
        assert_eq!(all.len(), 2, "a damaged fingerprint is never ignored");
    }

    #[test]
    fn the_lowest_median_wins_and_silent_servers_are_named() {
        let candidate = |name: &str, ms: Option<u64>| {
            let server = CampaignServer::named(name);
            let nearest = NearestServer { server, addresses: Vec::new(), choice: None };
            (nearest, ms.map(Duration::from_millis))
        };
        let all = vec![candidate("a", Some(30)), candidate("b", None), candidate("c", Some(20))];
        let nearest = choose(all).unwrap();
        assert_eq!(nearest.server.name, "c");
        assert!(nearest.choice.is_some_and(|choice| choice.contains("b: no answer")));
        let (reason, detail) = choose(vec![candidate("b", None)]).unwrap_err();
        assert_eq!(
            (reason, detail.as_str()),
            (MissingReason::NoServer, "no server answers (b: no answer)")
        );
    }

    #[test]
    fn a_missing_family_or_transport_is_known_before_the_run() {
        let server = CampaignServer::registered(offer("eu-1", None)).unwrap();
        let addresses = server.resolve();
        assert_eq!(addresses.len(), 1);
        let nearest = NearestServer { server, addresses, choice: None };
        let targets = |family, transport| nearest.targets((family, 6_121), transport);
        let target = "192.0.2.1:6121".parse().unwrap();
        assert_eq!(targets(AddressFamily::Ipv4, Transport::Tcp), Ok(vec![target]));
        let reason = |family, transport| targets(family, transport).unwrap_err().0;
        assert_eq!(reason(AddressFamily::Ipv6, Transport::Tcp), MissingReason::NoAddress);
        assert_eq!(reason(AddressFamily::Ipv4, Transport::Quic), MissingReason::Unreachable);
    }

    #[test]
    fn no_server_is_contacted_over_a_refused_interface() {
        let servers = vec![CampaignServer::named("192.0.2.1")];
        let refuse = |_: IpAddr| Err("metered".to_owned());
        let missing = nearest(servers, 443, &refuse).unwrap_err();
        assert_eq!(missing, (MissingReason::OwnerLimit, "metered".to_owned()));
    }
}
