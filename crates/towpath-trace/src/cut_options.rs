//! Connections whose options the snap length cut off.
//!
//! Without the options, a segment may belong to plain TCP or to a subflow, and data numbers and
//! joins are unknown. Each TCP connection is then tracked by itself, with its subflow's sequence
//! numbers as data.

use towpath_wire::Flags;

use super::connection::{CutCounts, REMOVED_SUBFLOW};
use super::layers::CutOptions;
use super::tracker::{LocatedSegment, Tracker};

impl Tracker {
    /// Counts what a segment of a connection with cut options shows. The first such segment makes
    /// the subflow a connection of its own.
    pub(super) fn on_cut_options(&mut self, located: &LocatedSegment<'_>) {
        if located.cut.is_none() && !self.has_cut_options(located.subflow) {
            return;
        }
        self.cut_packets += u64::from(located.cut.is_some());
        // A subflow may also join a connection whose options were cut before.
        let is_first = self.subflows.get(located.subflow).is_some_and(|s| s.number == 0);
        if !is_first || !self.has_cut_options(located.subflow) {
            self.separate(located);
        }
        let is_syn = located.segment.flags.contains(Flags::SYN);
        let has_payload = located.segment.payload_bytes > 0;
        let is_multipath = located.options.dss.is_some()
            || !located.options.mptcp.is_empty()
            || matches!(located.cut, Some(CutOptions::Multipath(_)));
        let Some((_, connection)) = self.subflow_and_connection(located.subflow) else { return };
        connection.multipath |= is_multipath;
        let counts = connection.cut.get_or_insert_default();
        match (is_multipath, located.cut) {
            (true, _) if !is_syn => counts.multipath += 1,
            (true, _) => {}
            (false, Some(_)) => counts.unknown += u64::from(has_payload && !is_syn),
            (false, None) => counts.plain += u64::from(has_payload && !is_syn),
        }
    }

    /// Returns true if options of this subflow's connection were cut.
    pub(super) fn has_cut_options(&self, subflow: usize) -> bool {
        let connection = self.subflows.get(subflow).and_then(|subflow| subflow.connection);
        connection
            .and_then(|index| self.connections.get(index as usize))
            .is_some_and(|connection| connection.cut.is_some())
    }

    /// Removes a subflow from its connection. The others keep their numbers until
    /// [`Tracker::close_gaps`].
    fn detach(&mut self, subflow: usize, connection: usize) {
        let (Some(subflow), Some(state)) =
            (self.subflows.get(subflow), self.connections.get_mut(connection))
        else {
            return;
        };
        if let Some(index) = state.subflows.get_mut(usize::from(subflow.number)) {
            *index = REMOVED_SUBFLOW;
        }
        for end in subflow.ends {
            let count = self.address_counts.entry((connection as u32, end.ip())).or_default();
            *count = count.saturating_sub(1);
        }
        while state.subflows.last() == Some(&REMOVED_SUBFLOW) {
            state.subflows.pop();
        }
    }

    /// Renumbers the subflows of connections from which some were removed, in their order.
    pub(super) fn close_gaps(&mut self) {
        for connection in &mut self.connections {
            if !connection.subflows.contains(&REMOVED_SUBFLOW) {
                continue;
            }
            // New number of each old one; that of a removed subflow is its successor's.
            let mut numbers: Vec<u16> = Vec::with_capacity(connection.subflows.len());
            let mut next = 0;
            for index in &connection.subflows {
                numbers.push(next);
                next += u16::from(*index != REMOVED_SUBFLOW);
            }
            let renumber = |number: &mut u16| {
                *number = numbers.get(usize::from(*number)).copied().unwrap_or(*number);
            };
            connection.subflows.retain(|index| *index != REMOVED_SUBFLOW);
            connection.notes.iter_mut().for_each(|(note, _)| renumber(&mut note.subflow));
            for data in &mut connection.data {
                data.sequence.marks_mut().for_each(|mark| renumber(&mut mark.subflow));
            }
            for index in &connection.subflows {
                let Some(subflow) = self.subflows.get_mut(*index as usize) else { continue };
                renumber(&mut subflow.number);
                for direction in &mut subflow.directions {
                    let bins = direction.sender.series.bins_mut();
                    bins.filter_map(|bin| bin.blocked_by.as_mut()).for_each(renumber);
                }
            }
        }
    }

    /// Makes a subflow a connection of its own, because its mappings are unknown.
    fn separate(&mut self, located: &LocatedSegment<'_>) {
        let Some(subflow) = self.subflows.get_mut(located.subflow) else { return };
        let is_join = subflow.is_join;
        let connection = match subflow.connection {
            Some(connection) if subflow.number == 0 => connection as usize,
            Some(shared) => {
                subflow.connection = None;
                self.detach(located.subflow, shared as usize);
                self.connect(located.subflow, located.now_ns)
            }
            None => self.connect(located.subflow, located.now_ns),
        };
        if let Some(state) = self.connections.get_mut(connection) {
            state.cut = Some(CutCounts::default());
            state.multipath |= is_join;
        }
        self.fall_back(connection, located.subflow, None, located.now_ns);
    }
}
