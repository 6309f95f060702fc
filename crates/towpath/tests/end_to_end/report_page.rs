//! The report of a real run in a real browser.

use std::path::Path;
use std::time::Duration;

use crate::program::{ProgramOutput, TWO_PATHS, TestDir, acquire_emulator, missing, skip};

/// Timeout for a browser, which is slow when other programs need the processors.
const BROWSER_TIMEOUT: Duration = Duration::from_secs(150);

/// Returns the browser, or the reason why it is missing.
pub(crate) fn browser() -> Result<String, String> {
    if let Ok(browser) = std::env::var("CHROMIUM") {
        return Ok(browser);
    }
    missing("chromium").map_or(Ok("chromium".to_owned()), Err)
}

/// Opens a page at a width. Returns the document after its scripts have run.
pub(crate) fn open(folder: &TestDir, browser: &str, page: &Path, width: u32) -> ProgramOutput {
    let mut command = folder.program(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update"])
        .args(["--disable-sync", "--enable-logging=stderr", "--v=0", "--virtual-time-budget=3000"])
        .args(["--hide-scrollbars", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.temporary().join("profile").display()))
        .arg(format!("--window-size={width},900"))
        .arg(format!("file://{}", page.display()));
    folder.start(&mut command).wait_at_most(BROWSER_TIMEOUT)
}

/// Returns the errors that scripts logged.
pub(crate) fn console_errors(output: &ProgramOutput) -> Vec<&str> {
    output.err.lines().filter(|line| line.contains("CONSOLE")).collect()
}

/// Returns a document that shows the page in a frame of the same width.
///
/// Its title has the page's actual width and the number of other resources requested.
fn measuring_page(page: &str, width: u32) -> String {
    format!(
        "<!doctype html><title>ruler</title><body><script>\n\
         const frame = document.createElement('iframe');\n\
         frame.style.cssText = 'border:0;width:{width}px;height:800px';\n\
         frame.srcdoc = {};\n\
         frame.onload = () => {{\n\
         const wide = frame.contentDocument.documentElement.scrollWidth;\n\
         const loaded = frame.contentWindow.performance.getEntriesByType('resource');\n\
         document.title = `wide ${{wide}}, loaded ${{loaded.length}}`;\n\
         }};\n\
         document.body.append(frame);\n</script>",
        serde_json::to_string(page).unwrap().replace('<', "\\u003c")
    )
}

#[test]
fn the_report_of_a_run_opens_in_a_browser_without_a_complaint() {
    let browser = match browser() {
        Ok(browser) => browser,
        Err(reason) => return skip("the_report_of_a_run_opens_in_a_browser", &reason),
    };
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let flow = "[[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"iperf\"\n\
        duration = \"2 s\"\n[[timeline]]\nat = \"1 s\"\npath = \"wifi\"\nset = \"rate\"\n\
        rate = \"10 Mbit/s\"\n";
    folder.write("scenario.toml", format!("{TWO_PATHS}{flow}"));
    let output = folder.run(&["run", "scenario.toml", "-q", "-o", "results"]);
    assert_eq!(output.code, Some(0), "{output}");
    let page = folder.work().join("results/report.html");
    let text = std::fs::read_to_string(&page).unwrap();

    let browser_output = open(&folder, &browser, &page, 1_280);
    assert_eq!(browser_output.code, Some(0), "{}", browser_output.err);
    assert_eq!(console_errors(&browser_output), [""; 0]);
    assert!(!text.contains("class=\"tools\""), "the script's work is there before it ran");
    assert!(browser_output.out.contains("class=\"tools\""), "the script did not run to its end");
    assert!(browser_output.out.contains("<svg"), "no chart");

    for width in [1_280, 390] {
        let title = measure_width(&folder, &browser, &text, width);
        assert_eq!(title, format!("wide {width}, loaded 0"));
    }
    // A check of the test itself: it must detect a wrong page, without the policy that would
    // prevent it.
    let without_policy =
        text.replace("http-equiv=\"Content-Security-Policy\"", "name=\"no-policy\"");
    assert_ne!(without_policy, text, "the page has no policy");
    let wrong_page = without_policy.replace(
        "</body>",
        "<img src=\"http://127.0.0.1:9/x.png\"><p style=\"width:3000px\">.</body>",
    );
    let title = measure_width(&folder, &browser, &wrong_page, 390);
    assert!(title.ends_with(", loaded 1") && !title.starts_with("wide 390,"), "{title}");
}

/// Returns the title of the measuring document for a page.
pub(crate) fn measure_width(folder: &TestDir, browser: &str, page: &str, width: u32) -> String {
    folder.write("ruler.html", measuring_page(page, width));
    let browser_output = open(folder, browser, &folder.work().join("ruler.html"), 1_280);
    assert_eq!(console_errors(&browser_output), [""; 0]);
    let (_, title) = browser_output.out.split_once("<title>").unwrap();
    title.split('<').next().unwrap().to_owned()
}

#[test]
fn every_table_of_a_result_is_printed_as_csv_by_its_name() {
    let folder = TestDir::new();
    let run = ["run", "shared-bottleneck", "--world", "sim", "-q", "--out", "results"];
    let output = folder.run(&run);
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.out.contains("Shares: tcp: greedy "), "{output}");
    let csv_of = |table: &str| {
        let output = folder.run(&["report", "results", "--csv", table]);
        assert_eq!(output.code, Some(0), "{table}: {output}");
        output.out
    };
    let subflows = csv_of("subflows");
    let header = subflows.lines().next().unwrap();
    assert!(header.starts_with("file,world,transport,repeat,seed,t_ns,span_ns,flow,"), "{header}");
    assert!(header.contains(",srtt_us") && header.contains(",cwnd_packets"), "{header}");
    let columns = header.split(',').count();
    assert!(subflows.lines().count() > 100);
    assert!(subflows.lines().all(|line| line.split(',').count() == columns), "{header}");
    // TCP and Multipath TCP, two transfers each.
    let shares = csv_of("shares");
    assert_eq!(shares.lines().count(), 5, "{shares}");
    assert!(shares.contains(",greedy,") && shares.contains(",modest,"), "{shares}");
    assert!(csv_of("intervals").contains(",sim,mptcp,1,1,"));
    assert!(csv_of("recoveries").starts_with("file,world,transport,repeat,seed"));
    // Without a table's name, or with it before the results, the output is the same.
    let seconds = csv_of("seconds");
    assert!(seconds.starts_with("transport,repeat,direction,0-1 s,"), "{seconds}");
    let output = folder.run(&["report", "--csv", "results"]);
    assert_eq!((output.code, &output.out), (Some(0), &seconds), "{output}");
    let output = folder.run(&["report", "results", "--csv", "nonsense"]);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(
        output.err.contains("no table `nonsense`") && output.err.contains("subflows"),
        "{output}"
    );
}
