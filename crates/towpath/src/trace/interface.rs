//! `towpath trace --interface`: captures packets of this host while it analyses them.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};

use towpath_host::capture::LiveCapture;
use towpath_os::files::OutputFile;
use towpath_os::interrupt;
use towpath_result::Warning;
use towpath_trace as trace;
use towpath_trace::{CaptureAnalysis, TakenAt};

use super::TraceArguments;
use crate::error::CliError;
use crate::ui::Ui;

/// Captures on an interface until the duration is over, or until an interrupt.
pub(super) fn capture(
    interface: &str,
    arguments: &TraceArguments,
    taken_at: Option<TakenAt>,
    ui: &mut Ui,
) -> Result<CaptureAnalysis, CliError> {
    let unavailable = |what: String, hint: Option<String>| CliError::Unavailable {
        what,
        hint: hint.unwrap_or_else(|| "capture with another program and read its file".to_owned()),
    };
    let mut capture = LiveCapture::open(interface, arguments.duration)
        .map_err(|error| unavailable(error.to_string(), error.hint()))?;
    interrupt::catch();
    let end = arguments.duration.map_or("Ctrl-C".to_owned(), |span| format!("{span:?} are over"));
    ui.progress(&format!("capturing on {interface} until {end}"));
    let copy = arguments.write.as_ref().map(|path| {
        let file = OutputFile::find(path).and_then(OutputFile::create);
        file.map(BufWriter::new).map_err(|source| CliError::unwritable(path, source, None))
    });
    let copy = copy.transpose()?;
    let trace = trace::read(TeeCapture { capture: &mut capture, copy }, taken_at)
        .map_err(|source| CliError::Capture { path: interface.into(), source })?;
    let missed_packets = capture.missed_packets();
    if missed_packets > 0 {
        ui.warn(&Warning {
            text: format!("{missed_packets} packets arrived too fast to be captured"),
            hint: Some("`unseen_bytes` counts their payload; metrics may be wrong".to_owned()),
        });
    }
    Ok(trace)
}

/// Reader of a capture that also writes a copy.
struct TeeCapture<'a> {
    capture: &'a mut LiveCapture,
    copy: Option<BufWriter<File>>,
}

impl Read for TeeCapture<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.capture.read(buffer)?;
        if let Some(copy) = &mut self.copy {
            copy.write_all(buffer.get(..length).unwrap_or_default())?;
            if length == 0 {
                copy.flush()?;
            }
        }
        Ok(length)
    }
}
