//! The usual beginning of a connection.

use towpath_wire::Flags;

use crate::script::{
    CapablePattern, NumberRange, OptionPattern, PacketPattern, Role, Script, Transport,
};

const SYN_ACK: Flags = Flags::SYN.with(Flags::ACK);

/// Returns the three handshake packets, with the script's changes to the peer's SYN.
pub(crate) fn handshake_packets(
    script: &Script,
    syn_changes: &PacketPattern,
) -> [PacketPattern; 3] {
    let capable =
        CapablePattern { version: None, flags: None, keys: None, len: None, checksum: false };
    let checksums =
        script.settings.iter().any(|setting| setting.name == "checksum" && setting.value == "on");
    let multipath = |flags| match script.transport {
        Transport::Tcp => None,
        Transport::Mptcp => Some(OptionPattern::Capable(CapablePattern { flags, ..capable })),
    };
    let capable_option = multipath(checksums.then_some(0x81));
    let mut options = syn_changes.options.clone();
    if options.is_empty() {
        options = vec![
            OptionPattern::Mss(Some(1_460)),
            OptionPattern::SackPermitted,
            OptionPattern::WindowScale(Some(0)),
        ];
    }
    if !options.iter().any(|option| matches!(option, OptionPattern::Capable(_))) {
        options.extend(capable_option.clone());
    }
    let peer_packet = |flags| PacketPattern {
        flags,
        options: options.clone(),
        len: NumberRange::exactly(0),
        ..syn_changes.clone()
    };
    let host_packet = |flags, seq| PacketPattern {
        flags,
        seq: Some(seq),
        ack: flags.contains(Flags::ACK).then_some(1),
        options: multipath(None).into_iter().collect(),
        ..PacketPattern::default()
    };
    let third = PacketPattern {
        flags: Flags::ACK,
        options: capable_option.into_iter().collect(),
        window: syn_changes.window,
        ..PacketPattern::default()
    };
    match script.role {
        Role::Server => [peer_packet(Flags::SYN), host_packet(SYN_ACK, 0), third],
        Role::Client => {
            [host_packet(Flags::SYN, 0), peer_packet(SYN_ACK), host_packet(Flags::ACK, 1)]
        }
    }
}
