//! Manifest of an Indexed Job for Kubernetes, with the plan and all its files in a `ConfigMap`.
//!
//! The manifest is YAML. Texts of the user are block scalars if every parser reads them the same,
//! and otherwise quoted scalars with escapes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Component, Path};

use towpath_result::format::count;
use towpath_result::format::text::deceives;
use towpath_scenario::World;

use super::{CheckedSweep, JobError, WorkerSet, is_address, job_name, quoted};

/// Maximum total size in bytes of the values of a `ConfigMap`, a limit of Kubernetes.
pub(super) const MAX_MAP_BYTES: usize = 1 << 20;
/// Maximum length in bytes of a claim's name (RFC 1123, a DNS subdomain).
const MAX_CLAIM_BYTES: usize = 253;
/// Folder of the `ConfigMap` in the container.
const PLAN_MOUNT: &str = "/plan";
/// Folder of the claim's volume in the container.
const ROWS_MOUNT: &str = "/rows";
/// Folder of the plan in the `ConfigMap`'s volume. A plan that names a file above its folder is
/// deeper.
const FILES_FOLDER: &str = "files";

/// Names that belong to the user's cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cluster<'a> {
    image: Option<&'a str>,
    claim: Option<&'a str>,
}

/// File in the `ConfigMap`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MapFile {
    key: String,
    /// Path in the volume.
    path: String,
    text: String,
}

impl<'a> Cluster<'a> {
    pub(super) fn new(image: Option<&'a str>, claim: Option<&'a str>) -> Result<Self, JobError> {
        let is_image =
            |image: &str| !image.is_empty() && image.chars().all(|c| c.is_ascii_graphic());
        if let Some(image) = image.filter(|image| !is_image(image)) {
            return Err(JobError::Image(image.to_owned()));
        }
        if let Some(claim) = claim.filter(|claim| !is_subdomain(claim)) {
            return Err(JobError::Claim(claim.to_owned()));
        }
        Ok(Self { image, claim })
    }

    /// Returns the manifest.
    pub(super) fn manifest(
        self,
        set: &WorkerSet,
        sweep: CheckedSweep<'_>,
    ) -> Result<String, JobError> {
        let files = map_files(sweep)?;
        let plan = files.first().map(|file| quoted(&format!("{PLAN_MOUNT}/{}", file.path)));
        let folder = rows_folder(sweep.folder)?;
        let script = format!(
            "#!/bin/sh\nset -eu\nexec towpath {}\n",
            set.command(
                (&plan.transpose()?.unwrap_or_default(), &folder),
                "\"$((JOB_COMPLETION_INDEX + 1))\"",
                &set.jobs.to_string()
            )
        );
        let bytes = script.len() + files.iter().map(|file| file.text.len()).sum::<usize>();
        if bytes > MAX_MAP_BYTES {
            return Err(JobError::Size(bytes));
        }
        let name = job_name(&set.plan, set.world);
        let mut manifest = set.title();
        let _ = write!(
            manifest,
            "# Submit it with `kubectl create -f FILE`. To run what is missing, `kubectl delete -f FILE`\n\
             # and submit it again: the rows stay. Kubernetes 1.29 or later is needed.\n\
             # Progress: kubectl get job {name}\n\
             apiVersion: v1\n\
             kind: ConfigMap\n\
             metadata:\n  name: {name}\n\
             immutable: true\n\
             data:\n  worker.sh: {}\n",
            scalar(&script, 4)
        );
        for MapFile { key, path, text } in &files {
            // The path is on one line, because it has no invisible character.
            let _ = writeln!(manifest, "  # {path}\n  {key}: {}", scalar(text, 4));
        }
        manifest.push_str(&self.job(set, sweep, &files));
        Ok(manifest)
    }

