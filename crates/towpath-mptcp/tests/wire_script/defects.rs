//! What a referee saw that drove whole hosts packet by packet, where tests of single parts had seen
//! nothing. Small windows are in `windows`.

use towpath_mptcp::connection::Config;
use towpath_mptcp::wire::{Flags, Options, SackBlocks};

use crate::script::*;

/// Plain TCP without timestamps: full packets have 1,460 bytes.
fn plain() -> Config {
    let mut config = Config { multipath: false, ..config() };
    config.subflow.timestamps = false;
    config
}

/// A host that opened a connection; the peer's SYN/ACK has these flags and options.
fn open(config: Config, flags: Flags, options: Options) -> Script {
    let mut script = Script::client(config);
    let _ = script.expect();
    script.send(0, flags, options, b"");
    // Only from now on the window has its scale.
    let mut options = Options::default();
    if let Some(capable) = capable_of(&script.expect()) {
        script.host_key = capable.sender_key.unwrap();
        options = script.data_ack(1);
    }
    script.send(0, ACK, options, b"");
    let _ = script.drain();
    script
}

fn sack() -> Options {
    Options { sack_permitted: true, ..Options::default() }
}

#[test]
fn a_segment_over_several_that_were_there_reports_the_first_alone() {
    let mut script = open(plain(), SYN.with(ACK), sack());
    let first = script.lines[0].seq;
    let mut at = |from: u32, to: u32| {
        script.lines[0].seq = first.wrapping_add(from - 1);
        let data = vec![9; (to - from) as usize];
        script.send(0, ACK, Options::default(), &data);
        script.drain().pop().unwrap().1
    };
    for (from, to) in [(1_001, 3_001), (4_001, 5_001), (7_001, 8_001)] {
        let _ = at(from, to);
    }
    let answer = at(1, 6_001);
    let relative = |wire: u32| wire.wrapping_sub(first) + 1;
    let blocks = |sack: &SackBlocks| {
        sack.iter().map(|(from, to)| (relative(*from), relative(*to))).collect::<Vec<_>>()
    };
    assert_eq!(relative(answer.ack), 6_001);
    assert_eq!(blocks(&answer.options.sack), [(1_001, 3_001), (7_001, 8_001)]);
}
