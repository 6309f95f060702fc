//! §3 and §8: options as bytes.

use towpath_wire::{AddAddr, DataAck, Dss, DssMapping, MpJoin, MpTcpRst, MptcpOption, Options};

use crate::script::*;

fn encode(option: MptcpOption) -> Vec<u8> {
    mptcp(option).emit().to_vec()
}

fn data_number(long: bool) -> DataAck {
    if long { DataAck::Long(0x0102_0304_0506_0708) } else { DataAck::Short(0x0102_0304) }
}

#[test]
fn reserved_bits_are_sent_as_zero() {
    for backup in [false, true] {
        let flag = u8::from(backup);
        let syn = MpJoin::Syn { backup, address_id: 3, token: 0, nonce: 0 };
        assert_eq!(encode(MptcpOption::Join(syn))[..3], [30, 12, 0x10 | flag]);
        let syn_ack = MpJoin::SynAck { backup, address_id: 3, hmac: 0, nonce: 0 };
        assert_eq!(encode(MptcpOption::Join(syn_ack))[..3], [30, 16, 0x10 | flag]);
        assert_eq!(encode(MptcpOption::Priority { backup })[..3], [30, 3, 0x50 | flag]);
    }
    let ack = MpJoin::Ack { hmac: [0xff; 20] };
    assert_eq!(encode(MptcpOption::Join(ack))[..4], [30, 24, 0x10, 0]);
    assert_eq!(encode(MptcpOption::Fail { dsn: u64::MAX })[..4], [30, 12, 0x60, 0]);
    assert_eq!(encode(MptcpOption::FastClose { key: u64::MAX })[..4], [30, 12, 0x70, 0]);
    let reset = MpTcpRst { transient: true, reason: 5, reserved: 0 };
    assert_eq!(encode(MptcpOption::Reset(reset)), [30, 4, 0x81, 5]);
    let address =
        AddAddr { address_id: 7, address: host_address(0), port: None, hmac: Some(u64::MAX) };
    assert_eq!(encode(MptcpOption::AddAddress(address))[..4], [30, 16, 0x30, 7]);
    let echo = AddAddr { hmac: None, port: Some(80), ..address };
    assert_eq!(encode(MptcpOption::AddAddress(echo))[..4], [30, 10, 0x31, 7]);
    let mapping = DssMapping { dsn: data_number(true), ssn: 1, len: 2, checksum: None };
    let full_dss =
        Dss { data_fin: true, data_ack: Some(data_number(true)), mapping: Some(mapping) };
    assert_eq!(dss(full_dss).emit()[..4], [30, 26, 0x20, 0x1f]);
}

#[test]
fn reserved_bits_are_ignored_on_receipt() {
    let parse = |bytes: &[u8]| Options::parse(bytes).mptcp.first().cloned();
    let address = [30, 16, 0x3e, 7, 10, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8];
    let expected = AddAddr {
        address_id: 7,
        address: host_address(0),
        port: None,
        hmac: Some(0x0102_0304_0506_0708),
    };
    assert_eq!(parse(&address), Some(MptcpOption::AddAddress(expected)));
    let Some(MptcpOption::Reset(reset)) = parse(&[30, 4, 0x8e, 2]) else { panic!() };
    assert_eq!((reset.transient, reset.reason), (false, 2));
    let Some(MptcpOption::Reset(reset)) = parse(&[30, 4, 0x8f, 0x77]) else { panic!() };
    assert_eq!((reset.transient, reset.reason), (true, 0x77));
    assert_eq!(parse(&[30, 3, 0x5e]), Some(MptcpOption::Priority { backup: false }));
}

#[test]
fn dss_size_flags_without_their_field_are_ignored() {
    // Flags a and m without A and M.
    let options = Options::parse(&[30, 4, 0x20, 0x0a]);
    assert_eq!(options.dss, Some(Dss::default()));
    let options = Options::parse(&[30, 8, 0x20, 0x09, 1, 2, 3, 4]);
    assert_eq!(options.dss.unwrap().data_ack, Some(data_number(false)));
}

#[test]
fn numbers_of_both_sizes_are_read_in_any_combination() {
    for (long_ack, long_map) in [(false, false), (false, true), (true, false), (true, true)] {
        let mapping = DssMapping { dsn: data_number(long_map), ssn: 9, len: 5, checksum: Some(3) };
        let dss_option =
            Dss { data_fin: false, data_ack: Some(data_number(long_ack)), mapping: Some(mapping) };
        let encoded = dss(dss_option).emit();
        assert_eq!(Options::parse(&encoded).dss, Some(dss_option));
        let length = 4 + [4, 8][usize::from(long_ack)] + [4, 8][usize::from(long_map)] + 8;
        assert_eq!(encoded[1], length);
    }
}

#[test]
fn mp_capable_is_read_by_its_length() {
    let parse_capable = |len: usize| {
        let mut bytes = vec![30, len as u8, 0x01, 0x01];
        bytes.extend(4..len as u8);
        let options = Options::parse(&bytes);
        options.mptcp.first().map(|option| match option {
            MptcpOption::Capable(capable) => {
                (capable.sender_key.is_some(), capable.receiver_key.is_some(), capable.data)
            }
            _ => panic!("{option:?}"),
        })
    };
    assert_eq!(parse_capable(4), Some((false, false, None)));
    assert_eq!(parse_capable(12), Some((true, false, None)));
    assert_eq!(parse_capable(20), Some((true, true, None)));
    assert_eq!(parse_capable(22), Some((true, true, Some((0x1415, None)))));
    assert_eq!(parse_capable(24), Some((true, true, Some((0x1415, Some(0x1617))))));
    for invalid_len in [3, 5, 8, 11, 13, 16, 19, 21, 23, 25, 28] {
        assert_eq!(parse_capable(invalid_len), None, "{invalid_len}");
    }
}
