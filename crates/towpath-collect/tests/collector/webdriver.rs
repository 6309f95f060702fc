//! A client of Debian's `chromedriver` (W3C `WebDriver`, §6 to §19, and Chromium's extensions).
//!
//! Each browser has a driver and a profile of its own; both end with the test, or with its process.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::site::TestFolder;

/// Time for one step of a browser, which is slow when other programs need the processors.
const POLL_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time for one command of the driver, which includes the start of Chromium.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(150);
/// Key of an element's reference (W3C `WebDriver` §11).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// The Tab key (W3C `WebDriver` §17.4.2).
const TAB: &str = "\u{e004}";

/// Scripts of pages: on, or switched off by the browser's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scripts {
    On,
    Off,
}

/// Calls `probe` until it succeeds; panics with its last error at the deadline.
#[expect(clippy::disallowed_methods, reason = "a browser does not report that a page has changed")]
pub(crate) fn poll<T>(mut probe: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + POLL_TIMEOUT;
    loop {
        match probe() {
            Ok(value) => return value,
            Err(error) if Instant::now() >= deadline => panic!("gave up: {error}"),
            Err(_) => {} // not yet
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A running `chromedriver`.
#[derive(Debug)]
struct Driver {
    process: Child,
    url: String,
    agent: ureq::Agent,
}

impl Driver {
    /// Starts the driver on a free port, such that the kernel ends it with the test's thread.
    fn start(program: &str) -> Self {
        let mut process = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--", program, "--port=0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let port = lines.by_ref().find_map(|line| {
            let line = line.ok()?;
            let (_, port) = line.split_once("was started successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        // The driver must be able to write on, or it ends.
        std::thread::spawn(move || lines.for_each(drop));
        let url = format!("http://127.0.0.1:{}", port.expect("the driver names its port"));
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(COMMAND_TIMEOUT))
            .build()
            .into();
        Self { process, url, agent }
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        let reply = self.agent.post(format!("{}{path}", self.url)).send_json(body);
        value(reply)
    }

    fn get(&self, path: &str) -> Result<Value, String> {
        value(self.agent.get(format!("{}{path}", self.url)).call())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended
        let _ = self.process.wait();
    }
}

/// Returns the value of a reply, or its error and message (W3C `WebDriver` §6.6).
fn value(reply: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, String> {
    let mut reply = reply.map_err(|error| error.to_string())?;
    let is_success = reply.status().is_success();
    let mut body: Value = reply.body_mut().read_json().map_err(|error| error.to_string())?;
    let value = body["value"].take();
    if is_success { Ok(value) } else { Err(format!("{}: {}", value["error"], value["message"])) }
}

/// A browser with one window, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Browser {
    session: String,
    driver: Driver,
    _profile: TestFolder,
}

impl Browser {
    /// Starts a browser; fails with a reason if the machine lacks a tool.
    pub(crate) fn start(scripts: Scripts) -> Result<Self, String> {
        program("SETPRIV", "setpriv", "util-linux")?;
        let chromedriver = program("CHROMEDRIVER", "chromedriver", "chromium-driver")?;
        let chromium = program("CHROMIUM", "chromium", "chromium")?;
        let profile = TestFolder::create();
        let javascript = if scripts == Scripts::On { 1 } else { 2 };
        let capabilities = json!({
            "goog:chromeOptions": {
                "binary": wrapper(profile.path(), &chromium),
                "args": [
                    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                    "--disable-background-networking", "--disable-component-update",
                    "--disable-sync", "--hide-scrollbars", "--window-size=1280,900",
                    format!("--user-data-dir={}", profile.path().join("profile").display()),
                ],
                "prefs": {
                    "profile.managed_default_content_settings.javascript": javascript,
                    // Otherwise the first page is one of the browser, with requests of its own.
                    "session.restore_on_startup": 4,
                    "session.startup_urls": ["about:blank"],
                },
            },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        });
        let driver = Driver::start(&chromedriver);
        let request = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let reply = driver.post("/session", &request).unwrap();
        let session = format!("/session/{}", reply["sessionId"].as_str().unwrap());
        Ok(Self { session, driver, _profile: profile })
    }

    fn send(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.driver.post(&format!("{}{path}", self.session), body)
    }

    fn read(&self, path: &str) -> Result<Value, String> {
        self.driver.get(&format!("{}{path}", self.session))
    }

    /// Opens an address and waits until the page is loaded.
    pub(crate) fn open(&self, url: &str) {
        self.send("/url", &json!({ "url": url })).unwrap();
    }

    /// Goes one page back in the window's history.
    pub(crate) fn go_back(&self) {
        self.send("/back", &json!({})).unwrap();
    }

    pub(crate) fn url(&self) -> String {
        self.read("/url").unwrap().as_str().unwrap().to_owned()
    }

    /// Returns the first element that matches a selector of CSS, as soon as there is one.
    pub(crate) fn find(&self, css: &str) -> Element<'_> {
        let query = json!({ "using": "css selector", "value": css });
        let found = poll(|| self.send("/element", &query));
        Element::of(self, &found)
    }

    /// Returns the link with exactly this text, as soon as there is one.
    pub(crate) fn find_link(&self, text: &str) -> Element<'_> {
        let query = json!({ "using": "link text", "value": text });
        let found = poll(|| self.send("/element", &query));
        Element::of(self, &found)
    }

    /// Returns all elements that match a selector of CSS now.
    pub(crate) fn find_all(&self, css: &str) -> Vec<Element<'_>> {
        let query = json!({ "using": "css selector", "value": css });
        let found = self.send("/elements", &query).unwrap();
        found.as_array().unwrap().iter().map(|found| Element::of(self, found)).collect()
    }

    /// Runs the body of a function in the page, as the debugger does, so also with scripts off.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.send("/execute/sync", &json!({ "script": script, "args": [] })).unwrap()
    }

    /// Runs a script that returns an array of elements.
    pub(crate) fn run_for_elements(&self, script: &str) -> Vec<Element<'_>> {
        let found = self.run(script);
        found.as_array().unwrap().iter().map(|found| Element::of(self, found)).collect()
    }

    /// Presses and releases the Tab key `count` times.
    pub(crate) fn press_tab(&self, count: usize) {
        let press = ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": TAB }));
        let actions: Vec<Value> = (0..count).flat_map(|_| press.clone()).collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.send("/actions", &json!({ "actions": [keyboard] })).unwrap();
    }

    /// Sets the size of the page's area and the preferred colour scheme.
    pub(crate) fn emulate(&self, width: u32, is_dark: bool) {
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.debug("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if is_dark { "dark" } else { "light" };
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.debug("Emulation.setEmulatedMedia", &json!({ "features": [feature] }));
    }

    /// Returns a picture of the whole page as PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let metrics = self.debug("Page.getLayoutMetrics", &json!({}));
        let mut clip = metrics["cssContentSize"].clone();
        clip["scale"] = 1.into();
        let options = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let picture = self.debug("Page.captureScreenshot", &options);
        decode_base64(picture["data"].as_str().unwrap())
    }

    /// Executes a command of the Chrome `DevTools` protocol.
    fn debug(&self, command: &str, parameters: &Value) -> Value {
        self.send("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters })).unwrap()
    }

    /// Returns the entries of a log since the last call.
    fn log(&self, kind: &str) -> Vec<Value> {
        let entries = self.send("/se/log", &json!({ "type": kind })).unwrap();
        entries.as_array().unwrap().clone()
    }

    /// Returns the warnings and errors of the console since the last call.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let mut entries = self.log("browser");
        entries.retain(|entry| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING")));
        entries.iter().map(|entry| entry["message"].to_string()).collect()
    }

    /// Returns the addresses that were requested since the last call.
    pub(crate) fn requests(&self) -> Vec<String> {
        let mut urls = Vec::new();
        for entry in self.log("performance") {
            let event: Value = serde_json::from_str(entry["message"].as_str().unwrap()).unwrap();
            if event["message"]["method"] == "Network.requestWillBeSent" {
                let url = &event["message"]["params"]["request"]["url"];
                urls.push(url.as_str().unwrap().to_owned());
            }
        }
        urls
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let url = format!("{}{}", self.driver.url, self.session);
        let _ = self.driver.agent.delete(url).call(); // the driver may have ended
    }
}

/// An element of the page that a browser shows.
#[derive(Debug)]
pub(crate) struct Element<'a> {
    browser: &'a Browser,
    id: String,
}

