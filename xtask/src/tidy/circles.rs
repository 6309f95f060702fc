//! Import circles: modules of one crate that use each other.
//!
//! A *topic* is a module in the root of a crate, with all that is below it. The crate's root itself
//! is a topic as well if it defines something. A change of one topic of a circle requires knowledge of all
//! of them, and none can become a crate of its own.

#![expect(clippy::wildcard_enum_match_arm, reason = "the enums of syn are non-exhaustive")]

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;

use super::LintFinding;
use crate::repository::Repository;

/// Name of a crate's root as a topic.
const ROOT: &str = "the crate's root";

/// Circles that are still there. Topics may leave a circle, and none may join it.
const KNOWN_CIRCLES: &[(&str, &[&str])] = &[
    ("towpath-doctor", &["local_findings", "route_lookups", "rules"]),
    ("towpath-emu", &["lab", "program", "program_connections", "run", "traffic"]),
    ("towpath-live", &["flow_runner", "sender_sampler", "series", "udp_flows"]),
    ("towpath-mptcp", &["connection", "stack"]),
    ("towpath-quic", &["certificate", "error", "identity"]),
    ("towpath-quic", &["connection", "host", "paths"]),
    ("towpath-report", &["comparison", "html", "terminal"]),
    ("towpath-result", &["latency", "message"]),
    ("towpath-scenario", &["model", "pattern", "stack"]),
    (
        "towpath-sim",
        &[
            "account",
            "host",
            "idle_cause",
            "network",
            "ping",
            "quic_flow",
            "quic_record",
            "record",
            "simulation",
            "socket",
            "traffic",
            "udp",
        ],
    ),
    ("towpath-trace", &["summary", ROOT]),
    ("towpath-wire", &["ip", ROOT]),
    ("towpath-wire", &["mptcp", "option"]),
];

/// Topics of a crate, each with the topics that it uses and a place where it does so.
type TopicGraph = BTreeMap<String, BTreeMap<String, Place>>;

/// Place of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    path: String,
    line: usize,
}

/// Finds import circles that are not known, and topics that have left a known circle.
pub(super) fn check(repository: &Repository) -> Vec<LintFinding> {
    check_known(repository, KNOWN_CIRCLES)
}

fn check_known(repository: &Repository, known: &[(&str, &[&str])]) -> Vec<LintFinding> {
    let mut findings = Vec::new();
    for (crate_name, files) in sources(repository) {
        let graph = topic_graph(&files);
        let circles = circles(&graph);
        let expected: BTreeSet<&str> = known
            .iter()
            .filter(|(name, _)| *name == crate_name)
            .flat_map(|(_, topics)| topics.iter().copied())
            .collect();
        let found: BTreeSet<&str> = circles.iter().flatten().map(String::as_str).collect();
        for circle in &circles {
            findings.extend(new_topics(&graph, circle, &expected));
        }
        for topic in expected.difference(&found) {
            let path = format!("crates/{crate_name}/src");
            let text = format!(
                "`{topic}` is in no import circle any more, expected it not in `KNOWN_CIRCLES`"
            );
            findings.push(LintFinding::error(&path, 1, text));
        }
    }
    findings
}

/// Returns a finding for a circle with topics that are not known to be in one.
fn new_topics(
    graph: &TopicGraph,
    circle: &BTreeSet<String>,
    expected: &BTreeSet<&str>,
) -> Option<LintFinding> {
    let topic = circle.iter().find(|topic| !expected.contains(topic.as_str()))?;
    let (used, place) = graph.get(topic)?.iter().find(|(used, _)| circle.contains(*used))?;
    let names: Vec<&str> = circle.iter().map(String::as_str).collect();
    let text = format!(
        "`{topic}` uses `{used}` in an import circle of {}, expected one direction",
        names.join(", ")
    );
    Some(LintFinding::error(&place.path, place.line, text))
}

/// Returns the files of each crate without its tests, with their paths below `src`.
fn sources(repository: &Repository) -> BTreeMap<&str, Vec<(&str, &str)>> {
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for path in repository.paths() {
        let Some((crate_name, file)) =
            path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        let is_test = file.split('/').any(|part| matches!(part, "tests.rs" | "tests"));
        let is_rust = file.rsplit_once('.').is_some_and(|(_, extension)| extension == "rs");
        if let Some(text) = repository.text(path)
            && is_rust
            && !is_test
        {
            crates.entry(crate_name).or_default().push((path, text));
        }
    }
    crates
}

