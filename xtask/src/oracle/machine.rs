//! The virtual machine: its kernel, and what its console says.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::cases::Job;
use super::results::Results;
use super::{goodput_mbps, succeed};
use crate::Result;

/// Debian's kernel for virtual machines: it has netem, which many smaller kernels lack.
const KERNEL: &str = "linux-image-cloud-amd64";

/// A kernel that was fetched.
pub(super) struct Kernel {
    /// What `uname -r` says.
    pub(super) version: String,
    /// What QEMU loads.
    image: PathBuf,
    /// Folder of its modules.
    pub(super) modules: PathBuf,
}

impl Kernel {
    /// The kernel of a package, or of the one that Debian's archive has now.
    pub(super) fn unpack(folder: &Path, package: Option<&Path>) -> Result<Self> {
        let files = folder.join("kernel");
        let package = match package {
            Some(package) => package.to_owned(),
            None => download(folder)?,
        };
        if files.exists() {
            fs::remove_dir_all(&files)?;
        }
        succeed(Command::new("dpkg").arg("-x").arg(package).arg(&files))?;
        let boot = fs::read_dir(files.join("boot"))?.filter_map(|entry| Some(entry.ok()?.path()));
        let image = boot
            .filter(|path| path.to_string_lossy().contains("vmlinuz-"))
            .max()
            .ok_or("the package has no kernel")?;
        let name = image.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let version = name.trim_start_matches("vmlinuz-").to_owned();
        let modules = [files.join("lib"), files.join("usr/lib")]
            .map(|lib| lib.join(format!("modules/{version}/kernel")))
            .into_iter()
            .find(|modules| modules.exists());
        let modules = modules.ok_or("the package has no modules")?;
        Ok(Self { version, image, modules })
    }
}

/// Fetches the package that stands behind Debian's name for its newest one.
fn download(folder: &Path) -> Result<PathBuf> {
    let output = Command::new("apt-cache").args(["depends", KERNEL]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let name = name.ok_or_else(|| format!("apt knows no {KERNEL}"))?;
    succeed(Command::new("apt-get").args(["download", name]).current_dir(folder))?;
    let packages = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let wanted = |path: &PathBuf| path.to_string_lossy().contains(name);
    packages.filter(wanted).max().ok_or_else(|| "apt-get left no package".into())
}

/// Starts the virtual machine and keeps what its jobs print.
pub(super) fn boot(
    kernel: &Kernel,
    image: &Path,
    jobs: &[Job],
    results: &mut Results,
    out: &mut dyn Write,
) -> Result<()> {
    // One virtual nanosecond for each instruction; time jumps where everybody sleeps.
    let fixed = "-accel tcg -icount shift=0,sleep=off,align=off -rtc clock=vm -cpu max,-rdrand,-rdseed \
                 -m 1024 -smp 1 -nographic -no-reboot -nic none";
    let words = "console=ttyS0 panic=-1 quiet mitigations=off nokaslr tsc=reliable rdinit=/init";
    let mut machine = Command::new("qemu-system-x86_64")
        .args(fixed.split_whitespace())
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(image)
        .args(["-append", words])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("qemu-system-x86_64: {error} (package qemu-system-x86)"))?;
    let console = machine.stdout.take().ok_or("no console")?;
    let log = image.with_file_name("console.log");
    fs::create_dir_all(image.with_file_name("runs"))?;
    let read = listen(console, &log, jobs, results, out);
    if read.is_err() {
        machine.kill()?;
    }
    machine.wait()?;
    if !read? {
        writeln!(out, "the virtual machine ended before its jobs: see {}", log.display())?;
    }
    Ok(())
}

/// Keeps the results that come over the console, and says whether all jobs were played.
fn listen(
    console: impl Read,
    log_path: &Path,
    jobs: &[Job],
    results: &mut Results,
    out: &mut dyn Write,
) -> Result<bool> {
    let mut log = File::create(log_path)?;
    for line in BufReader::new(console).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        writeln!(log, "{line:.1000}")?;
        // The firmware's last words may stand before the first result.
        let Some((_, said)) = line.trim().split_once("@@ ") else { continue };
        if said == "end" {
            return Ok(true);
        }
        let (number, result) = said.split_once(' ').ok_or("a result without a number")?;
        let job = jobs.get(number.parse::<usize>()?).ok_or("a result of no job")?;
        if let Some(whole) = result.strip_prefix("= ") {
            let file = log_path.with_file_name("runs").join(job.file_name());
            fs::write(file, unpack_base64(whole).ok_or("a result that is cut off")?)?;
            continue;
        }
        let result = serde_json::from_str::<Value>(result).map_err(|_| result);
        match result.as_ref().ok().and_then(goodput_mbps) {
            Some(mbps) => {
                results.add(job, mbps)?;
                writeln!(out, "{job}: {mbps:.2} Mbit/s")?;
            }
            None => writeln!(out, "{job}: no result: {}", result.err().unwrap_or("no goodput"))?,
        }
    }
    Ok(false)
}

/// Four letters are three bytes (RFC 4648 §4).
fn unpack_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::cases::{self, CASES};
    use super::*;

    #[test]
    fn base64_is_read_with_and_without_its_padding() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9vYmFy", "foobar")] {
            assert_eq!(unpack_base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(unpack_base64("Zm9v YmFy"), None);
    }

    #[test]
    fn results_are_found_between_what_a_kernel_prints() {
        let jobs = cases::jobs(&CASES.iter().collect::<Vec<_>>(), 1);
        let result = r#"{"summary":{"flows":[{"goodput_bps":7650000.0}]}}"#;
        let console = format!("booting @@ 0 {result}\r\nnoise\n@@ 1 error: no route\n@@ end\nmore");
        let file = |name| std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let (log, kept) = (file("towpath-console"), file("towpath-kept"));
        let mut results = Results::open(&kept, "6.12").unwrap();
        let mut out = Vec::new();
        let ended = listen(console.as_bytes(), &log, &jobs, &mut results, &mut out).unwrap();
        fs::remove_file(log).unwrap();
        fs::remove_file(kept).unwrap();
        assert!(ended);
        let first = jobs.first().unwrap();
        let goodput = results.goodput();
        assert_eq!(goodput.get(&(first.case, first.transport, first.how)), Some(&vec![7.65]));
        assert_eq!(goodput.len(), 1);
        let told = String::from_utf8(out).unwrap();
        assert!(told.contains("no result: error: no route"), "{told}");
    }
}
