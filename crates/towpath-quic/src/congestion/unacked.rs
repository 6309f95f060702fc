//! Unacknowledged packets of one path.

use std::collections::VecDeque;
use std::time::Instant;

/// Sending time and number of one packet.
#[derive(Debug, Clone, Copy)]
struct SentPacket {
    sent: Instant,
    number: u64,
    unacked: bool,
}

/// All packets, in order of sending. Each is touched once on sending and once on acknowledgement,
/// without a search or an allocation per packet. The first one is always unacknowledged.
#[derive(Debug, Default)]
pub(super) struct UnackedPackets(VecDeque<SentPacket>);

impl UnackedPackets {
    pub(super) fn sent(&mut self, at: Instant, number: u64) {
        self.0.push_back(SentPacket { sent: at, number, unacked: true });
    }

    /// Returns the sending time of the oldest unacknowledged packet.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.0.front().map(|packet| packet.sent)
    }

    pub(super) fn acknowledged(&mut self, sent: Instant, number: u64) {
        // Few packets have the same sending time.
        let first = self.0.partition_point(|packet| packet.sent < sent);
        let same_time = self.0.range_mut(first..).take_while(|packet| packet.sent == sent);
        same_time
            .filter(|packet| packet.number == number)
            .for_each(|packet| packet.unacked = false);
        self.settle();
    }

    /// Removes a lost packet by a search from the oldest: the few older ones are also lost.
    pub(super) fn lost(&mut self, number: u64) {
        let lost = self.0.iter_mut().find(|packet| packet.unacked && packet.number == number);
        if let Some(packet) = lost {
            packet.unacked = false;
        }
        self.settle();
    }

    /// Removes the oldest packets while `gone` returns true for their sending times.
    pub(super) fn drop_older(&mut self, gone: impl Fn(Instant) -> bool) {
        while self.oldest().is_some_and(&gone) {
            self.0.pop_front();
            self.settle();
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn settle(&mut self) {
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
        Forget { older_than_ms: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_u64..3).prop_map(|later_ms| Step::Send { later_ms }),
            2 => any::<prop::sample::Index>().prop_map(Step::Acknowledge),
            1 => any::<prop::sample::Index>().prop_map(Step::Lose),
            1 => (0_u64..50).prop_map(|older_than_ms| Step::Forget { older_than_ms }),
        ]
    }

    proptest! {
        /// Compares with a set, which is slower and obviously correct.
        #[test]
        fn the_oldest_is_the_oldest_that_waits(steps in prop::collection::vec(step(), 1..200)) {
            let start = crate::time::TimeConverter::new().to_std(towpath_net::Instant::ZERO);
            let (mut waiting, mut right) = (UnackedPackets::default(), BTreeSet::new());
            let (mut now, mut number) = (start, 0);
            let pick = |set: &BTreeSet<(Instant, u64)>, index: prop::sample::Index| {
                (!set.is_empty()).then(|| *set.iter().nth(index.index(set.len())).unwrap())
            };
            for step in steps {
                match step {
                    Step::Send { later_ms } => {
                        now += Duration::from_millis(later_ms);
                        number += 1;
                        waiting.sent(now, number);
                        right.insert((now, number));
                    }
                    Step::Acknowledge(index) => if let Some(key) = pick(&right, index) {
                        waiting.acknowledged(key.0, key.1);
                        waiting.acknowledged(key.0, key.1);
                        right.remove(&key);
                    },
                    Step::Lose(index) => if let Some(key) = pick(&right, index) {
                        waiting.lost(key.1);
                        right.remove(&key);
                    },
                    Step::Forget { older_than_ms } => {
                        let old = |sent: Instant| now - sent > Duration::from_millis(older_than_ms);
                        waiting.drop_older(old);
                        right.retain(|(sent, _)| !old(*sent));
                    }
                }
                prop_assert_eq!(waiting.oldest(), right.first().map(|(sent, _)| *sent));
            }
            for (sent, number) in right {
                waiting.acknowledged(sent, number);
            }
            prop_assert!(waiting.0.is_empty(), "nothing stays behind");
        }
    }
}
