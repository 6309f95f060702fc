//! Path managers on a small model of a connection: opened subflows exist, closed ones do not.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// Connection between `10.0.1.1` and `10.0.9.9`, with the actions of a path manager applied.
struct Model {
    manager: Box<dyn PathManager>,
    now: Instant,
    client: bool,
    local: Vec<LocalAddress>,
    remote: Vec<RemoteAddress>,
    subflows: Vec<SubflowView>,
    no_join_to_initial: bool,
    subflow_limit: u8,
    accept_limit: u8,
    next_path: u8,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn socket_address(text: &str) -> SocketAddr {
    SocketAddr::new(ip(text), 443)
}

fn remote_address(address_id: u8, address: &str) -> RemoteAddress {
    RemoteAddress { address_id, address: socket_address(address) }
}

/// Returns an address with flags as in `ip mptcp endpoint`.
fn local_address(address_id: u8, address: &str, flags: &str) -> LocalAddress {
    let has = |flag: &str| flags.split(' ').any(|f| f == flag);
    LocalAddress {
        address_id,
        address: ip(address),
        port: None,
        interface: InterfaceId(u32::from(address_id)),
        up: true,
        subflow: has("subflow"),
        signal: has("signal"),
        backup: has("backup"),
        fullmesh: has("fullmesh"),
        laminar: has("laminar"),
    }
}

impl Model {
    fn new(manager: &str, local: Vec<LocalAddress>) -> Self {
        let mut model = Self {
            manager: by_name(manager).unwrap(),
            now: Instant::ZERO,
            client: true,
            local,
            remote: vec![remote_address(0, "10.0.9.9")],
            subflows: Vec::new(),
            no_join_to_initial: false,
            subflow_limit: 8,
            accept_limit: 8,
            next_path: 0,
        };
        model.add_subflow(0, ip("10.0.1.1"), 0, socket_address("10.0.9.9"), false);
        model
    }

    fn add_subflow(
        &mut self,
        local_id: u8,
        local: IpAddr,
        remote_id: u8,
        remote: SocketAddr,
        backup: bool,
    ) {
        let id = PathId(self.next_path);
        let local = SocketAddr::new(local, 50_000 + u16::from(self.next_path));
        self.next_path += 1;
        self.subflows.push(SubflowView {
            id,
            local,
            remote,
            local_id,
            remote_id,
            established: true,
            backup,
        });
    }

    fn dispatch(&mut self, event: PathManagerEvent) -> Vec<PathManagerAction> {
        let view = PathManagerView {
            now: self.now,
            client: self.client,
            local: &self.local,
            remote: &self.remote,
            no_join_to_initial: self.no_join_to_initial,
            subflows: &self.subflows,
            subflow_limit: self.subflow_limit,
            accept_limit: self.accept_limit,
        };
        let mut actions = Vec::new();
        self.manager.on_event(event, &view, &mut actions);
        for action in &actions {
            if let PathManagerAction::Open { local_id, local, remote_id, remote, backup } = *action
            {
                self.add_subflow(local_id, local, remote_id, remote, backup);
            }
        }
        actions
    }

    /// Applies an event and returns the subflows that were opened: `from>to`, with the identifiers.
    fn subflows_opened_by(&mut self, event: PathManagerEvent) -> Vec<String> {
        let actions = self.dispatch(event);
        let describe = |action: &PathManagerAction| match action {
            PathManagerAction::Open { local_id, local, remote_id, remote, backup } => {
                let suffix = if *backup { " backup" } else { "" };
                Some(format!("{local_id}:{local}>{remote_id}:{}{suffix}", remote.ip()))
            }
            PathManagerAction::Announce { .. }
            | PathManagerAction::Withdraw { .. }
            | PathManagerAction::Close(_)
            | PathManagerAction::SetBackup { .. } => None,
        };
        actions.iter().filter_map(describe).collect()
    }

    /// Announces an address of the peer and returns the subflows that were opened.
    fn subflows_opened_to(&mut self, address: RemoteAddress) -> Vec<String> {
        self.remote.push(address);
        self.subflows_opened_by(PathManagerEvent::Announced(address))
    }

