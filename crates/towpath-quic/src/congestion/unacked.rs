//! Unacknowledged packets of one path.

use std::collections::VecDeque;
use std::time::Instant;

/// Sending time and number of one packet.
#[derive(Debug, Clone, Copy)]
struct SentPacket {
    sent_at: Instant,
    number: u64,
    unacked: bool,
}

/// Packets in order of sending, from the oldest unacknowledged one on. Each is touched once on
/// sending and once on acknowledgement, without a search or an allocation per packet.
#[derive(Debug, Default)]
pub(super) struct UnackedPackets(VecDeque<SentPacket>);

impl UnackedPackets {
    pub(super) fn on_sent(&mut self, sent_at: Instant, number: u64) {
        self.0.push_back(SentPacket { sent_at, number, unacked: true });
    }

    /// Returns the sending time of the oldest unacknowledged packet.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.0.front().map(|packet| packet.sent_at)
    }

    pub(super) fn on_acked(&mut self, sent_at: Instant, number: u64) {
        // Few packets have the same sending time.
        let first = self.0.partition_point(|packet| packet.sent_at < sent_at);
        let same_time = self.0.range_mut(first..).take_while(|packet| packet.sent_at == sent_at);
        same_time
            .filter(|packet| packet.number == number)
            .for_each(|packet| packet.unacked = false);
        self.drop_acked_front();
    }

    /// Removes a lost packet by a search from the oldest: the few older ones are also lost.
    pub(super) fn on_lost(&mut self, number: u64) {
        let lost = self.0.iter_mut().find(|packet| packet.unacked && packet.number == number);
        if let Some(packet) = lost {
            packet.unacked = false;
        }
        self.drop_acked_front();
    }

    /// Removes the oldest packets while `is_old` returns true for their sending times.
    pub(super) fn drop_older(&mut self, is_old: impl Fn(Instant) -> bool) {
        while self.oldest().is_some_and(&is_old) {
            self.0.pop_front();
            self.drop_acked_front();
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn drop_acked_front(&mut self) {
        while self.0.front().is_some_and(|packet| !packet.unacked) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Send { later_ms: u64 },
        Acknowledge(prop::sample::Index),
        Lose(prop::sample::Index),
        DropOlder { older_than_ms: u64 },
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_u64..3).prop_map(|later_ms| Step::Send { later_ms }),
            2 => any::<prop::sample::Index>().prop_map(Step::Acknowledge),
            1 => any::<prop::sample::Index>().prop_map(Step::Lose),
            1 => (0_u64..50).prop_map(|older_than_ms| Step::DropOlder { older_than_ms }),
        ]
    }

    proptest! {
        /// Compares with a set, which is slower and obviously correct.
        #[test]
        fn the_oldest_unacked_packet_is_always_known(steps in prop::collection::vec(any_step(), 1..200)) {
            let start = crate::time::TimeConverter::new().to_std(towpath_net::Instant::ZERO);
            let (mut packets, mut model) = (UnackedPackets::default(), BTreeSet::new());
            let (mut now, mut number) = (start, 0);
            let pick_packet = |set: &BTreeSet<(Instant, u64)>, index: prop::sample::Index| {
                (!set.is_empty()).then(|| *set.iter().nth(index.index(set.len())).unwrap())
            };
            for step in steps {
                match step {
                    Step::Send { later_ms } => {
                        now += Duration::from_millis(later_ms);
                        number += 1;
                        packets.on_sent(now, number);
                        model.insert((now, number));
                    }
                    Step::Acknowledge(index) => if let Some(key) = pick_packet(&model, index) {
                        packets.on_acked(key.0, key.1);
                        packets.on_acked(key.0, key.1);
                        model.remove(&key);
                    },
                    Step::Lose(index) => if let Some(key) = pick_packet(&model, index) {
                        packets.on_lost(key.1);
                        model.remove(&key);
                    },
                    Step::DropOlder { older_than_ms } => {
                        let is_old = |sent: Instant| now - sent > Duration::from_millis(older_than_ms);
                        packets.drop_older(is_old);
                        model.retain(|(sent, _)| !is_old(*sent));
                    }
                }
                prop_assert_eq!(packets.oldest(), model.first().map(|(sent, _)| *sent));
            }
            for (sent, number) in model {
                packets.on_acked(sent, number);
            }
            prop_assert!(packets.0.is_empty(), "nothing stays behind");
        }
    }
}
