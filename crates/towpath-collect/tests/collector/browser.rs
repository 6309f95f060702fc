//! The site in a real browser: a tour of all pages with and without scripts, and their appearance.

use std::path::PathBuf;

use serde_json::{Value, json};
use towpath_collect::Role;

use crate::live::HostRun;
use crate::pages::{create_campaign, register_server, report, upload};
use crate::site::{Collector, Database, Site, result, skip};
use crate::webdriver::{Browser, Element, Scripts, poll};

/// Widths of a telephone and of a desk, in CSS pixels.
const WIDTHS: [u32; 2] = [390, 1_280];
/// Minimum contrast of text (Web Content Accessibility Guidelines 2.2, §1.4.3).
const MIN_CONTRAST: f64 = 4.5;
/// Folder for pictures of all pages.
const PICTURES_VARIABLE: &str = "TOWPATH_SCREENSHOTS";
/// Presses of Tab inside a field for dates: day, month, year, calendar.
const DATE_STOPS: usize = 4;

/// Returns the widest elements that stick out of the window.
const OVERFLOW: &str = r#"
const root = document.documentElement;
if (root.scrollWidth <= innerWidth) return [];
const wide = [...document.querySelectorAll("body *")].filter((node) =>
  node.getBoundingClientRect().right > innerWidth + 0.5 && !node.closest(".scroll, svg"));
return [`${root.scrollWidth} px`, ...wide.slice(0, 5).map((node) => node.outerHTML.slice(0, 120))];
"#;

/// Returns the right ends of all buttons of the table of tokens, in CSS pixels.
const BUTTON_ENDS: &str = r#"
const buttons = [...document.querySelectorAll(".tokens button")];
return buttons.map((button) => button.getBoundingClientRect().right);
"#;

/// Returns the text nodes whose contrast with their background is too low.
///
/// Texts in charts are not part of it, since their lines are drawn around them.
const CONTRAST: &str = r#"
const minimum = MINIMUM;
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const parse = (text) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = text;
  canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
};
const over = ([r, g, b, a], back) =>
  [...[r, g, b].map((part, index) => part * a + back[index] * (1 - a)), 1];
const background = (node) => {
  if (!node) return [255, 255, 255, 1];
  const colour = parse(getComputedStyle(node).backgroundColor);
  return colour[3] >= 1 ? colour : over(colour, background(node.parentElement));
};
const luminance = (colour) => {
  const [r, g, b] = colour.slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const opacity = (node) => node ? getComputedStyle(node).opacity * opacity(node.parentElement) : 1;
const isVisible = (node) =>
  node.checkVisibility({ visibilityProperty: true }) && node.getClientRects().length > 0;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const nodes = new Set(document.querySelectorAll("input:not([type=hidden]), select, textarea"));
while (walker.nextNode()) {
  if (walker.currentNode.data.trim()) nodes.add(walker.currentNode.parentElement);
}
const bad = [];
let checked = 0;
for (const node of nodes) {
  if (node.closest("svg, :disabled, script, style, option") || !isVisible(node)) continue;
  checked += 1;
  const back = background(node);
  const [r, g, b, a] = parse(getComputedStyle(node).color);
  const front = over([r, g, b, a * opacity(node)], back);
  const [low, high] = [luminance(front), luminance(back)].sort((x, y) => x - y);
  const contrast = (high + 0.05) / (low + 0.05);
  if (contrast < minimum) bad.push(`${contrast.toFixed(2)}: ${node.outerHTML.slice(0, 120)}`);
}
return [checked, ...bad];
"#;

/// Returns all elements that a keyboard must reach, in the order of the page.
const STOPS: &str = r#"
const all = document.querySelectorAll(
  "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']");
return [...all].filter((node) => node.checkVisibility() && !node.disabled);
"#;

/// Records which elements get the focus.
const RECORD_FOCUS: &str = r#"
window.focused = [];
document.addEventListener("focusin", (event) => window.focused.push(event.target));
scrollTo(0, 0);
"#;

/// A window that checks each page it arrives at.
struct Tour<'a> {
    browser: Browser,
    site: &'a Site,
}

impl<'a> Tour<'a> {
    fn start(site: &'a Site, scripts: Scripts) -> Result<Self, String> {
        Ok(Self { browser: Browser::start(scripts)?, site })
    }

