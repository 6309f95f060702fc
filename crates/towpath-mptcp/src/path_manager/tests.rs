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
    closed_to_us: bool,
    subflow_limit: u8,
    accept_limit: u8,
    next: u8,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn to(text: &str) -> SocketAddr {
    SocketAddr::new(ip(text), 443)
}

fn remote(address_id: u8, address: &str) -> RemoteAddress {
    RemoteAddress { address_id, address: to(address) }
}

/// Returns an address with flags as in `ip mptcp endpoint`.
fn local(address_id: u8, address: &str, flags: &str) -> LocalAddress {
    let has = |flag: &str| flags.split(' ').any(|one| one == flag);
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
            remote: vec![remote(0, "10.0.9.9")],
            subflows: Vec::new(),
            closed_to_us: false,
            subflow_limit: 8,
            accept_limit: 8,
            next: 0,
        };
        model.add(0, ip("10.0.1.1"), 0, to("10.0.9.9"), false);
        model
    }

    fn add(
        &mut self,
        local_id: u8,
        local: IpAddr,
        remote_id: u8,
        remote: SocketAddr,
        backup: bool,
    ) {
        let id = PathId(self.next);
        let local = SocketAddr::new(local, 50_000 + u16::from(self.next));
        self.next += 1;
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

    fn fire(&mut self, event: PathManagerEvent) -> Vec<PathManagerAction> {
        let view = PathManagerView {
            now: self.now,
            client: self.client,
            local: &self.local,
            remote: &self.remote,
            no_join_to_initial: self.closed_to_us,
            subflows: &self.subflows,
            subflow_limit: self.subflow_limit,
            accept_limit: self.accept_limit,
        };
        let mut actions = Vec::new();
        self.manager.on_event(event, &view, &mut actions);
        for action in &actions {
            if let PathManagerAction::Open { local_id, local, remote_id, remote, backup } = *action
            {
                self.add(local_id, local, remote_id, remote, backup);
            }
        }
        actions
    }

    /// Applies an event and returns the subflows that were opened: `from>to`, with the identifiers.
    fn opened(&mut self, event: PathManagerEvent) -> Vec<String> {
        let actions = self.fire(event);
        let name = |action: &PathManagerAction| match action {
            PathManagerAction::Open { local_id, local, remote_id, remote, backup } => {
                let mark = if *backup { " backup" } else { "" };
                Some(format!("{local_id}:{local}>{remote_id}:{}{mark}", remote.ip()))
            }
            PathManagerAction::Announce { .. }
            | PathManagerAction::Withdraw { .. }
            | PathManagerAction::Close(_)
            | PathManagerAction::SetBackup { .. } => None,
        };
        actions.iter().filter_map(name).collect()
    }

    fn announced(&mut self, address: RemoteAddress) -> Vec<String> {
        self.remote.push(address);
        self.opened(PathManagerEvent::Announced(address))
    }

    /// Closes the newest subflow.
    fn fail(&mut self, retry: bool) -> Vec<String> {
        let subflow = self.subflows.pop().unwrap();
        self.opened(PathManagerEvent::SubflowClosed { subflow, failed: true, retry })
    }

    fn wait_for_timeout(&mut self) -> (Duration, Vec<String>) {
        let due = self.manager.poll_timeout().unwrap();
        let waited = due.saturating_since(self.now);
        self.now = due;
        (waited, self.opened(PathManagerEvent::Timeout))
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
    let first = local(1, "10.0.1.1", "subflow");
    let mut model = Model::new("default", vec![first, local(2, "10.0.2.1", "subflow backup")]);
    assert_eq!(model.opened(PathManagerEvent::Established), ["2:10.0.2.1>0:10.0.9.9 backup"]);
    assert_eq!(model.opened(PathManagerEvent::SubflowEstablished(PathId(1))), [""; 0], "once each");
}

#[test]
fn default_on_the_server_opens_only_from_subflow_addresses() {
    let mut model =
        Model::new("default", vec![local(2, "10.0.2.1", "subflow"), local(3, "10.0.3.1", "")]);
    model.client = false;
    assert_eq!(model.opened(PathManagerEvent::Established), ["2:10.0.2.1>0:10.0.9.9"]);
}

#[test]
fn default_announces_signal_addresses_all_at_once_and_withdraws_them_when_they_go() {
    let mut signal = local(2, "10.0.2.1", "signal");
    signal.port = Some(8443);
    let mut model = Model::new("default", vec![signal, local(3, "fd00::1", "signal")]);
    let announced = |address_id, address: &str, port| {
        let address = ip(address);
        PathManagerAction::Announce { address_id, address, port }
    };
    assert_eq!(
        model.fire(PathManagerEvent::Established),
        [announced(2, "10.0.2.1", Some(8443)), announced(3, "fd00::1", None)]
    );
    model.local.remove(0);
    assert_eq!(
        model.fire(PathManagerEvent::LocalGone { address_id: 2 }),
        [PathManagerAction::Withdraw { address_id: 2 }]
    );
    assert_eq!(model.fire(PathManagerEvent::LocalGone { address_id: 2 }), [], "only once");
    model.local.push(signal);
    assert_eq!(model.fire(PathManagerEvent::LocalChanged), [announced(2, "10.0.2.1", Some(8443))]);
}

#[test]
fn the_first_address_is_0_on_the_wire_even_when_it_is_gone() {
    let mut model = Model::new("default", vec![local(7, "10.0.1.1", "signal")]);
    let announced =
        PathManagerAction::Announce { address_id: 0, address: ip("10.0.1.1"), port: None };
    assert_eq!(model.fire(PathManagerEvent::Established), [announced]);
    model.local.clear();
    model.subflows.clear();
    assert_eq!(
        model.fire(PathManagerEvent::LocalGone { address_id: 7 }),
        [PathManagerAction::Withdraw { address_id: 0 }]
    );
}

#[test]
fn default_keeps_the_limits() {
    let addresses = (2..9).map(|id| local(id, &format!("10.0.{id}.1"), "subflow")).collect();
    let mut model = Model::new("default", addresses);
    model.subflow_limit = 3;
    assert_eq!(model.opened(PathManagerEvent::Established).len(), 3);
    // A removed one makes room for an address that had none.
    assert_eq!(model.fail(true), ["5:10.0.5.1>0:10.0.9.9"]);

    let mut model = Model::new("default", vec![local(1, "10.0.1.1", "")]);
    model.accept_limit = 1;
    model.fire(PathManagerEvent::Established);
    assert_eq!(model.announced(remote(5, "10.0.8.9")), ["0:10.0.1.1>5:10.0.8.9"]);
    assert_eq!(model.announced(remote(6, "10.0.7.9")), [""; 0]);
    model.fire(PathManagerEvent::Withdrawn(5));
    assert_eq!(model.announced(remote(7, "10.0.6.9")), ["0:10.0.1.1>7:10.0.6.9"]);
}

#[test]
fn an_announced_address_is_answered_from_the_nearest_address_of_its_family() {
    let all = [local(1, "10.0.1.1", ""), local(2, "10.0.2.1", "backup"), local(3, "fd00::1", "")];
    let mut model = Model::new("default", all.to_vec());
    model.fire(PathManagerEvent::Established);
    assert_eq!(model.announced(remote(4, "10.0.2.2")), ["2:10.0.2.1>4:10.0.2.2 backup"]);
    assert_eq!(model.announced(remote(5, "172.16.0.1")), ["0:10.0.1.1>5:172.16.0.1"]);
    assert_eq!(model.announced(remote(6, "fd01::9")), ["3:fd00::1>6:fd01::9"]);
    assert_eq!(model.announced(remote(7, "172.16.0.1")), [""; 0], "reached already");
    model.local.truncate(2);
    assert_eq!(model.announced(remote(8, "fd01::10")), [""; 0], "no address of this family");
}

#[test]
fn fullmesh_addresses_connect_to_every_address_of_the_peer() {
    let all = [local(1, "10.0.1.1", "subflow fullmesh"), local(2, "10.0.2.1", "subflow fullmesh")];
    let mut model = Model::new("default", all.to_vec());
    assert_eq!(model.opened(PathManagerEvent::Established), ["2:10.0.2.1>0:10.0.9.9"]);
    assert_eq!(
        model.announced(remote(4, "10.0.8.9")),
        ["0:10.0.1.1>4:10.0.8.9", "2:10.0.2.1>4:10.0.8.9"]
    );
    model.local.push(local(3, "10.0.3.1", "subflow fullmesh"));
    assert_eq!(
        model.opened(PathManagerEvent::LocalChanged),
        ["3:10.0.3.1>0:10.0.9.9", "3:10.0.3.1>4:10.0.8.9"]
    );
}

#[test]
fn a_laminar_address_answers_one_announcement_each() {
    let all = [local(2, "10.0.2.1", "laminar"), local(3, "10.0.3.1", "laminar")];
    let mut model = Model::new("default", all.to_vec());
    model.fire(PathManagerEvent::Established);
    assert_eq!(model.announced(remote(4, "10.0.8.9")), ["2:10.0.2.1>4:10.0.8.9"]);
    assert_eq!(model.announced(remote(5, "10.0.7.9")), ["3:10.0.3.1>5:10.0.7.9"]);
}

#[test]
fn a_peer_that_closes_its_first_address_gets_subflows_only_to_announced_ones() {
    let all = [local(2, "10.0.2.1", "subflow"), local(3, "10.0.3.1", "subflow")];
    for (manager, expected) in [
        ("default", vec!["2:10.0.2.1>4:10.0.8.9", "3:10.0.3.1>4:10.0.8.9"]),
        ("fullmesh", vec!["2:10.0.2.1>4:10.0.8.9", "3:10.0.3.1>4:10.0.8.9"]),
        ("ndiffports", vec![]),
    ] {
        let mut model = Model::new(manager, all.to_vec());
        model.closed_to_us = true;
        assert_eq!(model.opened(PathManagerEvent::Established), [""; 0], "{manager}");
        assert_eq!(model.announced(remote(4, "10.0.8.9")), expected, "{manager}");
    }
}

#[test]
fn a_new_backup_flag_changes_the_subflows_of_that_address() {
    let mut model = Model::new("default", vec![local(2, "10.0.2.1", "subflow")]);
    model.fire(PathManagerEvent::Established);
    model.local[0].backup = true;
    let change = |backup| PathManagerAction::SetBackup { subflow: PathId(1), backup };
    assert_eq!(model.fire(PathManagerEvent::LocalChanged), [change(true)]);
    assert_eq!(model.fire(PathManagerEvent::LocalChanged), []);
    model.local[0].backup = false;
    assert_eq!(model.fire(PathManagerEvent::LocalChanged), [change(false)]);
}

#[test]
fn an_address_that_comes_back_opens_its_subflow_again() {
    let mut model = Model::new("default", vec![local(2, "10.0.2.1", "subflow")]);
    model.fire(PathManagerEvent::Established);
    model.local[0].up = false;
    model.subflows.pop();
    assert_eq!(
        model.fire(PathManagerEvent::LocalGone { address_id: 2 }),
        [],
        "it was not announced"
    );
    assert_eq!(model.opened(PathManagerEvent::LocalChanged), [""; 0]);
    model.local[0].up = true;
    assert_eq!(model.opened(PathManagerEvent::LocalChanged), ["2:10.0.2.1>0:10.0.9.9"]);
}

#[test]
fn the_fullmesh_manager_ignores_flags_and_families_do_not_mix() {
    let all = [local(1, "10.0.1.1", ""), local(2, "10.0.2.1", ""), local(3, "fd00::1", "")];
    let mut model = Model::new("fullmesh", all.to_vec());
    assert_eq!(model.opened(PathManagerEvent::Established), ["2:10.0.2.1>0:10.0.9.9"]);
    assert_eq!(model.announced(remote(4, "fd01::9")), ["3:fd00::1>4:fd01::9"]);
    assert_eq!(
        model.announced(remote(5, "10.0.8.9")),
        ["0:10.0.1.1>5:10.0.8.9", "2:10.0.2.1>5:10.0.8.9"]
    );
    assert_eq!(model.fail(true), [""; 0], "nothing is opened twice");
}

#[test]
fn the_fullmesh_server_announces_what_the_client_does_not_know() {
    let mut model =
        Model::new("fullmesh", vec![local(1, "10.0.1.1", ""), local(2, "10.0.2.1", "")]);
    model.client = false;
    let announced =
        PathManagerAction::Announce { address_id: 2, address: ip("10.0.2.1"), port: None };
    assert_eq!(model.fire(PathManagerEvent::Established), [announced]);
    assert_eq!(
        model.fire(PathManagerEvent::LocalGone { address_id: 2 }),
        [PathManagerAction::Withdraw { address_id: 2 }]
    );
}

#[test]
fn ndiffports_opens_a_second_subflow_between_the_same_addresses() {
    let mut model = Model::new("ndiffports", vec![local(2, "10.0.2.1", "subflow")]);
    assert_eq!(model.opened(PathManagerEvent::Established), ["0:10.0.1.1>0:10.0.9.9"]);
    assert_eq!(model.announced(remote(4, "10.0.8.9")), [""; 0]);
    let mut server = Model::new("ndiffports", Vec::new());
    server.client = false;
    assert_eq!(server.opened(PathManagerEvent::Established), [""; 0]);
}

#[test]
fn single_does_nothing() {
    let mut model = Model::new("single", vec![local(2, "10.0.2.1", "subflow signal")]);
    assert_eq!(model.fire(PathManagerEvent::Established), []);
    assert_eq!(model.announced(remote(4, "10.0.8.9")), [""; 0]);
}

#[test]
fn rejoin_waits_twice_as_long_each_time_and_at_most_a_minute() {
    let mut model = Model::new("rejoin", vec![local(2, "10.0.2.1", "subflow")]);
    model.local.push(local(1, "10.0.1.1", ""));
    model.fire(PathManagerEvent::Established);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        assert_eq!(model.fail(true), [""; 0]);
        let (pause, opened) = model.wait_for_timeout();
        assert_eq!(opened, ["2:10.0.2.1>0:10.0.9.9"]);
        pauses.push(pause.as_secs());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    let id = model.subflows.last().unwrap().id;
    model.fire(PathManagerEvent::SubflowEstablished(id));
    model.fail(true);
    assert_eq!(model.wait_for_timeout().0.as_secs(), 1, "success is a new beginning");
}

#[test]
fn rejoin_obeys_a_peer_that_does_not_want_the_subflow() {
    let mut model = Model::new("rejoin", vec![local(2, "10.0.2.1", "subflow")]);
    model.fire(PathManagerEvent::Established);
    model.fail(false);
    assert_eq!(model.manager.poll_timeout(), None);
}

#[test]
fn rejoin_opens_the_first_subflow_again_but_not_from_the_server() {
    for (client, expected) in [(true, Some(1)), (false, None)] {
        let mut model = Model::new("rejoin", vec![local(1, "10.0.1.1", "")]);
        model.client = client;
        model.fire(PathManagerEvent::Established);
        model.fail(true);
        let due = model.manager.poll_timeout().map(|due| due.as_nanos() / 1_000_000_000);
        assert_eq!(due, expected);
    }
}

#[test]
fn rejoin_waits_for_an_address_that_is_down() {
    let mut model = Model::new("rejoin", vec![local(1, "10.0.1.1", "")]);
    model.fire(PathManagerEvent::Established);
    model.local[0].up = false;
    model.fire(PathManagerEvent::LocalGone { address_id: 1 });
    model.fail(true);
    let (_, opened) = model.wait_for_timeout();
    assert_eq!(opened, [""; 0]);
    assert_eq!(model.manager.poll_timeout(), None, "no timer runs for it");
    model.local[0].up = true;
    assert_eq!(model.opened(PathManagerEvent::LocalChanged), ["0:10.0.1.1>0:10.0.9.9"]);
}

#[test]
fn rejoin_keeps_the_limit_and_tries_later() {
    let all = [local(2, "10.0.2.1", "subflow"), local(3, "10.0.3.1", "subflow")];
    let mut model = Model::new("rejoin", all.to_vec());
    model.subflow_limit = 1;
    assert_eq!(model.opened(PathManagerEvent::Established), ["2:10.0.2.1>0:10.0.9.9"]);
    assert_eq!(model.fail(true), ["3:10.0.3.1>0:10.0.9.9"], "its place is taken at once");
    assert_eq!(model.wait_for_timeout().1, [""; 0]);
    model.subflow_limit = 2;
    assert_eq!(model.wait_for_timeout().1, ["2:10.0.2.1>0:10.0.9.9"]);
}

#[test]
fn rejoin_does_not_open_to_an_address_that_was_withdrawn() {
    let mut model = Model::new("rejoin", vec![local(1, "10.0.1.1", "")]);
    model.fire(PathManagerEvent::Established);
    model.announced(remote(4, "10.0.8.9"));
    model.fail(true);
    model.remote.pop();
    model.fire(PathManagerEvent::Withdrawn(4));
    assert_eq!(model.manager.poll_timeout(), None);
}

/// Event of a connection in a property test.
#[derive(Debug, Clone)]
enum Step {
    Announced(u8),
    Withdrawn(u8),
    Flip(u8),
    Fail { newest: bool, retry: bool },
    Timeout,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..8_u8).prop_map(Step::Announced),
        (0..8_u8).prop_map(Step::Withdrawn),
        (0..5_u8).prop_map(Step::Flip),
        any::<(bool, bool)>().prop_map(|(newest, retry)| Step::Fail { newest, retry }),
        Just(Step::Timeout),
    ]
}

