//! `towpath measure`: measures traffic to a server.

mod arguments;
mod device_run;
mod mobile;
mod plan;
mod servers;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use towpath_live as live;
use towpath_live::protocol::{TestPlan, TransferSettings};
use towpath_live::{LocalBind, MeasureRequest, interfaces_towards, path_name};
use towpath_os::interrupt;
use towpath_report::live_header;
use towpath_result::order;
use towpath_result::store::StoredRun;
use towpath_result::store::write_record;
use towpath_result::{Record, Warning};
use towpath_scenario::{Scenario, Transport, World};

pub(crate) use arguments::MeasureArguments;
pub(crate) use device_run::{DeviceRun, PreparedRun, measure_together};

use crate::error::CliError;
use crate::files::{self, ResultFile, ResultFolder};
use crate::interval_lines::IntervalPrinter;
use crate::live_hosts::read_secret;
use crate::report::{print, store_report};
use crate::ui::Ui;
use crate::upload::Uploader;

use servers::ServerTarget;

pub(crate) fn measure(arguments: &MeasureArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let uploader = Uploader::prepare(&arguments.upload, ui)?;
    measure_all(arguments, uploader.as_ref(), ui)
}

fn measure_all(
    arguments: &MeasureArguments,
    uploader: Option<&Uploader>,
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    let server = servers::server(arguments, ui)?;
    let (targets, source, paths) = resolve_addresses(arguments, &server)?;
    let build_scenario = |udping: bool| plan::scenario(arguments, (&server.host, &paths), udping);
    let scenario = build_scenario(arguments.udping || arguments.is_session())?;
    let secret = arguments.secret_file.as_deref().map(read_secret).transpose()?;
    let transports = prepare(arguments, ui)?;
    let folder = ResultFolder::create(arguments.out.as_deref(), &scenario.name)?;
    interrupt::catch();
    let (mut runs, place) = (Vec::new(), (&folder, uploader));
    let make_request = |scenario: &Scenario, transport, repeat, run_order| {
        Ok::<_, CliError>(MeasureRequest {
            name: server.host.clone(),
            choice: server.choice.clone(),
            session: None,
            targets: targets.clone(),
            source: source.clone(),
            plan: test_plan(arguments, scenario, transport)?,
            scenario: scenario.clone(),
            secret: secret.clone(),
            grant: None,
            server: arguments.server_cert,
            qlog: arguments.qlog.clone(),
            repeat,
            run_order,
            seed: arguments.seed,
            result_timeout: arguments.result_timeout,
            mobile: arguments.mobile,
        })
    };
    if arguments.is_session() {
        // Only the first transport adds the datagrams that measure each path alone.
        let without_udping = build_scenario(false)?;
        let scenario_for = |index: usize| if index == 0 { &scenario } else { &without_udping };
        let make_request =
            |index, transport, repeat| make_request(scenario_for(index), transport, repeat, None);
        return mobile::measure(arguments, (&transports, &make_request), place, ui);
    }
    let schedule = order::run_order(&transports, arguments.repeat, arguments.order, arguments.seed);
    for (repeat, transport, run_order) in &schedule {
        if run_order.position > 1 {
            live::pause(arguments.wait);
        }
        if interrupt::is_interrupted() {
            break;
        }
        let request = make_request(&scenario, *transport, *repeat, Some(*run_order))?;
        match measure_once(arguments, &request, place, &mut |lines| ui.progress_lines(lines)) {
            Ok(run) => runs.push(run),
            // After an interrupt, the error needs no message.
            Err(_) if interrupt::is_interrupted() => break,
            Err(error) if runs.is_empty() => {
                folder.remove_if_empty();
                return Err(error);
            }
            // The earlier runs still deserve a report.
            Err(error) => ui.error(&error),
        }
    }
    if runs.is_empty() {
        folder.remove_if_empty();
        return Ok(ExitCode::from(130));
    }
    conclude(arguments, (&runs, schedule.len()), place, ui)
}

/// Requests real-time priority, and warns if the kernel refuses it.
fn request_priority(ui: &mut Ui) {
    if let Err(error) = live::real_time() {
        ui.warn(&Warning {
            text: format!("real-time priority is not available: {error}"),
            hint: Some("run it as root, or raise the rtprio limit".to_owned()),
        });
    }
}

/// Prints the table, writes the report, uploads the results, and returns the exit code, which
/// depends on the number of planned runs.
fn conclude(
    arguments: &MeasureArguments,
    (runs, planned_runs): (&[StoredRun], usize),
    (folder, uploader): (&ResultFolder, Option<&Uploader>),
    ui: &mut Ui,
) -> Result<ExitCode, CliError> {
    print(runs, arguments.json, ui)?;
    if arguments.quiet {
        warn_of_unchecked_certificate(runs, ui);
    }
    let report = store_report(runs, folder)?;
    ui.progress(&format!("results: {}", folder.path.display()));
    ui.progress(&format!("report:  {}", report.display()));
    if let Some(uploader) = uploader {
        uploader.upload_runs(runs, folder, ui);
    }
    Ok(exit_code(arguments, runs, runs.len() == planned_runs, ui))
}

