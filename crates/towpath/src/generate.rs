//! `towpath completions` and `towpath man`: shell completions and manual pages, generated from the
//! command line's own definition.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::error::CliError;
use crate::files;
use crate::ui::Ui;

/// Print completions for a shell
///
/// bash: `source <(towpath completions bash)`; zsh: write them to a file `_towpath` in a folder of
/// `$fpath`; fish: `towpath completions fish | source`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// Shell
    #[arg(value_enum)]
    shell: ShellChoice,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ShellChoice {
    Bash,
    Zsh,
    Fish,
}

/// Write manual pages, one for each command
#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// Folder for the pages, such as ~/.local/share/man/man1
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn completions(
    arguments: &CompletionsArguments,
    mut command: Command,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let shell = match arguments.shell {
        ShellChoice::Bash => Shell::Bash,
        ShellChoice::Zsh => Shell::Zsh,
        ShellChoice::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "towpath", &mut text);
    ui.out.write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(
    arguments: &ManArguments,
    command: Command,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let folder = files::folder(&arguments.out)?;
    let mut root_command = command.disable_help_subcommand(true);
    root_command.build();
    let mut pages = Vec::new();
    render_pages(&root_command, "towpath", &mut pages)?;
    for (name, page) in &pages {
        files::write_in(&folder, &format!("{name}.1"), page)?;
    }
    ui.progress(&format!("{} pages in {}", pages.len(), arguments.out.display()));
    Ok(ExitCode::SUCCESS)
}

/// Renders the pages of a command and of its subcommands.
fn render_pages(
    command: &Command,
    name: &str,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), CliError> {
    let mut page = Vec::new();
    Man::new(command.clone()).title(name).render(&mut page)?;
    pages.push((name.to_owned(), page));
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        render_pages(verb, &format!("{name}-{}", verb.get_name()), pages)?;
    }
    Ok(())
}
