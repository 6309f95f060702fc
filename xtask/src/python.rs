//! `cargo xtask wheel` and the tests of the Python package.

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Result, cargo};

/// Version of the program that builds wheels, from the Python Package Index.
const MATURIN: &str = "maturin==1.16.0";
/// Linker for old versions of glibc, and cargo's command for it.
const ZIG: [&str; 2] = ["ziglang==0.17.1", "cargo-zigbuild==0.24.1"];
/// Oldest platform on which a wheel works: glibc 2.17.
const PLATFORM: &str = "manylinux2014";
/// Suffix of a target that selects this version of glibc.
const GLIBC: &str = ".2.17";
/// Profile of `Cargo.toml` for the program and the module.
const PROFILE: &str = "wheel";
/// Tool that unpacks and packs wheels.
const WHEEL: &str = "wheel==0.48.0";
/// Environment variable with a reason to skip the tests of the Python package.
const SKIP_VARIABLE: &str = "TOWPATH_SKIP_PYTHON";

/// Arguments of `cargo xtask wheel`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WheelOptions {
    /// Builds for this machine only, without zig and without optimization.
    debug: bool,
}

impl WheelOptions {
    /// Returns `None` for arguments that the usage text does not allow.
    pub(crate) fn parse(arguments: &[&str]) -> Option<Self> {
        match arguments {
            [] => Some(Self { debug: false }),
            ["--debug"] => Some(Self { debug: true }),
            _ => None,
        }
    }
}

/// Builds a wheel with the module and the program, and prints its path.
pub(crate) fn wheel(root: &Path, options: &WheelOptions, out: &mut dyn Write) -> Result<bool> {
    let target = target_folder(root)?;
    let python = environment(&target, "wheel-venv", &[MATURIN, WHEEL, ZIG[0], ZIG[1]])?;
    let program = build_program(root, options, &python, &target)?;
    let wheels = target.join("wheels");
    if wheels.exists() {
        fs::remove_dir_all(&wheels)?;
    }
    let mut build = Command::new(&python);
    build.args(["-m", "maturin", "build", "--locked", "--out"]).arg(&wheels);
    build.args(["--features", "objects"]);
    if !options.debug {
        build.args(["--profile", PROFILE, "--zig", "--compatibility", PLATFORM]);
    }
    succeed(with_programs_of(&mut build, &python).current_dir(root.join("python")))?;
    for wheel in fs::read_dir(&wheels)?.flatten() {
        add_program(&python, &wheel.path(), &program)?;
        writeln!(out, "{} ({} bytes)", wheel.path().display(), wheel.metadata()?.len())?;
    }
    Ok(true)
}

/// Adds the program to a wheel, so that an installation copies it to the environment's `bin`.
fn add_program(python: &Path, wheel: &Path, program: &Path) -> Result<()> {
    let unpacked = wheel.with_extension("unpacked");
    let tool = |action: &str| {
        let mut command = Command::new(python);
        command.args(["-m", "wheel", action]);
        command
    };
    succeed(tool("unpack").arg("--dest").arg(&unpacked).arg(wheel))?;
    // The file's name begins with the distribution's name and version.
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    let distribution = name.split('-').take(2).collect::<Vec<_>>().join("-");
    let content = unpacked.join(&distribution);
    let scripts = content.join(format!("{distribution}.data/scripts"));
    fs::create_dir_all(&scripts)?;
    fs::copy(program, scripts.join("towpath"))?;
    let folder = wheel.parent().unwrap_or(Path::new("."));
    succeed(tool("pack").arg(&content).arg("--dest-dir").arg(folder))?;
    Ok(fs::remove_dir_all(unpacked)?)
}

/// Builds the program and returns its path. It has no collector, which would make the wheel larger
/// than 20 MB.
fn build_program(
    root: &Path,
    options: &WheelOptions,
    python: &Path,
    target: &Path,
) -> Result<PathBuf> {
    let mut build = cargo(root);
    let features = ["--locked", "--package", "towpath", "--features", "towpath/objects"];
    let program = if options.debug {
        build.arg("build").args(features);
        target.join("debug/towpath")
    } else {
        let host = host_target()?;
        build.args(["zigbuild", "--profile", PROFILE, "--target", &format!("{host}{GLIBC}")]);
        build.args(features);
        target.join(host).join(PROFILE).join("towpath")
    };
    succeed(with_programs_of(&mut build, python))?;
    Ok(program)
}

