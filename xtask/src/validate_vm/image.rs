//! Files of the virtual machine, as the archive that Linux unpacks at boot.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cases::{VmCase, VmJob};
use super::machine::Kernel;
use crate::Result;

/// Programs of the virtual machine, and the Debian packages that contain them.
const PROGRAMS: [(&str, &str); 6] = [
    ("bash", "bash"),
    ("busybox", "busybox-static"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("ethtool", "ethtool"),
    ("strip", "binutils"),
];
/// Commands that busybox provides.
const APPLETS: [&str; 12] = [
    "mount", "insmod", "sleep", "mkdir", "rm", "cut", "grep", "head", "cat", "poweroff", "sysctl",
    "base64",
];
const MODULES: [&str; 7] = [
    "net/ipv4/inet_diag.ko",
    "net/ipv4/tcp_diag.ko",
    "net/mptcp/mptcp_diag.ko",
    "drivers/net/veth.ko",
    "drivers/net/tun.ko",
    "net/sched/sch_tbf.ko",
    "net/sched/sch_netem.ko",
];

/// Writes the archive and returns its path.
pub(super) fn make(
    folder: &Path,
    kernel: &Kernel,
    towpath: &Path,
    cases: &[&VmCase],
    jobs: &[VmJob],
) -> Result<PathBuf> {
    let path = folder.join("initramfs.cpio");
    let mut archive = Archive { out: BufWriter::new(File::create(&path)?), number: 0 };
    for name in ["bin", "dev", "proc", "sys", "tmp", "run", "modules", "scenarios", "lib64", "etc"]
    {
        archive.folder(name)?;
    }
    let mut libraries = BTreeSet::new();
    for (name, package) in PROGRAMS {
        let program =
            find_program(name).ok_or_else(|| format!("no {name} here (package {package})"))?;
        if name != "strip" {
            archive.file(&format!("bin/{name}"), &fs::read(&program)?)?;
            libraries.extend(shared_libraries(&program)?);
        }
    }
    let stripped = folder.join("towpath");
    super::expect_success(Command::new("strip").arg("-o").arg(&stripped).arg(towpath))?;
    archive.file("bin/towpath", &fs::read(&stripped)?)?;
    libraries.extend(shared_libraries(&stripped)?);
    for applet in APPLETS {
        archive.link(&format!("bin/{applet}"), "busybox")?;
    }
    for library in libraries {
        let name = library.strip_prefix("/")?.to_string_lossy().into_owned();
        archive.add_parent_folders(&name)?;
        archive.file(&name, &fs::read(&library)?)?;
    }
    for module in MODULES {
        let name = module.rsplit('/').next().unwrap_or(module);
        archive.file(&format!("modules/{name}"), &read_module(&kernel.modules.join(module))?)?;
    }
    for case in cases {
        archive.file(&format!("scenarios/{}.toml", case.name), case.scenario().as_bytes())?;
    }
    let jobs = jobs.iter().enumerate().map(|(number, job)| format!("{number} {}\n", job.command));
    archive.file("jobs", jobs.collect::<String>().as_bytes())?;
    archive.file("init", include_bytes!("guest.sh"))?;
    archive.end()?;
    Ok(path)
}

/// Reads a kernel module, which newer packages compress.
fn read_module(path: &Path) -> Result<Vec<u8>> {
    if path.exists() {
        return Ok(fs::read(path)?);
    }
    let compressed_module = path.with_extension("ko.xz");
    let output =
        Command::new("xz").args(["--decompress", "--stdout"]).arg(&compressed_module).output()?;
    if !output.status.success() {
        return Err(format!("xz cannot read {}", compressed_module.display()).into());
    }
    Ok(output.stdout)
}

fn find_program(name: &str) -> Option<PathBuf> {
    let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];
    folders.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
}

/// Returns the shared libraries of a program, as the loader finds them.
fn shared_libraries(program: &Path) -> Result<Vec<PathBuf>> {
    // `ldd` fails for a static program, which has none.
    let output = Command::new("ldd").arg(program).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(paths.map(|path| PathBuf::from(path.trim_end_matches(':'))).collect())
}

/// Archive in cpio's "newc" format.
struct Archive<W: Write> {
    out: W,
    number: u32,
}

impl<W: Write> Archive<W> {
    fn folder(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, 0o040_755, &[])
    }

    fn file(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.entry(name, 0o100_755, content)
    }

    fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.entry(name, 0o120_777, target.as_bytes())
    }

    /// Adds the folders that contain `name`; duplicates are harmless.
    fn add_parent_folders(&mut self, name: &str) -> io::Result<()> {
        let separators: Vec<_> = name.match_indices('/').map(|(end, _)| end).collect();
        separators.into_iter().try_for_each(|end| self.folder(name.get(..end).unwrap_or_default()))
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.number += 1;
        let (links, size, name_size) = (1, content.len(), name.len() + 1);
        write!(self.out, "070701{:08x}{mode:08x}{:08x}{:08x}{links:08x}", self.number, 0, 0)?;
        write!(self.out, "{:08x}{size:08x}{:08x}{:08x}{:08x}{:08x}", 0, 0, 0, 0, 0)?;
        write!(self.out, "{name_size:08x}{:08x}{name}\0", 0)?;
        self.pad(110 + name_size)?;
        self.out.write_all(content)?;
        self.pad(size)
    }

    /// Pads to a multiple of four bytes.
    fn pad(&mut self, length: usize) -> io::Result<()> {
        let zeros = [0; 3];
        self.out.write_all(zeros.get(..length.next_multiple_of(4) - length).unwrap_or_default())
    }

    fn end(mut self) -> io::Result<()> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_what_cpio_reads() {
        let mut archive = Archive { out: Vec::new(), number: 0 };
        archive.folder("a").unwrap();
        archive.file("a/b", b"hello").unwrap();
        let bytes = &archive.out;
        // Header of 110 bytes, name with its NUL, all padded to four.
        assert_eq!(bytes.len(), 112 + 116 + 8);
        assert!(bytes.starts_with(b"07070100000001000041ed"));
        assert!(bytes.ends_with(b"hello\0\0\0"));
    }
}
