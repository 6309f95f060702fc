//! `towpath server`: lets other hosts measure towards this one.

mod registration;

use std::env;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use towpath_live::protocol::{DEFAULT_PORT, ServerLimits};
use towpath_live::{
    Identity, Server, ServerConfig, ServerEvent, load_or_create_identity, read_identity,
};
use towpath_net::Rate;
use towpath_os::interrupt;
use towpath_result::Warning;

use crate::amounts;
use crate::error::CliError;
use crate::live_hosts::read_secret;
use crate::ui::{SafeTerminal, Ui};

use registration::{RegisterArguments, reachable_addresses};

/// Upper bound of lines that wait for a slow reader of the output; further lines are dropped.
const MAX_QUEUED_LINES: usize = 1_024;
/// Timeout for printing the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Accept measurements from other hosts (see `towpath measure`)
///
/// One port serves TCP, Multipath TCP, QUIC and Multipath QUIC over IPv4 and IPv6, for many clients
/// at the same time. Without a secret, any client that reaches the port may measure within the
/// limits.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "one switch each, not a state")]
pub(crate) struct ServerArguments {
    /// Ports
    #[arg(short, long, value_delimiter = ',', value_name = "LIST", default_values_t = [towpath_live::protocol::DEFAULT_PORT])]
    pub(crate) port: Vec<u16>,
    /// Address to listen on [default: all addresses of this host]
    #[arg(short = 'B', long, value_name = "ADDRESS")]
    pub(crate) bind: Option<IpAddr>,
    /// File with a secret that clients must know
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// File with a certificate for QUIC and TLS, in PEM [default: created once and kept]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// File with its private key, in PEM
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Answer `towpath doctor` of any client, not only of clients that know the secret.
    ///
    /// The answer describes the setup of this host. Use it only on networks where every client is
    /// trusted.
    #[arg(long)]
    pub(crate) public_diagnostics: bool,
    /// Let QUIC clients move to another address during a test (connection migration).
    ///
    /// Use it only on networks where every client is trusted: an attacker can then make the server
    /// send packets to a third party.
    #[arg(long)]
    pub(crate) quic_migration: bool,
    /// Maximum number of tests at the same time
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) max_tests: u32,
    /// Maximum duration of a test, such as `60`, `"60 s"` or `"10 min"`
    #[arg(long, value_name = "TIME", default_value = "1 h", value_parser = amounts::time)]
    pub(crate) max_duration: Duration,
    /// Maximum number of bytes of a test, such as `10G` or `"10 GB"` [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = amounts::size)]
    pub(crate) max_bytes: Option<u64>,
    /// Maximum rate of a client in each direction, for all its traffic, such as `100M` or `"100
    /// Mbit/s"` [default: no limit]
    ///
    /// A client is an IPv4 address or an IPv6 /64.
    #[arg(long, value_name = "RATE", value_parser = amounts::rate)]
    pub(crate) max_rate: Option<Rate>,
    /// Memory for all tests and stored results, such as `160M` or `"160 MB"`
    #[arg(long, value_name = "SIZE", default_value = "160M", value_parser = amounts::size)]
    pub(crate) max_memory: u64,
    #[command(flatten)]
    pub(crate) register: RegisterArguments,
    /// End after one test
    #[arg(short = '1', long, alias = "one-off")]
    pub(crate) once: bool,
    /// Print events as JSON, one line per event
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
}

