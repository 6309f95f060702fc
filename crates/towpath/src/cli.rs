//! The command line as a whole, as a clap type. Each verb defines its own arguments; their doc
//! comments are the help texts.

use clap::{Parser, Subcommand};

use crate::agent::AgentArguments;
use crate::compare::CompareArguments;
use crate::generate::{CompletionsArguments, ManArguments};
use crate::report::ReportArguments;
use crate::reproduce::ReproduceArguments;
use crate::run::RunArguments;
use crate::scenarios::{ScenariosArguments, SchemaArguments};
use crate::sweep::SweepArguments;
use crate::trace::TraceArguments;
use crate::upload::UploadVerbArguments;
#[cfg(target_os = "linux")]
use crate::{
    check::CheckArguments,
    collect::CollectArguments,
    doctor::DoctorArguments,
    exec::ExecArguments,
    lab::{LabArguments, OnArguments},
    measure::MeasureArguments,
    monitor::MonitorArguments,
    server::ServerArguments,
    setup::SetupArguments,
};

/// Shows what multipath transport does to real traffic
///
/// A scenario file describes hosts, paths, events and traffic. Towpath runs it over TCP, Multipath
/// TCP, QUIC and Multipath QUIC: simulated, over real kernels in an emulated network without root,
/// or between two hosts. It reports what every subflow did.
#[derive(Debug, Parser)]
#[command(version = env!("VERSION_WITH_COMMIT"), max_term_width = 100)]
pub(crate) struct Arguments {
    /// Ignore the configuration file (`~/.config/towpath/config.toml`)
    #[arg(long, global = true)]
    pub(crate) no_config: bool,
    #[command(subcommand)]
    pub(crate) verb: Command,
}

impl Arguments {
    /// Records options that came from the configuration file, for a result's conditions.
    pub(crate) fn configure(&mut self, defaults: Vec<String>) {
        if let Command::Run(arguments) = &mut self.verb {
            arguments.how.changes.defaults = defaults;
        } else if let Command::Compare(arguments) = &mut self.verb {
            arguments.how.changes.defaults = defaults;
        } else {
            #[cfg(target_os = "linux")]
            if let Command::Measure(arguments) = &mut self.verb {
                arguments.defaults = defaults;
            }
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArguments),
    Compare(CompareArguments),
    Sweep(SweepArguments),
    Reproduce(ReproduceArguments),
    #[cfg(target_os = "linux")]
    Lab(LabArguments),
    #[cfg(target_os = "linux")]
    On(OnArguments),
    #[cfg(target_os = "linux")]
    Setup(SetupArguments),
    #[cfg(target_os = "linux")]
    Exec(ExecArguments),
    #[cfg(target_os = "linux")]
    Server(ServerArguments),
    #[cfg(target_os = "linux")]
    Measure(Box<MeasureArguments>),
    #[cfg(target_os = "linux")]
    Check(CheckArguments),
    #[cfg(target_os = "linux")]
    Doctor(DoctorArguments),
    #[cfg(target_os = "linux")]
    Monitor(MonitorArguments),
    #[cfg(target_os = "linux")]
    Collect(CollectArguments),
    Upload(UploadVerbArguments),
    Agent(AgentArguments),
    Report(ReportArguments),
    Trace(TraceArguments),
    Scenarios(ScenariosArguments),
    Schema(SchemaArguments),
    Completions(CompletionsArguments),
    Man(ManArguments),
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use clap::{Command, CommandFactory};

    use super::*;

    /// Returns the long options of each letter, over all commands.
    fn short_options(command: &Command, names_by_letter: &mut BTreeMap<char, BTreeSet<String>>) {
        for argument in command.get_arguments() {
            let letters = argument.get_short_and_visible_aliases().unwrap_or_default();
            for letter in
                letters.into_iter().chain(argument.get_all_short_aliases().unwrap_or_default())
            {
                let name = argument.get_long().unwrap_or_default().to_owned();
                names_by_letter.entry(letter).or_default().insert(name);
            }
        }
        command.get_subcommands().for_each(|verb| short_options(verb, names_by_letter));
    }

    #[test]
    fn a_short_option_means_the_same_in_every_subcommand() {
        let mut command = Arguments::command();
        command.build();
        let mut names_by_letter = BTreeMap::new();
        short_options(&command, &mut names_by_letter);
        for (letter, names) in &names_by_letter {
            assert_eq!(names.len(), 1, "-{letter} is {names:?}");
        }
        // Letters that iperf3 also has keep iperf3's meaning.
        let iperf3 = [
            ('p', "port"),
            ('i', "interval"),
            ('B', "bind"),
            ('t', "duration"),
            ('n', "bytes"),
            ('b', "bitrate"),
            ('P', "parallel"),
            ('R', "reverse"),
            ('l', "length"),
            ('w', "window"),
            ('C', "congestion-control"),
            ('J', "json"),
            ('1', "once"),
        ];
        for (letter, name) in iperf3 {
            assert!(
                names_by_letter[&letter].contains(name),
                "-{letter} is {:?}",
                names_by_letter[&letter]
            );
        }
        let page = include_str!("../../../docs/reference/command-line.md");
        for (letter, names) in names_by_letter.iter().filter(|(letter, _)| !"hV".contains(**letter))
        {
            for name in names {
                let (letter, name) = (format!("`-{letter}`"), format!("`--{name}`"));
                let row = |line: &str| line.contains(&letter) && line.contains(&name);
                assert!(
                    page.lines().any(row),
                    "docs/reference/command-line.md has no {letter}, {name}"
                );
            }
        }
    }

    #[test]
    fn the_reference_lists_all_choices() {
        let page = towpath_scenario::reference_markdown();
        let [schedulers, managers, controls] = towpath_sim::known_names();
        let quic_controls = ["newreno", "noq-cubic", "bbr"];
        for (key, names) in [
            ("scheduler", &schedulers[..]),
            ("path-manager", &managers),
            ("congestion-control", &controls),
            ("quic-congestion-control", &quic_controls),
        ] {
            let start = format!("| `{key}` |");
            let rows: Vec<_> = page.lines().filter(|line| line.starts_with(&start)).collect();
            for name in names {
                let name = format!("`{name}`");
                assert!(rows.iter().any(|row| row.contains(&name)), "{key}: no {name}");
            }
        }
    }
}
