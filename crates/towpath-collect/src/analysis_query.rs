//! Query of an analysis: read from an address, and written to one.

use towpath_analysis::{AnalysisFilter, AnalysisSettings};

use crate::filter::push;

/// Maximum length of a value in bytes.
const MAX_VALUE_BYTES: usize = 200;
/// Maximum number of values that a curve may need.
pub(crate) const MAX_MIN_RUNS: usize = 1_000_000;

/// Parameter with the name of the test server.
pub(crate) const SERVER: &str = "server";
/// Parameter with the address family.
pub(crate) const FAMILY: &str = "family";
/// Parameter with the port of the server.
pub(crate) const PORT: &str = "port";
/// Parameter with the lowest version.
pub(crate) const MIN_VERSION: &str = "min-version";
/// Parameter with the fewest values of a curve.
pub(crate) const MIN_RUNS: &str = "min-runs";

/// Conditions and settings of an analysis.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct AnalysisQuery {
    pub(crate) filter: AnalysisFilter,
    pub(crate) settings: AnalysisSettings,
}

impl AnalysisQuery {
    /// Reads a query. An empty value counts as absent, as a form sends it.
    ///
    /// Fails with a sentence for people.
    pub(crate) fn parse(pairs: &[(String, String)]) -> Result<Self, String> {
        let mut query = Self::default();
        for (key, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
            if value.len() > MAX_VALUE_BYTES {
                return Err(format!("the value of `{}` is too long", key.escape_debug()));
            }
            let AnalysisFilter { server, family, port, min_version } = &mut query.filter;
            match key.as_str() {
                SERVER => *server = Some(value.clone()),
                FAMILY if matches!(value.as_str(), "ipv4" | "ipv6") => {
                    *family = Some(value.clone());
                }
                FAMILY => return Err("`family` is ipv4 or ipv6".to_owned()),
                PORT => {
                    let number: u16 =
                        value.parse().map_err(|_| "`port` is a number from 0 to 65535")?;
                    *port = Some(number.into());
                }
                MIN_VERSION if value.starts_with(|c: char| c.is_ascii_digit()) => {
                    *min_version = Some(value.clone());
                }
                MIN_VERSION => return Err("`min-version` is a version such as 0.3".to_owned()),
                MIN_RUNS => {
                    let number = value.parse().ok().filter(|number| *number > 0);
                    let number = number.filter(|number| *number <= MAX_MIN_RUNS);
                    query.settings.min_runs = number.ok_or_else(|| {
                        format!("`min-runs` is a number from 1 to {MAX_MIN_RUNS}")
                    })?;
                }
                _ => {
                    return Err(format!(
                        "there is no condition `{}`; there are {SERVER}, {FAMILY}, {PORT}, \
                         {MIN_VERSION} and {MIN_RUNS}",
                        key.escape_debug()
                    ));
                }
            }
        }
        Ok(query)
    }

    /// Returns the query in the form of an address, without the question mark.
    pub(crate) fn query(&self) -> String {
        let AnalysisFilter { server, family, port, min_version } = &self.filter;
        let min_runs = self.settings.min_runs;
        let is_default = min_runs == AnalysisSettings::default().min_runs;
        let mut out = String::new();
        for (key, value) in [
            (SERVER, server.clone()),
            (FAMILY, family.clone()),
            (PORT, port.map(|port| port.to_string())),
            (MIN_VERSION, min_version.clone()),
            (MIN_RUNS, (!is_default).then(|| min_runs.to_string())),
        ] {
            if let Some(value) = value {
                push(&mut out, key, &value);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_query_of_an_analysis_survives_a_round_trip() {
        let conditions = [
            ("server", "lab 3 & <b>"),
            ("family", "ipv6"),
            ("port", "443"),
            ("min-version", "0.3"),
            ("min-runs", "5"),
        ];
        let query = AnalysisQuery::parse(&pairs(&conditions)).unwrap();
        let text = query.query();
        let expected = "server=lab%203%20%26%20%3Cb%3E&family=ipv6&port=443&min-version=0.3&\
                        min-runs=5";
        assert_eq!(text, expected);
        assert_eq!((query.filter.port, query.settings.min_runs), (Some(443), 5));
        let empty = conditions.map(|(key, _)| (key, ""));
        assert_eq!(AnalysisQuery::parse(&pairs(&empty)).unwrap().query(), "");
    }

    #[test]
    fn an_invalid_condition_is_refused_with_the_choices() {
        for (key, value, words) in [
            ("colour", "red", "there are server, family"),
            ("family", "ipv5", "ipv4 or ipv6"),
            ("port", "65536", "from 0 to 65535"),
            ("min-version", "new", "such as 0.3"),
            ("min-runs", "0", "from 1"),
            ("min-runs", "99999999999999999999", "from 1"),
        ] {
            let error = AnalysisQuery::parse(&pairs(&[(key, value)])).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let long = "x".repeat(MAX_VALUE_BYTES + 1);
        assert!(AnalysisQuery::parse(&pairs(&[("server", &long)])).is_err());
    }
}
