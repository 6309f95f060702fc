//! A collector that can be killed, the disk of its data, and what it says about its runs.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ruzstd::decoding::StreamingDecoder;
use serde_json::Value;
use towpath_result::upload::content_hash;

use crate::program::{HANG_TIMEOUT, Running, TestDir, wait_for};

/// Folder of the collector, in the working directory.
pub(super) const DIR: &str = "collector";

/// Collector of one test.
pub(super) struct Site<'a> {
    test: &'a TestDir,
    listen: String,
    /// Address of the PostgreSQL database; `None` for SQLite.
    database: Option<String>,
    process: Option<Running>,
    viewer: String,
}

impl<'a> Site<'a> {
    /// Creates the collector's data, with tokens to upload (in `uploader.token`) and to read.
    pub(super) fn create(test: &'a TestDir, database: Option<String>) -> Self {
        // Clients connect from 127.0.0.1. From another address they could take the port of a killed
        // server, and connect to themselves.
        let port = TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap().port();
        let listen = format!("127.0.0.2:{port}");
        let site = Self { test, listen, database, process: None, viewer: String::new() };
        let viewer = site.create_token("viewer");
        test.write_secret("uploader.token", site.create_token("uploader"));
        Self { viewer, ..site }
    }

    fn create_token(&self, role: &str) -> String {
        let mut command = self.test.towpath(&["collect", "token", "create", "--dir", DIR]);
        command.args(["--name", role, "--role", role]);
        command.args(self.database.iter().flat_map(|address| ["--database", address]));
        let output = self.test.start(&mut command).wait();
        assert_eq!(output.code, Some(0), "{output}");
        output.out.trim().to_owned()
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    pub(super) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    pub(super) fn kill(&mut self) {
        self.process = None;
    }

    /// Starts the collector if it does not run.
    ///
    /// It may end by itself only if it could not reach PostgreSQL when it started.
    pub(super) fn keep_running(&mut self) {
        if let Some(mut process) = self.process.take() {
            if process.child.try_wait().unwrap().is_none() {
                self.process = Some(process);
                return;
            }
            let was_ready = process.stderr().contains("listening on");
            let output = process.wait();
            assert!(self.database.is_some() && !was_ready, "the collector ended: {output}");
        }
        let mut command = self.test.towpath(&["collect", "serve", "--dir", DIR]);
        command.args(["--listen", &self.listen]);
        command.args(self.database.iter().flat_map(|address| ["--database", address]));
        self.process = Some(self.test.start(&mut command));
    }

    pub(super) fn wait_until_ready(&mut self) {
        wait_for("a collector that answers", || {
            self.keep_running();
            self.get("/healthz")
        });
    }

    /// Returns a reply's body; `None` for an error.
    fn get(&self, path: &str) -> Option<Vec<u8>> {
        let config = ureq::Agent::config_builder().proxy(None).timeout_global(Some(HANG_TIMEOUT));
        let request = ureq::Agent::from(config.build()).get(format!("{}{path}", self.url()));
        let request = request.header("authorization", format!("Bearer {}", self.viewer));
        request.call().ok()?.into_body().read_to_vec().ok()
    }

    fn json(&self, path: &str) -> Value {
        let body = self.get(path).unwrap_or_else(|| panic!("no reply to {path}"));
        serde_json::from_slice(&body).unwrap()
    }

    /// Returns the identifiers of all runs. Each must be on one page only, and in all counts.
    pub(super) fn runs(&self) -> BTreeSet<String> {
        let (mut ids, mut count) = (BTreeSet::new(), 0);
        for page in 1.. {
            let list = self.json(&format!("/api/v1/runs?page={page}"));
            for run in list["runs"].as_array().unwrap() {
                let [id, hash] = ["id", "content_hash"].map(|key| run[key].as_str().unwrap());
                assert_eq!(id, &hash[..20], "{run}");
                assert!(ids.insert(id.to_owned()), "{id} is there twice");
                count += 1;
            }
            assert!(page <= 1_000, "the list does not end");
            if list["pages"].as_u64().unwrap() <= page {
                break;
            }
        }
        // The second list counts by day.
        for query in ["", "?since=2020-01-01"] {
            let list = self.json(&format!("/api/v1/runs{query}"));
            assert_eq!(list["matching"].as_u64(), Some(count), "/api/v1/runs{query}");
        }
        ids
    }

    /// Returns the SHA-256 of a run's records, after decompression.
    pub(super) fn records_hash(&self, id: &str) -> String {
        let path = format!("/api/v1/runs/{id}/records");
        let body = self.get(&path).unwrap_or_else(|| panic!("no reply to {path}"));
        content_hash(StreamingDecoder::new(&body[..]).unwrap()).unwrap().0
    }

    /// Returns what the running collector has logged.
    pub(super) fn log(&self) -> String {
        self.process.as_ref().map(Running::stderr).unwrap_or_default()
    }
}

/// Disk in memory (tmpfs) whose size can change; unmounted on drop.
pub(super) struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Mounts an empty disk. Fails with the reason where this is not permitted.
    pub(super) fn mount(path: &Path) -> Result<Self, String> {
        fs::create_dir_all(path).unwrap();
        let arguments = ["-t", "tmpfs", "-o", "size=1g,mode=700", "tmpfs"];
        let output = Command::new("mount").args(arguments).arg(path).output();
        let output = output.map_err(|error| format!("cannot run `mount`: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(Self { path: path.to_owned() })
    }

    /// Leaves this many bytes free.
    pub(super) fn shrink_to_free(&self, free_bytes: u64) {
        wait_for("a small disk", || self.resize(self.used_bytes() + free_bytes).then_some(()));
    }

    pub(super) fn grow(&self) {
        assert!(self.resize(1 << 30), "the disk does not grow");
    }

    fn resize(&self, bytes: u64) -> bool {
        let option = format!("remount,size={bytes}");
        Command::new("mount").args(["-o", &option]).arg(&self.path).status().unwrap().success()
    }

    fn used_bytes(&self) -> u64 {
        let mut df = Command::new("df");
        let output = df.args(["-B1", "--output=used"]).arg(&self.path).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().nth(1).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazy: the collector may still run. Best effort, like the folder of the test.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// Longest time for all attempts of a client that finds the collector's disk full: it waits twice
/// for as long as the collector asks, 30 s.
pub(super) const FULL_DISK_TIMEOUT: Duration = Duration::from_secs(180);