pub(crate) fn server(arguments: &ServerArguments, ui: &mut Ui) -> Result<ExitCode, CliError> {
    let secret = arguments.secret_file.as_deref().map(read_secret).transpose()?;
    let limits = ServerLimits {
        tests: arguments.max_tests as usize,
        duration: arguments.max_duration,
        bytes: arguments.max_bytes,
        rate: arguments.max_rate,
        memory: arguments.max_memory,
        ..ServerLimits::default()
    };
    let access = arguments.register.access();
    let server = Server::open(ServerConfig {
        ports: arguments.port.clone(),
        bind: arguments.bind,
        secret,
        limits,
        once: arguments.once,
        public_diagnostics: arguments.public_diagnostics,
        quic_migration: arguments.quic_migration,
        identity: identity(arguments, ui)?,
        access: access.clone(),
    })?;
    interrupt::catch();
    let as_json = arguments.json;
    for text in server.warnings() {
        let hint =
            Some("only TCP and MPTCP are available; another program may use the port".to_owned());
        ui.warn(&Warning { text: text.clone(), hint });
    }
    print_addresses(&server, as_json, ui)?;
    if access.as_ref().is_none_or(|_| arguments.register.open) || arguments.secret_file.is_some() {
        print_client_command(arguments, &server, ui)?;
    }
    let monitor = match access {
        Some(access) => {
            let server = (&server, arguments.max_tests);
            registration::register(&arguments.register, server, (access, as_json), ui)?
        }
        None => None,
    };
    let (events, printed) = printer(as_json).map_err(CliError::Spawn)?;
    let end_of_events = events.clone();
    let on_event = move |event: ServerEvent| {
        if let Some(monitor) = &monitor {
            monitor.on_event(&event);
        }
        let _ = events.try_send(Some(event));
} // dropped if the receiver lags or is gone
    ;
    server.run(on_event).map_err(CliError::Spawn)?;
    let _ = end_of_events.try_send(None); // dropped if the receiver lags or is gone
    let _ = printed.recv_timeout(FLUSH_TIMEOUT); // gives up after the timeout
    Ok(ExitCode::SUCCESS)
}

/// Prints the listening addresses and the certificate.
fn print_addresses(server: &Server, as_json: bool, ui: &mut Ui) -> Result<(), CliError> {
    let fingerprint = server.fingerprint().map(|fingerprint| format!("sha256:{fingerprint}"));
    for address in server.addresses() {
        let quic = server.has_quic(address.port());
        if as_json {
            let certificate = fingerprint.as_ref().filter(|_| quic);
            let event = json!({
                "event": "listening", "address": address.to_string(), "quic": quic,
                "certificate": certificate,
            });
            writeln!(ui.out, "{event}")?;
            ui.out.flush()?;
        } else {
            let protocols = if quic { "tcp, mptcp, quic and mpquic" } else { "tcp and mptcp" };
            ui.progress(&format!("listening on {address} for {protocols}"));
        }
    }
    if let Some(fingerprint) = fingerprint.filter(|_| !as_json) {
        ui.progress(&format!("certificate {fingerprint}"));
    }
    Ok(())
}

/// Starts a thread that prints until it receives `None`.
///
/// Tests never wait for the reader of the output. The returned receiver is notified after the last
/// line.
fn printer(as_json: bool) -> io::Result<(SyncSender<Option<ServerEvent>>, Receiver<()>)> {
    let (events, received) = mpsc::sync_channel(MAX_QUEUED_LINES);
    let (done, printed) = mpsc::sync_channel(1);
    let print_events = move || {
        for event in received.iter().map_while(|event: Option<ServerEvent>| event) {
            // Writing fails if the reader has closed the output, which is not an error.
            let _ = if as_json {
                writeln!(SafeTerminal::new(io::stdout()), "{}", event_json(&event))
            } else {
                writeln!(SafeTerminal::new(io::stderr()), "{}", event_line(&event))
            };
        }
        let _ = done.send(());
} // the receiver may be gone
    ;
    thread::Builder::new().name("printer".to_owned()).spawn(print_events)?;
    Ok((events, printed))
}