/// Applies the event to the model, and passes it to the path manager.
fn apply(model: &mut Model, step: &Step) {
    match *step {
        Step::Announced(id) => {
            let address = if id % 3 == 0 { format!("fd00::{id}") } else { format!("10.0.8.{id}") };
            if model.remote.iter().all(|known| known.address_id != id) {
                model.announced(remote(id, &address));
            }
        }
        Step::Withdrawn(id) => {
            model.remote.retain(|known| known.address_id != id || id == 0);
            model.subflows.retain(|subflow| subflow.remote_id != id);
            model.fire(PathManagerEvent::Withdrawn(id));
        }
        Step::Flip(index) => {
            let Some(local) = model.local.get_mut(usize::from(index)) else { return };
            local.up = !local.up;
            let (up, address, address_id) = (local.up, local.address, local.address_id);
            if up {
                model.fire(PathManagerEvent::LocalChanged);
            } else {
                model.subflows.retain(|subflow| subflow.local.ip() != address);
                model.fire(PathManagerEvent::LocalGone { address_id });
            }
        }
        Step::Fail { newest, retry } => {
            if let Some(last) = model.subflows.len().checked_sub(1) {
                let subflow = model.subflows.remove(if newest { last } else { 0 });
                model.fire(PathManagerEvent::SubflowClosed { subflow, failed: true, retry });
            }
        }
        Step::Timeout => {
            if model.manager.poll_timeout().is_some() {
                model.wait_for_timeout();
            }
        }
    }
}

