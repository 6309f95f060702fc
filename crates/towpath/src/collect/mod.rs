//! `towpath collect`: the arguments of the collector. Only builds with the feature `collect`
//! contain the collector itself.

mod analyse;
#[cfg(feature = "collect")]
mod audit;
#[cfg(feature = "collect")]
mod campaigns;
#[cfg(feature = "collect")]
mod devices;
mod diff;
#[cfg(feature = "collect")]
mod server;
#[cfg(feature = "collect")]
mod servers;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::amounts;
use crate::error::CliError;
use crate::ui::Ui;

/// Receive, store and show the results of many hosts
///
/// The collector keeps everything in one folder. Hosts send results with the option `--to` of
/// `towpath run` and other commands, or with `towpath upload`.
#[derive(Debug, Args)]
pub(crate) struct CollectArguments {
    #[command(subcommand)]
    command: CollectCommand,
}

#[derive(Debug, Subcommand)]
enum CollectCommand {
    Serve(ServeArguments),
    Login(LoginArguments),
    Backup(BackupArguments),
    Restore(RestoreArguments),
    Purge(PurgeArguments),
    Export(ExportArguments),
    Analyse(analyse::AnalyseArguments),
    Audit(AuditArguments),
    Diff(diff::DiffArguments),
    /// Create, list or revoke the tokens that allow access
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Invite, list or revoke the devices of volunteers
    Device {
        #[command(subcommand)]
        command: DeviceCommand,
    },
    /// Create, show, pause or end campaigns, which are measurements on devices
    Campaign {
        #[command(subcommand)]
        command: CampaignCommand,
    },
    /// List the test servers of devices
    Server {
        #[command(subcommand)]
        command: TestServerCommand,
    },
    /// Show or change the text that owners of devices accept
    Consent {
        #[command(subcommand)]
        command: ConsentCommand,
    },
}

/// Places of the collector's data.
#[derive(Debug, Args)]
struct StoreArguments {
    /// Folder of the collector, which is created if necessary
    #[arg(long, value_name = "DIR", default_value = "towpath-collector")]
    dir: PathBuf,
    /// Address of a PostgreSQL database for the catalogue, such as
    /// `postgres://towpath@localhost/towpath` [default: SQLite in the folder]
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// S3-compatible storage for the records, with keys from the environment, such as
    /// `s3://BUCKET/PREFIX` [default: files in the folder]
    #[arg(long, value_name = "URL")]
    objects: Option<String>,
}

/// Serve the collector's pages and receive uploads
///
/// Only this host can reach the collector, unless `--listen` names another address. Reading
/// runs needs a token, unless `--public` is given.
#[derive(Debug, Args)]
struct ServeArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7080")]
    listen: SocketAddr,
    /// Address by which browsers reach the collector, such as `https://towpath.example.org`
    /// [default: that of `--listen`]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Let every client read all runs
    #[arg(long)]
    public: bool,
    /// Time after which devices ask for campaigns again, from 1 s
    #[arg(long, value_name = "TIME", default_value = "5 min", value_parser = poll_interval)]
    poll: Duration,
}

/// Print a link that logs a browser in
///
/// The link works once, within ten minutes.
#[derive(Debug, Args)]
struct LoginArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Role of the browser
    #[arg(long, value_enum, default_value = "admin")]
    role: TokenRole,
}

/// Save all runs and tokens in a folder
///
/// The collector may run meanwhile. A backup into the same folder writes only the records of new
/// runs, and removes those of runs that the collector no longer has.
#[derive(Debug, Args)]
struct BackupArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Folder for the backup
    #[arg(value_name = "BACKUP")]
    target: PathBuf,
}

/// Add all runs and tokens of a backup
///
/// Runs that the collector has already are left as they are. The database may be another one than
/// that of the backup.
#[derive(Debug, Args)]
struct RestoreArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Folder of the backup
    #[arg(value_name = "BACKUP")]
    source: PathBuf,
}

/// Remove old runs
#[derive(Debug, Args)]
struct PurgeArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Age above which runs are removed, such as `90d`, `12h` or `"90 days"`
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Duration,
    /// Print the number of runs, and remove none
    #[arg(long)]
    dry_run: bool,
}

