//! `cargo xtask study`: a complete study with volunteers' devices, in an emulated network.
//!
//! One `towpath lab` has a site with a collector, two test servers and many devices. Each special
//! device has a known case ([`devices::DeviceCase`]), such as blocked UDP or a killed agent. A stable and
//! a mobile campaign run to their end unattended. Then [`check`] compares the collector's account
//! with the outcomes that the agents printed, and both with what the cases imply. [`truth`] does the
//! same for the figures of the analysis.

mod check;
mod devices;
mod network;
mod truth;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use devices::{Device, MIN_DEVICES, devices};

/// Arguments of the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StudyOptions {
    devices: usize,
    /// Path of the towpath binary; `None` builds one with the collector.
    towpath: Option<PathBuf>,
    /// Folder for all files of the study; it must not exist.
    keep: Option<PathBuf>,
    /// Folder of an earlier study, which is checked again.
    check: Option<PathBuf>,
}

impl StudyOptions {
    /// Returns `None` for arguments that the usage text does not allow.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        let mut options = Self { devices: 20, towpath: None, keep: None, check: None };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--devices" => {
                    let number = rest.next()?.parse().ok();
                    options.devices = number.filter(|count| (MIN_DEVICES..=60).contains(count))?;
                }
                "--towpath" => options.towpath = Some(rest.next()?.into()),
                "--keep" => options.keep = Some(rest.next()?.into()),
                "--check" => options.check = Some(rest.next()?.into()),
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Runs the study, prints the checks, and returns true if all of them hold.
pub(crate) fn run(root: &Path, options: &StudyOptions, out: &mut dyn Write) -> Result<bool> {
    let devices = devices(options.devices);
    if let Some(folder) = &options.check {
        return check::report(folder, &devices, out);
    }
    let towpath = match &options.towpath {
        Some(towpath) => fs::canonicalize(towpath)?,
        None => build(root)?,
    };
    let folder = options.keep.clone().unwrap_or_else(|| root.join("target/study"));
    if options.keep.is_none() && folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir(&folder)?;
    let folder = fs::canonicalize(folder)?;
    prepare(&towpath, &folder, &devices)?;
    writeln!(
        out,
        "{} devices, {} s, in {}",
        devices.len(),
        network::CAMPAIGN_SECONDS,
        folder.display()
    )?;
    let status = lab(&towpath, &folder, &devices)?;
    if !status {
        writeln!(out, "the lab failed: see {}", folder.join("lab.log").display())?;
        return Ok(false);
    }
    check::report(&folder, &devices, out)
}

/// Builds the program with the collector, optimized: twenty devices share the processors.
fn build(root: &Path) -> Result<PathBuf> {
    let build = ["build", "--release", "-p", "towpath", "--features", "towpath/collect"];
    if !crate::cargo(root).args(build).status()?.success() {
        return Err("the program cannot be built".into());
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/towpath"))
}

/// Writes scripts and the scenario, and creates the invitations and tokens.
fn prepare(towpath: &Path, folder: &Path, devices: &[Device]) -> Result<()> {
    let write = |name: &str, text: &str| fs::write(folder.join(name), text);
    write("study.toml", &network::scenario(devices))?;
    write("stable.in", network::STABLE)?;
    write("mobile.in", network::MOBILE)?;
    write("collector.sh", &network::collector_script())?;
    write("eu.sh", &network::server_script("eu", "Europe", ["10.64.0.2", "fd74:6f77::2"]))?;
    write("us.sh", &network::server_script("us", "America", ["10.64.1.2", "fd74:6f77:0:1::2"]))?;
    write("conductor.sh", &network::conductor_script(devices))?;
    fs::create_dir(folder.join("collector"))?;
    let collect = |arguments: &[&str]| -> Result<String> {
        let mut command = Command::new(towpath);
        command.current_dir(folder).env("HOME", folder.join("collector")).arg("collect");
        let output =
            command.args(arguments).args(["--no-config", "--dir", "collector"]).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        Ok(String::from_utf8(output.stdout)?)
    };
    for server in ["eu", "us"] {
        let file = format!("{server}.token");
        collect(&["token", "create", "--name", server, "--role", "server", "--out", &file])?;
    }
    for device in devices {
        let name = device.name();
        fs::create_dir(folder.join(&name))?;
        write(&format!("{name}/code"), &collect(&["device", "invite", &name])?)?;
        write(&format!("{name}.sh"), &device.script())?;
    }
    Ok(())
}

/// Runs the lab to the end of the study; returns false if it failed.
fn lab(towpath: &Path, folder: &Path, devices: &[Device]) -> Result<bool> {
    let log = fs::File::create(folder.join("lab.log"))?;
    let mut command = Command::new(towpath);
    command.current_dir(folder).env("TOWPATH", towpath).args([
        "lab",
        "--no-config",
        "-q",
        "study.toml",
    ]);
    let mut on = |host: &str, script: &str| {
        command.args(["--on", host, &format!("exec sh {script}.sh")]);
    };
    on("site", "collector");
    on("eu", "eu");
    on("us", "us");
    for device in devices {
        on(&device.name(), &device.name());
    }
    command.args(["--host", "site", "--", "sh", "conductor.sh"]);
    let status = command.stdout(log.try_clone()?).stderr(log).status()?;
    Ok(status.success())
}