    /// Closes the newest subflow after an error and returns the subflows that were opened. With
    /// `may_retry`, another attempt may succeed.
    fn fail_newest_subflow(&mut self, may_retry: bool) -> Vec<String> {
        let subflow = self.subflows.pop().unwrap();
        self.subflows_opened_by(PathManagerEvent::SubflowClosed {
            subflow,
            failed: true,
            may_retry,
        })
    }

    fn wait_for_timeout(&mut self) -> (Duration, Vec<String>) {
        let deadline = self.manager.poll_timeout().unwrap();
        let delay = deadline.saturating_since(self.now);
        self.now = deadline;
        (delay, self.subflows_opened_by(PathManagerEvent::Timeout))
    }
}

#[test]
fn every_path_manager_has_a_unique_name_and_default_is_first() {
    let names: BTreeSet<_> = ALL.iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), ALL.len());
    assert_eq!(ALL[0].name, "default");
    let error = by_name("mesh").unwrap_err().to_string();
    assert_eq!(
        error,
        "unknown path manager `mesh`, expected one of: default, rejoin, fullmesh, ndiffports, single"
    );
}

#[test]
fn default_opens_subflow_addresses_to_the_first_address_of_the_peer() {
    let initial = local_address(1, "10.0.1.1", "subflow");
    let mut model =
        Model::new("default", vec![initial, local_address(2, "10.0.2.1", "subflow backup")]);
    assert_eq!(
        model.subflows_opened_by(PathManagerEvent::Established),
        ["2:10.0.2.1>0:10.0.9.9 backup"]
    );
    assert_eq!(
        model.subflows_opened_by(PathManagerEvent::SubflowEstablished(PathId(1))),
        [""; 0],
        "once each"
    );
}

#[test]
fn default_on_the_server_opens_only_from_subflow_addresses() {
    let mut model = Model::new(
        "default",
        vec![local_address(2, "10.0.2.1", "subflow"), local_address(3, "10.0.3.1", "")],
    );
    model.client = false;
    assert_eq!(model.subflows_opened_by(PathManagerEvent::Established), ["2:10.0.2.1>0:10.0.9.9"]);
}

#[test]
fn default_announces_signal_addresses_all_at_once_and_withdraws_them_when_they_go() {
    let mut signal_address = local_address(2, "10.0.2.1", "signal");
    signal_address.port = Some(8443);
    let mut model =
        Model::new("default", vec![signal_address, local_address(3, "fd00::1", "signal")]);
    let announcement = |address_id, address: &str, port| {
        let address = ip(address);
        PathManagerAction::Announce { address_id, address, port }
    };
    assert_eq!(
        model.dispatch(PathManagerEvent::Established),
        [announcement(2, "10.0.2.1", Some(8443)), announcement(3, "fd00::1", None)]
    );
    model.local.remove(0);
    assert_eq!(
        model.dispatch(PathManagerEvent::LocalGone { address_id: 2 }),
        [PathManagerAction::Withdraw { address_id: 2 }]
    );
    assert_eq!(model.dispatch(PathManagerEvent::LocalGone { address_id: 2 }), [], "only once");
    model.local.push(signal_address);
    assert_eq!(
        model.dispatch(PathManagerEvent::LocalChanged),
        [announcement(2, "10.0.2.1", Some(8443))]
    );
}

#[test]
fn the_first_address_is_0_on_the_wire_even_when_it_is_gone() {
    let mut model = Model::new("default", vec![local_address(7, "10.0.1.1", "signal")]);
    let announcement =
        PathManagerAction::Announce { address_id: 0, address: ip("10.0.1.1"), port: None };
    assert_eq!(model.dispatch(PathManagerEvent::Established), [announcement]);
    model.local.clear();
    model.subflows.clear();
    assert_eq!(
        model.dispatch(PathManagerEvent::LocalGone { address_id: 7 }),
        [PathManagerAction::Withdraw { address_id: 0 }]
    );
}