    /// Returns the manifest of the job.
    fn job(self, set: &WorkerSet, sweep: CheckedSweep<'_>, files: &[MapFile]) -> String {
        let (name, workers) = (job_name(&set.plan, set.world), set.workers);
        let seccomp = match set.world {
            World::Sim => "RuntimeDefault",
            // The default filter refuses the namespaces of the emulator.
            World::Emu | World::Live => "Unconfined",
        };
        let mut text = format!(
            "---\n\
             apiVersion: batch/v1\n\
             kind: Job\n\
             metadata:\n  name: {name}\n\
             spec:\n  \
               completionMode: Indexed\n  \
               completions: {workers}\n  \
               # A smaller number uses less of the cluster.\n  \
               parallelism: {workers}\n  \
               # A worker that ends early continues in another pod, at most three times.\n  \
               backoffLimitPerIndex: 3\n  \
               podFailurePolicy:\n    \
                 rules:\n      \
                   # The removal of a pod, such as from a drained node, does not count.\n      \
                   - action: Ignore\n        \
                     onPodConditions:\n          \
                       - type: DisruptionTarget\n            \
                         status: \"True\"\n  \
               template:\n    \
                 spec:\n      \
                   restartPolicy: Never\n      \
                   automountServiceAccountToken: false\n      \
                   securityContext:\n        \
                     runAsNonRoot: true\n        \
                     runAsUser: 10001\n        \
                     runAsGroup: 10001\n        \
                     fsGroup: 10001\n        \
                     seccompProfile:\n          \
                       type: {seccomp}\n"
        );
        text.push_str(&self.containers(set.jobs, sweep));
        let _ = write!(
            text,
            "      volumes:\n        \
               - name: plan\n          \
                 configMap:\n            \
                   name: {name}\n            \
                   items:\n              \
                     - key: worker.sh\n                \
                       path: worker.sh\n"
        );
        for MapFile { key, path, .. } in files {
            let path = double_quoted(path);
            let _ = write!(text, "              - key: {key}\n                path: {path}\n");
        }
        if !is_address(sweep.folder) {
            text.push_str(&self.volume(workers));
        }
        text
    }

    /// Returns the container of a pod.
    fn containers(self, jobs: u32, sweep: CheckedSweep<'_>) -> String {
        let image = self.image.map_or_else(
            || "IMAGE # placeholder: an image that has towpath and sh".to_owned(),
            double_quoted,
        );
        let (environment, mount) = if is_address(sweep.folder) {
            (OBJECT_STORE_ENVIRONMENT, String::new())
        } else {
            ("", format!("            - name: rows\n              mountPath: {ROWS_MOUNT}\n"))
        };
        format!(
            "      containers:\n        \
               - name: worker\n          \
                 image: {image}\n          \
                 command: [sh, {PLAN_MOUNT}/worker.sh]\n          \
                 resources:\n            \
                   requests:\n              \
                     cpu: \"{jobs}\"\n          \
                 securityContext:\n            \
                   allowPrivilegeEscalation: false\n            \
                   capabilities:\n              \
                     drop: [ALL]\n\
             {environment}          \
                 volumeMounts:\n            \
                   - name: plan\n              \
                     mountPath: {PLAN_MOUNT}\n              \
                     readOnly: true\n\
             {mount}"
        )
    }

    /// Returns the volume of the rows.
    fn volume(self, workers: u32) -> String {
        let claim = self.claim.map_or_else(
            || "CLAIM # placeholder: the name of a PersistentVolumeClaim".to_owned(),
            double_quoted,
        );
        let pods = count(workers.into(), "pod");
        format!(
            "        # Shared by {pods} (ReadWriteMany), on a file system that has hard links.\n        \
             - name: rows\n          \
               persistentVolumeClaim:\n            \
                 claimName: {claim}\n"
        )
    }
}

/// Returns the folder of the rows in the container, as a shell's word.
pub(super) fn rows_folder(folder: &Path) -> Result<String, JobError> {
    let text = folder.to_str().ok_or_else(|| JobError::Encoding(folder.to_owned()))?;
    if is_address(folder) {
        return quoted(text);
    }
    let mut path = ROWS_MOUNT.to_owned();
    for component in folder.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => {
                path.push('/');
                path.push_str(&name.to_string_lossy());
            }
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(JobError::Folder(text.to_owned()));
            }
        }
    }
    quoted(&path)
}

/// Environment of a container whose rows are in an object store.
const OBJECT_STORE_ENVIRONMENT: &str = "          \
    # Secret with the variables of the object store, such as AWS_ACCESS_KEY_ID.\n          \
    envFrom:\n            \
      - secretRef:\n                \
          name: towpath-objects\n";