    /// Waits for a new page whose address begins with `path`. The console must be silent, and all
    /// requests must go to the site.
    fn arrive(&self, path: &str) {
        let mut requests = Vec::new();
        poll(|| {
            requests.extend(self.browser.requests());
            if requests.is_empty() { Err("no request".to_owned()) } else { self.verify_url(path) }
        });
        for request in requests {
            let is_own = request.starts_with(&format!("{}/", self.site.url));
            assert!(is_own || request.starts_with("data:"), "{request}");
        }
        assert_eq!(self.browser.complaints(), [""; 0], "{path}");
    }

    /// Goes back to a page, which the browser may have kept.
    fn go_back(&self, path: &str) {
        self.browser.go_back();
        poll(|| self.verify_url(path));
        assert_eq!(self.browser.complaints(), [""; 0], "{path}");
    }

    fn verify_url(&self, path: &str) -> Result<(), String> {
        let (url, expected) = (self.browser.url(), format!("{}{path}", self.site.url));
        let is_there = if path == "/" { url == expected } else { url.starts_with(&expected) };
        if is_there { Ok(()) } else { Err(format!("the address is {url}, not {expected}")) }
    }

    fn open(&self, path: &str) {
        self.browser.open(&format!("{}{path}", self.site.url));
    }

    /// Clicks the element that matches a selector.
    fn click(&self, css: &str) {
        self.browser.find(css).click();
    }

    fn count(&self, css: &str) -> usize {
        self.browser.find_all(css).len()
    }

    /// Logs in with a login link.
    fn log_in(&self, role: Role) {
        self.open(&format!("/login?code={}", self.site.login_code(role)));
        self.arrive("/login");
        self.click("main form button");
        self.arrive("/");
    }
}

/// Uploads runs of four transports, `count` of each.
fn fill(site: &Site, count: u64) {
    let uploader = site.client(&site.token("lab", Role::Uploader));
    let transports = ["tcp", "mptcp", "quic", "mpquic"];
    for number in 0..4 * count {
        let result = result(number, |meta| {
            meta["transport"] = transports[number as usize % 4].into();
            meta["started_us"] = (1_790_000_000_000_000 + number * 3_600_000_000).into();
            if number % 7 == 6 {
                meta["scenario"] = "handover-of-a-train-that-crosses-a-border-at-night".into();
            }
        });
        let host = format!("measuring-host-{}.example.org", number % 11);
        let reply = uploader.upload_with(&result, &[("towpath-host", &host)]);
        assert_eq!(reply.status, 201, "{}", reply.body);
    }
}

#[test]
fn a_browser_logs_in_filters_opens_compares_and_revokes() {
    if let Err(reason) = walk(Scripts::On) {
        skip(&reason);
    }
}

#[test]
fn every_step_works_with_scripts_switched_off() {
    if let Err(reason) = walk(Scripts::Off) {
        skip(&reason);
    }
}

/// Does the work of an administrator and of a viewer, from the login to the end of the session.
fn walk(scripts: Scripts) -> Result<(), String> {
    let collector = Collector::create(Database::Sqlite)?;
    let site = collector.serve();
    let admin = Tour::start(&site, scripts)?;
    fill(&site, 5);

    admin.log_in(Role::Admin);
    assert_eq!(admin.count(".runs tbody tr"), 20);
    filter(&admin);
    open_series(&admin);
    open_run(&admin, scripts);
    compare(&admin);
    watch(&admin);
    run_campaign(&admin);
    invite_device(&admin);

    let secret = site.token("second reader", Role::Viewer);
    let viewer = Tour::start(&site, scripts)?;
    viewer.open("/series?host=lab3");
    viewer.arrive("/login?next=%2Fseries");
    viewer.browser.find("#token").type_text(&secret);
    viewer.click("main form button");
    viewer.arrive("/series?host=lab3");
    viewer.browser.find_link("Runs").click();
    viewer.arrive("/");
    assert!(viewer.count("a[href='/tokens']") == 0, "only an administrator manages tokens");
    viewer.browser.find_link("Servers").click();
    viewer.arrive("/servers");
    viewer.browser.find_link("Campaigns").click();
    viewer.arrive("/campaigns");
    viewer.browser.find_link("stable-1").click();
    viewer.arrive("/campaigns/stable-1");
    assert_eq!(viewer.count("main form"), 0, "only an administrator changes campaigns");

    admin.browser.find_link("Tokens").click();
    admin.arrive("/tokens");
    admin.click("button[aria-label='Revoke second reader']");
    admin.arrive("/tokens");
    poll(|| match admin.count("button[aria-label='Revoke second reader']") {
        0 => Ok(()),
        _ => Err("the token is not revoked".to_owned()),
    });
    viewer.browser.find_link("Runs").click();
    viewer.arrive("/login");
    admin.click("form[action='/logout'] button");
    admin.arrive("/login");
    Ok(())
}

