//! Output of several programs: each line follows the label of its host.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

/// Maximum length of a line in bytes; longer lines are printed in parts.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// Threads that print the programs' output.
#[derive(Debug)]
pub(super) struct Printers {
    /// Sender that every printer thread clones and drops at its end.
    thread_guard: Option<Sender<()>>,
    /// Receiver that disconnects when all printer threads have ended.
    all_ended: Receiver<()>,
}

impl Printers {
    pub(super) fn new() -> Self {
        let (guard, all_ended) = mpsc::channel();
        Self { thread_guard: Some(guard), all_ended }
    }

    /// Copies the lines of `input` to `out` until end of file.
    pub(super) fn add(
        &self,
        label: String,
        input: impl Read + Send + 'static,
        out: impl Fn() -> Box<dyn Write> + Send + 'static,
    ) -> io::Result<()> {
        let guard = self.thread_guard.clone();
        thread::Builder::new().name("printer".into()).spawn(move || {
            // A write error closes the pipe here, so that the program notices it.
            let _ = print(&label, input, &out);
            drop(guard);
        })?;
        Ok(())
    }

    /// Waits until all output is printed, at most `timeout`: background programs may keep the
    /// pipe open.
    pub(super) fn finish(&mut self, timeout: Duration) {
        drop(self.thread_guard.take());
        // No thread sends: the channel closes when the last one ends.
        let _ = self.all_ended.recv_timeout(timeout);
    }
}

fn print(label: &str, input: impl Read, out: &impl Fn() -> Box<dyn Write>) -> io::Result<()> {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend(label.as_bytes());
        let read_len = input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        if read_len == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        let mut out = out();
        out.write_all(&line)?;
        out.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for SharedBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_line_has_its_label_and_the_last_line_ends_with_a_newline() {
        let printed = Arc::new(Mutex::new(Vec::new()));
        let out = || Box::new(SharedBuffer(Arc::clone(&printed))) as Box<dyn Write>;
        print("left  | ", &b"one\n\ntwo"[..], &out).unwrap();
        let text = String::from_utf8(printed.lock().unwrap().clone()).unwrap();
        assert_eq!(text, "left  | one\nleft  | \nleft  | two\n");
    }
}
