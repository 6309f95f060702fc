//! Writes `demo.html` (or the file named by the first argument) from modelled results and prints
//! their terminal summary.
//!
//! The second argument is a modelled data set (`repeated`, `four`, `three`, `own`, `fade`, `many`)
//! or the first of several result files.

use std::io::Write as _;

use towpath_scenario::Transport;

#[path = "../tests/common/mod.rs"]
mod common;

fn read_stored_run(file: &str) -> std::io::Result<towpath_result::store::StoredRun> {
    let reader = std::io::BufReader::new(std::fs::File::open(file)?);
    let result = towpath_result::store::read_run(reader).map_err(std::io::Error::other)?;
    Ok(towpath_result::store::StoredRun::new(result, Some(file.to_owned())))
}

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "demo.html".to_owned());
    let runs = match arguments.next().as_deref() {
        Some("repeated") => common::repeated(),
        Some("four") => {
            let transports = [Transport::Tcp, Transport::Mptcp, Transport::Quic, Transport::Mpquic];
            transports
                .iter()
                .map(|transport| common::run(&common::handover(*transport, 1)))
                .collect()
        }
        Some("three") => vec![common::run(&common::three_paths())],
        Some("own") => vec![common::own_stack()],
        Some("fade") => vec![common::fade()],
        Some("many") => {
            let plan = common::handover(Transport::Mptcp, 1);
            vec![common::run(&common::Plan { streams: 20, sample_ms: 10, ..plan })]
        }
        Some(file) => {
            let mut runs = vec![read_stored_run(file)?];
            for file in arguments {
                runs.push(read_stored_run(&file)?);
            }
            runs
        }
        None => common::pair(),
    };
    std::fs::write(&file, towpath_report::html(&runs))?;
    write!(std::io::stdout(), "{}", towpath_report::table(&runs, 100, false))
}