/// Filters the list by a transport.
fn filter(tour: &Tour<'_>) {
    tour.click(".filters > summary");
    tour.click("input[name='transport'][value='mptcp']");
    tour.click(".filters form > button");
    tour.arrive("/?transport=mptcp");
    let transports = tour.browser.find_all(".runs tbody td:nth-child(4)");
    let transports: Vec<String> = transports.iter().map(Element::text).collect();
    assert_eq!(transports, ["mptcp"; 5]);
    assert_eq!(tour.browser.find(".chips a").text(), "transport mptcp ×");
}

/// Follows the link from the filtered list to its series, and goes back.
fn open_series(tour: &Tour<'_>) {
    tour.browser.find_link("over time").click();
    tour.arrive("/series?transport=mptcp");
    assert_eq!(tour.count("svg.series circle"), 5, "a dot for each run");
    assert_eq!(tour.browser.find(".chips a").text(), "transport mptcp ×");
    tour.go_back("/?transport=mptcp");
}

/// Opens the first run of the list, and goes back.
fn open_run(tour: &Tour<'_>, scripts: Scripts) {
    tour.click(".runs tbody a");
    tour.arrive("/runs/");
    assert!(tour.count("svg.plot path") > 0, "no charts");
    // The report's script adds its tools, so the test knows that scripts are on or off.
    let has_tools = tour.count(".tools button") > 0;
    assert_eq!(has_tools, scripts == Scripts::On, "{scripts:?}");
    tour.go_back("/?transport=mptcp");
}

/// Compares the first three runs of the list.
fn compare(tour: &Tour<'_>) {
    for run in tour.browser.find_all(".runs input[name='run']").iter().take(3) {
        run.click();
    }
    tour.click("form[action='/compare'] button");
    tour.arrive("/compare?run=");
    assert_eq!(tour.browser.url().matches("run=").count(), 3);
    assert!(tour.count("svg.plot path") > 0, "no charts");
}

/// Follows a run in progress, until the page shows its result.
fn watch(tour: &Tour<'_>) {
    let uploader = tour.site.client(&tour.site.token("live host", Role::Uploader));
    let run = HostRun::begin(100, |_| {});
    let part = run.count() / 3;
    assert_eq!(run.send(&uploader, 0..part).status, 204);
    tour.browser.find_link("Runs").click();
    tour.arrive("/");
    tour.click("section.notice a[href^='/live/']");
    tour.arrive("/live/");
    // Each event replaces the text, and a page without scripts loads itself again.
    let progress = || {
        let texts = tour.browser.find_all("#live [role='status']");
        let text = texts.first().and_then(Element::try_text);
        text.ok_or_else(|| "the page has no progress".to_owned())
    };
    let first = poll(progress);
    assert!(first.contains(" of 10 s"), "{first}");
    assert!(tour.count("#live svg.plot path") > 0, "no charts");
    assert_eq!(run.send(&uploader, part..run.count()).status, 204);
    poll(|| match progress()? {
        text if text == first => Err(format!("the page still shows {text}")),
        _ => Ok(()),
    });
    let stored = run.finish(&uploader);
    poll(|| tour.verify_url(&format!("/runs/{stored}")));
    assert!(tour.count("svg.plot path") > 0, "no charts");
    assert_eq!(tour.browser.complaints(), [""; 0]);
    for request in tour.browser.requests() {
        let is_own = request.starts_with(&format!("{}/", tour.site.url));
        assert!(is_own || request.starts_with("data:"), "{request}");
    }
}