impl<'a> Element<'a> {
    fn of(browser: &'a Browser, reference: &Value) -> Self {
        Self { browser, id: reference[ELEMENT].as_str().unwrap().to_owned() }
    }

    pub(crate) fn click(&self) {
        self.browser.send(&format!("/element/{}/click", self.id), &json!({})).unwrap();
    }

    pub(crate) fn type_text(&self, text: &str) {
        let body = json!({ "text": text });
        self.browser.send(&format!("/element/{}/value", self.id), &body).unwrap();
    }

    fn text_of(&self, property: &str) -> String {
        let path = format!("/element/{}/{property}", self.id);
        self.browser.read(&path).unwrap().as_str().unwrap_or_default().to_owned()
    }

    /// Returns the text as displayed.
    pub(crate) fn text(&self) -> String {
        self.text_of("text")
    }

    /// Returns the text; `None` if the page has replaced the element meanwhile.
    pub(crate) fn try_text(&self) -> Option<String> {
        let text = self.browser.read(&format!("/element/{}/text", self.id)).ok()?;
        text.as_str().map(str::to_owned)
    }

    /// Returns the accessible name that assistive software announces.
    pub(crate) fn accessible_name(&self) -> String {
        self.text_of("computedlabel")
    }

    /// Returns the markup of the element.
    pub(crate) fn markup(&self) -> String {
        self.text_of("property/outerHTML")
    }
}

impl PartialEq for Element<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

/// Returns the program that a variable names, or the reason why there is none.
fn program(variable: &str, default: &str, package: &str) -> Result<String, String> {
    if let Ok(reason) = std::env::var(format!("TOWPATH_SKIP_{variable}")) {
        return Err(reason);
    }
    let program = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
    let mut command = Command::new(&program);
    let status = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(program),
        Ok(_) | Err(_) => Err(format!("`{program}` (Debian package `{package}`) is missing")),
    }
}

/// Writes a program that starts Chromium such that it ends with its driver, even a killed one.
fn wrapper(folder: &Path, chromium: &str) -> String {
    let path = folder.join("chromium");
    let script = format!("#!/bin/sh\nexec setpriv --pdeathsig=KILL -- '{chromium}' \"$@\"\n");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Decodes base 64 (RFC 4648 §4).
fn decode_base64(text: &str) -> Vec<u8> {
    let (mut bytes, mut word, mut bits) = (Vec::new(), 0_u32, 0);
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        let digit = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => panic!("not base 64: {letter}"),
        };
        word = (word << 6) | u32::from(digit);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    bytes
}

#[test]
fn base_64_is_decoded() {
    // Examples of RFC 4648 §10.
    for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9vYmFy", "foobar")] {
        assert_eq!(decode_base64(text), bytes.as_bytes());
    }
}
