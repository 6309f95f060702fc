//! §3.3.8 and §3.4: addresses are added and removed, priorities change.

use std::net::SocketAddr;

use arrayvec::ArrayVec;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{LocalAddress, StackNotice};
use towpath_wire::keys;
use towpath_wire::{AddAddr, MptcpOption, Options, Segment};

use crate::script::*;

/// Returns the peer's ADD_ADDR for its address on `path`, with a DATA_ACK.
fn add_addr(script: &Script, address_id: u8, path: u8, port: Option<u16>) -> Options {
    let address = peer_address(path);
    let hmac = keys::add_address_hmac(PEER_KEY, script.host_key, address_id, address, port);
    with_data_ack(
        script,
        MptcpOption::AddAddress(AddAddr { address_id, address, port, hmac: Some(hmac) }),
    )
}

fn remove_addr(script: &Script, ids: &[u8]) -> Options {
    with_data_ack(
        script,
        MptcpOption::RemoveAddress(ids.iter().copied().collect::<ArrayVec<u8, 8>>()),
    )
}

fn with_data_ack(script: &Script, option: MptcpOption) -> Options {
    let mut options = script.data_ack(1);
    options.mptcp.push(option);
    options
}

fn add_addr_of(segment: &Segment) -> Option<AddAddr> {
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::AddAddress(option) => Some(*option),
        _ => None,
    })
}

fn remove_addr_of(segment: &Segment) -> Option<Vec<u8>> {
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::RemoveAddress(ids) => Some(ids.to_vec()),
        _ => None,
    })
}

/// Returns the destinations of the SYNs that the host sends now for its subflows.
fn syn_destinations(script: &mut Script) -> Vec<SocketAddr> {
    let segments = script.drain();
    let syns = segments.iter().filter(|(_, segment)| segment.flags.contains(SYN));
    syns.map(|(_, segment)| segment.destination).collect()
}

fn announce_addresses(script: &mut Script, paths: &[u8]) {
    for path in paths {
        script.stack.set_address(script.now, LocalAddress { signal: true, ..local_address(*path) });
    }
    script.collect_output();
}

#[test]
fn an_announced_address_is_echoed_and_joined() {
    let mut script = Script::connected(config());
    script.send(0, ACK, add_addr(&script, 7, 1, None), b"");
    let segments = script.drain();
    let echo = segments.iter().find_map(|(_, segment)| add_addr_of(segment)).unwrap();
    let expected = AddAddr { address_id: 7, address: peer_address(1), port: None, hmac: None };
    assert_eq!(echo, expected);
    let syn = segments.iter().find(|(_, segment)| segment.flags.contains(SYN)).unwrap();
    assert_eq!(
        syn.1.destination,
        SocketAddr::new(peer_address(1), PORT),
        "the port of the connection"
    );
    assert_eq!(script.status().subflows[1].address_ids.1, 7);
}

#[test]
fn an_announced_port_is_used() {
    let mut script = Script::connected(config());
    script.send(0, ACK, add_addr(&script, 7, 1, Some(4_711)), b"");
    assert_eq!(syn_destinations(&mut script), [SocketAddr::new(peer_address(1), 4_711)]);
}

#[test]
fn an_announcement_with_a_wrong_hmac_is_ignored() {
    let mut script = Script::connected(config());
    let mut options = add_addr(&script, 7, 1, None);
    let Some(MptcpOption::AddAddress(option)) = options.mptcp.first_mut() else { panic!() };
    option.hmac = option.hmac.map(|hmac| hmac ^ 1);
    script.send(0, ACK, options, b"");
    // The HMAC also covers identifier and port.
    let mut options = add_addr(&script, 7, 1, None);
    let Some(MptcpOption::AddAddress(option)) = options.mptcp.first_mut() else { panic!() };
    option.port = Some(4_711);
    script.send(0, ACK, options, b"");
    script.expect_silence();
}

#[test]
fn signals_of_segments_that_tcp_refuses_are_ignored() {
    let mut script = Script::accepted(config());
    let subflow = script.join(1);
    for options in [add_addr(&script, 7, 2, None), remove_addr(&script, &[2])] {
        let segment = script.segment(0, ACK, options, b"");
        script.inject(&Segment { seq: segment.seq.wrapping_sub(100_000), ..segment.clone() });
        script.inject(&Segment { seq: segment.seq.wrapping_add(100_000), ..segment.clone() });
        script.inject(&Segment { ack: segment.ack.wrapping_add(100), ..segment.clone() });
    }
    assert!(script.drain().iter().all(|(_, segment)| segment.options.mptcp.is_empty()));
    script.send_data(subflow, 1, b"alive");
    assert_eq!(script.read(), b"alive");
}