/// Creates a campaign after a mistake, pauses, resumes and ends it.
fn run_campaign(tour: &Tour<'_>) {
    tour.browser.find_link("Campaigns").click();
    tour.arrive("/campaigns");
    tour.click(".new > summary");
    tour.browser.find("#text").type_text("\nfrom = \"x\"");
    tour.click(".new form button");
    let mistakes = tour.browser.find(".new [role='alert']").text();
    assert!(mistakes.contains("Line ") && mistakes.contains("`from`"), "{mistakes}");
    // The console has the status of the refusal.
    assert_eq!(tour.browser.complaints().len(), 1);
    tour.browser.requests();
    tour.browser.find_link("stable mode").click();
    tour.arrive("/campaigns?example=stable");
    tour.click(".new form button");
    tour.arrive("/campaigns/stable-1");
    let button = |label: &str| {
        poll(|| {
            let buttons = tour.browser.find_all(".actions button");
            match buttons.first().and_then(Element::try_text) {
                Some(text) if text == label => Ok(()),
                other => Err(format!("the button is {other:?}, not {label}")),
            }
        });
    };
    for label in ["Pause", "Resume", "Pause"] {
        button(label);
        tour.click(".actions button");
        tour.arrive("/campaigns/stable-1");
    }
    button("Resume");
    tour.browser.find_link("End…").click();
    tour.arrive("/campaigns/stable-1/end");
    tour.click("main form button");
    poll(|| match (tour.browser.url().ends_with("/stable-1"), tour.count(".actions")) {
        (true, 0) => Ok(()),
        other => Err(format!("the campaign has not ended: {other:?}")),
    });
    assert_eq!(tour.browser.find("dl.conditions dd").text(), "ended");
    tour.browser.requests();
}

/// Invites a device, and ends the invitation.
fn invite_device(tour: &Tour<'_>) {
    tour.browser.find_link("Devices").click();
    tour.arrive("/devices");
    tour.browser.find("input[name='name']").type_text("ada-laptop");
    tour.click("main form.inline button");
    tour.arrive("/devices");
    let label = tour.browser.find("svg.qr").accessible_name();
    assert!(label.contains("QR code"), "{label}");
    tour.click("button[aria-label='End the invitation of ada-laptop']");
    tour.arrive("/devices");
    poll(|| match tour.count("button[aria-label^='End the invitation']") {
        0 => Ok(()),
        _ => Err("the invitation is open".to_owned()),
    });
}

#[test]
fn every_page_fits_narrow_and_wide_windows() {
    if let Err(reason) = verify_all_pages() {
        skip(&reason);
    }
}

fn verify_all_pages() -> Result<(), String> {
    let collector = Collector::create(Database::Sqlite)?;
    let site = collector.serve();
    let tour = Tour::start(&site, Scripts::On)?;
    let mut defects = Vec::new();
    tour.open("/tokens");
    verify_page("login", &tour.browser, &mut defects);
    tour.log_in(Role::Admin);
    verify_page("list-empty", &tour.browser, &mut defects);

    fill(&site, 15);
    tour.open("/");
    tour.click(".filters > summary");
    verify_page("list", &tour.browser, &mut defects);
    verify_checks(&tour.browser);
    tour.open("/");
    tour.browser.run("document.querySelector('.filters').open = true;");
    verify_focus(&tour.browser, 50, &mut defects);
    tour.open("/?transport=mptcp&transport=quic&since=2026-01-01&sort=goodput");
    verify_page("list-filtered", &tour.browser, &mut defects);
    tour.open("/?host=none");
    verify_page("list-without-match", &tour.browser, &mut defects);

    let list = site.client(&site.token("reader", Role::Viewer)).get("/api/v1/runs").json();
    let run = |index: usize| list["runs"][index]["id"].as_str().unwrap().to_owned();
    tour.open(&format!("/runs/{}", run(0)));
    verify_page("run", &tour.browser, &mut defects);
    tour.open("/series?transport=mptcp");
    assert!(tour.count("svg.series circle") > 0, "no chart");
    verify_page("series", &tour.browser, &mut defects);
    assert_eq!(tour.browser.complaints(), [""; 0], "a page before the badge");
    tour.open(&format!("/runs/{}/badge.svg", run(0)));
    assert_eq!(tour.count("svg text"), 2, "the badge has a label and a value");
    assert_eq!(tour.browser.complaints(), [""; 0], "the badge");
    let query: Vec<String> = (0..4).map(|index| format!("run={}", run(index))).collect();
    tour.open(&format!("/compare?{}", query.join("&")));
    verify_page("compare", &tour.browser, &mut defects);
    tour.open("/api");
    verify_page("api", &tour.browser, &mut defects);
    verify_live_pages(&tour, &mut defects);
    verify_campaign_pages(&tour, &collector, &mut defects);
    tour.open("/compare");
    verify_page("error", &tour.browser, &mut defects);
    verify_token_page(&tour, &mut defects);
    tour.open("/login");
    tour.browser.find("#token").type_text("wrong");
    tour.click("main form button");
    tour.browser.find("[role='alert']");
    verify_page("login-refused", &tour.browser, &mut defects);
    assert!(defects.is_empty(), "{}", defects.join("\n"));
    Ok(())
}

