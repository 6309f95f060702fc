//! `--stack`: hosts use the kernel's or towpath's TCP and Multipath TCP, instead of the scenario's
//! choice.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use towpath_scenario::{Scenario, StackKind};

use crate::error::CliError;

/// One `--stack`: a stack and its host; `None` means all hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StackChoice {
    pub(crate) own: bool,
    host: Option<String>,
}

impl FromStr for StackChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (stack, host) = match text.split_once(':') {
            Some((stack, host)) => (stack, Some(host.to_owned())),
            None => (text, None),
        };
        match stack {
            "towpath" => Ok(Self { own: true, host }),
            "kernel" => Ok(Self { own: false, host }),
            _ => {
                Err("expected kernel or towpath, or one of them with a host: towpath:server".into())
            }
        }
    }
}

impl fmt::Display for StackChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.own { "towpath" } else { "kernel" })?;
        self.host.iter().try_for_each(|host| write!(f, ":{host}"))
    }
}

/// Sets the requested stacks. Later choices override earlier ones.
pub(crate) fn choose(scenario: &mut Scenario, choices: &[StackChoice]) -> Result<(), CliError> {
    for StackChoice { own, host: host_name } in choices {
        let kind = if *own { StackKind::Towpath } else { StackKind::Kernel };
        let names: Vec<String> = scenario.hosts.iter().map(|host| host.name.clone()).collect();
        if let Some(unknown_host) = host_name.as_ref().filter(|name| !names.contains(name)) {
            return Err(CliError::Unavailable {
                what: format!("`{}` has no host `{unknown_host}`", scenario.name),
                hint: format!("its hosts are {}", names.join(", ")),
            });
        }
        let hosts = scenario.hosts.iter_mut();
        for host in hosts.filter(|host| host_name.as_ref().is_none_or(|name| *name == host.name)) {
            host.stack.stack = kind;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use towpath_scenario::no_files;

    use super::*;

    fn uses_towpath_stack(choices: &[&str]) -> Result<Vec<bool>, CliError> {
        let text = "name = \"t\"\n[hosts.a]\n[hosts.b]\n[paths.p]\nbetween = [\"a\", \"b\"]\n\
                    rate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n";
        let mut scenario = Scenario::parse("t.toml", text, &no_files).unwrap();
        let choices: Vec<StackChoice> = choices.iter().map(|text| text.parse().unwrap()).collect();
        choose(&mut scenario, &choices)?;
        Ok(scenario.hosts.iter().map(|host| host.stack.stack == StackKind::Towpath).collect())
    }

    #[test]
    fn a_later_choice_for_one_host_wins_over_one_for_all() {
        assert_eq!(uses_towpath_stack(&["towpath:b"]).unwrap(), [false, true]);
        assert_eq!(uses_towpath_stack(&["towpath", "kernel:a"]).unwrap(), [false, true]);
        assert_eq!(uses_towpath_stack(&[]).unwrap(), [false, false]);
    }

    #[test]
    fn an_unknown_host_or_stack_is_named() {
        let error = uses_towpath_stack(&["towpath:c"]).unwrap_err();
        assert_eq!(error.to_string(), "`t` has no host `c`");
        assert_eq!(error.hint().as_deref(), Some("its hosts are a, b"));
        assert!("windows".parse::<StackChoice>().unwrap_err().contains("towpath:server"));
    }
}