#[test]
fn an_address_that_failed_is_tried_again_only_when_it_is_announced_again() {
    let mut script = Script::connected(config());
    script.send(0, ACK, add_addr(&script, 7, 1, None), b"");
    assert_eq!(syn_destinations(&mut script).len(), 1);
    script.send(1, RST.with(ACK), Options::default(), b"");
    script.wait(seconds(200));
    assert_eq!(syn_destinations(&mut script), []);
    script.send(0, ACK, add_addr(&script, 7, 1, None), b"");
    assert_eq!(syn_destinations(&mut script), [SocketAddr::new(peer_address(1), PORT)]);
    // Another port of the same address allows another attempt; another address under its identifier
    // does not.
    script.send(0, ACK, add_addr(&script, 7, 1, Some(81)), b"");
    assert_eq!(syn_destinations(&mut script), [SocketAddr::new(peer_address(1), 81)]);
    script.send(0, ACK, add_addr(&script, 7, 2, None), b"");
    assert_eq!(syn_destinations(&mut script), []);
}

#[test]
fn an_announcement_is_retransmitted_until_its_echo() {
    let mut script = Script::accepted(config());
    announce_addresses(&mut script, &[1]);
    let option = add_addr_of(&script.expect()).unwrap();
    let hmac = keys::add_address_hmac(script.host_key, PEER_KEY, 2, host_address(1), None);
    let expected =
        AddAddr { address_id: 2, address: host_address(1), port: None, hmac: Some(hmac) };
    assert_eq!(option, expected);
    script.wait(seconds(4));
    let retransmissions: Vec<_> =
        script.drain().iter().map(|(_, segment)| add_addr_of(segment)).collect();
    assert_eq!(
        retransmissions,
        [Some(expected), Some(expected)],
        "the same address under its identifier"
    );
    let echo = MptcpOption::AddAddress(AddAddr { hmac: None, ..expected });
    script.send(0, ACK, with_data_ack(&script, echo), b"");
    script.wait(seconds(100));
    script.expect_silence();
}

#[test]
fn every_address_has_a_unique_identifier_and_the_first_has_0() {
    let mut script = Script::accepted(config());
    announce_addresses(&mut script, &[0, 1, 2]);
    script.wait(seconds(1));
    let announcements: Vec<_> =
        script.drain().iter().filter_map(|(_, segment)| add_addr_of(segment)).collect();
    let ids = |path: u8| -> Vec<u8> {
        let from_path = announcements.iter().filter(|option| option.address == host_address(path));
        from_path.map(|option| option.address_id).collect()
    };
    assert!(ids(0).iter().all(|id| *id == 0) && !ids(0).is_empty());
    assert!(ids(1).iter().all(|id| *id == 2) && !ids(1).is_empty());
    assert!(ids(2).iter().all(|id| *id == 3) && !ids(2).is_empty());
}

#[test]
fn no_more_than_two_acknowledgements_in_a_row_carry_a_signal() {
    let mut script = Script::accepted(config());
    announce_addresses(&mut script, &[0, 1, 2]);
    let burst = script.drain();
    assert_eq!(burst.iter().filter_map(|(_, segment)| add_addr_of(segment)).count(), 2);
    // The peer sends a segment: the rest may follow.
    script.send(0, ACK, script.data_ack(1), b"");
    assert_eq!(script.drain().iter().filter_map(|(_, segment)| add_addr_of(segment)).count(), 1);
    // A timer has the same effect.
    let mut script = Script::accepted(config());
    announce_addresses(&mut script, &[0, 1, 2]);
    let _ = script.drain();
    script.wait(millis(300));
    assert_eq!(script.drain().iter().filter_map(|(_, segment)| add_addr_of(segment)).count(), 1);
}

#[test]
fn an_address_that_is_lost_is_withdrawn_also_when_no_subflow_used_it() {
    let mut script = Script::accepted(config());
    announce_addresses(&mut script, &[1]);
    let _ = script.drain();
    script.stack.remove_address(script.now, host_address(1));
    assert_eq!(remove_addr_of(&script.expect()), Some(vec![2]));
    // An address that only carried a subflow is also withdrawn.
    let subflow = script.join(2);
    script.send(0, ACK, script.data_ack(1), b"");
    script.stack.remove_address(script.now, host_address(2));
    let (index, segment) = script.next().unwrap();
    assert_eq!((index, remove_addr_of(&segment)), (0, Some(vec![3])));
    assert!(subflow > index);
    // The identifier is free for another address only after that.
    script.stack.set_address(
        script.now,
        LocalAddress { address: host_address(1), signal: true, ..local_address(2) },
    );
    assert_eq!(add_addr_of(&script.expect()).map(|option| option.address_id), Some(3));
}