proptest! {
    #[test]
    fn no_path_manager_opens_above_the_limit_across_families_from_dead_addresses_or_twice(
        steps in prop::collection::vec(step(), 1..40),
        flags in prop::collection::vec(prop::sample::subsequence(
            vec!["subflow", "signal", "backup", "fullmesh", "laminar"], 0..5), 5),
        limits in (0..6_u8, 0..6_u8),
        client: bool,
        closed_to_us: bool,
    ) {
        let addresses = ["10.0.1.1", "10.0.2.1", "10.0.8.1", "fd00::a", "fd01::b"];
        let local: Vec<_> = (1..).zip(addresses).zip(&flags)
            .map(|((id, address), flags)| local(id, address, &flags.join(" ")))
            .collect();
        for entry in ALL {
            let mut model = Model::new(entry.name, local.clone());
            (model.client, model.closed_to_us) = (client, closed_to_us);
            (model.subflow_limit, model.accept_limit) = limits;
            model.fire(PathManagerEvent::Established);
            for step in &steps {
                apply(&mut model, step);
                prop_assert!(model.subflows.len() <= usize::from(limits.0) + 1, "{}", entry.name);
                let mut pairs = BTreeSet::new();
                for one in &model.subflows {
                    prop_assert_eq!(one.local.is_ipv4(), one.remote.is_ipv4());
                    let up = |local: &LocalAddress| local.address == one.local.ip() && local.up;
                    prop_assert!(model.local.iter().any(up), "{} {one:?}", entry.name);
                    let new = pairs.insert((one.local.ip(), one.remote));
                    prop_assert!(new || entry.name == "ndiffports", "{} {one:?}", entry.name);
                    // The path manager did not open the first subflow.
                    let admitted = !closed_to_us || one.remote_id != 0 || one.id == PathId(0);
                    prop_assert!(admitted, "{} {one:?}", entry.name);
                }
            }
        }
    }
}