/// Prints a command line to paste on the client.
fn print_client_command(
    arguments: &ServerArguments,
    server: &Server,
    ui: &mut Ui,
) -> Result<(), CliError> {
    let Some(listen_address) = server.addresses().first() else { return Ok(()) };
    let addresses = reachable_addresses(*listen_address);
    let mut address_texts = addresses.iter().map(IpAddr::to_string);
    let Some(name) = address_texts.next() else { return Ok(()) };
    let mut line = format!("towpath measure {name}");
    if listen_address.port() != DEFAULT_PORT {
        let _ = write!(line, " -p {}", listen_address.port());
    }
    if let Some(fingerprint) = server.fingerprint() {
        let _ = write!(line, " --server-cert {fingerprint}");
    }
    if arguments.secret_file.is_some() {
        line.push_str(" --secret-file FILE");
    }
    if arguments.json {
        writeln!(ui.out, "{}", json!({ "event": "invitation", "measure": line }))?;
        ui.out.flush()?;
        return Ok(());
    }
    // Not wrapped, so that the user can copy the line.
    ui.progress(&format!("measure from another host: {line}"));
    let other_addresses: Vec<_> = address_texts.collect();
    if !other_addresses.is_empty() {
        ui.progress(&format!("other addresses of this host: {}", other_addresses.join(", ")));
    }
    if let Some(path) = &arguments.secret_file {
        let path = path.display();
        ui.progress(&format!("FILE is a copy of `{path}` on this host; copy it with `scp`"));
    }
    Ok(())
}

/// Returns the server's certificate and key for QUIC and TLS.
///
/// Returns `None` if no files are named and none can be stored; the server then uses a temporary
/// certificate.
fn identity(arguments: &ServerArguments, ui: &mut Ui) -> Result<Option<Identity>, CliError> {
    if let (Some(certificate), Some(key)) = (&arguments.cert, &arguments.key) {
        let identity = read_identity(certificate, key);
        return identity.map(Some).map_err(|error| CliError::Unavailable {
            what: error.to_string(),
            hint: "provide a certificate and its private key as PEM files".to_owned(),
        });
    }
    let stored_identity = match state_folder() {
        Some(folder) => load_or_create_identity(&folder).map_err(|error| error.to_string()),
        None => Err("neither XDG_STATE_HOME nor HOME is a folder".to_owned()),
    };
    Ok(stored_identity.map_or_else(
        |reason| {
            ui.warn(&Warning {
                text: format!("the certificate for QUIC is temporary: {reason}"),
                hint: Some("provide one with --cert and --key".to_owned()),
            });
            None
        },
        Some,
    ))
}

/// Returns the folder for persistent state; `None` without `XDG_STATE_HOME` and `HOME`.
fn state_folder() -> Option<PathBuf> {
    let env_folder =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state =
        env_folder("XDG_STATE_HOME").or_else(|| Some(env_folder("HOME")?.join(".local/state")));
    state.map(|state| state.join("towpath"))
}

fn event_json(event: &ServerEvent) -> serde_json::Value {
    match event {
        ServerEvent::Begun { client, transport, patterns } => json!({
            "event": "test-started",
            "client": client.map(|client| client.to_string()),
            "transport": transport,
            "patterns": patterns,
        }),
        ServerEvent::Ended { client } => json!({
            "event": "test-ended",
            "client": client.map(|client| client.to_string()),
        }),
        ServerEvent::WrongSecret { client, others } => json!({
            "event": "auth-failed",
            "client": client.map(|client| client.to_string()),
            "others": others,
        }),
    }
}

fn event_line(event: &ServerEvent) -> String {
    let client_text = |client: &Option<std::net::SocketAddr>| {
        client.map_or_else(|| "a disconnected client".to_owned(), |client| client.to_string())
    };
    match event {
        ServerEvent::Begun { client, transport, patterns } => {
            format!("{} measures {} over {transport}", client_text(client), patterns.join(" and "))
        }
        ServerEvent::Ended { client } => format!("{} is done", client_text(client)),
        ServerEvent::WrongSecret { client, others: 0 } => {
            format!("{} does not know the secret", client_text(client))
        }
        ServerEvent::WrongSecret { client, others } => {
            format!(
                "{} does not know the secret; {others} others before it did not either",
                client_text(client)
            )
        }
    }
}
