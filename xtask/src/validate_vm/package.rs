//! Kernel of the virtual machine: Debian packages, fetched with apt.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::expect_success;
use crate::Result;

/// Flavour of Debian's kernels for virtual machines, with netem, which many smaller kernels lack.
const FLAVOUR: &str = "cloud-amd64";

/// Keyring of Debian's archive, for all releases.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Downloads or finds the packages of a kernel.
///
/// `wanted` is a comma-separated list of files, or the prefix of a version such as `6.12`; `None`
/// selects the newest that apt offers. `suite` is a suite of Debian that apt is not configured for,
/// such as `trixie-backports`.
pub(super) fn fetch(
    folder: &Path,
    requested: Option<&str>,
    suite: Option<&str>,
) -> Result<Vec<PathBuf>> {
    let files: Vec<PathBuf> = requested.unwrap_or_default().split(',').map(PathBuf::from).collect();
    if files.iter().all(|file| file.is_file()) {
        return Ok(files);
    }
    let apt = Apt::of(folder, suite)?;
    let name = match requested {
        None => {
            let depends = apt.query(&["depends", &format!("linux-image-{FLAVOUR}")])?;
            let name = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
            name.map(str::to_owned)
        }
        Some(version) => {
            let pattern = format!("^linux-image-{}[.].*-{FLAVOUR}$", version.replace('.', "[.]"));
            newest(&apt.query(&["search", "--names-only", &pattern])?)
        }
    };
    let name =
        name.ok_or_else(|| format!("apt knows no kernel {}", requested.unwrap_or(FLAVOUR)))?;
    let depends = apt.query(&["depends", &name])?;
    let mut names = image_and_modules(&depends);
    names.push(name);
    let downloads = names.into_iter().map(|name| apt.download(folder, &name));
    downloads.collect()
}

/// Returns the packages with image and modules of a newer kernel, from `apt-cache depends`.
fn image_and_modules(depends: &str) -> Vec<String> {
    let dependencies = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let is_part =
        |name: &&str| name.starts_with("linux-binary-") || name.starts_with("linux-modules-");
    dependencies.filter(is_part).map(str::to_owned).collect()
}

/// Returns the newest of the packages that `apt-cache search` lists, by the numbers in their names.
fn newest(list: &str) -> Option<String> {
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    let numbers = |name: &str| -> Vec<u32> {
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
    };
    names.max_by_key(|name| numbers(name)).map(str::to_owned)
}

/// Finds the address of Debian's archive in the output of `apt-get indextargets`.
fn archive(targets: &str) -> Option<&str> {
    let mut addresses = targets.lines().filter_map(|line| line.strip_prefix("Repo-URI: "));
    addresses.find(|address| address.ends_with("/debian/"))
}

/// Configuration of apt: the system's, or a separate list for another suite.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    fn of(folder: &Path, suite: Option<&str>) -> Result<Self> {
        let Some(suite) = suite else { return Ok(Self { options: Vec::new() }) };
        let system = Self { options: Vec::new() };
        let targets = system.run("apt-get", &["indextargets"])?;
        let address = archive(&targets).ok_or("apt is not set up for Debian's archive")?;
        let apt_folder = folder.join("apt");
        fs::create_dir_all(apt_folder.join("lists/partial"))?;
        let list = apt_folder.join(format!("{suite}.list"));
        fs::write(&list, format!("deb [signed-by={KEYRING}] {address} {suite} main\n"))?;
        let option = |key: &str, path: &Path| format!("-oDir::{key}={}", path.display());
        let suite_apt = Self {
            options: vec![
                option("Etc::sourcelist", &list),
                option("Etc::sourceparts", Path::new("-")),
                option("State::lists", &apt_folder.join("lists")),
                option("Cache::pkgcache", Path::new("")),
                option("Cache::srcpkgcache", Path::new("")),
            ],
        };
        suite_apt.run("apt-get", &["update", "-q"])?;
        Ok(suite_apt)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let output = Command::new(program).args(&self.options).args(arguments).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn query(&self, arguments: &[&str]) -> Result<String> {
        self.run("apt-cache", arguments)
    }

    fn download(&self, folder: &Path, name: &str) -> Result<PathBuf> {
        let mut command = Command::new("apt-get");
        command.args(&self.options).args(["download", name]).current_dir(folder);
        expect_success(&mut command)?;
        let packages = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        let is_package = |path: &PathBuf| {
            path.file_name().is_some_and(|is_package| {
                is_package.to_string_lossy().starts_with(&format!("{name}_"))
            })
        };
        packages.filter(is_package).max().ok_or_else(|| "apt-get left no package".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_package_is_found_by_numbers_and_not_by_letters() {
        let list = "linux-image-6.18.5+deb13-cloud-amd64 - Linux\n\
                    linux-image-6.18.15+deb13-cloud-amd64 - Linux\n\
                    linux-image-6.18.9+deb13-cloud-amd64 - Linux\n";
        assert_eq!(newest(list).as_deref(), Some("linux-image-6.18.15+deb13-cloud-amd64"));
        assert_eq!(newest(""), None);
    }

    #[test]
    fn the_archive_of_another_suite_is_the_one_that_apt_knows() {
        let targets =
            "Repo-URI: http://other.example/security/\n\nRepo-URI: http://mirror.example/debian/\n";
        assert_eq!(archive(targets), Some("http://mirror.example/debian/"));
        assert_eq!(archive(""), None);
    }

    #[test]
    fn image_and_modules_of_a_newer_kernel_are_packages_of_their_own() {
        let depends = "linux-image-7.3\n  Depends: kmod\n  Depends: linux-base-7.3\n  \
                    Depends: linux-binary-7.3\n  Depends: linux-modules-7.3\n";
        assert_eq!(image_and_modules(depends), ["linux-binary-7.3", "linux-modules-7.3"]);
    }
}