/// Returns true for a DNS subdomain (RFC 1123), as Kubernetes demands of names.
fn is_subdomain(name: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = |label: &str| {
        !label.is_empty()
            && label.chars().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= MAX_CLAIM_BYTES && name.split('.').all(is_label)
}

/// Returns the plan, and then all files that it reads. In the volume, each has the same place
/// relative to the plan.
fn map_files(sweep: CheckedSweep<'_>) -> Result<Vec<MapFile>, JobError> {
    let name = sweep.path.file_name().unwrap_or_default();
    let name = name.to_str().ok_or_else(|| JobError::Encoding(sweep.path.to_owned()))?;
    let files = sweep.spec.files();
    // The number of folders above that of the plan which the names need.
    let depth = files.keys().map(|name| rise(name)).max().unwrap_or(0);
    let folder = vec![FILES_FOLDER; depth + 1].join("/");
    let texts = [(name, sweep.text)];
    let texts = texts.into_iter().chain(files.iter().map(|(name, text)| (&**name, &**text)));
    let mut map_files: Vec<MapFile> = Vec::new();
    for (index, (name, text)) in texts.enumerate() {
        let path = resolved(&folder, name).ok_or_else(|| JobError::Place(name.to_owned()))?;
        if path.contains(deceives) {
            return Err(JobError::Character(name.to_owned()));
        }
        // Two names of one file, such as `a` and `./a`.
        if map_files.iter().any(|file| file.path == path) {
            continue;
        }
        map_files.push(MapFile { key: format!("file-{index}"), path, text: text.to_owned() });
    }
    // A file system opens `a/../b` only if `a` exists.
    let folders: BTreeSet<&Path> =
        map_files.iter().flat_map(|file| Path::new(&file.path).ancestors().skip(1)).collect();
    let is_reachable = |name: &str| {
        let prefixes = name.match_indices('/').filter_map(|(end, _)| name.get(..end));
        prefixes.filter(|prefix| !prefix.is_empty()).all(|prefix| {
            resolved(&folder, prefix).is_some_and(|p| folders.contains(Path::new(&p)))
        })
    };
    match files.keys().find(|name| !is_reachable(name)) {
        Some(name) => Err(JobError::Place(name.clone())),
        None => Ok(map_files),
    }
}

/// Returns the number of folders that a relative name leads above its start.
fn rise(name: &str) -> usize {
    let (mut depth, mut lowest) = (0_isize, 0);
    for component in Path::new(name).components() {
        match component {
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
        lowest = lowest.min(depth);
    }
    lowest.unsigned_abs()
}

/// Returns the path of a relative name in a folder, without `.` and `..`. `None` if the name is
/// absolute or leads above the first folder.
fn resolved(folder: &str, name: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for component in Path::new(name).components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(parts.pop()?),
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// Returns a text as the value of a YAML key, without the final line end. `indent` is that of a
/// block's lines.
fn scalar(text: &str, indent: usize) -> String {
    if !is_block(text) {
        return double_quoted(text);
    }
    // The indicator gives the indentation relative to the key's, so that lines may begin with
    // spaces (YAML 1.2 §8.1.1.1).
    let mut block = "|2".to_owned();
    for line in text.lines() {
        block.push('\n');
        if !line.is_empty() {
            let _ = write!(block, "{:indent$}{line}", "");
        }
    }
    block
}

/// Returns true if a literal block scalar keeps the text, with every parser.
fn is_block(text: &str) -> bool {
    let is_visible_line =
        |line: &str| line.is_empty() || line.contains(|c: char| !c.is_ascii_whitespace());
    text.strip_suffix('\n').is_some_and(|text| !text.is_empty() && !text.ends_with('\n'))
        && text.chars().all(|c| c == '\n' || c == '\t' || is_printable(c))
        && text.lines().all(is_visible_line)
}

/// Returns true for characters that YAML 1.1 and 1.2 permit in plain form, and that are visible.
fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~' | '\u{a0}'..)
        && !deceives(c)
        && !matches!(c, '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// Returns a text as a double-quoted scalar of YAML.
fn double_quoted(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if is_printable(c) => quoted.push(c),
            c => {
                // Characters above U+FFFF have eight digits.
                let code = u32::from(c);
                let _ = if code > 0xffff {
                    write!(quoted, "\\U{code:08x}")
                } else {
                    write!(quoted, "\\u{code:04x}")
                };
            }
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_parsers_read_differently_are_quoted() {
        assert_eq!(scalar("a: b\n\n  # c\n", 4), "|2\n    a: b\n\n      # c");
        assert_eq!(scalar("  first\n\ttab\n", 2), "|2\n    first\n  \ttab");
        for text in ["", "\n", "no end", "two ends\n\n", "a\r\nb\n", "a\n  \nb\n", "a\u{7f}\n"] {
            assert!(scalar(text, 4).starts_with('"'), "{text:?}");
        }
        for text in ["a\u{85}b\n", "a\u{2028}b\n", "\u{feff}a\n", "a\u{202e}b\n"] {
            assert!(scalar(text, 4).starts_with('"'), "{text:?}");
        }
        assert_eq!(double_quoted("\"\\\r\u{1b}é\u{10ffff}"), r#""\"\\\r\u001bé􏿿""#);
    }

    #[test]
    fn files_keep_their_places_relative_to_the_plan() {
        assert_eq!((rise("a"), rise("../a"), rise("a/../../../b")), (0, 1, 2));
        assert_eq!(resolved("files/files", "../t/x.toml").unwrap(), "files/t/x.toml");
        assert_eq!(resolved("files", "./a/./b/../c").unwrap(), "files/a/c");
        assert_eq!((resolved("files", "/etc"), resolved("files", "../..")), (None, None));
    }
}