#[test]
fn default_keeps_the_limits() {
    let addresses =
        (2..9).map(|id| local_address(id, &format!("10.0.{id}.1"), "subflow")).collect();
    let mut model = Model::new("default", addresses);
    model.subflow_limit = 3;
    assert_eq!(model.subflows_opened_by(PathManagerEvent::Established).len(), 3);
    // The end of one subflow makes room for one from the next address.
    assert_eq!(model.fail_newest_subflow(true), ["5:10.0.5.1>0:10.0.9.9"]);

    let mut model = Model::new("default", vec![local_address(1, "10.0.1.1", "")]);
    model.accept_limit = 1;
    model.dispatch(PathManagerEvent::Established);
    assert_eq!(model.subflows_opened_to(remote_address(5, "10.0.8.9")), ["0:10.0.1.1>5:10.0.8.9"]);
    assert_eq!(model.subflows_opened_to(remote_address(6, "10.0.7.9")), [""; 0]);
    model.dispatch(PathManagerEvent::Withdrawn(5));
    assert_eq!(model.subflows_opened_to(remote_address(7, "10.0.6.9")), ["0:10.0.1.1>7:10.0.6.9"]);
}

#[test]
fn an_announced_address_is_answered_from_the_nearest_address_of_its_family() {
    let addresses = [
        local_address(1, "10.0.1.1", ""),
        local_address(2, "10.0.2.1", "backup"),
        local_address(3, "fd00::1", ""),
    ];
    let mut model = Model::new("default", addresses.to_vec());
    model.dispatch(PathManagerEvent::Established);
    assert_eq!(
        model.subflows_opened_to(remote_address(4, "10.0.2.2")),
        ["2:10.0.2.1>4:10.0.2.2 backup"]
    );
    assert_eq!(
        model.subflows_opened_to(remote_address(5, "172.16.0.1")),
        ["0:10.0.1.1>5:172.16.0.1"]
    );
    assert_eq!(model.subflows_opened_to(remote_address(6, "fd01::9")), ["3:fd00::1>6:fd01::9"]);
    assert_eq!(
        model.subflows_opened_to(remote_address(7, "172.16.0.1")),
        [""; 0],
        "reached already"
    );
    model.local.truncate(2);
    assert_eq!(
        model.subflows_opened_to(remote_address(8, "fd01::10")),
        [""; 0],
        "no address of this family"
    );
}

#[test]
fn fullmesh_addresses_connect_to_every_address_of_the_peer() {
    let addresses = [
        local_address(1, "10.0.1.1", "subflow fullmesh"),
        local_address(2, "10.0.2.1", "subflow fullmesh"),
    ];
    let mut model = Model::new("default", addresses.to_vec());
    assert_eq!(model.subflows_opened_by(PathManagerEvent::Established), ["2:10.0.2.1>0:10.0.9.9"]);
    assert_eq!(
        model.subflows_opened_to(remote_address(4, "10.0.8.9")),
        ["0:10.0.1.1>4:10.0.8.9", "2:10.0.2.1>4:10.0.8.9"]
    );
    model.local.push(local_address(3, "10.0.3.1", "subflow fullmesh"));
    assert_eq!(
        model.subflows_opened_by(PathManagerEvent::LocalChanged),
        ["3:10.0.3.1>0:10.0.9.9", "3:10.0.3.1>4:10.0.8.9"]
    );
}

#[test]
fn a_laminar_address_answers_one_announcement_each() {
    let addresses =
        [local_address(2, "10.0.2.1", "laminar"), local_address(3, "10.0.3.1", "laminar")];
    let mut model = Model::new("default", addresses.to_vec());
    model.dispatch(PathManagerEvent::Established);
    assert_eq!(model.subflows_opened_to(remote_address(4, "10.0.8.9")), ["2:10.0.2.1>4:10.0.8.9"]);
    assert_eq!(model.subflows_opened_to(remote_address(5, "10.0.7.9")), ["3:10.0.3.1>5:10.0.7.9"]);
}

#[test]
fn a_peer_that_closes_its_first_address_gets_subflows_only_to_announced_ones() {
    let addresses =
        [local_address(2, "10.0.2.1", "subflow"), local_address(3, "10.0.3.1", "subflow")];
    for (manager, expected) in [
        ("default", vec!["2:10.0.2.1>4:10.0.8.9", "3:10.0.3.1>4:10.0.8.9"]),
        ("fullmesh", vec!["2:10.0.2.1>4:10.0.8.9", "3:10.0.3.1>4:10.0.8.9"]),
        ("ndiffports", vec![]),
    ] {
        let mut model = Model::new(manager, addresses.to_vec());
        model.no_join_to_initial = true;
        assert_eq!(model.subflows_opened_by(PathManagerEvent::Established), [""; 0], "{manager}");
        assert_eq!(model.subflows_opened_to(remote_address(4, "10.0.8.9")), expected, "{manager}");
    }
}

