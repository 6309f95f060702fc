//! Rules of crates and their dependencies on each other.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use super::LintFinding;
use crate::repository::Repository;
use crate::{Result, cargo};

/// Dependencies that each crate may have on our crates, in tests also. No crate uses the command.
const MAY_USE: &[(&str, &[&str])] = &[
    ("towpath-net", &[]),
    ("towpath-multipath", &["towpath-net"]),
    ("towpath-mptcp", &["towpath-net", "towpath-multipath"]),
    ("towpath-script", &["towpath-net", "towpath-mptcp"]),
    ("towpath-quic", &["towpath-net", "towpath-multipath"]),
    ("towpath-measure", &["towpath-net"]),
    (
        "towpath-sim",
        &["towpath-net", "towpath-multipath", "towpath-mptcp", "towpath-quic", "towpath-measure"],
    ),
    (
        "towpath-linux",
        &[
            "towpath-net",
            "towpath-multipath",
            "towpath-mptcp",
            "towpath-quic",
            "towpath-measure",
            "towpath-script",
        ],
    ),
    ("towpath-report", &["towpath-net", "towpath-measure", "towpath-mptcp"]),
    ("towpath-study", &["towpath-net", "towpath-measure", "towpath-report"]),
    ("towpath-collect", &["towpath-measure", "towpath-report"]),
    (
        "towpath",
        &[
            "towpath-net",
            "towpath-multipath",
            "towpath-mptcp",
            "towpath-quic",
            "towpath-measure",
            "towpath-sim",
            "towpath-linux",
            "towpath-report",
            "towpath-study",
            "towpath-collect",
        ],
    ),
    ("xtask", &[]),
];

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
    let Some((_, allowed)) = MAY_USE.iter().find(|(user, _)| *user == name) else {
        let text =
            format!("crate `{name}` is new, expected a row in `MAY_USE` of `cargo xtask tidy`");
        return vec![LintFinding::error(path, line_of(manifest, "name"), text)];
    };
    list(package, "dependencies")
        .map(|dependency| text(dependency, "name"))
        .filter(|dependency_name| is_ours(dependency_name) && !allowed.contains(dependency_name))
        .map(|dependency_name| {
            let expected = match *allowed {
                [] => "none of our crates".to_owned(),
                _ => format!("only {}", allowed.join(", ")),
            };
            let text = format!("`{name}` uses `{dependency_name}`, expected {expected}");
            LintFinding::error(path, line_of(manifest, dependency_name), text)
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
        let path = "crates/towpath-measure";
        assert!(findings("towpath-measure", path, &["serde", "towpath-net"], GOOD).is_empty());
        assert_eq!(
            findings("towpath-net", "crates/towpath-net", &["towpath"], GOOD),
            [
                "crates/towpath-net/Cargo.toml:6: `towpath-net` uses `towpath`, expected none of our \
              crates"
            ]
        );
        assert_eq!(
            findings("towpath-measure", path, &["towpath-linux"], GOOD),
            ["crates/towpath-measure/Cargo.toml:1: `towpath-measure` uses `towpath-linux`, \
              expected only towpath-net"]
        );
    }

    #[test]
    fn real_clock_crates_avoid_virtual_time_and_none_uses_the_cli() {
        for (user, allowed) in MAY_USE {
            assert!(*user != "towpath-linux" || !allowed.contains(&"towpath-sim"));
            assert!(!allowed.contains(&"towpath") && !allowed.contains(&"xtask"), "{user}");
        }
    }

    #[test]
    fn the_table_of_dependencies_has_no_cycle() {
        let mut remaining: Vec<_> = MAY_USE.to_vec();
        while !remaining.is_empty() {
            let remaining_users: Vec<_> = remaining.iter().map(|(user, _)| *user).collect();
            let count_before = remaining.len();
            remaining
                .retain(|(_, allowed)| allowed.iter().any(|used| remaining_users.contains(used)));
            assert!(remaining.len() < count_before, "a cycle in {remaining_users:?}");
        }
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