/// Checks the page of tokens after a revocation and a creation.
fn verify_token_page(tour: &Tour<'_>, defects: &mut Vec<String>) {
    tour.open("/tokens");
    tour.click("button[aria-label='Revoke reader']");
    // The form of the page before cannot be used.
    poll(|| match tour.count("button[aria-label='Revoke reader']") {
        0 => Ok(()),
        _ => Err("the token is valid".to_owned()),
    });
    tour.browser.find("input[name='name']").type_text("a token with a rather long name");
    tour.click("main form.inline button");
    tour.browser.find("[role='status']");
    verify_page("tokens", &tour.browser, defects);
    tour.browser.emulate(WIDTHS[0], false);
    let ends = tour.browser.run(BUTTON_ENDS);
    let ends = ends.as_array().unwrap();
    assert!(!ends.is_empty(), "no token can be revoked");
    for end in ends {
        assert!(end.as_f64().unwrap() <= f64::from(WIDTHS[0]), "Revoke is outside: {end} px");
    }
}

/// Checks the list and the page of a run in progress.
fn verify_live_pages(tour: &Tour<'_>, defects: &mut Vec<String>) {
    let host = tour.site.client(&tour.site.token("host", Role::Uploader));
    let live = HostRun::begin(100, |_| {});
    assert_eq!(live.send(&host, 0..live.count() / 2).status, 204);
    tour.open("/");
    verify_page("list-live", &tour.browser, defects);
    tour.open(&format!("/live/{}", live.id));
    verify_page("live", &tour.browser, defects);
    live.finish(&host);
}

/// Checks the pages of campaigns, test servers and devices.
fn verify_campaign_pages(tour: &Tour<'_>, collector: &Collector, defects: &mut Vec<String>) {
    for (path, page) in [("/campaigns", "campaigns-empty"), ("/servers", "servers-empty")] {
        tour.open(path);
        verify_page(page, &tour.browser, defects);
    }
    for (name, place) in [("eu-1", "Brussels"), ("us-1", "New York"), ("server-without-place", "")]
    {
        register_server(tour.site, name, place);
    }
    tour.site.token("asia-1", Role::Server);
    tour.open("/servers");
    verify_page("servers", &tour.browser, defects);

    let names = ["ada", "a-rather-long-name-of-a-laptop-in-a-library", "<b>bob</b>", "übung 1"];
    let devices = names.map(|name| tour.site.client(&tour.site.join(name)));
    create_campaign(collector);
    for (number, device) in (0..).zip(&devices) {
        report(device, 0, json!({ "state": "stored", "result": upload(device, 1_000 + number) }));
    }
    let result = upload(&devices[0], 2_000);
    let detail = "the Wi-Fi was left";
    report(&devices[0], 1, json!({ "state": "invalid", "result": result, "detail": detail }));
    for (device, reason) in [(1, "no-address"), (2, "unreachable")] {
        let missing = json!({ "state": "missing", "reason": reason, "detail": "" });
        report(&devices[device], 1, missing);
    }
    tour.open("/campaigns/mobile-1");
    assert_eq!(tour.count(".progress tbody tr"), 4);
    verify_page("campaign", &tour.browser, defects);
    tour.browser.find_link("End…").click();
    verify_page("campaign-end", &tour.browser, defects);
    tour.open("/campaigns?example=stable");
    tour.click(".new form button");
    tour.browser.find(".actions");
    tour.open("/campaigns");
    // A click would set the place from which Tab starts.
    tour.browser.run("document.querySelector('.new').open = true;");
    verify_page("campaigns", &tour.browser, defects);
    verify_focus(&tour.browser, 14, defects);
    tour.click(".new form button");
    tour.browser.find("[role='alert']");
    tour.browser.find("#text").type_text("\nbytes = 1\n");
    tour.click(".new form button");
    poll(|| match tour.count("[role='alert'] li") {
        0 => Err("no mistake is listed".to_owned()),
        _ => Ok(()),
    });
    verify_page("campaigns-refused", &tour.browser, defects);
    // The refusals are errors in the console as well.
    tour.browser.complaints();
    verify_device_pages(tour, defects);
    verify_analysis_pages(tour, collector, defects);
}

