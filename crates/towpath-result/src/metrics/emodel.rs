//! E-model of ITU-T G.107 (06/2015) with its default values: speech quality from loss and delay.
//! Codec parameters are from G.113.
//!
//! R = Ro − Is − Id − Ie,eff. Ro and Is follow from the default values of everything that packets
//! do not change (loudness, noise, sidetone, quantising). Id is Idte + Idle + Idd. The advantage
//! factor A (mobile access) is 0, because it would improve every network equally.

/// Basic signal-to-noise ratio with the default values (G.107 §7.2).
const RO: f64 = 94.768_8;
/// Simultaneous impairments with the default values (G.107 §7.3).
const IS: f64 = 1.413_6;
/// Noise at the 0 dBr point, and receive loudness rating, for the same default values.
const NO_DBM0P: f64 = -61.179;
const RLR_DB: f64 = 2.0;
/// Default echo: talker echo loudness rating and weighted echo path loss.
const TELR_DB: f64 = 65.0;
const WEPL_DB: f64 = 110.0;

/// Quality of a codec and its robustness against loss (G.113 appendix I).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Codec {
    /// Equipment impairment factor Ie without loss.
    pub impairment: f64,
    /// Packet-loss robustness factor Bpl.
    pub robustness: f64,
}

impl Codec {
    /// G.711 without packet loss concealment.
    pub const G711: Self = Self { impairment: 0.0, robustness: 4.3 };
    /// G.711 with the packet loss concealment of its appendix I.
    pub const G711_PLC: Self = Self { impairment: 0.0, robustness: 25.1 };
    /// G.729 with annex A (reduced complexity).
    pub const G729A: Self = Self { impairment: 11.0, robustness: 19.0 };

    /// Returns Ie,eff for a share of lost packets, 0 to 1 (G.107 §7.5). `burst_ratio` is 1 for
    /// random losses.
    pub fn effective_impairment(self, loss_share: f64, burst_ratio: f64) -> f64 {
        let percent = loss_share.clamp(0.0, 1.0) * 100.0;
        let Self { impairment, robustness } = self;
        impairment + (95.0 - impairment) * percent / (percent / burst_ratio.max(1.0) + robustness)
    }
}

/// Returns Id for a mouth-to-ear delay in milliseconds (G.107 §7.4).
pub fn delay_impairment(delay_ms: f64) -> f64 {
    let t = delay_ms.max(0.0);
    let terv = TELR_DB - 40.0 * ((1.0 + t / 10.0) / (1.0 + t / 150.0)).log10()
        + 6.0 * (-0.3 * t * t).exp();
    let re = 80.0 + 2.5 * (terv - 14.0);
    let roe = -1.5 * (NO_DBM0P - RLR_DB);
    let half_difference = (roe - re) / 2.0;
    // With such a weak echo the formula yields down to −0.2 below 10 ms, an improvement by echo.
    let talker = ((half_difference + (half_difference * half_difference + 100.0).sqrt() - 1.0)
        * (1.0 - (-t).exp()))
    .max(0.0);
    let rle = 10.5 * (WEPL_DB + 7.0) * (2.0 * t + 1.0).powf(-0.25);
    let half_difference = (RO - rle) / 2.0;
    let listener = half_difference + (half_difference * half_difference + 169.0).sqrt();
    talker + listener + absolute_delay(t)
}

/// Returns Idd, which is zero up to 100 ms.
fn absolute_delay(t: f64) -> f64 {
    if t <= 100.0 {
        return 0.0;
    }
    let x = (t / 100.0).log2();
    25.0 * ((1.0 + x.powi(6)).powf(1.0 / 6.0) - 3.0 * (1.0 + (x / 3.0).powi(6)).powf(1.0 / 6.0)
        + 2.0)
}

/// Returns the rating R: 93.2 for G.711 without loss and delay.
pub fn rating(codec: Codec, loss_share: f64, burst_ratio: f64, delay_ms: f64) -> f64 {
    RO - IS - delay_impairment(delay_ms) - codec.effective_impairment(loss_share, burst_ratio)
}

/// Returns the mean opinion score of a rating, 1 to 4.5 (G.107 annex B).
pub fn mean_opinion_score(rating: f64) -> f64 {
    let r = rating.clamp(0.0, 100.0);
    // Below 6.5 the polynomial falls under 1.
    (1.0 + 0.035 * r + r * (r - 60.0) * (100.0 - r) * 7e-6).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_near(value: f64, expected: f64, tolerance: f64) {
        assert!((value - expected).abs() <= tolerance, "{value}, expected {expected}");
    }

    #[test]
    fn the_default_values_give_the_published_rating_and_score() {
        let r = rating(Codec::G711, 0.0, 1.0, 0.0);
        assert_near(r, 93.2, 0.05);
        assert_near(mean_opinion_score(r), 4.41, 0.005);
    }

    /// G.107 annex B, table B.1: the limits of the categories.
    #[test]
    fn category_limits_have_the_published_scores() {
        for (r, score) in [(90.0, 4.34), (80.0, 4.03), (70.0, 3.60), (60.0, 3.10), (50.0, 2.58)] {
            assert_near(mean_opinion_score(r), score, 0.01);
        }
        assert_near(mean_opinion_score(-10.0), 1.0, 0.0);
        assert_near(mean_opinion_score(100.0), 4.5, 0.0);
    }

    #[test]
    fn impairments_match_manual_calculation() {
        assert_near(Codec::G711.effective_impairment(0.01, 1.0), 95.0 / 5.3, 1e-9);
        assert_near(Codec::G711_PLC.effective_impairment(0.01, 1.0), 95.0 / 26.1, 1e-9);
        assert_near(Codec::G729A.effective_impairment(0.02, 1.0), 11.0 + 84.0 * 2.0 / 21.0, 1e-9);
        assert_near(Codec::G729A.effective_impairment(0.0, 1.0), 11.0, 0.0);
        assert_near(absolute_delay(100.0), 0.0, 0.0);
        assert_near(absolute_delay(200.0), 3.044, 0.001);
        assert_near(absolute_delay(400.0), 24.07, 0.02);
    }

    #[test]
    fn more_loss_longer_bursts_and_more_delay_are_never_better() {
        for codec in [Codec::G711, Codec::G711_PLC, Codec::G729A] {
            for burst_ratio in [1.0, 2.0] {
                let mut previous = f64::INFINITY;
                for loss_permille in 0..=1_000 {
                    let r = rating(codec, f64::from(loss_permille) / 1_000.0, burst_ratio, 50.0);
                    assert!(r <= previous, "{codec:?} {loss_permille}");
                    previous = r;
                }
            }
            let (mut rating_before, mut score_before) = (f64::INFINITY, f64::INFINITY);
            for delay_fifths in 0..5_000 {
                let r = rating(codec, 0.0, 1.0, f64::from(delay_fifths) / 5.0);
                assert!(r <= rating_before + 1e-9, "{codec:?} {delay_fifths}: {r} {rating_before}");
                assert!(mean_opinion_score(r) <= score_before + 1e-9);
                (rating_before, score_before) = (r, mean_opinion_score(r));
            }
        }
    }
}