/// Write runs as tables for other programs, or the results of a campaign
///
/// Each table is one file: `runs.parquet` has a row for each run; the others, such as
/// `subflows.parquet`, have the records of all runs, with the run's identifier in each row.
#[derive(Debug, Args)]
struct ExportArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Folder for the tables, in the format Apache Parquet
    #[arg(long, value_name = "DIR", required_unless_present = "results")]
    parquet: Option<PathBuf>,
    /// New folder for the results of a campaign, with one subfolder for each device:
    /// `towpath collect analyse --folder` reads it without the collector
    #[arg(
        long,
        value_name = "DIR",
        requires = "campaign",
        conflicts_with_all = ["parquet", "query", "tables", "anonymous"]
    )]
    results: Option<PathBuf>,
    /// Campaign whose results are written
    #[arg(long, value_name = "NAME", requires = "results")]
    campaign: Option<String>,
    /// Runs to export, as in a page's address: `transport=mptcp&since=2026-11-01` [default: all]
    #[arg(long, value_name = "QUERY", default_value = "", hide_default_value = true)]
    query: String,
    /// Tables to write: `runs`, or a table of `towpath report --csv` [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tables: Vec<String>,
    /// Write one table in which no device can be recognised: each combination of attributes belongs
    /// to at least K devices, from 2
    ///
    /// The table `anonymous-runs.parquet` has no identifiers, names or addresses of devices, and no
    /// verdicts or warnings. Rare attributes become less exact, or are left out. Runs that are still
    /// rare are left out.
    #[arg(
        long,
        value_name = "K",
        conflicts_with = "tables",
        value_parser = clap::value_parser!(u32).range(2..)
    )]
    anonymous: Option<u32>,
}

/// List the actions of administrators
///
/// The log has tokens, devices, consent texts, campaigns, purges, backups and deletions by the
/// owners of devices. Entries cannot be removed.
#[derive(Debug, Args)]
struct AuditArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// First day (UTC), such as `2026-11-28` [default: all]
    #[arg(long, value_name = "DAY")]
    since: Option<String>,
    /// Print JSON, one line for each entry
    #[arg(short = 'J', long)]
    json: bool,
}

/// Reads an age in days or hours.
fn age(text: &str) -> Result<Duration, String> {
    const HOUR: Duration = Duration::from_secs(3_600);
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit.trim() {
        "d" | "day" | "days" => HOUR * 24,
        "h" | "hour" | "hours" => HOUR,
        _ => return Err("expected a number of days or hours, such as `90d`".to_owned()),
    };
    let number = number.parse().map_err(|_| "the number is too large, or missing".to_owned())?;
    unit.checked_mul(number).ok_or_else(|| "the number is too large".to_owned())
}

/// Reads a lifetime in days or hours, which is not zero.
fn lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = age(text)?;
    if lifetime.is_zero() { Err("expected at least `1h`".to_owned()) } else { Ok(lifetime) }
}

/// Reads the interval at which devices ask for campaigns.
fn poll_interval(text: &str) -> Result<Duration, String> {
    const RANGE: RangeInclusive<Duration> =
        Duration::from_secs(1)..=Duration::from_secs(7 * 86_400);
    let interval = amounts::time(text)?;
    if RANGE.contains(&interval) { Ok(interval) } else { Err("expected 1 s to 168 h".to_owned()) }
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    Create(CreateTokenArguments),
    List(ListTokensArguments),
    Revoke(RevokeTokenArguments),
}

/// Create a token and print it
///
/// The token cannot be printed again: the collector stores a hash of it.
#[derive(Debug, Args)]
struct CreateTokenArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Name of the token, such as that of the host that uses it
    #[arg(long)]
    name: String,
    /// Permitted actions
    #[arg(long, value_enum)]
    role: TokenRole,
    /// File for the token, which only this user can read [default: print it]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// List all tokens, without their secrets
#[derive(Debug, Args)]
struct ListTokensArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Print JSON, one line for each token
    #[arg(short = 'J', long)]
    json: bool,
}

/// Revoke a token, and end the sessions of browsers that use it
#[derive(Debug, Args)]
struct RevokeTokenArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Name or identifier of the token
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Debug, Subcommand)]
enum DeviceCommand {
    Invite(InviteDeviceArguments),
    List(ListDevicesArguments),
    Revoke(RevokeDeviceArguments),
}

/// Print a code with which one device can join
///
/// The code works once. The owner of the device has to accept the consent text.
#[derive(Debug, Args)]
struct InviteDeviceArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Name of the device, such as `ada-laptop`
    #[arg(value_name = "NAME")]
    name: String,
    /// Time after which the code expires, such as `7d` or `12h`
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = lifetime)]
    expires: Duration,
}

/// List all devices with their runs and their accepted versions of the consent text
///
/// Invitations that are not used yet follow the devices.
#[derive(Debug, Args)]
struct ListDevicesArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Print JSON, one line for each device and each open invitation
    #[arg(short = 'J', long)]
    json: bool,
}

