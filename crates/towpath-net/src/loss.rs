//! Impairments on entry, in netem's order: duplication and loss are drawn first and cancel each
//! other; the copy is taken before corruption.

use crate::config::{DirectionConfig, Loss, Probability};
use crate::random::RngStream;

/// Loss, duplication and corruption of one direction.
#[derive(Debug, Clone)]
pub(crate) struct Impairments {
    loss: LossModel,
    duplicate: Probability,
    corrupt: Probability,
    loss_stream: RngStream,
    duplicate_stream: RngStream,
    corrupt_stream: RngStream,
}

impl Impairments {
    pub(crate) fn new(config: &DirectionConfig, seed: u64) -> Self {
        Self {
            loss: LossModel::new(config.loss),
            duplicate: config.duplicate,
            corrupt: config.corrupt,
            loss_stream: RngStream::new(seed, "loss"),
            duplicate_stream: RngStream::new(seed, "duplicate"),
            corrupt_stream: RngStream::new(seed, "corrupt"),
        }
    }

    /// Replaces the loss model; a model with states starts in the good one.
    pub(crate) fn set_loss(&mut self, loss: Loss) {
        self.loss = LossModel::new(loss);
    }

    /// Returns true if every packet passes unharmed.
    pub(crate) fn is_transparent(&self) -> bool {
        matches!(self.loss, LossModel::None)
            && self.duplicate == Probability::NEVER
            && self.corrupt == Probability::NEVER
    }

    /// Draws a random number and returns true if the next packet is lost.
    pub(crate) fn loses(&mut self) -> bool {
        self.loss.loses(&mut self.loss_stream)
    }

    /// Draws a random number and returns true if the next packet enters twice.
    pub(crate) fn duplicates(&mut self) -> bool {
        self.duplicate_stream.happens(self.duplicate)
    }

    /// Returns a number that selects the bit to flip, or `None` for no corruption of the next
    /// packet.
    pub(crate) fn corrupts(&mut self) -> Option<u32> {
        self.corrupt_stream.happens(self.corrupt).then(|| self.corrupt_stream.draw())
    }
}

/// A loss model and its state.
#[derive(Debug, Clone)]
enum LossModel {
    None,
    Random(Probability),
    /// netem's `gemodel`; `good` is the current state.
    GilbertElliott {
        good: bool,
        to_bad: Probability,
        to_good: Probability,
        loss_in_bad: Probability,
        loss_in_good: Probability,
    },
    /// `remaining` packets of the current burst are still to be lost.
    Burst {
        remaining: u32,
        start: Probability,
        length: u32,
    },
}

impl LossModel {
    fn new(loss: Loss) -> Self {
        match loss {
            Loss::None => Self::None,
            Loss::Random(chance) => Self::Random(chance),
            Loss::GilbertElliott { to_bad, to_good, loss_in_bad, loss_in_good } => {
                Self::GilbertElliott { good: true, to_bad, to_good, loss_in_bad, loss_in_good }
            }
            Loss::Burst { start, length_packets } => {
                Self::Burst { remaining: 0, start, length: length_packets }
            }
        }
    }

    fn loses(&mut self, stream: &mut RngStream) -> bool {
        match self {
            Self::None => false,
            Self::Random(chance) => stream.happens(*chance),
            // netem draws the transition first, then the loss of the state it was in *before*.
            Self::GilbertElliott { good, to_bad, to_good, loss_in_bad, loss_in_good } => {
                let (transition, loss) =
                    if *good { (*to_bad, *loss_in_good) } else { (*to_good, *loss_in_bad) };
                if stream.happens(transition) {
                    *good = !*good;
                }
                stream.happens(loss)
            }
            Self::Burst { remaining, start, length } => {
                if *remaining == 0 && stream.happens(*start) {
                    *remaining = *length;
                }
                let lost = *remaining > 0;
                *remaining = remaining.saturating_sub(1);
                lost
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chance(millionths: u32) -> Probability {
        Probability::from_millionths(millionths)
    }

    /// Returns the outcome of `packets` draws.
    fn draw_losses(loss: Loss, packets: usize) -> Vec<bool> {
        let (mut model, mut stream) = (LossModel::new(loss), RngStream::new(7, "loss"));
        (0..packets).map(|_| model.loses(&mut stream)).collect()
    }

    fn loss_share(lost: &[bool]) -> f64 {
        lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64
    }

    #[test]
    fn random_loss_stays_within_four_standard_errors() {
        for millionths in [1_000, 10_000, 50_000, 500_000] {
            let (p, n) = (f64::from(millionths) / 1e6, 400_000);
            let measured = loss_share(&draw_losses(Loss::Random(chance(millionths)), n));
            let error = (p * (1.0 - p) / n as f64).sqrt();
            assert!((measured - p).abs() < 4.0 * error, "{measured} instead of {p}");
        }
    }

    #[test]
    fn gilbert_elliott_loses_its_stationary_share_in_bursts_of_the_right_length() {
        let loss = Loss::GilbertElliott {
            to_bad: chance(10_000),
            to_good: chance(200_000),
            loss_in_bad: Probability::ALWAYS,
            loss_in_good: Probability::NEVER,
        };
        let losses = draw_losses(loss, 1_000_000);
        // Share of the bad state: p / (p + r).
        let expected = 0.01 / 0.21;
        assert!((loss_share(&losses) / expected - 1.0).abs() < 0.03, "{}", loss_share(&losses));
        let bursts = losses.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let length = loss_share(&losses) * losses.len() as f64 / bursts as f64;
        assert!((length / 5.0 - 1.0).abs() < 0.03, "{length}");
    }

    #[test]
    fn gilbert_elliott_draws_the_loss_of_the_state_before_the_transition() {
        let loss = Loss::GilbertElliott {
            to_bad: Probability::ALWAYS,
            to_good: Probability::ALWAYS,
            loss_in_bad: Probability::ALWAYS,
            loss_in_good: Probability::NEVER,
        };
        assert_eq!(draw_losses(loss, 4), [false, true, false, true]);
    }

    #[test]
    fn a_burst_loses_exactly_its_length() {
        let lost = draw_losses(Loss::Burst { start: chance(1_000), length_packets: 7 }, 200_000);
        let text: String = lost.iter().map(|lost| if *lost { 'x' } else { ' ' }).collect();
        let lengths: Vec<usize> = text.split_whitespace().map(str::len).collect();
        assert!(lengths.len() > 100);
        assert!(lengths.iter().all(|length| length % 7 == 0), "{lengths:?}");
    }

    #[test]
    fn a_burst_of_no_packets_loses_nothing() {
        let lost = draw_losses(Loss::Burst { start: Probability::ALWAYS, length_packets: 0 }, 10);
        assert_eq!(loss_share(&lost).to_bits(), 0.0_f64.to_bits());
    }
}
