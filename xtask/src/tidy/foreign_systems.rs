//! Dependencies of portable crates on systems other than Linux.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::LintFinding;
use super::crates::{CRATES, Platform};
use crate::{Result, cargo};

/// Targets that are checked, each with the packages that a portable crate must not need there.
///
/// On macOS, libc is the interface of the system, and other packages need it.
const TARGETS: [(&str, &[&str]); 2] = [
    ("x86_64-pc-windows-gnu", &["libc", "nix", "socket2", "netlink-sys"]),
    ("aarch64-apple-darwin", &["netlink-sys"]),
];

/// Packages that take only C types from `libc`, on every system: their dependencies are not checked.
const PORTABLE_PACKAGES: [&str; 2] = ["arrow-array", "pyo3"];

/// Checks the dependency trees of all portable crates; needs the lock file's packages.
pub(super) fn check(root: &Path) -> Result<Vec<LintFinding>> {
    let mut findings = Vec::new();
    for (target, forbidden) in TARGETS {
        findings.extend(check_target(&metadata(root, target)?, target, forbidden));
    }
    Ok(findings)
}

/// Returns cargo's metadata with the dependencies that a target has.
fn metadata(root: &Path, target: &str) -> Result<Value> {
    let output = cargo(root)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", target])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata for {target} ended with {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn check_target(metadata: &Value, target: &str, forbidden: &[&str]) -> Vec<LintFinding> {
    let names = package_names(metadata);
    let uses = normal_dependencies(metadata);
    let linux_crates = CRATES.iter().filter(|rule| rule.platform == Platform::Linux);
    let forbidden: BTreeSet<&str> =
        forbidden.iter().copied().chain(linux_crates.map(|rule| rule.name)).collect();
    let mut findings = Vec::new();
    for rule in CRATES.iter().filter(|rule| rule.platform == Platform::Any) {
        let Some((id, _)) = names.iter().find(|(_, name)| **name == rule.name) else { continue };
        let mut open = vec![(*id, vec![rule.name])];
        let mut seen = BTreeSet::new();
        while let Some((id, chain)) = open.pop() {
            for used in uses.get(id).into_iter().flatten().filter(|used| seen.insert(**used)) {
                let name = names.get(used).copied().unwrap_or_default();
                let chain: Vec<&str> = chain.iter().copied().chain([name]).collect();
                if forbidden.contains(name) {
                    let text = format!("needs `{name}` on {target} ({})", chain.join(" → "));
                    let path = format!("crates/{}/Cargo.toml", rule.name);
                    findings.push(LintFinding::error(&path, 1, text));
                }
                if !PORTABLE_PACKAGES.contains(&name) {
                    open.push((used, chain));
                }
            }
        }
    }
    findings
}

/// Returns the name of each package by its identifier.
fn package_names(metadata: &Value) -> BTreeMap<&str, &str> {
    let packages = list(metadata.get("packages"));
    packages.filter_map(|package| Some((text(package, "id")?, text(package, "name")?))).collect()
}

/// Returns what each package uses outside of tests and build scripts.
fn normal_dependencies(metadata: &Value) -> BTreeMap<&str, Vec<&str>> {
    let nodes = list(metadata.pointer("/resolve/nodes"));
    nodes.filter_map(|node| Some((text(node, "id")?, used_by(node)))).collect()
}

fn used_by(node: &Value) -> Vec<&str> {
    let is_normal = |dependency: &&Value| {
        let mut kinds = list(dependency.get("dep_kinds"));
        kinds.any(|kind| kind.get("kind").is_none_or(Value::is_null))
    };
    let dependencies = list(node.get("deps")).filter(is_normal);
    dependencies.filter_map(|dependency| text(dependency, "pkg")).collect()
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_forbidden_package_is_found_with_the_chain_to_it() {
        let package = |name: &str| json!({"id": format!("{name} 1"), "name": name});
        let uses = |name: &str, used: &[(&str, Option<&str>)]| {
            let dependencies: Vec<_> = used
                .iter()
                .map(|(name, kind)| json!({"pkg": format!("{name} 1"), "dep_kinds": [{"kind": kind}]}))
                .collect();
            json!({"id": format!("{name} 1"), "deps": dependencies})
        };
        let metadata = |kind: Option<&str>| {
            let packages = ["towpath-net", "rand", "libc"].map(package);
            json!({
                "packages": packages,
                "resolve": {"nodes": [
                    uses("towpath-net", &[("rand", None)]),
                    uses("rand", &[("libc", kind)]),
                    uses("libc", &[]),
                ]},
            })
        };
        let texts = |metadata: &Value, forbidden: &[&str]| -> Vec<String> {
            let findings = check_target(metadata, "windows", forbidden);
            findings.iter().map(ToString::to_string).collect()
        };
        let expected = "crates/towpath-net/Cargo.toml:1: needs `libc` on windows \
                        (towpath-net → rand → libc)";
        assert_eq!(texts(&metadata(None), &["libc"]), [expected]);
        assert!(texts(&metadata(Some("dev")), &["libc"]).is_empty());
        assert!(texts(&metadata(None), &["nix"]).is_empty());
    }
}
