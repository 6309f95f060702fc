//! Untrusted text of files, on pages in a browser and on lines of a terminal.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use super::{
    PLAN, RESULT, SMALL_SCENARIO, interface_block, packet_block, pcapng_option, run_as_root,
    run_to_end, section_block, syn_packet, words,
};
use crate::program::{ProgramOutput, TestDir, binary, skip, wait_for};
use crate::report_page::{browser, console_errors, open};

/// Text that escapes any text node, attribute, comment, script or style, and then changes the
/// title.
const BREAKS_OUT: &str = "'\"></title></style></script></textarea></text></svg>--!>--> ]]>\
    <script>document.title='owned'</script><img src='x:' onerror=\"document.title='owned'\">\
    <svg onload=\"document.title='owned'\"/>\\u003cscript>\u{2028}\u{202e}${owned}`";

/// Keys of the format whose values are keywords, not free text.
const KEYWORDS: [&str; 14] = [
    "type",
    "world",
    "transport",
    "direction",
    "side",
    "kind",
    "capture_point",
    "asked",
    "order",
    "state",
    "as",
    "cause",
    "pattern",
    "scenario_toml",
];

/// Appends `suffix` to every free text.
fn poison(value: &mut Value, suffix: &str) {
    match value {
        Value::String(text) => text.push_str(suffix),
        Value::Array(children) => children.iter_mut().for_each(|value| poison(value, suffix)),
        Value::Object(children) => {
            let free_texts =
                children.iter_mut().filter(|(name, _)| !KEYWORDS.contains(&name.as_str()));
            free_texts.for_each(|(_, value)| poison(value, suffix));
            if let Some(conditions) = children.get_mut("conditions").and_then(Value::as_object_mut)
            {
                conditions.insert(suffix.to_owned(), Value::from(suffix));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

pub(super) fn poisoned_result(suffix: &str) -> String {
    let mut result = String::new();
    for line in RESULT.lines() {
        let mut value: Value = serde_json::from_str(line).unwrap();
        poison(&mut value, suffix);
        let _ = writeln!(result, "{value}");
    }
    result
}

/// Checks that no text of a page became markup, with its policy and without.
fn assert_no_markup(folder: &TestDir, test: &str, pages: &[&str]) {
    for page in pages {
        let page_text = fs::read_to_string(folder.work().join(page)).unwrap();
        assert!(page_text.contains("owned"), "{page} shows nothing of what was put into it");
        for tag in ["<script>document", "<img", "<svg onload", "</svg>--"] {
            assert!(!page_text.contains(tag), "{page} contains {tag}");
        }
    }
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return skip(test, &reason),
    };
    for page in pages.iter().filter(|page| Path::new(page).extension().is_some_and(|e| e == "html"))
    {
        let path = folder.work().join(page);
        let page_text = fs::read_to_string(&path).unwrap();
        assert!(
            page_text.contains("http-equiv=\"Content-Security-Policy\""),
            "{page} has no policy"
        );
        // Escaped text would run as a script.
        let without_policy =
            page_text.replace("http-equiv=\"Content-Security-Policy\"", "name=\"was\"");
        for version in [&page_text, &without_policy] {
            fs::write(&path, version).unwrap();
            let browser_output = open(folder, &browser, &path, 1_280);
            assert_eq!(browser_output.code, Some(0), "{}", browser_output.err);
            assert!(!browser_output.out.contains("<title>owned"), "{page}: {}", browser_output.out);
            assert_eq!(console_errors(&browser_output), [""; 0], "{page}");
        }
    }
}

/// F5: escapes every text of the result, all of them at once.
#[test]
fn no_text_of_a_result_breaks_out_of_its_page() {
    let folder = TestDir::new();
    folder.write("r.jsonl", poisoned_result(BREAKS_OUT));
    let report = run_to_end(&folder, &words("report r.jsonl -o r.html"));
    assert_eq!(report.code, Some(0), "{report}");
    let comparison = run_to_end(&folder, &words("compare r.jsonl r.jsonl -o out"));
    assert_eq!(comparison.code, Some(0), "{comparison}");
    assert_no_markup(
        &folder,
        "no_text_of_a_result_breaks_out_of_its_page",
        &["r.html", "out/comparison.html"],
    );
}

/// F5: a study's names and claims, in its page and in its plot, which has no policy.
#[test]
fn no_text_of_a_study_breaks_out_of_its_page_or_picture() {
    let folder = TestDir::new();
    fs::create_dir(folder.work().join("study")).unwrap();
    let text = format!("{}owned", BREAKS_OUT.replace('\\', "\\\\").replace('"', "\\\""));
    let name = "v<script>document.title='owned'</script>";
    let plan = PLAN.replace("\"v\"", &format!("\"{name}\""));
    let figure = format!(
        "title = \"{text}\"\n[[axes]]\nname = \"{name}\"\nkeys = [\"hosts.b.receive-buffer\"]\n\
         values = [\"128 KB\", \"256 KB\"]\n[[figures]]\nkind = \"lines\"\ntitle = \"{text}\"\n\
         x = \"{name}\"\ny = \"goodput\"\nx-label = \"{text}\"\ny-label = \"{text}\"\n\
         x-unit = \"KB\"\ny-unit = \"Mbit/s\"\nlines = [{{ at = \"9 Mbit/s\", text = \"{text}\" }}]\n"
    );
    let (plan_head, variants) = plan.split_once("[[variants]]").unwrap();
    let (title, figure) = figure.split_once('\n').unwrap();
    let plan = format!("{plan_head}{title}\n[[variants]]{variants}{figure}");
    let claims = format!(
        "[[claims]]\ntext = \"{text}\"\nsource = \"{text}\"\noutcome = \"holds\"\n\
         [[claims.checks]]\nmetric = \"goodput\"\nof = {{ variant = \"{name}\" }}\nis = \"> 1 bit/s\"\n"
    );
    for (name, text) in
        [("scenario.toml", SMALL_SCENARIO), ("plan.toml", &plan), ("expected.toml", &claims)]
    {
        folder.write(&format!("study/{name}"), text);
    }
    let output = run_to_end(&folder, &words("reproduce ./study -o out"));
    assert_eq!(output.code, Some(0), "{output}");
    let pages = ["out/index.html", "out/small.svg"];
    assert_no_markup(&folder, "no_text_of_a_study_breaks_out_of_its_page_or_picture", &pages);
}

/// Terminal controls: title, colours, C1, reordered text, line editing.
const TERMINAL_ESCAPES: &str =
    "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}x\u{2069}\u{8}\u{7f}\r\u{b}\u{c}";

fn assert_no_terminal_escapes(output: &ProgramOutput) {
    let is_terminal_control = |c: &char| {
        (c.is_control() && *c != '\n' && *c != '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert_eq!(output.out.chars().find(is_terminal_control), None, "{output}");
    assert_eq!(output.err.chars().find(is_terminal_control), None, "{output}");
}

/// F4, F5: texts of a capture's section, interfaces and packets.
#[test]
fn no_text_of_a_capture_controls_a_terminal_or_a_page() {
    let folder = TestDir::new();
    let text = format!("owned{TERMINAL_ESCAPES}{BREAKS_OUT}");
    let texts: Vec<u8> =
        [1_u16, 2, 3, 4, 12, 15].iter().flat_map(|o| pcapng_option(*o, text.as_bytes())).collect();
    let file =
        [section_block(&texts), interface_block(&texts), packet_block([0, 1], 40, &syn_packet(1))]
            .concat();
    let name = "c\u{1b}[2J<script>document.title='owned'</script>.pcapng".replace('/', "\u{2215}");
    folder.write(&name, file);
    for options in [&["-o", "c.html"][..], &["--json"], &["--top", "1"]] {
        let output = run_to_end(&folder, &[&["trace", &name][..], options].concat());
        assert!(output.code.is_some_and(|code| code < 2), "{output}");
        assert_no_terminal_escapes(&output);
    }
    let json = folder.run(&["trace", &name, "--json"]);
    folder.write("c.jsonl", &json.out);
    let report = run_to_end(&folder, &words("report c.jsonl -o c2.html"));
    assert_no_terminal_escapes(&report);
    assert_no_markup(&folder, "no_text_of_a_capture_controls_a_terminal_or_a_page", &["c.html"]);
}

/// F4: line-based output: no untrusted text starts a line of its own.
#[test]
fn no_text_of_a_result_forges_a_line() {
    let folder = TestDir::new();
    folder.write("r.jsonl", poisoned_result("\nFORGED: a line\r\u{2028}FORGED\u{85}FORGED"));
    let name = "r\nFORGED.jsonl";
    folder.write(name, poisoned_result(",1,\"\n=FORGED"));
    let honest = {
        folder.write("h.jsonl", RESULT);
        folder.run(&words("report h.jsonl --csv -o h.html"))
    };
    for (line, is_table) in [
        ("report r.jsonl", false),
        ("report r.jsonl --csv", true),
        ("report r.jsonl --json", false),
        ("compare r.jsonl h.jsonl", false),
        ("compare r.jsonl h.jsonl --json", false),
    ] {
        for file in ["r.jsonl", name] {
            let line: Vec<_> =
                words(line).iter().map(|w| if *w == "r.jsonl" { file } else { w }).collect();
            let output = run_to_end(
                &folder,
                &[&line[..], if line[0] == "report" { &["-o", "o.html"] } else { &["-o", "o"] }]
                    .concat(),
            );
            assert_eq!(output.code, Some(0), "{output}");
            let mut lines = output.out.lines().chain(output.err.lines());
            assert!(!lines.any(|line| line.trim_start().starts_with("FORGED")), "{output}");
            if is_table {
                assert_eq!(output.out.lines().count(), honest.out.lines().count(), "{output}");
                for line in output.out.lines() {
                    assert_eq!(
                        line.split(',').count(),
                        honest.out.lines().next().unwrap().split(',').count(),
                        "{output}"
                    );
                }
            }
        }
    }
}

/// F4: names of plans, in tables, CSV and JSON of sweeps and reproductions.
#[test]
fn no_text_of_a_plan_controls_the_terminal() {
    let folder = TestDir::new();
    fs::create_dir(folder.work().join("study")).unwrap();
    let escaped: String =
        format!("{TERMINAL_ESCAPES}\nFORGED,\"=1").chars().fold(String::new(), |mut out, c| {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
            out
        });
    let plan = PLAN.replace("\"v\"", &format!("\"{escaped}\""));
    let claims = format!(
        "[[claims]]\ntext = \"{escaped}\"\nsource = \"{escaped}\"\noutcome = \"holds\"\n\
         [[claims.checks]]\nmetric = \"goodput\"\nof = {{ variant = \"{escaped}\" }}\nis = \"> 1 bit/s\"\n"
    );
    let scenario = format!("description = \"{escaped}\"\n{SMALL_SCENARIO}");
    for (name, text) in
        [("scenario.toml", &scenario), ("plan.toml", &plan), ("expected.toml", &claims)]
    {
        folder.write(&format!("study/{name}"), text);
    }
    for line in [
        "sweep study/plan.toml --out rows --csv rows.csv",
        "sweep study/plan.toml --out rows --json",
        "sweep status rows",
        "sweep status rows --json",
        "sweep verify rows",
        "reproduce ./study -o out",
        "reproduce ./study -o out --json",
        "scenarios check study/scenario.toml",
        "run study/scenario.toml --world sim -T tcp -q -o results",
    ] {
        let output = run_to_end(&folder, &words(line));
        assert_no_terminal_escapes(&output);
        let mut lines = output.out.lines().chain(output.err.lines());
        assert!(!lines.any(|line| line.trim_start().starts_with("FORGED")), "{output}");
    }
}

/// F4: "nothing that … a process says": process names, on lines and in metrics.
#[test]
fn no_name_of_a_process_forges_a_line_of_the_monitor() {
    let test = "no_name_of_a_process_forges_a_line_of_the_monitor";
    let folder = TestDir::new();
    for name in ["x\nFORGED\"} 9\ny", "\u{1b}[2J$(id);`i"] {
        symlink(binary(), folder.work().join(name)).unwrap();
    }
    // A process is named after its file, here a symbolic link.
    let script = "
        server=$(ls | grep -a 2J); client=$(printf 'x\\nFORGED\"} 9\\ny')
        PATH=$PWD:$PATH
        \"$server\" server -B 127.0.0.1 >server.out 2>&1 & server=$!
        until grep -q listening server.out; do sleep 0.02; done
        \"$client\" measure 127.0.0.1 --transport mptcp -t 30 -b 1M -q -o out >client.out 2>&1 & client=$!
        until ss -tnH state established 2>/dev/null | grep -q 5210 || grep -q ':145A .* 01 ' /proc/net/tcp; do
            kill -0 $client; sleep 0.02
        done
        $TOWPATH monitor --count 2 --interval 0.2 >lines
        $TOWPATH monitor --json --count 1 >json
        $TOWPATH doctor --all >doctor || true
        $TOWPATH doctor --pid $client >>doctor || true
        kill -9 $client; kill $server; wait || true";
    let Some(output) = run_as_root(test, &folder, script) else { return };
    assert_eq!(output.code, Some(0), "{output}");
    let read = |name: &str| fs::read_to_string(folder.work().join(name)).unwrap();
    let (lines, json) = (read("lines"), read("json"));
    assert!(lines.contains("$(id)") && lines.contains("FORGED"), "{lines}");
    for text in [&lines, &json, &read("doctor")] {
        assert!(!text.contains('\u{1b}'), "{text}");
        let mut lines = text.lines();
        assert!(!lines.any(|line| line.starts_with("FORGED")), "a process wrote a line:\n{text}");
    }
}

/// F4: metrics are lines as well. Any client of the port gets only those.
#[test]
fn requests_for_metrics_cannot_stop_or_fool_them() {
    let folder = TestDir::new();
    let line = "monitor --prometheus 127.0.0.1:0";
    let running = folder.start(&mut folder.towpath(&words(line)));
    let address = wait_for("the listener", || {
        let said = format!("{}{}", running.stderr(), running.printed());
        Some(said.split_once("http://")?.1.split_once("/metrics")?.0.to_owned())
    });
    let request_page = |request: &[u8]| {
        let mut socket = TcpStream::connect(&address).unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        let _ = socket.write_all(request); // the server may have closed it
        let mut response = Vec::new();
        let _ = socket.read_to_end(&mut response); // the server may reset it
        String::from_utf8_lossy(&response).into_owned()
    };
    let idle_connections: Vec<_> = (0..20).map(|_| TcpStream::connect(&address).unwrap()).collect();
    for request in [
        &b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n"[..],
        b"GET //etc/passwd HTTP/1.0\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
        b"GET /<script>alert(1)</script>\r\nx: \x1b[2J HTTP/1.1\r\n\r\n",
    ] {
        let response = request_page(request);
        assert!(!response.contains("root:") && !response.contains("<script"), "{response}");
    }
    let _ = request_page(&vec![b'A'; 8 << 20]); // any answer will do
    drop(idle_connections);
    let response = request_page(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(response.contains("towpath_mptcp_connections"), "{response}\n{}", running.stderr());
    assert!(!running.stderr().contains('\u{1b}') && !running.stderr().contains("panicked"));
}
