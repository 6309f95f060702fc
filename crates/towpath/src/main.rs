//! The command line of towpath: reads arguments, calls the crates that do the work, prints.
//!
//! Data goes to standard output; progress, `warning:` and `hint:` to standard error. Exit code 0:
//! done; 1: the answer is no; 2: wrong usage or environment.
//!
//! Reading order: [`arguments`], [`run`] (the main job), [`inner`] (the same job inside the
//! namespaces), [`sim`] (the same in virtual time), [`compare`], [`sweep`](mod@sweep),
//! [`reproduce`](mod@reproduce), [`lab`], [`server`], [`measure`] and
//! [`check`] (two real hosts), [`setup`], [`exec`], [`doctor`](mod@doctor), [`monitor`] and
//! [`trace`](mod@trace) (this host), [`report`], [`ui`].

mod arguments;
mod check;
mod compare;
mod doctor;
mod error;
mod exec;
mod files;
mod inner;
mod lab;
mod live;
mod load;
mod measure;
mod monitor;
mod report;
mod reproduce;
mod run;
mod scenarios;
mod server;
mod setup;
mod sim;
mod stacks;
mod sweep;
mod trace;
mod ui;
mod worlds;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Verb};
use crate::error::CliError;
use crate::ui::Ui;

fn main() -> ExitCode {
    let mut ui = Ui::from_environment();
    let mut raw = std::env::args_os().skip(1);
    // The processes of a run are this program again; they are not for people, so not in the help.
    let first = raw.next();
    let stage = first.as_deref().and_then(inner::Stage::parse);
    let done = match stage {
        Some(stage) => inner::stage(stage, raw.next(), &mut ui),
        None if first.is_some_and(|first| first == exec::SUPERVISE) => exec::supervise(raw),
        None => dispatch(Arguments::parse(), &mut ui),
    };
    done.unwrap_or_else(|error| {
        ui.error(&error);
        error.exit_code()
    })
}

fn dispatch(arguments: Arguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    match arguments.verb {
        Verb::Run(arguments) => run::run(&arguments, ui),
        Verb::Compare(arguments) => compare::compare(&arguments, ui),
        Verb::Sweep(arguments) => sweep::sweep(&arguments, ui),
        Verb::Reproduce(arguments) => reproduce::reproduce(&arguments, ui),
        Verb::Lab(arguments) => lab::lab(&arguments, ui),
        Verb::Setup(arguments) => setup::setup(&arguments, ui),
        Verb::Exec(arguments) => exec::exec(&arguments, ui),
        Verb::Server(arguments) => server::server(&arguments, ui),
        Verb::Doctor(arguments) => doctor::doctor(&arguments, ui),
        Verb::Check(arguments) => check::check(&arguments, ui),
        Verb::Measure(arguments) => measure::measure(&arguments, ui),
        Verb::Monitor(arguments) => monitor::monitor(&arguments, ui),
        Verb::Report(arguments) => report::report(&arguments, ui),
        Verb::Trace(arguments) => trace::trace(&arguments, ui),
        Verb::Scenarios(arguments) => scenarios::scenarios(&arguments, ui),
        Verb::Schema(arguments) => scenarios::schema(&arguments, ui),
    }
}
