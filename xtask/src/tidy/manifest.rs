//! Rules of crates and their dependencies on each other.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::LintFinding;
use super::crates::{self, CrateRule, Platform, SYSTEM_PACKAGES};
use crate::repository::Repository;
use crate::{Result, cargo};

/// Returns cargo's metadata of the workspace; works offline.
pub(crate) fn metadata(root: &Path) -> Result<Value> {
    let output = cargo(root)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata ended with {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Checks every crate of the workspace.
pub(super) fn check(metadata: &Value, repository: &Repository) -> Vec<LintFinding> {
    let root = text(metadata, "workspace_root");
    list(metadata, "packages").flat_map(|package| check_crate(package, root, repository)).collect()
}

fn check_crate(package: &Value, root: &str, repository: &Repository) -> Vec<LintFinding> {
    let name = text(package, "name");
    let path = text(package, "manifest_path");
    let path = path.strip_prefix(root).unwrap_or(path).trim_start_matches(['/', '\\']);
    let manifest = repository.text(path).unwrap_or_default();
    let mut findings = dependencies(package, name, path, manifest);
    let folder = path.rsplit('/').nth(1).unwrap_or_default();
    if folder != name {
        let text = format!("crate `{name}` in folder `{folder}`, expected the same name");
        findings.push(LintFinding::error(path, line_of(manifest, "name"), text));
    }
    for (key, expected) in [("description", "a description"), ("license", "a licence")] {
        if text(package, key).is_empty() {
            findings.push(LintFinding::error(path, 1, format!("no `{key}`, expected {expected}")));
        }
    }
    if !uses_workspace_lints(manifest) {
        let text = "own lints or none, expected `[lints]` with `workspace = true`";
        findings.push(LintFinding::error(path, 1, text));
    }
    findings
}

fn dependencies(package: &Value, name: &str, path: &str, manifest: &str) -> Vec<LintFinding> {
    let Some(rule) = crates::rule(name) else {
        let text =
            format!("crate `{name}` is new, expected a row in `CRATES` of `cargo xtask tidy`");
        return vec![LintFinding::error(path, line_of(manifest, "name"), text)];
    };
    let mut findings = system_packages(package, rule, path, manifest);
    let dependency_names = list(package, "dependencies").map(|dependency| text(dependency, "name"));
    let forbidden =
        dependency_names.filter(|used| is_ours(used) && !rule.may_use.contains(used)).map(|used| {
            let expected = match rule.may_use {
                [] => "none of our crates".to_owned(),
                _ => format!("only {}", rule.may_use.join(", ")),
            };
            let text = format!(
                "`{name}` uses `{used}`, expected {expected}: it must not know {}",
                rule.must_not_know
            );
            LintFinding::error(path, line_of(manifest, used), text)
        });
    findings.extend(forbidden);
    findings
}

/// Finds dependencies of a portable crate that exist on some systems only, but name no target.
fn system_packages(
    package: &Value,
    rule: &CrateRule,
    path: &str,
    manifest: &str,
) -> Vec<LintFinding> {
    if rule.platform == Platform::Linux {
        return Vec::new();
    }
    let is_system_package = |used: &str| {
        let is_linux_crate =
            crates::rule(used).is_some_and(|used| used.platform == Platform::Linux);
        is_linux_crate || SYSTEM_PACKAGES.contains(&used)
    };
    list(package, "dependencies")
        .filter(|dependency| {
            text(dependency, "kind") != "dev" && text(dependency, "target").is_empty()
        })
        .map(|dependency| text(dependency, "name"))
        .filter(|used| is_system_package(used))
        .map(|used| {
            let text = format!(
                "`{used}` on every system, expected it in `[target.'cfg(…)'.dependencies]`"
            );
            LintFinding::error(path, line_of(manifest, used), text)
        })
        .collect()
}

fn is_ours(name: &str) -> bool {
    name == "towpath" || name == "xtask" || name.starts_with("towpath-")
}

fn uses_workspace_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(str::trim);
    lines.clone().any(|line| line == "lints.workspace = true")
        || lines.any(|line| line == "[lints]")
            && lines
                .take_while(|line| !line.starts_with('['))
                .any(|line| line == "workspace = true")
}

/// Returns the line that sets `key`, or 1 if none does.
fn line_of(manifest: &str, key: &str) -> usize {
    let sets_key = |line: &str| {
        line.trim_start()
            .strip_prefix(key)
            .is_some_and(|rest| rest.starts_with(['.', '=', ' ']) || rest.is_empty())
    };
    manifest.lines().position(sets_key).map_or(1, |line| line + 1)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GOOD: &str = "[package]\nname = \"x\"\n\n[dependencies]\ntowpath-net.workspace = true\n\
                        towpath = { workspace = true }\n\n[lints]\nworkspace = true\n";

    /// Returns tidy's findings for a crate in `folder` with these dependencies.
    fn findings(name: &str, folder: &str, dependencies: &[&str], manifest: &str) -> Vec<String> {
        let path = format!("{folder}/Cargo.toml");
        let dependency_list: Vec<_> =
            dependencies.iter().map(|name| json!({ "name": name })).collect();
        let metadata = json!({
            "workspace_root": "/repository",
            "packages": [{
                "name": name,
                "manifest_path": format!("/repository/{path}"),
                "description": "x",
                "license": "MIT OR Apache-2.0",
                "dependencies": dependency_list,
            }],
        });
        let repository = Repository::of(&[(&path, manifest)]);
        check(&metadata, &repository).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn dependencies_point_in_one_direction() {
        let path = "crates/towpath-scenario";
        assert!(findings("towpath-scenario", path, &["serde", "towpath-net"], GOOD).is_empty());
        assert_eq!(
            findings("towpath-net", "crates/towpath-net", &["towpath"], GOOD),
            [
                "crates/towpath-net/Cargo.toml:6: `towpath-net` uses `towpath`, expected none of our \
              crates: it must not know protocols and clocks"
            ]
        );
        assert_eq!(
            findings("towpath-scenario", path, &["towpath-result"], GOOD),
            ["crates/towpath-scenario/Cargo.toml:1: `towpath-scenario` uses `towpath-result`, \
              expected only towpath-net: it must not know results, sockets and protocol stacks"]
        );
    }

    #[test]
    fn portable_crates_name_the_target_of_system_packages() {
        let texts = findings("towpath-result", "crates/towpath-result", &["libc"], GOOD);
        let expected = "`libc` on every system, expected it in `[target.'cfg(…)'.dependencies]`";
        assert_eq!(texts, [format!("crates/towpath-result/Cargo.toml:1: {expected}")]);
        assert!(findings("towpath-emu", "crates/towpath-emu", &["libc"], GOOD).is_empty());
    }

    #[test]
    fn a_new_crate_must_declare_its_allowed_dependencies() {
        let texts = findings("towpath-new", "crates/towpath-new", &[], GOOD);
        assert!(texts.iter().any(|text| text.contains("is new")), "{texts:?}");
    }

    #[test]
    fn a_folder_is_named_after_its_crate() {
        let texts = findings("towpath-net", "crates/net", &[], GOOD);
        let expected = "crate `towpath-net` in folder `net`, expected the same name";
        assert_eq!(texts, [format!("crates/net/Cargo.toml:2: {expected}")]);
    }

    #[test]
    fn every_crate_has_the_workspace_lints() {
        for manifest in [GOOD, "lints.workspace = true\n", "[lints]\n\nworkspace = true"] {
            assert!(uses_workspace_lints(manifest), "{manifest}");
        }
        for manifest in ["", "[lints]\n[x]\nworkspace = true\n", "workspace = true\n"] {
            assert!(!uses_workspace_lints(manifest), "{manifest}");
        }
    }

    #[test]
    fn every_crate_has_a_description_and_a_licence() {
        let package = json!({ "name": "xtask", "manifest_path": "/r/xtask/Cargo.toml" });
        let repository = Repository::of(&[("xtask/Cargo.toml", GOOD)]);
        let findings = check_crate(&package, "/r", &repository);
        assert_eq!(findings.len(), 2, "{findings:?}");
    }
}
