//! Expectations about paths themselves, as datagrams saw them.

use super::{Rank, Unit};
use crate::result::PathFigures;

/// A figure of one path. Of several flows the worst counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfPath {
    /// `udping.lost.PATH`: part of the datagrams that did not come back, 0 to 1.
    Lost,
    /// `udping.p50.PATH` and its kin: seconds from due to back.
    Delay(Rank),
    /// `udping.silence.PATH`: seconds.
    Silence,
}

impl OfPath {
    /// The figure and its path.
    pub(super) fn parse(name: &str) -> Option<(Self, String)> {
        let (figure, path) = name.strip_prefix("udping.")?.split_once('.')?;
        let figure = match figure {
            "lost" => Self::Lost,
            "p50" => Self::Delay(Rank::P50),
            "p99" => Self::Delay(Rank::P99),
            "max" => Self::Delay(Rank::Max),
            "silence" => Self::Silence,
            _ => return None,
        };
        (!path.is_empty()).then(|| (figure, path.to_owned()))
    }

    pub(super) fn unit(self) -> Unit {
        match self {
            Self::Lost => Unit::Share,
            Self::Delay(_) | Self::Silence => Unit::Time,
        }
    }

    pub(super) fn value(self, path: &str, paths: &[PathFigures]) -> Option<f64> {
        let of = |figures: &PathFigures| match self {
            Self::Lost => figures.lost() as f64 / figures.count.max(1) as f64,
            Self::Delay(rank) => rank.of(&figures.delay) as f64 / 1e9,
            Self::Silence => figures.silence_ns as f64 / 1e9,
        };
        paths.iter().filter(|figures| figures.path == path).map(of).max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Delays;

    #[test]
    fn a_path_is_judged_by_its_own_datagrams_and_by_the_worst_flow() {
        let figures = |path: &str, answered, silence_ns| PathFigures {
            path: path.into(),
            count: 100,
            answered,
            silence_ns,
            delay: Delays { p50_ns: 30_000_000, max_ns: 3_000_000_000, ..Delays::default() },
            ..PathFigures::default()
        };
        let all =
            [figures("wifi", 90, 7), figures("wifi", 60, 2_000_000_000), figures("lte", 100, 0)];
        let value = |name: &str| {
            let (figure, path) = OfPath::parse(name).unwrap();
            figure.value(&path, &all)
        };
        assert_eq!(value("udping.lost.wifi"), Some(0.4));
        assert_eq!(value("udping.silence.wifi"), Some(2.0));
        assert_eq!(value("udping.p50.lte"), Some(0.03));
        assert_eq!(value("udping.max.lte"), Some(3.0));
        assert_eq!(value("udping.lost.eth"), None);
        for wrong in ["udping.lost", "udping.lost.", "udping.p51.wifi", "lost.wifi"] {
            assert_eq!(OfPath::parse(wrong), None);
        }
    }
}
