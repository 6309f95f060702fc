//! The virtual machine: its kernel, and its console output.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::cases::VmJob;
use super::results::Results;
use super::{expect_success, goodput_mbps, longest_stall_ms};
use crate::Result;

/// A downloaded kernel, unpacked from its packages.
pub(super) struct Kernel {
    /// Release of the kernel, as in `uname -r`.
    pub(super) version: String,
    /// Kernel image that QEMU loads.
    image: PathBuf,
    /// Folder of the kernel's modules.
    pub(super) modules: PathBuf,
}

impl Kernel {
    /// Unpacks a kernel's packages; newer kernels have separate ones for image and modules.
    pub(super) fn unpack(folder: &Path, packages: &[PathBuf]) -> Result<Self> {
        let files = folder.join("kernel");
        if files.exists() {
            fs::remove_dir_all(&files)?;
        }
        for package in packages {
            expect_success(Command::new("dpkg").arg("-x").arg(package).arg(&files))?;
        }
        let (image, version) = find_image(&files).ok_or("the packages have no kernel")?;
        let modules = [files.join("lib"), files.join("usr/lib")]
            .map(|lib| lib.join(format!("modules/{version}/kernel")))
            .into_iter()
            .find(|modules| modules.exists());
        let modules = modules.ok_or("the packages have no modules")?;
        Ok(Self { version, image, modules })
    }
}

/// Finds the newest kernel in unpacked packages, and its version.
///
/// The path is `boot/vmlinuz-VERSION`, or, since Debian's 7.3, `usr/lib/modules/VERSION/vmlinuz`.
fn find_image(files: &Path) -> Option<(PathBuf, String)> {
    let entries = |folder: &str| {
        let folder_entries = fs::read_dir(files.join(folder)).ok();
        folder_entries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
    };
    let name = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    let boot = entries("boot").filter_map(|image| {
        let version = name(&image)?.strip_prefix("vmlinuz-")?.to_owned();
        Some((image, version))
    });
    let modules = entries("usr/lib/modules").filter_map(|folder| {
        let image = folder.join("vmlinuz");
        image.exists().then_some((image, name(&folder)?))
    });
    boot.chain(modules).max_by(|left, right| left.1.cmp(&right.1))
}

/// Starts the virtual machine and keeps the output of its jobs.
pub(super) fn boot(
    kernel: &Kernel,
    image: &Path,
    jobs: &[VmJob],
    results: &mut Results,
    out: &mut dyn Write,
) -> Result<()> {
    // One virtual nanosecond for each instruction; time jumps while all processes sleep.
    let machine_options = "-accel tcg -icount shift=0,sleep=off,align=off -rtc clock=vm -cpu max,-rdrand,-rdseed \
                 -m 1024 -smp 1 -nographic -no-reboot -nic none";
    let kernel_parameters =
        "console=ttyS0 panic=-1 quiet mitigations=off nokaslr tsc=reliable rdinit=/init";
    let mut machine = Command::new("qemu-system-x86_64")
        .args(machine_options.split_whitespace())
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(image)
        .args(["-append", kernel_parameters])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("qemu-system-x86_64: {error} (package qemu-system-x86)"))?;
    let console = machine.stdout.take().ok_or("no console")?;
    let log = image.with_file_name("console.log");
    fs::create_dir_all(image.with_file_name("runs"))?;
    let facts = File::create(image.with_file_name(format!("facts-{}.txt", kernel.version)))?;
    let mut sink = ConsoleSink { version: &kernel.version, log: &log, facts: Box::new(facts), out };
    let all_run = read_console(console, jobs, results, &mut sink);
    if all_run.is_err() {
        machine.kill()?;
    }
    machine.wait()?;
    if !all_run? {
        writeln!(sink.out, "the virtual machine ended before its jobs: see {}", log.display())?;
    }
    Ok(())
}