/// End the access of a device, or an invitation that is not used
///
/// The runs of the device stay.
#[derive(Debug, Args)]
struct RevokeDeviceArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Name of the device, or identifier of its token
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Debug, Subcommand)]
enum CampaignCommand {
    Example(ExampleCampaignArguments),
    Create(CreateCampaignArguments),
    List(ListCampaignsArguments),
    Show(ShowCampaignArguments),
    /// Let devices make no runs until `resume`; they report these runs as missing
    Pause(ChangeCampaignArguments),
    /// Let devices continue with a paused campaign
    Resume(ChangeCampaignArguments),
    /// End a campaign before its time; its results stay
    End(ChangeCampaignArguments),
}

/// Print a campaign to start from
#[derive(Debug, Args)]
struct ExampleCampaignArguments {
    /// Print a campaign for devices that move
    #[arg(long)]
    mobile: bool,
}

/// Check and sign a campaign, and offer it to all devices
///
/// `towpath schema campaign-keys` describes the file. A campaign cannot be changed later.
#[derive(Debug, Args)]
struct CreateCampaignArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// File of the campaign, in TOML
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// List all campaigns
#[derive(Debug, Args)]
struct ListCampaignsArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Print JSON, one line for each campaign
    #[arg(short = 'J', long)]
    json: bool,
}

/// Compare the planned runs of a campaign with the results
///
/// A run counts as stored when its result is here. Runs without one are counted by the reason that
/// the device reports.
#[derive(Debug, Args)]
struct ShowCampaignArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Name of the campaign
    #[arg(value_name = "NAME")]
    name: String,
    /// List each planned run without a result
    #[arg(long)]
    missing: bool,
    /// Print JSON
    #[arg(short = 'J', long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ChangeCampaignArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Name of the campaign
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Debug, Subcommand)]
enum TestServerCommand {
    List(ListTestServersArguments),
}

/// List all test servers with their addresses and their load
///
/// Devices are sent to a server that is up: its last message is less than 90 s old.
#[derive(Debug, Args)]
struct ListTestServersArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Print JSON, one line for each server
    #[arg(short = 'J', long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ConsentCommand {
    Show(ShowConsentArguments),
    Set(SetConsentArguments),
}

/// Print the current consent text, and its version on standard error
#[derive(Debug, Args)]
struct ShowConsentArguments {
    #[command(flatten)]
    store: StoreArguments,
}

/// Store a new version of the consent text
///
/// Results of a device are refused until its owner has accepted the new version.
#[derive(Debug, Args)]
struct SetConsentArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// File with the text in UTF-8, with an empty line between paragraphs
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TokenRole {
    /// Reads all pages and data
    Viewer,
    /// Uploads runs, and reads nothing
    Uploader,
    /// Sends heartbeats of a test server
    Server,
    /// Does everything, which includes tokens
    Admin,
    /// Refused with a hint: a device gets its token when it joins
    #[value(hide = true)]
    Device,
}

pub(crate) fn collect(arguments: &CollectArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    // These need no collector on this host.
    if let CollectCommand::Diff(arguments) = &arguments.command {
        return diff::diff(arguments, ui);
    }
    if let CollectCommand::Analyse(arguments) = &arguments.command
        && analyse::analyse_folder(arguments, ui)?
    {
        return Ok(ExitCode::SUCCESS);
    }
    administer(arguments, ui)
}

#[cfg(feature = "collect")]
fn administer(arguments: &CollectArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    server::administer(arguments, ui)
}

/// Fails: this build has no collector.
#[cfg(not(feature = "collect"))]
fn administer(_arguments: &CollectArguments, _ui: &mut Ui) -> Result<ExitCode, CliError> {
    Err(CliError::Unavailable {
        what: "this build of towpath has no collector".to_owned(),
        hint: "install one that has: `cargo install --path crates/towpath --features collect`"
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_has_a_unit_and_is_not_zero() {
        assert_eq!(lifetime("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(lifetime("12 hours"), Ok(Duration::from_secs(12 * 3_600)));
        for text in ["0d", "0h", "7", "d", "-1d", "99999999999999999999d", ""] {
            assert!(lifetime(text).is_err(), "{text}");
        }
    }

    #[test]
    fn devices_ask_for_campaigns_at_most_once_a_second() {
        assert_eq!(poll_interval("5 min"), Ok(Duration::from_secs(300)));
        assert_eq!(poll_interval("1"), Ok(Duration::from_secs(1)));
        for text in ["0", "999 ms", "-1", "200 h", "soon", ""] {
            assert!(poll_interval(text).is_err(), "{text}");
        }
    }
}
