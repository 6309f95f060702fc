//! Endpoints in the syntax of iproute2: `10.1.2.2 dev c2 subflow backup`.

use std::net::IpAddr;

use towpath_netlink::{Endpoint, EndpointFlags, RouteSocket};

/// Parses an endpoint in the syntax of `ip mptcp endpoint add`; `None` if the text is invalid or
/// its interface does not exist.
pub(crate) fn parse(text: &str, route: &mut RouteSocket) -> Option<Endpoint> {
    let mut words = text.split_whitespace();
    let address: IpAddr = words.next()?.parse().ok()?;
    let flags = EndpointFlags::default();
    let mut endpoint = Endpoint { address, id: None, port: None, flags, link_index: None };
    while let Some(word) = words.next() {
        let flag = match word {
            "dev" => {
                endpoint.link_index = Some(route.link(words.next()?).ok()?.index);
                continue;
            }
            "port" => {
                endpoint.port = Some(words.next()?.parse().ok()?);
                continue;
            }
            "id" => {
                endpoint.id = Some(words.next()?.parse().ok()?);
                continue;
            }
            "subflow" => EndpointFlags::SUBFLOW,
            "signal" => EndpointFlags::SIGNAL,
            "backup" => EndpointFlags::BACKUP,
            "fullmesh" => EndpointFlags::FULLMESH,
            "laminar" => EndpointFlags::LAMINAR,
            _ => return None,
        };
        endpoint.flags = endpoint.flags | flag;
    }
    Some(endpoint)
}