#[test]
fn a_new_backup_flag_changes_the_subflows_of_that_address() {
    let mut model = Model::new("default", vec![local_address(2, "10.0.2.1", "subflow")]);
    model.dispatch(PathManagerEvent::Established);
    model.local[0].backup = true;
    let set_backup = |backup| PathManagerAction::SetBackup { subflow: PathId(1), backup };
    assert_eq!(model.dispatch(PathManagerEvent::LocalChanged), [set_backup(true)]);
    assert_eq!(model.dispatch(PathManagerEvent::LocalChanged), []);
    model.local[0].backup = false;
    assert_eq!(model.dispatch(PathManagerEvent::LocalChanged), [set_backup(false)]);
}

#[test]
fn an_address_that_comes_back_opens_its_subflow_again() {
    let mut model = Model::new("default", vec![local_address(2, "10.0.2.1", "subflow")]);
    model.dispatch(PathManagerEvent::Established);
    model.local[0].up = false;
    model.subflows.pop();
    assert_eq!(
        model.dispatch(PathManagerEvent::LocalGone { address_id: 2 }),
        [],
        "it was not announced"
    );
    assert_eq!(model.subflows_opened_by(PathManagerEvent::LocalChanged), [""; 0]);
    model.local[0].up = true;
    assert_eq!(model.subflows_opened_by(PathManagerEvent::LocalChanged), ["2:10.0.2.1>0:10.0.9.9"]);
}

#[test]
fn the_fullmesh_manager_ignores_flags_and_families_do_not_mix() {
    let addresses = [
        local_address(1, "10.0.1.1", ""),
        local_address(2, "10.0.2.1", ""),
        local_address(3, "fd00::1", ""),
    ];
    let mut model = Model::new("fullmesh", addresses.to_vec());
    assert_eq!(model.subflows_opened_by(PathManagerEvent::Established), ["2:10.0.2.1>0:10.0.9.9"]);
    assert_eq!(model.subflows_opened_to(remote_address(4, "fd01::9")), ["3:fd00::1>4:fd01::9"]);
    assert_eq!(
        model.subflows_opened_to(remote_address(5, "10.0.8.9")),
        ["0:10.0.1.1>5:10.0.8.9", "2:10.0.2.1>5:10.0.8.9"]
    );
    assert_eq!(model.fail_newest_subflow(true), [""; 0], "nothing is opened twice");
}

#[test]
fn the_fullmesh_server_announces_what_the_client_does_not_know() {
    let mut model = Model::new(
        "fullmesh",
        vec![local_address(1, "10.0.1.1", ""), local_address(2, "10.0.2.1", "")],
    );
    model.client = false;
    let announcement =
        PathManagerAction::Announce { address_id: 2, address: ip("10.0.2.1"), port: None };
    assert_eq!(model.dispatch(PathManagerEvent::Established), [announcement]);
    assert_eq!(
        model.dispatch(PathManagerEvent::LocalGone { address_id: 2 }),
        [PathManagerAction::Withdraw { address_id: 2 }]
    );
}

#[test]
fn ndiffports_opens_a_second_subflow_between_the_same_addresses() {
    let mut model = Model::new("ndiffports", vec![local_address(2, "10.0.2.1", "subflow")]);
    assert_eq!(model.subflows_opened_by(PathManagerEvent::Established), ["0:10.0.1.1>0:10.0.9.9"]);
    assert_eq!(model.subflows_opened_to(remote_address(4, "10.0.8.9")), [""; 0]);
    let mut server = Model::new("ndiffports", Vec::new());
    server.client = false;
    assert_eq!(server.subflows_opened_by(PathManagerEvent::Established), [""; 0]);
}

#[test]
fn single_does_nothing() {
    let mut model = Model::new("single", vec![local_address(2, "10.0.2.1", "subflow signal")]);
    assert_eq!(model.dispatch(PathManagerEvent::Established), []);
    assert_eq!(model.subflows_opened_to(remote_address(4, "10.0.8.9")), [""; 0]);
}

