//! What `towpath collect` does, in builds that contain the collector.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use towpath_collect::{
    AnonymousReport, BucketConfig, CampaignError, CollectError, Role, ServerConfig, Store,
    StoreConfig, interrupt, run_to_end, serve,
};
use towpath_os::clock::unix_us;
use towpath_os::files::{Dir, ReadAccess};
use towpath_result::{Warning, format};

use super::{
    BackupArguments, CollectArguments, CollectCommand, CreateTokenArguments, ExportArguments,
    ListTokensArguments, LoginArguments, PurgeArguments, RestoreArguments, RevokeTokenArguments,
    ServeArguments, StoreArguments, TokenCommand, TokenRole, analyse, audit, campaigns, devices,
    servers,
};
use crate::error::CliError;
use crate::ui::Ui;

/// Maximum length of a token's name, in characters.
const MAX_NAME_CHARS: usize = 60;

pub(super) fn administer(arguments: &CollectArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    match &arguments.command {
        CollectCommand::Serve(arguments) => serve_site(arguments, ui)?,
        CollectCommand::Login(arguments) => login(arguments, ui)?,
        CollectCommand::Backup(arguments) => backup(arguments, ui)?,
        CollectCommand::Restore(arguments) => restore(arguments, ui)?,
        CollectCommand::Diff(_) => {} // does not concern this host
        CollectCommand::Purge(arguments) => purge(arguments, ui)?,
        CollectCommand::Export(arguments) => export(arguments, ui)?,
        CollectCommand::Analyse(arguments) => analyse::analyse(arguments, ui)?,
        CollectCommand::Audit(arguments) => audit::audit(arguments, ui)?,
        CollectCommand::Token { command } => match command {
            TokenCommand::Create(arguments) => create_token(arguments, ui)?,
            TokenCommand::List(arguments) => list_tokens(arguments, ui)?,
            TokenCommand::Revoke(arguments) => revoke_token(arguments, ui)?,
        },
        CollectCommand::Device { command } => devices::administer(command, ui)?,
        CollectCommand::Campaign { command } => campaigns::administer(command, ui)?,
        CollectCommand::Server { command } => servers::administer(command, ui)?,
        CollectCommand::Consent { command } => devices::consent(command, ui)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn serve_site(arguments: &ServeArguments, ui: &mut Ui) -> Result<(), CliError> {
    let url = arguments.url.as_deref();
    if url.is_some_and(|url| !url.starts_with("http://") && !url.starts_with("https://")) {
        return Err(CliError::Unavailable {
            what: "`--url` is not an address".to_owned(),
            hint: "it begins with `https://` or `http://`".to_owned(),
        });
    }
    let is_tls = url.is_some_and(|url| url.starts_with("https://"));
    if !arguments.listen.ip().is_loopback() && !is_tls {
        ui.warn(&Warning {
            text: "other hosts can reach the collector, and tokens cross the network unencrypted"
                .to_owned(),
            hint: Some(
                "put a reverse proxy with TLS in front, and give its address with `--url https://…`"
                    .to_owned(),
            ),
        });
    }
    let store_config = store_config(&arguments.store);
    let config = ServerConfig {
        listen: arguments.listen,
        public_url: arguments.url.clone(),
        public_read: arguments.public,
        poll_interval: arguments.poll,
    };
    towpath_collect::log_to_stderr();
    Ok(run_to_end(async {
        let store = Store::open(&store_config).await?;
        let on_ready = |url: &str| {
            ui.progress(&format!("listening on {url}, data in {}", store_config.dir.display()));
            let dir = dir_option(&arguments.store);
            ui.progress(&format!("hint: `towpath collect login{dir}` prints a link for a browser"));
        };
        serve(store, config, on_ready, interrupt()?).await
    })?)
}

fn login(arguments: &LoginArguments, ui: &mut Ui) -> Result<(), CliError> {
    let role = role(arguments.role)?;
    let link = run_to_end(async {
        let store = Store::open(&store_config(&arguments.store)).await?;
        store.create_login_link(role).await
    })?;
    writeln!(ui.out, "{link}")?;
    Ok(())
}

fn create_token(arguments: &CreateTokenArguments, ui: &mut Ui) -> Result<(), CliError> {
    let name = arguments.name.trim();
    if name.is_empty() || name.chars().count() > MAX_NAME_CHARS {
        return Err(CliError::Unavailable {
            what: format!("a token's name has 1 to {MAX_NAME_CHARS} characters"),
            hint: "use the name of the host, such as `--name lab3`".to_owned(),
        });
    }
    let role = role(arguments.role)?;
    let secret = run_to_end(async {
        let store = Store::open(&store_config(&arguments.store)).await?;
        store.create_token(name, role).await
    })?;
    match &arguments.out {
        Some(path) => write_secret(path, &secret),
        None => Ok(writeln!(ui.out, "{secret}")?),
    }
}

/// Writes a secret to a file that only this user can read.
fn write_secret(path: &Path, secret: &str) -> Result<(), CliError> {
    let write = || {
        let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = Dir::open(parent.unwrap_or(Path::new(".")))?;
        folder.write_durably(name, format!("{secret}\n").as_bytes(), ReadAccess::OwnerOnly)
    };
    write().map_err(|source| CliError::unwritable(path, source, None))
}

fn list_tokens(arguments: &ListTokensArguments, ui: &mut Ui) -> Result<(), CliError> {
    let tokens =
        run_to_end(async { Store::open(&store_config(&arguments.store)).await?.tokens().await })?;
    if !arguments.json {
        writeln!(ui.out, "{:24} {:9} {:28} revoked", "name", "role", "last used")?;
    }
    for token in tokens {
        if arguments.json {
            let line = json!({
                "id": token.id,
                "name": token.name,
                "role": token.role.name(),
                "created_us": token.created_us,
                "used_us": token.used_us,
                "revoked_us": token.revoked_us,
            });
            writeln!(ui.out, "{line}")?;
        } else {
            let (used, revoked) = (date(token.used_us), date(token.revoked_us));
            writeln!(ui.out, "{:24} {:9} {used:28} {revoked}", token.name, token.role)?;
        }
    }
    Ok(())
}

/// Formats a time in microseconds since 1970; `-` for none.
pub(super) fn date(time_us: Option<i64>) -> String {
    match time_us {
        Some(time_us) => format::number::date(time_us.unsigned_abs().saturating_mul(1_000)),
        None => "-".to_owned(),
    }
}

fn revoke_token(arguments: &RevokeTokenArguments, ui: &mut Ui) -> Result<(), CliError> {
    run_to_end(async {
        let store = Store::open(&store_config(&arguments.store)).await?;
        store.revoke_token(&arguments.name).await
    })?;
    ui.progress(&format!("revoked {}", arguments.name));
    Ok(())
}

fn backup(arguments: &BackupArguments, ui: &mut Ui) -> Result<(), CliError> {
    let report = run_to_end(async {
        Store::open(&store_config(&arguments.store)).await?.backup(&arguments.target).await
    })?;
    writeln!(ui.out, "saved {report}")?;
    Ok(())
}

fn restore(arguments: &RestoreArguments, ui: &mut Ui) -> Result<(), CliError> {
    let report = run_to_end(async {
        Store::open(&store_config(&arguments.store)).await?.restore(&arguments.source).await
    })?;
    let skipped = match report.skipped {
        0 => String::new(),
        skipped => format!("; {} already there", format::count(skipped, "run")),
    };
    let withdrawn = match report.withdrawn {
        0 => String::new(),
        withdrawn => {
            format!("; {} left out, deleted by their devices", format::count(withdrawn, "run"))
        }
    };
    writeln!(ui.out, "restored {report}{skipped}{withdrawn}")?;
    Ok(())
}

fn purge(arguments: &PurgeArguments, ui: &mut Ui) -> Result<(), CliError> {
    let age_us = u64::try_from(arguments.older_than.as_micros()).unwrap_or(u64::MAX);
    let before_us = i64::try_from(unix_us().saturating_sub(age_us)).unwrap_or(i64::MAX);
    let report = run_to_end(async {
        let store = Store::open(&store_config(&arguments.store)).await?;
        store.purge(before_us, arguments.dry_run).await
    })?;
    let verb = if arguments.dry_run { "would remove" } else { "removed" };
    writeln!(ui.out, "{verb} {report}")?;
    Ok(())
}

fn export(arguments: &ExportArguments, ui: &mut Ui) -> Result<(), CliError> {
    let ExportArguments { store, parquet, results, campaign, query, tables, anonymous } = arguments;
    let target = match (parquet, results, anonymous) {
        (Some(target), _, Some(devices)) => {
            return export_anonymously(arguments, (target, *devices), ui);
        }
        (Some(target), _, None) => target,
        (None, Some(target), _) => {
            return export_results(store, (target, campaign.as_deref().unwrap_or_default()), ui);
        }
        (None, None, _) => return Ok(()), // the arguments require one of them
    };
    let report = run_to_end(async {
        let store = Store::open(&store_config(store)).await?;
        store.export(target, query, tables).await
    })?;
    let runs = format::count(report.runs, "run");
    writeln!(ui.out, "exported {runs} to {}", target.display())?;
    Ok(())
}

/// Writes the results of a campaign into a new folder.
fn export_results(
    store: &StoreArguments,
    (target, campaign): (&Path, &str),
    ui: &mut Ui,
) -> Result<(), CliError> {
    let report = run_to_end(async {
        let store = Store::open(&store_config(store)).await?;
        let runs = analyse::complete_runs(&store, campaign, ui).await?;
        store.export_results(target, runs.data).await
    })?;
    let runs = format::count(report.runs, "run");
    writeln!(ui.out, "exported {runs} to {}", target.display())?;
    Ok(())
}

fn export_anonymously(
    arguments: &ExportArguments,
    (target, devices): (&Path, u32),
    ui: &mut Ui,
) -> Result<(), CliError> {
    let report = run_to_end(async {
        let store = Store::open(&store_config(&arguments.store)).await?;
        store.export_anonymously(target, &arguments.query, devices as usize).await
    })?;
    let AnonymousReport { runs, generalised, suppressed } = report;
    let devices = format::count(devices.into(), "device");
    ui.progress(&format!("{} with less exact attributes", format::count(generalised, "row")));
    let left_out = format::count(suppressed, "run");
    ui.progress(&format!("{left_out} left out: fewer than {devices} have such runs"));
    let runs = format::count(runs, "run");
    writeln!(ui.out, "exported {runs} to {}", target.display())?;
    Ok(())
}

/// Returns the option that names the collector's folder in a hint; empty for the default.
pub(super) fn dir_option(arguments: &StoreArguments) -> String {
    let dir = &arguments.dir;
    if dir.as_os_str() == "towpath-collector" {
        return String::new();
    }
    format!(" --dir {}", dir.display())
}

pub(super) fn store_config(arguments: &StoreArguments) -> StoreConfig {
    StoreConfig {
        dir: arguments.dir.clone(),
        database: arguments.database.clone(),
        objects: arguments.objects.as_deref().map(BucketConfig::from_env),
    }
}

fn role(choice: TokenRole) -> Result<Role, CliError> {
    match choice {
        TokenRole::Viewer => Ok(Role::Viewer),
        TokenRole::Uploader => Ok(Role::Uploader),
        TokenRole::Server => Ok(Role::Server),
        TokenRole::Admin => Ok(Role::Admin),
        TokenRole::Device => Err(CliError::Unavailable {
            what: "a device gets its token when it joins".to_owned(),
            hint: "`towpath collect device invite NAME` prints a code for it".to_owned(),
        }),
    }
}

impl From<CollectError> for CliError {
    fn from(error: CollectError) -> Self {
        // Mistakes in a campaign have the same layout as those in a scenario.
        if let CollectError::Campaign(CampaignError::Mistakes(errors)) = error {
            return Self::Scenario(errors);
        }
        let hint = error.hint();
        Self::failed(error, hint)
    }
}
