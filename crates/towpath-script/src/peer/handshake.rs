//! The usual beginning of a connection.

use towpath_mptcp::wire::Flags;

use crate::script::{
    CapablePattern, NumberRange, OptionPattern, PacketPattern, Role, Script, Transport,
};

const SYN_ACK: Flags = Flags::SYN.with(Flags::ACK);

/// Returns the three handshake packets, with the script's changes in the peer's SYN.
pub(crate) fn opening(script: &Script, changed: &PacketPattern) -> [PacketPattern; 3] {
    let capable =
        CapablePattern { version: None, flags: None, keys: None, len: None, checksum: false };
    let checksums = script.settings.iter().any(|set| set.name == "checksum" && set.value == "on");
    let multipath = |flags| match script.transport {
        Transport::Tcp => None,
        Transport::Mptcp => Some(OptionPattern::Capable(CapablePattern { flags, ..capable })),
    };
    let own = multipath(checksums.then_some(0x81));
    let mut options = changed.options.clone();
    if options.is_empty() {
        options = vec![
            OptionPattern::Mss(Some(1_460)),
            OptionPattern::SackPermitted,
            OptionPattern::WindowScale(Some(0)),
        ];
    }
    if !options.iter().any(|option| matches!(option, OptionPattern::Capable(_))) {
        options.extend(own.clone());
    }
    let peers_syn = |flags| PacketPattern {
        flags,
        options: options.clone(),
        len: NumberRange::exactly(0),
        ..changed.clone()
    };
    let hosts = |flags, seq| PacketPattern {
        flags,
        seq: Some(seq),
        ack: flags.contains(Flags::ACK).then_some(1),
        options: multipath(None).into_iter().collect(),
        ..PacketPattern::default()
    };
    let third = PacketPattern {
        flags: Flags::ACK,
        options: own.into_iter().collect(),
        window: changed.window,
        ..PacketPattern::default()
    };
    match script.role {
        Role::Server => [peers_syn(Flags::SYN), hosts(SYN_ACK, 0), third],
        Role::Client => [hosts(Flags::SYN, 0), peers_syn(SYN_ACK), hosts(Flags::ACK, 1)],
    }
}