#[test]
fn rejoin_waits_twice_as_long_each_time_and_at_most_a_minute() {
    let mut model = Model::new("rejoin", vec![local_address(2, "10.0.2.1", "subflow")]);
    model.local.push(local_address(1, "10.0.1.1", ""));
    model.dispatch(PathManagerEvent::Established);
    let mut delays_secs = Vec::new();
    for _ in 0..8 {
        assert_eq!(model.fail_newest_subflow(true), [""; 0]);
        let (delay, opened) = model.wait_for_timeout();
        assert_eq!(opened, ["2:10.0.2.1>0:10.0.9.9"]);
        delays_secs.push(delay.as_secs());
    }
    assert_eq!(delays_secs, [1, 2, 4, 8, 16, 32, 60, 60]);
    let id = model.subflows.last().unwrap().id;
    model.dispatch(PathManagerEvent::SubflowEstablished(id));
    model.fail_newest_subflow(true);
    assert_eq!(model.wait_for_timeout().0.as_secs(), 1, "success is a new beginning");
}

#[test]
fn rejoin_obeys_a_peer_that_does_not_want_the_subflow() {
    let mut model = Model::new("rejoin", vec![local_address(2, "10.0.2.1", "subflow")]);
    model.dispatch(PathManagerEvent::Established);
    model.fail_newest_subflow(false);
    assert_eq!(model.manager.poll_timeout(), None);
}

#[test]
fn rejoin_opens_the_first_subflow_again_but_not_from_the_server() {
    for (client, expected) in [(true, Some(1)), (false, None)] {
        let mut model = Model::new("rejoin", vec![local_address(1, "10.0.1.1", "")]);
        model.client = client;
        model.dispatch(PathManagerEvent::Established);
        model.fail_newest_subflow(true);
        let due_secs = model.manager.poll_timeout().map(|due| due.as_nanos() / 1_000_000_000);
        assert_eq!(due_secs, expected);
    }
}

#[test]
fn rejoin_waits_for_an_address_that_is_down() {
    let mut model = Model::new("rejoin", vec![local_address(1, "10.0.1.1", "")]);
    model.dispatch(PathManagerEvent::Established);
    model.local[0].up = false;
    model.dispatch(PathManagerEvent::LocalGone { address_id: 1 });
    model.fail_newest_subflow(true);
    let (_, opened) = model.wait_for_timeout();
    assert_eq!(opened, [""; 0]);
    assert_eq!(model.manager.poll_timeout(), None, "no timer runs for it");
    model.local[0].up = true;
    assert_eq!(model.subflows_opened_by(PathManagerEvent::LocalChanged), ["0:10.0.1.1>0:10.0.9.9"]);
}

#[test]
fn rejoin_keeps_the_limit_and_tries_later() {
    let addresses =
        [local_address(2, "10.0.2.1", "subflow"), local_address(3, "10.0.3.1", "subflow")];
    let mut model = Model::new("rejoin", addresses.to_vec());
    model.subflow_limit = 1;
    assert_eq!(model.subflows_opened_by(PathManagerEvent::Established), ["2:10.0.2.1>0:10.0.9.9"]);
    assert_eq!(
        model.fail_newest_subflow(true),
        ["3:10.0.3.1>0:10.0.9.9"],
        "its place is taken at once"
    );
    assert_eq!(model.wait_for_timeout().1, [""; 0]);
    model.subflow_limit = 2;
    assert_eq!(model.wait_for_timeout().1, ["2:10.0.2.1>0:10.0.9.9"]);
}

#[test]
fn rejoin_does_not_open_to_an_address_that_was_withdrawn() {
    let mut model = Model::new("rejoin", vec![local_address(1, "10.0.1.1", "")]);
    model.dispatch(PathManagerEvent::Established);
    model.subflows_opened_to(remote_address(4, "10.0.8.9"));
    model.fail_newest_subflow(true);
    model.remote.pop();
    model.dispatch(PathManagerEvent::Withdrawn(4));
    assert_eq!(model.manager.poll_timeout(), None);
}

/// Random event of a connection in a property test.
#[derive(Debug, Clone)]
enum ConnectionEvent {
    Announced(u8),
    Withdrawn(u8),
    ToggleLocal(u8),
    Fail { newest: bool, may_retry: bool },
    Timeout,
}

