//! Limits on the number of distinct items in a result. A report keeps a series for each item, so
//! that their number, not the file size, decides its memory use.

use std::collections::BTreeSet;

use towpath_scenario::DataDirection;

use crate::{Record, SequenceView};

/// Maximum number of paths and bottlenecks, by name.
const MAX_PATHS: usize = 2_000;
/// Maximum number of subflows in all directions; also of flows and hosts.
pub const MAX_SUBFLOWS: usize = 20_000;
/// Maximum number of timeline events.
const MAX_EVENTS: usize = 200_000;
/// Maximum number of views in a time–sequence plot; ours have two.
const MAX_VIEWS: usize = 100;
/// Maximum number of detail fields in an event; ours have fewer than twenty.
const MAX_DETAILS: usize = 256;

/// More distinct items than any run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {max} {items}, which no result has")]
pub struct CardinalityError {
    items: &'static str,
    max: usize,
}

/// Distinct items of a result so far.
#[derive(Debug, Default)]
pub struct CardinalityLimiter {
    paths: BTreeSet<String>,
    subflows: BTreeSet<(DataDirection, u32, u32, u32)>,
}

impl CardinalityLimiter {
    /// Adds the names and numbers of a record; fails beyond a limit.
    pub fn add_record(&mut self, record: &Record) -> Result<(), CardinalityError> {
        match record {
            Record::Meta(meta) => {
                check_limit("paths", meta.paths.len(), MAX_PATHS)?;
                check_limit("hosts", meta.hosts.len(), MAX_SUBFLOWS)?;
                check_limit("flows", meta.flows.len(), MAX_SUBFLOWS)?;
                check_limit("planned events", meta.timeline.len(), MAX_EVENTS)
            }
            Record::Subflow(subflow) => {
                let numbers = (subflow.flow, subflow.stream, subflow.subflow);
                self.subflows.insert((subflow.direction, numbers.0, numbers.1, numbers.2));
                check_limit("subflows", self.subflows.len(), MAX_SUBFLOWS)?;
                let blocking_count = subflow
                    .sender_activity
                    .as_ref()
                    .map_or(0, |activity| activity.blocked_by_ns.len());
                check_limit("subflows waited for", blocking_count, MAX_SUBFLOWS)?;
                self.add_path(&subflow.path)
            }
            Record::Link(link) => self.add_path(&link.path),
            Record::Account(account) => {
                check_limit("paths waited for", account.parts.blocked_by.len(), MAX_PATHS)?;
                self.add_path(&account.path)
            }
            Record::Probe(probe) => self.add_path(&probe.path),
            Record::Datagrams(row) => self.add_path(&row.path),
            Record::Event(event) => {
                check_limit("fields of an event", event.detail.len(), MAX_DETAILS)?;
                event.path.as_deref().map_or(Ok(()), |path| self.add_path(path))
            }
            Record::Capture(capture) => {
                check_limit("subflows of a connection", capture.subflows.len(), MAX_SUBFLOWS)
            }
            Record::Sequence(sequence) => {
                check_limit("paths of a sequence", sequence.paths.len(), MAX_SUBFLOWS)?;
                check_limit("views of a sequence", sequence.views.len(), MAX_VIEWS)?;
                let check_marks = |view: &SequenceView| {
                    check_limit("kinds of a view", view.marks.len(), MAX_SUBFLOWS)
                };
                sequence.views.iter().try_for_each(check_marks)
            }
            Record::Summary(summary) => {
                check_limit("flows", summary.flows.len(), MAX_SUBFLOWS)?;
                check_limit("subflows", summary.subflows.len(), MAX_SUBFLOWS)?;
                check_limit("paths", summary.paths.len(), MAX_PATHS)?;
                if let Some(account) = &summary.account {
                    let links = account.links.len() + account.unlimited.len();
                    check_limit("links with an account", links, 2 * MAX_PATHS)?;
                }
                summary.subflows.iter().try_for_each(|subflow| self.add_path(&subflow.path))
            }
            Record::Interval(_)
            | Record::Message(_)
            | Record::Counter(_)
            | Record::Interface(_)
            | Record::Timing(_) => Ok(()),
        }
    }

    fn add_path(&mut self, name: &str) -> Result<(), CardinalityError> {
        if !self.paths.contains(name) {
            self.paths.insert(name.to_owned());
        }
        check_limit("paths", self.paths.len(), MAX_PATHS)
    }
}

fn check_limit(items: &'static str, count: usize, max: usize) -> Result<(), CardinalityError> {
    if count > max { Err(CardinalityError { items, max }) } else { Ok(()) }
}