fn topic_graph(files: &[(&str, &str)]) -> TopicGraph {
    let parsed: Vec<(&str, Vec<String>, syn::File)> = files
        .iter()
        .filter_map(|(path, text)| {
            // The compiler reports syntax errors.
            Some((*path, module_of(path), syn::parse_file(text).ok()?))
        })
        .collect();
    let mut root = Root::default();
    for (_, module, file) in &parsed {
        match module.as_slice() {
            [] => root.read(file),
            [topic, ..] => drop(root.topics.insert(topic.clone())),
        }
    }
    let mut graph = TopicGraph::new();
    for (path, module, file) in &parsed {
        if module.is_empty() && !root.defines {
            continue;
        }
        let mut imports = Imports { root: &root, module: module.clone(), used: Vec::new() };
        imports.visit_file(file);
        let topic = module.first().map_or(ROOT, String::as_str);
        let edges = graph.entry(topic.to_owned()).or_default();
        for (used, line) in imports.used.into_iter().filter(|(used, _)| used != topic) {
            edges.entry(used).or_insert_with(|| Place { path: (*path).to_owned(), line });
        }
    }
    graph
}

/// Returns the module of a file, from the crate's root.
fn module_of(path: &str) -> Vec<String> {
    let (_, file) = path.split_once("/src/").unwrap_or(("", path));
    let mut module: Vec<_> =
        file.trim_end_matches(".rs").split('/').map(ToOwned::to_owned).collect();
    if module.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

/// Contents of a crate's root.
#[derive(Debug, Default)]
struct Root {
    /// Modules in the root.
    topics: BTreeSet<String>,
    /// Names that the root re-exports, each with its module.
    re_exports: BTreeMap<String, String>,
    /// True if the root defines items, and does not only declare modules.
    defines: bool,
}

impl Root {
    fn read(&mut self, file: &syn::File) {
        for item in &file.items {
            match item {
                syn::Item::Use(import) => self.read_import(&import.tree, None),
                syn::Item::Mod(module) if module.content.is_none() => {}
                _ if is_for_tests(item) => {}
                _ => self.defines = true,
            }
        }
    }

    /// Reads `use topic::Name` and its forms.
    fn read_import(&mut self, tree: &syn::UseTree, topic: Option<&str>) {
        match tree {
            syn::UseTree::Path(path) => {
                let name = path.ident.to_string();
                let first =
                    if matches!(name.as_str(), "crate" | "self") { None } else { Some(name) };
                self.read_import(&path.tree, topic.or(first.as_deref()));
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.read_import(tree, topic);
                }
            }
            syn::UseTree::Name(name) => self.re_export(&name.ident.to_string(), topic),
            syn::UseTree::Rename(rename) => self.re_export(&rename.rename.to_string(), topic),
            syn::UseTree::Glob(_) => {}
        }
    }

    fn re_export(&mut self, name: &str, topic: Option<&str>) {
        if let Some(topic) = topic {
            self.re_exports.insert(name.to_owned(), topic.to_owned());
        }
    }

    /// Returns the topic of a path from the crate's root.
    fn topic_of(&self, name: &str) -> &str {
        if let Some(topic) = self.topics.get(name) {
            return topic;
        }
        let topic = self.re_exports.get(name).and_then(|topic| self.topics.get(topic));
        topic.map_or(ROOT, String::as_str)
    }
}

/// Collects the topics that a file uses.
struct Imports<'a> {
    root: &'a Root,
    /// Module of the current item, from the crate's root.
    module: Vec<String>,
    used: Vec<(String, usize)>,
}

impl Imports<'_> {
    /// Adds the topic of a path such as `crate::a::B` or `super::B`.
    fn add(&mut self, path: &[String], line: usize) {
        let base: &[String] = match path.first().map(String::as_str) {
            Some("crate") => &[],
            Some("super" | "self") => &self.module,
            // In the root, a module needs no prefix.
            Some(name) if self.module.is_empty() && self.root.topics.contains(name) => {
                self.used.push((name.to_owned(), line));
                return;
            }
            Some(_) | None => return,
        };
        let prefix = |part: &&String| matches!(part.as_str(), "crate" | "self" | "super");
        let ups = path.iter().take_while(prefix).filter(|part| *part == "super").count();
        let base = base.get(..base.len().saturating_sub(ups)).unwrap_or_default();
        if let Some(first) = base.iter().chain(path.iter().skip_while(prefix)).next() {
            self.used.push((self.root.topic_of(first).to_owned(), line));
        }
    }

    fn add_tree(&mut self, tree: &syn::UseTree, prefix: &[String]) {
        match tree {
            syn::UseTree::Path(path) => {
                let path_so_far = [prefix, &[path.ident.to_string()]].concat();
                self.add_tree(&path.tree, &path_so_far);
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_tree(tree, prefix);
                }
            }
            syn::UseTree::Name(syn::UseName { ident })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                let path = [prefix, &[ident.to_string()]].concat();
                self.add(&path, ident.span().start().line);
            }
            syn::UseTree::Glob(glob) => self.add(prefix, glob.star_token.spans[0].start().line),
        }
    }

    /// Adds the paths in the arguments of a macro.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut line = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.add(&path, line);
                        path.clear();
                        line = ident.span().start().line;
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Group(group) => {
                    self.add_tokens(group.stream());
                    colons = 0;
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => colons = 0,
            }
        }
        self.add(&path, line);
    }
}