fn connection_event() -> impl Strategy<Value = ConnectionEvent> {
    prop_oneof![
        (1..8_u8).prop_map(ConnectionEvent::Announced),
        (0..8_u8).prop_map(ConnectionEvent::Withdrawn),
        (0..5_u8).prop_map(ConnectionEvent::ToggleLocal),
        any::<(bool, bool)>()
            .prop_map(|(newest, may_retry)| ConnectionEvent::Fail { newest, may_retry }),
        Just(ConnectionEvent::Timeout),
    ]
}

/// Applies the event to the model, and passes it to the path manager.
fn apply(model: &mut Model, event: &ConnectionEvent) {
    match *event {
        ConnectionEvent::Announced(id) => {
            let address = if id % 3 == 0 { format!("fd00::{id}") } else { format!("10.0.8.{id}") };
            if model.remote.iter().all(|remote| remote.address_id != id) {
                model.subflows_opened_to(remote_address(id, &address));
            }
        }
        ConnectionEvent::Withdrawn(id) => {
            model.remote.retain(|remote| remote.address_id != id || id == 0);
            model.subflows.retain(|subflow| subflow.remote_id != id);
            model.dispatch(PathManagerEvent::Withdrawn(id));
        }
        ConnectionEvent::ToggleLocal(index) => {
            let Some(local) = model.local.get_mut(usize::from(index)) else { return };
            local.up = !local.up;
            let (up, address, address_id) = (local.up, local.address, local.address_id);
            if up {
                model.dispatch(PathManagerEvent::LocalChanged);
            } else {
                model.subflows.retain(|subflow| subflow.local.ip() != address);
                model.dispatch(PathManagerEvent::LocalGone { address_id });
            }
        }
        ConnectionEvent::Fail { newest, may_retry } => {
            if let Some(last) = model.subflows.len().checked_sub(1) {
                let subflow = model.subflows.remove(if newest { last } else { 0 });
                let failed = true;
                model.dispatch(PathManagerEvent::SubflowClosed { subflow, failed, may_retry });
            }
        }
        ConnectionEvent::Timeout => {
            if model.manager.poll_timeout().is_some() {
                model.wait_for_timeout();
            }
        }
    }
}

proptest! {
    #[test]
    fn no_path_manager_opens_above_the_limit_across_families_from_dead_addresses_or_twice(
        events in prop::collection::vec(connection_event(), 1..40),
        flags in prop::collection::vec(prop::sample::subsequence(
            vec!["subflow", "signal", "backup", "fullmesh", "laminar"], 0..5), 5),
        limits in (0..6_u8, 0..6_u8),
        client: bool,
        no_join_to_initial: bool,
    ) {
        let addresses = ["10.0.1.1", "10.0.2.1", "10.0.8.1", "fd00::a", "fd01::b"];
        let local: Vec<_> = (1..).zip(addresses).zip(&flags)
            .map(|((id, address), flags)| local_address(id, address, &flags.join(" ")))
            .collect();
        for entry in ALL {
            let mut model = Model::new(entry.name, local.clone());
            (model.client, model.no_join_to_initial) = (client, no_join_to_initial);
            (model.subflow_limit, model.accept_limit) = limits;
            model.dispatch(PathManagerEvent::Established);
            for event in &events {
                apply(&mut model, event);
                prop_assert!(model.subflows.len() <= usize::from(limits.0) + 1, "{}", entry.name);
                let mut pairs = BTreeSet::new();
                for subflow in &model.subflows {
                    prop_assert_eq!(subflow.local.is_ipv4(), subflow.remote.is_ipv4());
                    let is_up = |local: &LocalAddress| local.address == subflow.local.ip() && local.up;
                    prop_assert!(model.local.iter().any(is_up), "{} {subflow:?}", entry.name);
                    let is_new = pairs.insert((subflow.local.ip(), subflow.remote));
                    prop_assert!(is_new || entry.name == "ndiffports", "{} {subflow:?}", entry.name);
                    // The path manager did not open the first subflow.
                    let permitted = !no_join_to_initial || subflow.remote_id != 0 || subflow.id == PathId(0);
                    prop_assert!(permitted, "{} {subflow:?}", entry.name);
                }
            }
        }
    }
}
