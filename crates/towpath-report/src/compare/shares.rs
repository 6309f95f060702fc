//! Shares of competing transfers: each flow's part, and Jain's fairness index.

use towpath_result::Summary;
use towpath_result::format;
use towpath_result::format::number;
use towpath_result::format::text::{clean, cut};
use towpath_scenario::DataDirection;

use super::{Cell, TableBlock, TableRow, median_cell, missing};
use crate::group::{FlowKey, MedianRange, RunGroup, flow_keys};

/// Maximum number of flows that are named one by one.
const MAX_NAMED_FLOWS: usize = 6;

/// Returns Jain's fairness index of the shares: 1 if all are equal, 1/n if one of n got
/// everything.
///
/// R. Jain, D. Chiu, W. Hawe: *A Quantitative Measure of Fairness and Discrimination for Resource
/// Allocation in Shared Computer Systems*, DEC-TR-301, 1984. `None` if all shares are zero.
pub(crate) fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// Returns the flows of each direction in which at least two transfers ran. Message flows need no
/// more than their pattern requests, so they do not compete.
pub(crate) fn competing_flows(groups: &[RunGroup<'_>]) -> Vec<Vec<FlowKey>> {
    let transfers: Vec<FlowKey> = flow_keys(groups)
        .into_iter()
        .filter(|key| {
            let flows: Vec<_> = groups.iter().flat_map(|group| group.flows(*key)).collect();
            flows.iter().all(|flow| flow.messages.is_none()) && is_transfer(groups, key.flow)
        })
        .collect();
    let directions = [DataDirection::Up, DataDirection::Down, DataDirection::Both];
    let transfers_in =
        |direction| transfers.iter().copied().filter(|key| key.direction == direction).collect();
    directions
        .map(transfers_in)
        .into_iter()
        .filter(|flows: &Vec<FlowKey>| flows.len() > 1)
        .collect()
}

/// Returns true if a flow is a bulk transfer. Traffic of arbitrary commands is not compared.
fn is_transfer(groups: &[RunGroup<'_>], flow: u32) -> bool {
    let runs = groups.iter().flat_map(|group| &group.runs);
    let mut flows = runs.clone().flat_map(|run| &run.meta.flows);
    // The loads of `latency` come one after the other.
    if flows.any(|flow| flow.pattern == "latency") {
        return false;
    }
    let mut patterns = runs.flat_map(|run| &run.meta.flows).filter(|f| f.flow == flow);
    patterns.all(|flow| matches!(flow.pattern.as_str(), "bulk" | "iperf"))
}

/// Returns a flow's name: its client host, with the flow number where several flows share the
/// host.
pub(crate) fn flow_name(groups: &[RunGroup<'_>], flow: u32) -> String {
    let flows = || groups.iter().flat_map(|g| &g.runs).flat_map(|run| &run.meta.flows);
    let Some(this) = flows().find(|f| f.flow == flow) else { return format!("flow {flow}") };
    let shared = flows().any(|other| other.flow != flow && other.from == this.from);
    let from = cut(&clean(&this.from), 30);
    if shared { format!("{from}, flow {flow}") } else { from }
}

fn rates(summary: &Summary, flows: &[FlowKey]) -> Option<Vec<f64>> {
    let rate = |key: &FlowKey| {
        let mut summaries = summary.flows.iter();
        summaries.find(|flow| FlowKey::of(flow) == *key).map(|flow| flow.goodput_bps)
    };
    flows.iter().map(rate).collect()
}

/// Returns the share of `flows[index]` in the total rate of `flows`.
fn share(summary: &Summary, flows: &[FlowKey], index: usize) -> Option<f64> {
    let rates = rates(summary, flows)?;
    let sum: f64 = rates.iter().sum();
    rates.get(index).filter(|_| sum > 0.0).map(|rate| rate / sum)
}

/// Returns a sentence such as `Shares: mptcp: greedy 28.9 Mbit/s and modest 18.0 Mbit/s
/// (Jain's index 0.948).`
pub(super) fn headline(groups: &[RunGroup<'_>]) -> Option<String> {
    let competing = competing_flows(groups);
    let [flows] = competing.as_slice() else { return None };
    if flows.len() > MAX_NAMED_FLOWS || flow_keys(groups).len() != flows.len() {
        return None;
    }
    let flow_texts = groups.iter().filter_map(|group| {
        let text_of = |index: usize| {
            let rates_and_shares = group.summaries().filter_map(|summary| {
                Some((*rates(summary, flows)?.get(index)?, share(summary, flows, index)?))
            });
            let rates_and_shares: Vec<(f64, f64)> = rates_and_shares.collect();
            let rate = MedianRange::of(rates_and_shares.iter().map(|(rate, _)| *rate))?.median;
            let share = MedianRange::of(rates_and_shares.iter().map(|(_, share)| *share))?.median;
            let name = flow_name(groups, flows.get(index)?.flow);
            Some(format!("{name} {} ({})", number::rate(rate), number::percent(share)))
        };
        let flow_texts: Option<Vec<String>> = (0..flows.len()).map(text_of).collect();
        let index = MedianRange::of(jain_indices(group, flows))?.median;
        let label = &group.label;
        Some(format!("{label}: {}, Jain\u{2019}s index {index:.3}", format::list(&flow_texts?)))
    });
    let flow_texts: Vec<String> = flow_texts.collect();
    (!flow_texts.is_empty()).then(|| format!("Shares: {}.", flow_texts.join("; ")))
}

fn jain_indices(group: &RunGroup<'_>, flows: &[FlowKey]) -> Vec<f64> {
    group.summaries().filter_map(|summary| jain(&rates(summary, flows)?)).collect()
}

/// Returns a block for each direction in which transfers compete.
pub(super) fn blocks(groups: &[RunGroup<'_>]) -> Vec<TableBlock> {
    let competing = competing_flows(groups);
    let several = competing.len() > 1;
    let block = |flows: &Vec<FlowKey>| {
        let direction_text =
            flows.first().map(|key| super::direction(key.direction)).unwrap_or_default();
        let suffix = if several { format!(", {direction_text}") } else { String::new() };
        TableBlock { title: format!("share of each flow{suffix}"), rows: rows(groups, flows) }
    };
    competing.iter().map(block).collect()
}

fn rows(groups: &[RunGroup<'_>], flows: &[FlowKey]) -> Vec<TableRow> {
    let mut rows: Vec<TableRow> = (0..flows.len().min(MAX_NAMED_FLOWS))
        .map(|index| {
            let name = flows.get(index).map(|key| flow_name(groups, key.flow)).unwrap_or_default();
            let cell = |group: &RunGroup<'_>| {
                let shares: Vec<f64> =
                    group.summaries().filter_map(|summary| share(summary, flows, index)).collect();
                let bar = MedianRange::of(shares.iter().copied()).map(|spread| spread.median);
                Cell { bar, ..median_cell(shares, number::percent) }
            };
            TableRow {
                label: format!("Share of {name}"),
                meaning: "its goodput divided by that of all transfers in this direction",
                cells: groups.iter().map(cell).collect(),
            }
        })
        .collect();
    let index = |group: &RunGroup<'_>| match jain_indices(group, flows).as_slice() {
        [] => missing(),
        indices => median_cell(indices.iter().copied(), |index| format!("{index:.3}")),
    };
    rows.push(TableRow {
        label: "Jain\u{2019}s index".to_owned(),
        meaning: "fairness: 1 if all got the same, 1/n if one of n got everything (Jain, Chiu, \
                  Hawe, 1984)",
        cells: groups.iter().map(index).collect(),
    });
    rows
}

/// Returns a JSON value for each of the transfers that compete in one run.
pub(crate) fn share_values(groups: &[RunGroup<'_>]) -> Vec<serde_json::Value> {
    let summaries = || groups.iter().flat_map(RunGroup::summaries);
    let competing = competing_flows(groups);
    let values_of = |flows: &Vec<FlowKey>| -> Vec<serde_json::Value> {
        let value_of = |(index, key): (usize, &FlowKey), summary: &Summary| {
            let rates = rates(summary, flows)?;
            Some(serde_json::json!({
                "flow": key.flow,
                "direction": super::direction(key.direction),
                "name": flow_name(groups, key.flow),
                "goodput_bps": rates.get(index)?,
                "share": share(summary, flows, index)?,
                "jain": jain(&rates)?,
            }))
        };
        summaries()
            .flat_map(|summary| {
                flows.iter().enumerate().filter_map(move |entry| value_of(entry, summary))
            })
            .collect()
    };
    competing.iter().flat_map(values_of).collect()
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn jains_index_is_1_for_equal_shares_and_1_over_n_for_a_winner() {
        assert_eq!(jain(&[5.0, 5.0, 5.0]), Some(1.0));
        assert_eq!(jain(&[9.0, 0.0, 0.0]), Some(1.0 / 3.0));
        // Jain's own example: 20 % of the users are favoured equally, the others get nothing.
        let favoured = [vec![1.0; 20], vec![0.0; 80]].concat();
        assert!(jain(&favoured).is_some_and(|index| (index - 0.2).abs() < 1e-12));
        assert_eq!(jain(&[0.0, 0.0]), None);
    }
}