/// Warns if the server's certificate was not checked. Without `--quiet`, every run prints it.
fn warn_of_unchecked_certificate(runs: &[StoredRun], ui: &mut Ui) {
    let certificates = runs.iter().filter_map(|run| run.meta.conditions.get("server certificate"));
    if let Some(certificate) = certificates.into_iter().find(|text| text.contains("not checked")) {
        ui.warn(&Warning {
            text: format!("the server's certificate was not checked: {certificate}"),
            hint: Some("require it with --server-cert".to_owned()),
        });
    }
}

/// Resolves the server's addresses, the source addresses and the names of the paths.
fn resolve_addresses(
    arguments: &MeasureArguments,
    server: &ServerTarget,
) -> Result<(Vec<SocketAddr>, LocalBind, Vec<String>), CliError> {
    let host = &server.host;
    let no_address = |reason: String| CliError::Unavailable {
        what: format!("`{host}` has {reason}"),
        hint: "give a host or an address, and its port with -p".to_owned(),
    };
    let resolved = servers::addresses(server, arguments).map_err(no_address)?;
    let mut source = LocalBind::default();
    if let Some(bind) = &arguments.bind {
        let (address, interface) = match bind.split_once('%') {
            Some((address, interface)) => (address, Some(interface.to_owned())),
            None => (bind.as_str(), None),
        };
        source.interface = interface;
        if !address.is_empty() {
            let parsed = address.parse::<IpAddr>().map_err(|_| CliError::Unavailable {
                what: format!("`-B {bind}` is not a valid address"),
                hint: "give an address of this host, `%interface`, or both: `10.0.0.1%eth0`"
                    .to_owned(),
            })?;
            source.address = Some(parsed);
        }
    }
    let has_family = |target: &SocketAddr| {
        source.address.is_none_or(|source_address| source_address.is_ipv4() == target.is_ipv4())
    };
    let targets: Vec<_> = resolved.into_iter().filter(has_family).collect();
    let Some(first_target) = targets.first() else {
        return Err(no_address("no address of this family".to_owned()));
    };
    let interfaces = interfaces_towards(first_target.ip(), source.address).unwrap_or_default();
    let mut paths: Vec<String> = Vec::new();
    for name in source.interface.iter().chain(interfaces.iter().map(|interface| &interface.name)) {
        let name = path_name(name);
        if !paths.contains(&name) {
            paths.push(name);
        }
    }
    if paths.is_empty() {
        paths.push("unknown".to_owned());
    }
    Ok((targets, source, paths))
}

/// Returns true if TLS wraps the transport because the server must present a certificate.
fn is_pinned(arguments: &MeasureArguments, transport: Transport) -> bool {
    arguments.server_cert.is_some() && matches!(transport, Transport::Tcp | Transport::Mptcp)
}

/// Requests priority. For a pinned certificate, says that TLS is added, or rejects options that TLS
/// excludes. Returns the transports without duplicates.
fn prepare(arguments: &MeasureArguments, ui: &mut Ui) -> Result<Vec<Transport>, CliError> {
    let transports = plan::unique(arguments.transports());
    if arguments.rt {
        request_priority(ui);
    }
    let pinned_transports: Vec<_> = transports
        .iter()
        .filter(|transport| is_pinned(arguments, **transport))
        .map(ToString::to_string)
        .collect();
    if pinned_transports.is_empty() || arguments.tls {
        return Ok(transports);
    }
    let transport_names = pinned_transports.join(" and ");
    if arguments.skip_rx_copy {
        return Err(CliError::Unavailable {
            what: format!(
                "--server-cert uses TLS for {transport_names}, which excludes --skip-rx-copy"
            ),
            hint: "omit one of them".to_owned(),
        });
    }
    ui.progress(&format!("--server-cert uses TLS for {transport_names}, as with --tls"));
    Ok(transports)
}

fn test_plan(
    arguments: &MeasureArguments,
    scenario: &Scenario,
    transport: Transport,
) -> Result<TestPlan, CliError> {
    let to_u32 = |value: Option<u64>, flag: &str| {
        value.map(u32::try_from).transpose().map_err(|_| CliError::Unavailable {
            what: format!("{flag} is too large"),
            hint: "the limit is 4 GB".to_owned(),
        })
    };
    // For datagrams these options are keys of the flow.
    let is_stream = !arguments.sends_datagrams();
    let settings = TransferSettings {
        block_bytes: to_u32(arguments.length.filter(|_| is_stream), "-l")?,
        window_bytes: to_u32(arguments.window, "-w")?,
        rate_bps: arguments.bitrate.filter(|_| is_stream).map(towpath_net::Rate::as_bps),
        congestion_control: arguments.congestion.clone(),
        discard: arguments.skip_rx_copy,
        tls: arguments.tls || is_pinned(arguments, transport),
    };
    Ok(TestPlan { scenario: scenario.source.clone(), transport, settings })
}