/// Runs the tests of the Python package in an environment of their own.
pub(crate) fn test(root: &Path, out: &mut dyn Write) -> Result<()> {
    if let Ok(reason) = env::var(SKIP_VARIABLE) {
        writeln!(out, "skipped: the Python package, because {reason}")?;
        return Ok(());
    }
    let target = target_folder(root)?;
    let requirements = root.join("python/tests/requirements.txt");
    let requirements = requirements.to_string_lossy();
    let python = match environment(&target, "python-venv", &["-r", &requirements]) {
        Ok(python) => python,
        // Without a network, the other tests still count. On CI, nothing is skipped.
        Err(error) if env::var_os("CI").is_none() => {
            writeln!(out, "skipped: the Python package, because of its environment: {error}")?;
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    // The same targets as for the other tests: for others, cargo would compile dependencies again.
    let mut build = cargo(root);
    build.args(["build", "--locked", "--workspace", "--features", "towpath/collect"]);
    build.args(["--lib", "--bins", "--tests"]);
    succeed(&mut build)?;
    let package = install(root, &target)?;
    let mut tests = Command::new(&python);
    tests.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"]);
    tests.arg(root.join("python/tests"));
    tests.env("PYTHONPATH", &package).env("TOWPATH", target.join("debug/towpath"));
    tests.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(&package);
    succeed(&mut tests)?;
    let mut types = Command::new(&python);
    types.args(["-m", "mypy.stubtest", "towpath._native"]);
    types.env("PYTHONPATH", &package).env("MYPYPATH", &package).current_dir(&package);
    succeed(&mut types)?;
    let mut sources = Command::new(&python);
    sources.args(["-m", "pyright", "--pythonpath"]).arg(&python).arg("towpath");
    succeed(sources.current_dir(&package))?;
    // Every name that the package exports has a complete type.
    let mut exports = Command::new(&python);
    exports.args(["-m", "pyright", "--pythonpath"]).arg(&python);
    exports.args(["--ignoreexternal", "--verifytypes", "towpath"]);
    succeed(exports.env("PYTHONPATH", &package).current_dir(&target))
}

/// Copies the package and its compiled module to a folder of the build, and returns the folder.
fn install(root: &Path, target: &Path) -> Result<PathBuf> {
    let folder = target.join("python");
    let package = folder.join("towpath");
    if package.exists() {
        fs::remove_dir_all(&package)?;
    }
    fs::create_dir_all(&package)?;
    for file in fs::read_dir(root.join("python/towpath"))?.flatten() {
        let is_source = file.path().extension().is_none_or(|ending| ending != "so");
        if is_source && file.file_type()?.is_file() {
            fs::copy(file.path(), package.join(file.file_name()))?;
        }
    }
    fs::copy(target.join("debug/lib_native.so"), package.join("_native.abi3.so"))?;
    Ok(folder)
}

/// Creates a virtual environment with some packages, and returns its interpreter.
fn environment(target: &Path, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = target.join(name);
    let python = folder.join("bin/python");
    if !python.exists() {
        succeed(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    succeed(install.args(packages))?;
    Ok(python)
}

/// Puts the environment's programs first in the search path.
fn with_programs_of<'a>(command: &'a mut Command, python: &Path) -> &'a mut Command {
    let own = python.parent().map(Path::to_owned);
    let inherited = env::var_os("PATH").unwrap_or_default();
    let folders = own.into_iter().chain(env::split_paths(&inherited));
    if let Ok(path) = env::join_paths(folders) {
        command.env("PATH", path);
    }
    command
}

/// Returns the target of this machine, such as `x86_64-unknown-linux-gnu`.
fn host_target() -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output()?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("rustc does not print its host")?.to_owned())
}

fn target_folder(root: &Path) -> Result<PathBuf> {
    let metadata = crate::tidy::metadata(root)?;
    let folder = metadata.get("target_directory").and_then(serde_json::Value::as_str);
    Ok(folder.map_or_else(|| root.join("target"), PathBuf::from))
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status()?;
    let program = command.get_program().to_string_lossy().into_owned();
    if status.success() { Ok(()) } else { Err(format!("`{program}` failed: {status}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_is_for_release_unless_it_is_for_debugging() {
        assert_eq!(WheelOptions::parse(&[]), Some(WheelOptions { debug: false }));
        assert_eq!(WheelOptions::parse(&["--debug"]), Some(WheelOptions { debug: true }));
        assert_eq!(WheelOptions::parse(&["--release"]), None);
    }
}