#[test]
fn withdrawal_comes_before_another_address_under_the_same_identifier() {
    let mut script = Script::accepted(config());
    announce_addresses(&mut script, &[1]);
    let _ = script.drain();
    script.stack.remove_address(script.now, host_address(1));
    let replacement = LocalAddress { address: host_address(9), signal: true, ..local_address(1) };
    script.stack.set_address(script.now, replacement);
    script.wait(millis(300));
    assert_eq!(remove_addr_of(&script.expect()), Some(vec![2]));
    assert_eq!(add_addr_of(&script.expect()).map(|option| option.address), Some(host_address(9)));
}

#[test]
fn removed_addresses_lose_their_subflows_and_get_no_new_ones() {
    let mut script = Script::accepted(config());
    let [first, second] = [1, 2].map(|path| script.join(path));
    script.send(0, ACK, remove_addr(&script, &[2, 77, 3]), b"");
    let segments = script.drain();
    for subflow in [first, second] {
        assert!(
            segments
                .iter()
                .any(|(index, segment)| *index == subflow && segment.flags.contains(RST))
        );
    }
    let withdrawals: Vec<_> = script
        .notices
        .iter()
        .filter(|notice| matches!(notice, StackNotice::AddressWithdrawn { .. }))
        .collect();
    assert_eq!(withdrawals.len(), 2, "77 is unknown: {withdrawals:?}");
    script.send_data(0, 1, b"the first lives");
    assert_eq!(script.read(), b"the first lives");
}

#[test]
fn the_first_address_can_be_removed_and_is_not_joined_any_more() {
    let mut script = Script::connected(config());
    script.send(0, ACK, add_addr(&script, 7, 1, None), b"");
    let _ = script.drain();
    script.send(1, SYN.with(ACK), mptcp(script.join_syn_ack(7)), b"");
    script.send(1, ACK, remove_addr(&script, &[0]), b"");
    assert!(
        script.drain().iter().any(|(index, segment)| *index == 0 && segment.flags.contains(RST))
    );
    script.stack.set_address(script.now, LocalAddress { subflow: true, ..local_address(2) });
    assert_eq!(syn_destinations(&mut script), []);
    assert_eq!(script.closed, None);
}

#[test]
fn an_unknown_identifier_changes_nothing() {
    let mut script = Script::accepted(config());
    script.send(0, ACK, remove_addr(&script, &[55]), b"");
    script.expect_silence();
    assert!(
        !script.notices.iter().any(|notice| matches!(notice, StackNotice::AddressWithdrawn { .. }))
    );
}

#[test]
fn announcements_apply_only_to_their_own_connection() {
    let mut script = Script::connected(config());
    script.send(0, ACK, add_addr(&script, 7, 1, None), b"");
    let _ = script.drain();
    let remote = SocketAddr::new(peer_address(0), PORT);
    script.id = Some(script.stack.connect(script.now, None, remote, config()).unwrap());
    let syn = script.expect();
    assert!(syn.flags.contains(SYN) && syn.destination == remote);
    let subflow = script.subflows.len() - 1;
    script.send(subflow, SYN.with(ACK), mptcp(capable_syn_ack()), b"");
    script.host_key = capable_of(&script.expect_on(subflow)).unwrap().sender_key.unwrap();
    script.send(subflow, ACK, script.data_ack(1), b"");
    assert_eq!(syn_destinations(&mut script), []);
}

#[test]
fn the_number_of_joined_addresses_is_limited() {
    let mut script = Script::connected(ConnectionConfig { accept_limit: 1, ..config() });
    for path in [1, 2] {
        script.send(0, ACK, add_addr(&script, path + 1, path, None), b"");
    }
    assert_eq!(syn_destinations(&mut script), [SocketAddr::new(peer_address(1), PORT)]);
}

#[test]
fn a_changed_backup_flag_is_sent_on_its_subflow() {
    let mut script = Script::accepted(config());
    let subflow = script.join(1);
    script.stack.set_address(script.now, LocalAddress { backup: true, ..local_address(1) });
    let segment = script.expect_on(subflow);
    assert!(segment.options.mptcp.contains(&MptcpOption::Priority { backup: true }));
}