impl<'ast> Visit<'ast> for Imports<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(item) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.module.push(module.ident.to_string());
        syn::visit::visit_item_mod(self, module);
        self.module.pop();
    }

    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        // A re-export of the root uses nothing.
        let is_re_export =
            self.module.is_empty() && !matches!(import.vis, syn::Visibility::Inherited);
        if !is_re_export {
            self.add_tree(&import.tree, &[]);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let line = path.segments.first().map_or(0, |segment| segment.ident.span().start().line);
        if segments.len() > 1 {
            self.add(&segments, line);
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.add_tokens(call.tokens.clone());
    }
}

/// Returns true for items that only tests have.
fn is_for_tests(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Const(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

/// Returns the sets of topics that use each other, directly or through others.
fn circles(graph: &TopicGraph) -> Vec<BTreeSet<String>> {
    let reach = |start: &String| {
        let mut reached = BTreeSet::new();
        let mut open = vec![start];
        while let Some(topic) = open.pop() {
            let used = graph.get(topic).into_iter().flat_map(BTreeMap::keys);
            open.extend(used.filter(|used| reached.insert((*used).clone())));
        }
        reached
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        graph.keys().map(|topic| (topic, reach(topic))).collect();
    let mut circles = BTreeSet::new();
    for (topic, used) in &reached {
        if used.contains(*topic) {
            let circle = used
                .iter()
                .filter(|other| reached.get(other).is_some_and(|reached| reached.contains(*topic)));
            circles.insert(circle.cloned().collect::<BTreeSet<_>>());
        }
    }
    circles.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding_texts(files: &[(&str, &str)], known: &[(&str, &[&str])]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(file, text)| (format!("crates/x/src/{file}"), *text)).collect();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let findings = check_known(&Repository::of(&files), known);
        findings.iter().map(ToString::to_string).collect()
    }

    const LIB: (&str, &str) = ("lib.rs", "mod a;\nmod b;\npub use b::Re;\n");

    #[test]
    fn topics_that_use_each_other_are_found() {
        for (a, b) in [
            ("use crate::b;", "use crate::a::{A, B};"),
            ("fn f() { crate::b::g() }", "use super::a::A;"),
            ("use crate::Re;", "fn f() { println!(\"{}\", crate::a::X) }"),
            ("mod inner { use super::super::b; }", "use crate::{a as other};"),
        ] {
            let texts = finding_texts(&[LIB, ("a.rs", a), ("b/mod.rs", b)], &[]);
            let expected = "crates/x/src/a.rs:1: `a` uses `b` in an import circle of a, b, \
                            expected one direction";
            assert_eq!(texts, [expected], "{a} {b}");
        }
    }

    #[test]
    fn one_direction_tests_and_a_topics_own_modules_are_no_circle() {
        for (a, b) in [
            ("use crate::b;", "use std::fmt;"),
            ("use crate::b;", "#[cfg(test)]\nmod tests { use crate::a; }"),
            ("use crate::b;", "use super::b::c; use self::d; fn f() { a::g() }"),
            ("use crate::b;", "// use crate::a;\nconst X: &str = \"crate::a\";"),
        ] {
            let texts = finding_texts(&[LIB, ("a.rs", a), ("b.rs", b)], &[]);
            assert!(texts.is_empty(), "{a} {b}: {texts:?}");
        }
    }

    #[test]
    fn a_root_that_defines_items_is_a_topic() {
        let files = [("lib.rs", "mod a;\nuse a::A;\npub struct S(A);"), ("a.rs", "use crate::S;")];
        assert_eq!(finding_texts(&files, &[]).len(), 1);
        let files = [("lib.rs", "mod a;\npub use a::A;"), ("a.rs", "pub struct A;")];
        assert!(finding_texts(&files, &[]).is_empty());
    }

    #[test]
    fn a_known_circle_may_only_shrink() {
        let circle = [LIB, ("a.rs", "use crate::b;"), ("b.rs", "use crate::a;")];
        assert!(finding_texts(&circle, &[("x", &["a", "b"])]).is_empty());
        assert_eq!(finding_texts(&circle, &[("x", &["a"])]).len(), 1);
        let line = [LIB, ("a.rs", "use crate::b;"), ("b.rs", "")];
        let texts = finding_texts(&line, &[("x", &["a", "b"])]);
        assert_eq!(texts.len(), 2, "{texts:?}");
    }
}