/// Makes one run, and prints its progress. Stores it as [`measure_and_store`] does.
///
/// `say` prints lines of progress.
fn measure_once(
    arguments: &MeasureArguments,
    request: &MeasureRequest,
    (folder, uploader): (&ResultFolder, Option<&Uploader>),
    say: &mut (dyn FnMut(Vec<String>) + Send),
) -> Result<StoredRun, CliError> {
    let transport = request.plan.transport;
    if !arguments.quiet {
        let description = &request.scenario.description;
        let title = format!("{description} over {transport}, run {}", request.repeat);
        say(vec![String::new(), title]);
        say(split_lines(&live_header()));
    }
    let mut live = IntervalPrinter::every(arguments.interval, transport);
    let mut live_feed = uploader.map(Uploader::live_feed);
    let run = measure_and_store(request, folder, &mut |record| {
        if let Record::Meta(meta) = record
            && let Some(fingerprint) = meta.conditions.get("server certificate")
            && !arguments.quiet
        {
            say(vec![format!("server certificate {fingerprint}")]);
        }
        if let Some(page) = live_feed.as_mut().and_then(|feed| feed.push(record)) {
            say(vec![format!("live: {page}")]);
        }
        if let Some(lines) = live.push(record).filter(|_| !arguments.quiet) {
            say(split_lines(&lines));
        }
    })?;
    if let Some(lines) = live.flush_rest().filter(|_| !arguments.quiet) {
        say(split_lines(&lines));
    }
    Ok(run)
}

/// Makes one run. Records are on disk during the run, and sorted after its end.
///
/// `on_record` receives the conditions first, then live records of this host.
fn measure_and_store(
    request: &MeasureRequest,
    folder: &ResultFolder,
    on_record: &mut (dyn FnMut(&Record) + Send),
) -> Result<StoredRun, CliError> {
    let name = format!("{}-{}-{}", World::Live, request.plan.transport, request.repeat);
    let mut file: Option<ResultFile<'_>> = None;
    let mut first_error = None;
    let records = live::measure(request, &mut |record| {
        let mut store = || -> Result<(), CliError> {
            let file = match &mut file {
                Some(file) => file,
                empty => empty.insert(folder.begin(&name)?),
            };
            file.add(&json_lines(&[record])?)
        };
        if first_error.is_none() {
            first_error = store().err();
        }
        on_record(record);
    })?;
    if let Some(error) = first_error {
        return Err(error);
    }
    let mut file = match file {
        Some(file) => file,
        None => folder.begin(&name)?,
    };
    file.replace(json_lines(&records.iter().collect::<Vec<_>>())?.as_bytes())?;
    files::read_back(&file.finish()?)
}

fn split_lines(block: &str) -> Vec<String> {
    block.lines().map(str::to_owned).collect()
}

fn json_lines(records: &[&Record]) -> Result<String, CliError> {
    let mut lines = Vec::new();
    for record in records {
        write_record(&mut lines, record).map_err(CliError::Print)?;
    }
    Ok(String::from_utf8_lossy(&lines).into_owned())
}

/// Returns 0 when all planned runs completed and every expectation passed.
fn exit_code(
    arguments: &MeasureArguments,
    runs: &[StoredRun],
    complete: bool,
    ui: &mut Ui,
) -> ExitCode {
    let mut passed = complete;
    for run in runs {
        let Some(summary) = &run.summary else {
            passed = false;
            continue;
        };
        passed &= summary.ok;
        let multipath = &summary.multipath;
        let Some(min_paths) = arguments.require_multipath else { continue };
        if !multipath.used || multipath.paths_used.len() < min_paths {
            passed = false;
            let paths_used = multipath.paths_used.join(", ");
            let transport = run.meta.transport;
            let text = match (multipath.requested, &multipath.fallback) {
                (false, _) => format!("{transport} is not a multipath transport"),
                (true, Some(_)) if multipath.is_partly_used() => {
                    let unused = multipath.unused_flows();
                    let names: Vec<_> =
                        unused.iter().map(towpath_result::UnusedFlows::names).collect();
                    let reason = unused.first().map(|group| group.reason).unwrap_or_default();
                    format!("{transport} was not used by {}: {reason}", names.join(" and "))
                }
                (true, Some(reason)) => format!("{transport} was not used: {reason}"),
                (true, None) => {
                    format!("{min_paths} paths are required, but data used: {paths_used}")
                }
            };
            ui.warn(&Warning { text, hint: Some("--require-multipath was given".to_owned()) });
        }
    }
    if interrupt::is_interrupted() {
        ExitCode::from(130)
    } else if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}