/// Destinations of the virtual machine's console output.
struct ConsoleSink<'a> {
    /// Release of the virtual machine's kernel.
    version: &'a str,
    /// File for the whole output; full results go into a folder next to this file.
    log: &'a Path,
    /// Writer for the settings of that kernel.
    facts: Box<dyn Write>,
    /// Writer for progress messages to the user.
    out: &'a mut dyn Write,
}

/// Keeps the results from the console; returns true if all jobs were run.
fn read_console(
    console: impl Read,
    jobs: &[VmJob],
    results: &mut Results,
    sink: &mut ConsoleSink<'_>,
) -> Result<bool> {
    let mut log = File::create(sink.log)?;
    for line in BufReader::new(console).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        writeln!(log, "{line:.1000}")?;
        // The firmware's last output may precede the first result on its line.
        let Some((_, message)) = line.trim().split_once("@@ ") else { continue };
        if message == "end" {
            return Ok(true);
        }
        if let Some(fact) = message.strip_prefix("fact ") {
            writeln!(sink.facts, "{fact}")?;
            continue;
        }
        let (number, result) = message.split_once(' ').ok_or("a result without a number")?;
        let job = jobs.get(number.parse::<usize>()?).ok_or("a result of no job")?;
        if let Some(result_text) = result.strip_prefix("= ") {
            let file = sink.log.with_file_name("runs").join(job.file_name(sink.version));
            fs::write(file, unpack_base64(result_text).ok_or("a result that is cut off")?)?;
            continue;
        }
        let result = serde_json::from_str::<Value>(result).map_err(|_| result);
        let goodput_and_result =
            result.as_ref().ok().and_then(|result| Some((goodput_mbps(result)?, result)));
        if let Some((mbps, result)) = goodput_and_result {
            results.add(job, mbps, longest_stall_ms(result))?;
            writeln!(sink.out, "{job}: {mbps:.2} Mbit/s")?;
        } else {
            let reason = result.err().unwrap_or("no goodput");
            writeln!(sink.out, "{job}: no result: {reason}")?;
        }
    }
    Ok(false)
}

/// Decodes base64: four letters are three bytes (RFC 4648 §4).
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
        let console = format!(
            "@@ fact close_timeout 60\r\nbooting @@ 0 {result}\r\nnoise\n@@ 1 error: no route\n@@ end\nmore"
        );
        let file = |name| std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let (log, results_file) = (file("towpath-console"), file("towpath-kept"));
        let mut results = Results::open(&results_file, "6.12").unwrap();
        let mut out = Vec::new();
        let facts = Box::new(std::io::sink());
        let mut sink = ConsoleSink { version: "6.12", log: &log, facts, out: &mut out };
        let all_run = read_console(console.as_bytes(), &jobs, &mut results, &mut sink).unwrap();
        fs::remove_file(log).unwrap();
        fs::remove_file(results_file).unwrap();
        assert!(all_run);
        let first_job = jobs.first().unwrap();
        let goodput = results.goodput(&CASES.iter().collect::<Vec<_>>());
        assert_eq!(
            goodput.get(&(first_job.case, first_job.transport, first_job.setup)),
            Some(&vec![7.65])
        );
        assert_eq!(goodput.len(), 1);
        let output = String::from_utf8(out).unwrap();
        assert!(output.contains("no result: error: no route"), "{output}");
    }

    #[test]
    fn a_kernel_is_found_where_older_and_newer_packages_have_it() {
        let files = std::env::temp_dir().join(format!("oracle-image-{}", std::process::id()));
        assert_eq!(find_image(&files), None);
        for (image, version) in
            [("boot/vmlinuz-6.12.1", "6.12.1"), ("usr/lib/modules/7.3.4/vmlinuz", "7.3.4")]
        {
            let image = files.join(image);
            fs::create_dir_all(image.parent().unwrap()).unwrap();
            fs::write(&image, "").unwrap();
            assert_eq!(find_image(&files), Some((image, version.to_owned())));
        }
        fs::remove_dir_all(&files).unwrap();
    }
}