/// Checks the pages of an analysis and of a mobile round.
fn verify_analysis_pages(tour: &Tour<'_>, collector: &Collector, defects: &mut Vec<String>) {
    let run = crate::analysis::create_mobile_campaign(tour.site, &collector.config());
    tour.open("/campaigns/moving");
    tour.browser.find_link("Analysis: figures and tables").click();
    tour.arrive("/campaigns/moving/analysis");
    tour.click(".filters > summary");
    verify_page("analysis", &tour.browser, defects);
    tour.open("/campaigns/moving/analysis?family=ipv4&server=eu&min-runs=2");
    assert!(tour.count("table.list tbody tr") > 4, "no tables");
    verify_page("analysis-filtered", &tour.browser, defects);
    verify_focus(&tour.browser, 20, defects);
    tour.open(&format!("/runs/{run}/round"));
    verify_page("round", &tour.browser, defects);
    assert_eq!(tour.browser.complaints(), [""; 0], "the pages of an analysis");
}

/// Checks the pages of devices, with the ones of the campaign.
fn verify_device_pages(tour: &Tour<'_>, defects: &mut Vec<String>) {
    tour.open("/devices");
    verify_page("devices", &tour.browser, defects);
    verify_focus(&tour.browser, 14, defects);
    tour.browser.find("input[name='name']").type_text("grace-phone");
    tour.click("main form.inline button");
    tour.browser.find("svg.qr");
    verify_page("devices-invited", &tour.browser, defects);
    tour.click("a[aria-label='Revoke ada']");
    tour.browser.find("input[name='device']");
    verify_page("devices-revoke", &tour.browser, defects);
}

/// Checks the page that the browser shows, in all widths and colour schemes.
fn verify_page(page: &str, browser: &Browser, defects: &mut Vec<String>) {
    let contrast = CONTRAST.replace("MINIMUM", &MIN_CONTRAST.to_string());
    for width in WIDTHS {
        for (is_dark, scheme) in [(false, "light"), (true, "dark")] {
            browser.emulate(width, is_dark);
            let mut report = |defect: &str, found: &[Value]| {
                for found in found {
                    defects.push(format!("{page}, {width} px, {scheme}: {defect} {found}"));
                }
            };
            report("wider than the window", browser.run(OVERFLOW).as_array().unwrap());
            let texts = browser.run(&contrast);
            let [checked, low @ ..] = texts.as_array().unwrap().as_slice() else { panic!() };
            assert!(checked.as_u64().unwrap() >= 5, "{page}: the script finds no text");
            report("contrast", low);
            if let Some(folder) = std::env::var_os(PICTURES_VARIABLE).map(PathBuf::from) {
                std::fs::create_dir_all(&folder).unwrap();
                let name = format!("{page}-{width}-{scheme}.png");
                std::fs::write(folder.join(name), browser.picture()).unwrap();
            }
        }
    }
    for control in browser.run_for_elements(STOPS) {
        if control.accessible_name().trim().is_empty() {
            defects.push(format!("{page}: no accessible name: {}", control.markup()));
        }
    }
}

/// Checks that the scripts find defects in the list, which this function adds.
fn verify_checks(browser: &Browser) {
    let lengths = || {
        let contrast = browser.run(&CONTRAST.replace("MINIMUM", &MIN_CONTRAST.to_string()));
        [browser.run(OVERFLOW), contrast].map(|found| found.as_array().unwrap().len())
    };
    assert_eq!(lengths(), [0, 1], "the page has defects before the test adds any");
    browser.run("document.querySelector('.facts').style.cssText = 'color: #777; width: 2000px';");
    assert_eq!(lengths(), [2, 2], "the scripts find no defects");
}

/// Checks that Tab reaches all links and controls of the page, in the page's order. The page has at
/// least `min_stops` of them.
fn verify_focus(browser: &Browser, min_stops: usize, defects: &mut Vec<String>) {
    let stops = browser.run_for_elements(STOPS);
    let dates = browser.find_all("input[type='date']").len();
    browser.run(RECORD_FOCUS);
    browser.press_tab(stops.len() + dates * (DATE_STOPS - 1));
    let focused = browser.run_for_elements("return window.focused;");
    assert!(stops.len() >= min_stops, "the page has {} links and controls", stops.len());
    for (index, stop) in stops.iter().enumerate() {
        if focused.get(index) != Some(stop) {
            let found = focused.get(index).map(Element::markup);
            let expected = stop.markup();
            defects.push(format!("Tab {index} reaches {found:?}, not {expected}"));
            break;
        }
    }
}
