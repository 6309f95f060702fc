//! `towpath lab`.

use std::process::{ExitCode, Stdio};

use towpath_linux::{interrupt, sandbox};

use crate::arguments::LabArguments;
use crate::error::CliError;
use crate::inner::{Order, Work, passed_on};
use crate::load::load;

pub(crate) fn lab(arguments: &LabArguments) -> Result<ExitCode, CliError> {
    let scenario = load(&arguments.scenario)?;
    let names: Vec<&str> = scenario.hosts.iter().map(|host| host.name.as_str()).collect();
    let host = match &arguments.host {
        None => 0,
        Some(name) => {
            names.iter().position(|known| known == name).ok_or_else(|| CliError::Unavailable {
                what: format!("`{}` has no host `{name}`", scenario.name),
                hint: format!("its hosts are: {}", names.join(", ")),
            })?
        }
    };
    let command = arguments
        .command
        .iter()
        .map(|word| word.to_str().map(str::to_owned))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| CliError::Unavailable {
            what: "the command is not UTF-8 text".to_owned(),
            hint: "put it into a script and run that".to_owned(),
        })?;
    let order = Order {
        scenario: arguments.scenario.clone(),
        seed: None,
        stacks: Vec::new(),
        backend: arguments.backend,
        work: Work::Lab { host, command },
    };
    interrupt::leave_to_children();
    let mut child = sandbox::spawn(&order.arguments()?, Stdio::inherit(), Stdio::inherit())
        .map_err(CliError::Spawn)?;
    Ok(passed_on(sandbox::wait(&mut child).map_err(CliError::Spawn)?))
}
