//! A server on a host without enough descriptors, threads, memory, disk space or log readers.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use towpath_live::protocol::{ConnectionKind, TransferSettings};
use towpath_run::token::TestToken;

use super::super::fixture::{AttackedServer, is_full_scope, times};
use super::super::unauthenticated::{ClientRoute, RawClient};
use crate::processes::signal;
use crate::program::{ProgramOutput, TestDir, binary, is_root, missing, skip, wait_for};

/// Timeout for the server's end, which takes a few seconds; the rest is for a busy machine.
const END_TIMEOUT: Duration = Duration::from_secs(20);

const LONG_FLOW: &str = "pattern = \"iperf\"\nduration = \"60 s\"";

/// Starts a server through a wrapper program, which is replaced by it (exec).
fn start_server_through(wrap: &[&str], options: &[&str]) -> AttackedServer {
    let folder = TestDir::new();
    let mut command = folder.program(wrap[0]);
    command.args(&wrap[1..]).arg(binary());
    start_server(folder, &mut command, options)
}

fn start_server(folder: TestDir, command: &mut Command, options: &[&str]) -> AttackedServer {
    command.args(["server", "-B", "127.0.0.1", "-p", "0"]).args(options);
    let mut running = folder.start(command);
    let port = wait_for("the server", || {
        let stderr = running.stderr();
        let exit_status = running.child.try_wait().unwrap();
        assert!(exit_status.is_none(), "it has ended: {exit_status:?}: {stderr}");
        let (_, rest) = stderr.split_once("listening on 127.0.0.1:")?;
        Some(rest.split_once(' ')?.0.to_owned())
    });
    AttackedServer { folder, running, port }
}

/// Checks that other clients are served and that no state of earlier ones is left.
fn assert_serving(site: &AttackedServer) {
    (2..2 + times(1, 5) as u8).for_each(|host_number| site.assert_serves(host_number));
    site.wait_until_idle();
    site.assert_memory();
}

/// Opens connections that send a valid preamble and stay, as many as the server accepts.
fn open_connections(site: &AttackedServer, number: usize) -> Vec<TcpStream> {
    let echo = |_| site.route(1).connect(ConnectionKind::Echo, TestToken::NONE, (0, 0)).ok();
    (0..number).filter_map(echo).collect()
}

fn open_descriptors(site: &AttackedServer) -> usize {
    fs::read_dir(format!("/proc/{}/fd", site.running.id())).unwrap().count()
}

/// Returns the processor time used so far, in ticks.
fn cpu_ticks(site: &AttackedServer) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", site.running.id())).unwrap();
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// S2, S5: the server runs out of descriptors, accepts no connections, and recovers with free
/// descriptors.
#[test]
fn a_server_without_descriptors_resumes_once_some_are_free() {
    if let Some(reason) = missing("prlimit") {
        skip("a_server_without_descriptors_resumes_once_some_are_free", &reason);
        return;
    }
    for limit in [40, 64].into_iter().take(times(1, 2)) {
        let limit = format!("--nofile={limit}:{limit}");
        let site = start_server_through(&["prlimit", &limit], &[]);
        let idle_descriptors = open_descriptors(&site);
        let connections = open_connections(&site, 200);
        assert!(connections.len() >= 40, "{} connections", connections.len());
        wait_for("the last descriptors", || (open_descriptors(&site) >= 38).then_some(()));
        // The server waits for free descriptors and does not poll in a loop.
        let (ticks_before, start) = (cpu_ticks(&site), Instant::now());
        wait_for("a second", || (start.elapsed() > Duration::from_secs(1)).then_some(()));
        let ticks_used = cpu_ticks(&site) - ticks_before;
        assert!(ticks_used <= 50, "{ticks_used} of 100 ticks while it could accept no connection");
        drop(connections);
        // The server accepts the connections queued in the kernel and notices their end before
        // honest clients connect.
        wait_for("its descriptors", || {
            (open_descriptors(&site) <= idle_descriptors + 2).then_some(())
        });
        let try_connect = || RawClient::connect(site.route(3)).ok().map(|_| ());
        wait_for("room for a connection", try_connect);
        assert_serving(&site);
        wait_for("its descriptors", || {
            (open_descriptors(&site) <= idle_descriptors + 2).then_some(())
        });
    }
}

/// S2: many connections of one source block no other client, even with fewer descriptors than
/// permits.
#[test]
fn a_crowd_does_not_block_a_server_with_few_descriptors() {
    if let Some(reason) = missing("prlimit") {
        skip("a_crowd_does_not_block_a_server_with_few_descriptors", &reason);
        return;
    }
    let site = start_server_through(&["prlimit", "--nofile=200:200"], &[]);
    let connections = open_connections(&site, 400);
    assert!(connections.len() >= 200, "{} connections", connections.len());
    (2..2 + times(1, 5) as u8).for_each(|host_number| site.assert_serves(host_number));
    drop(connections);
    assert_serving(&site);
}

/// S2: a source that reconnects as fast as it can blocks no other client.
#[test]
fn a_source_connecting_in_a_tight_loop_blocks_no_other_client() {
    let site = AttackedServer::new(&[]);
    let mut opened = 0;
    site.run_attack(|attack| {
        let mut open = VecDeque::new();
        while attack.is_active() {
            open.extend(open_connections(&site, 10));
            opened += 10;
            if open.len() >= 400 {
                attack.set_active();
                open.drain(..10);
            }
        }
    });
    assert!(opened > 400, "{opened} connections");
}

/// S3, S5: a test with more connections than free descriptors releases its slot.
#[test]
fn a_test_without_descriptors_releases_its_slot() {
    if let Some(reason) = missing("prlimit") {
        skip("a_test_without_descriptors_releases_its_slot", &reason);
        return;
    }
    let site = start_server_through(&["prlimit", "--nofile=64:64"], &["--max-tests", "1"]);
    let mut client = RawClient::connect(site.route(1)).unwrap();
    let flow = "pattern = \"iperf\"\nduration = \"60 s\"\nstreams = 128\ndirection = \"down\"";
    let refusal = client.plan(&[flow], TransferSettings::default()).unwrap();
    let data: Vec<_> = (0..128).filter_map(|stream| client.data(0, stream).ok()).collect();
    assert!(refusal.is_some() || data.len() == 128, "{} connections, {refusal:?}", data.len());
    drop((client, data));
    assert_serving(&site);
}

/// Starts a server with a thread limit.
///
/// Root has no such limit, so the server becomes another user. A user namespace of its own counts
/// its threads separately.
fn start_server_with_thread_limit(
    test: &str,
    max_threads: u32,
    options: &[&str],
) -> Option<AttackedServer> {
    let tools = ["prlimit", "unshare", "setpriv"].into_iter().find_map(missing);
    if let Some(reason) = tools {
        skip(test, &reason);
        return None;
    }
    let folder = TestDir::new();
    let copy = folder.readable_binary();
    let limit = format!("--nproc={max_threads}:{max_threads}");
    let mut arguments = vec!["unshare", "-U", "prlimit", &limit];
    if is_root() {
        let setpriv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        arguments = [&setpriv[..], &arguments].concat();
    }
    let trial = Command::new(arguments[0]).args(&arguments[1..]).arg("true").output().unwrap();
    if !trial.status.success() {
        skip(test, &String::from_utf8_lossy(&trial.stderr));
        return None;
    }
    let mut command = folder.program(arguments[0]);
    command.args(&arguments[1..]).arg(copy).env("XDG_STATE_HOME", folder.temporary().join("state"));
    Some(start_server(folder, &mut command, options))
}

/// S5: when the system refuses more threads, the server refuses clients and keeps running.
#[test]
fn a_server_at_its_thread_limit_refuses_and_keeps_running() {
    let test = "a_server_at_its_thread_limit_refuses_and_keeps_running";
    for max_threads in [16, 40] {
        let Some(site) = start_server_with_thread_limit(test, max_threads, &[]) else { return };
        let connections = open_connections(&site, 120);
        assert!(connections.len() > 40, "{} connections", connections.len());
        wait_for("its last thread", || {
            (site.status("Threads:") + 2 >= max_threads.into()).then_some(())
        });
        assert!(
            site.status("Threads:") <= max_threads.into(),
            "no limit: {}",
            site.status("Threads:")
        );
        // A new client gets a reply or a closed connection.
        let reply = RawClient::connect(site.route(2)).map(|_| ());
        let is_timeout = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
        };
        assert!(!reply.as_ref().is_err_and(is_timeout), "nothing is said: {reply:?}");
        drop(connections);
        assert_serving(&site);
    }
}

/// S5: a test whose threads cannot start fails, its client gets the reason, and its slot is free.
#[test]
fn a_test_without_threads_fails_and_releases_its_slot() {
    let test = "a_test_without_threads_fails_and_releases_its_slot";
    let Some(site) = start_server_with_thread_limit(test, 30, &["--max-tests", "1"]) else {
        return;
    };
    for direction in ["down", "up"].into_iter().take(times(1, 2)) {
        let flow = format!(
            "pattern = \"iperf\"\nduration = \"2 s\"\nstreams = 64\ndirection = \"{direction}\""
        );
        let mut client = RawClient::connect(site.route(1)).unwrap();
        let outcome = test_outcome(&mut client, &flow);
        assert!(!outcome.is_empty());
        drop(client);
        assert_serving(&site);
    }
}

/// Returns the outcome of a test with many streams: its refusal, its report, or the connection's
/// error.
fn test_outcome(client: &mut RawClient, flow: &str) -> String {
    match client.plan(&[flow], TransferSettings::default()) {
        Ok(None) => {}
        Ok(Some(reason)) => return reason,
        Err(error) => return error.to_string(),
    }
    let data: Vec<_> = (0..64).filter_map(|stream| client.data(0, stream).ok()).collect();
    let outcome = client.begin();
    let report = outcome.and_then(|()| client.fetch());
    drop(data);
    match report {
        Ok(report) => {
            let has_failure = report.contains("\"failure\":\"");
            assert!(has_failure, "not a word of it: {}", &report[..report.len().min(600)]);
            report
        }
        Err(error) => {
            let is_timeout = matches!(error.kind(), io::ErrorKind::WouldBlock);
            assert!(!is_timeout, "nothing is said: {error}");
            error.to_string()
        }
    }
}

/// S1, S5: no address space for further thread stacks.
#[test]
fn a_server_without_address_space_keeps_running() {
    if let Some(reason) = missing("prlimit") {
        skip("a_server_without_address_space_keeps_running", &reason);
        return;
    }
    let site = AttackedServer::new(&[]);
    let idle_bytes = site.status("VmSize:") << 10;
    drop(site);
    for extra_bytes in [48 << 20, 200 << 20_u64].into_iter().take(times(1, 2)) {
        let limit = format!("--as={0}:{0}", idle_bytes + extra_bytes);
        let site = start_server_through(&["prlimit", &limit], &[]);
        let connections = open_connections(&site, 288);
        assert!(connections.len() > 20, "{} connections", connections.len());
        let flow = "pattern = \"iperf\"\nduration = \"60 s\"\nstreams = 128";
        let clients: Vec<_> = (1..8)
            .filter_map(|n| {
                let mut client = RawClient::connect(site.route(n)).ok()?;
                client.plan(&[flow], TransferSettings::default()).ok()?;
                let data: Vec<_> =
                    (0..128).map_while(|stream| client.data(0, stream).ok()).collect();
                Some((client, data))
            })
            .collect();
        drop((connections, clients));
        let mut site = site;
        let exit_status = site.running.child.try_wait().unwrap();
        assert!(exit_status.is_none(), "{exit_status:?}: {}", site.running.stderr());
        assert_serving(&site);
    }
}

/// S3: the server's clock is far ahead, or has just started, unlike its client's.
#[test]
fn a_server_with_a_wrong_clock_still_serves() {
    let test = "a_server_with_a_wrong_clock_still_serves";
    if let Some(reason) = missing("unshare") {
        skip(test, &reason);
        return;
    }
    let uptime_s = fs::read_to_string("/proc/uptime").unwrap();
    let uptime_s: i64 = uptime_s.split('.').next().unwrap().parse().unwrap();
    let offsets = [1 - uptime_s, 100 * 365 * 86_400, 400 * 86_400];
    for offset in offsets.into_iter().take(times(2, 3)) {
        let offset = offset.to_string();
        let mut arguments =
            vec!["unshare", "--time", "--monotonic", &offset, "--boottime", &offset];
        if !is_root() {
            arguments.push("-Ur");
        }
        let trial =
            Command::new(arguments[0]).args(&arguments[1..]).args(["cat", "/proc/uptime"]).output();
        let trial = trial.unwrap();
        if !trial.status.success() {
            skip(test, &String::from_utf8_lossy(&trial.stderr));
            return;
        }
        let shifted_uptime = String::from_utf8_lossy(&trial.stdout).into_owned();
        assert!(
            !shifted_uptime.starts_with(&format!("{uptime_s}")),
            "the clock is not another: {shifted_uptime}"
        );
        let site = start_server_through(&arguments, &[]);
        assert_serving(&site);
    }
}

/// Runs a script as root of a mount namespace, which ends with the server. `$TOWPATH` is the
/// command.
fn start_server_after(test: &str, script: &str, options: &[&str]) -> Option<AttackedServer> {
    if let Some(reason) = missing("unshare") {
        skip(test, &reason);
        return None;
    }
    let trial = Command::new("unshare").args(["-Urm", "true"]).output().unwrap();
    if !trial.status.success() {
        skip(test, &String::from_utf8_lossy(&trial.stderr));
        return None;
    }
    let folder = TestDir::new();
    let mut command = folder.program("unshare");
    command.args(["-Urm", "sh", "-ec", &format!("{script}\nexec \"$0\" \"$@\"")]).arg(binary());
    Some(start_server(folder, &mut command, options))
}

/// S2: no space for a certificate, no state folder, and no folder for temporary files.
#[test]
fn a_server_with_no_writable_storage_still_serves() {
    let test = "a_server_with_no_writable_storage_still_serves";
    let full_disk = "mkdir full; mount -t tmpfs -o size=64k none full
        head -c 1M /dev/zero >full/it 2>/dev/null || :
        export XDG_STATE_HOME=$PWD/full TMPDIR=$PWD/full";
    let read_only_disk = "mkdir only; mount -t tmpfs -o ro none only
        export XDG_STATE_HOME=$PWD/only TMPDIR=$PWD/only HOME=$PWD/only";
    let missing_folder = "unset XDG_STATE_HOME; export TMPDIR=/nowhere HOME=/nowhere/at/all";
    let no_variables = "unset XDG_STATE_HOME HOME TMPDIR";
    let scripts = [full_disk, missing_folder, read_only_disk, no_variables];
    for script in scripts.into_iter().take(times(2, 4)) {
        let Some(site) = start_server_after(test, script, &[]) else { return };
        let base_arguments =
            ["measure", "127.0.0.1", "-p", &site.port, "-o", "both", "-q", "-t", "0.2"];
        let output = site
            .folder
            .run(&[&base_arguments[..], &["--transport", "tcp,quic", "--wait", "0"]].concat());
        assert_eq!(output.code, Some(0), "{script}: {}\n{output}", site.running.stderr());
        site.wait_until_idle();
    }
}

/// R5, S2: a certificate truncated by a full disk does no harm to later servers.
#[test]
fn a_full_disk_leaves_no_partial_certificate() {
    let test = "a_full_disk_leaves_no_partial_certificate";
    if let Some(reason) = missing("unshare") {
        skip(test, &reason);
        return;
    }
    // Leaves the given number of free blocks of 4 KiB.
    let script = "
        try() {
            \"$0\" server -B 127.0.0.1 -p 0 2>$1 & server=$!
            until grep -q 'another host' $1 || ! kill -0 $server; do sleep 0.02; done
            kill -s INT $server; wait $server; cat $1 >&2
        }
        mkdir disk; mount -t tmpfs -o size=64k none disk
        export XDG_STATE_HOME=$PWD/disk
        for free in 0 1 2; do
            rm -rf disk/*; mkdir -p disk/towpath; chmod 700 disk/towpath
            head -c 1M /dev/zero >disk/filling 2>/dev/null || :
            truncate -s $((64 * 1024 - free * 4096)) disk/filling
            try first
            rm disk/filling
            find disk -type f -size 0 | sed \"s/^/EMPTY /\"
            try again
            grep -q 'certificate sha256:' again || echo WITHOUT $free
            find disk -type f | sort
        done";
    let folder = TestDir::new();
    let mut command = folder.program("unshare");
    command.args(["-Urm", "sh", "-c", script]).arg(binary());
    let output = folder.start(&mut command).wait();
    assert!(!output.out.contains("EMPTY") && !output.out.contains("WITHOUT"), "{output}");
    assert!(!output.err.contains("panicked"), "{output}");
    assert!(output.out.contains("disk/towpath/"), "nothing was kept: {output}");
}

/// Server whose standard output and error go to a pipe that the test holds.
struct PipedServer {
    folder: TestDir,
    child: Child,
    port: String,
}

impl Drop for PipedServer {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have exited
        let _ = self.child.wait();
    }
}

impl PipedServer {
    fn measure(&self, host_number: u8) -> ProgramOutput {
        let (source, results) =
            (format!("127.0.0.{host_number}"), format!("results-{host_number}"));
        let base_arguments =
            ["measure", "127.0.0.1", "-p", &self.port, "-B", &source, "-o", &results, "-q"];
        self.folder
            .run(&[&base_arguments[..], &["--transport", "tcp", "-t", "0.5", "-b", "8M"]].concat())
    }

    fn assert_serves(&mut self, case: &str) {
        for host_number in 2..2 + times(1, 5) as u8 {
            let output = self.measure(host_number);
            assert_eq!(output.code, Some(0), "{case}: {output}");
        }
        assert!(self.child.try_wait().unwrap().is_none(), "{case}: it has ended");
    }
}

/// Starts a server with both outputs in one pipe, which is read until the server listens.
fn start_server_with_pipe(
    options: &[&str],
) -> (PipedServer, BufReader<PipeReader>, io::PipeWriter) {
    let folder = TestDir::new();
    let (reader, writer) = io::pipe().unwrap();
    let mut command = folder.towpath(&["server", "-B", "127.0.0.1", "-p", "0"]);
    command.args(options);
    command.stdout(Stdio::from(writer.try_clone().unwrap()));
    command.stderr(Stdio::from(writer.try_clone().unwrap()));
    let child = command.spawn().unwrap();
    let mut reader = BufReader::new(reader);
    let mut server = PipedServer { folder, child, port: String::new() };
    let mut printed = String::new();
    // The last line before the first client.
    while !printed.contains("towpath measure 127.0.0.1") {
        assert!(reader.read_line(&mut printed).unwrap() > 0, "no port: {printed}");
    }
    let (_, rest) = printed.split_once("127.0.0.1:").unwrap();
    server.port = rest.chars().take_while(char::is_ascii_digit).collect();
    (server, reader, writer)
}

/// Fills a pipe until a write would block.
fn fill_pipe(mut writer: io::PipeWriter) {
    let written = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&written);
    thread::spawn(move || {
        while writer.write_all(b"\n").is_ok() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut last_progress = (0, Instant::now());
    wait_for("a full pipe", || {
        let count = written.load(Ordering::Relaxed);
        if count != last_progress.0 {
            last_progress = (count, Instant::now());
        }
        (count > 0 && last_progress.1.elapsed() > Duration::from_millis(300)).then_some(())
    });
}

/// S2: unauthenticated clients cause log lines that nothing reads.
#[test]
fn a_server_with_an_unread_log_keeps_serving() {
    let kinds = [&[][..], &["-J", "--secret-file", "secret"], &["-J"]];
    for options in kinds.into_iter().take(times(2, 3)) {
        let case = format!("{options:?}");
        let has_secret = options.contains(&"--secret-file");
        let path = std::env::temp_dir().join(format!("towpath-secret-{}", std::process::id()));
        let name = path.to_str().unwrap().to_owned();
        let mut arguments = options.to_vec();
        if has_secret {
            fs::write(&path, "a secret of both hosts\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            *arguments.last_mut().unwrap() = &name;
        }
        let (mut server, reader, writer) = start_server_with_pipe(&arguments);
        let _ = fs::remove_file(&path); // it may not exist
        fill_pipe(writer);
        if has_secret {
            // Failed clients are logged, but the server must still reply.
            let route = ClientRoute::number(1, &server.port);
            for _ in 0..8 {
                let _ = RawClient::connect(route); // may be refused
            }
            assert!(RawClient::connect(route).is_ok(), "{case}");
        } else {
            server.assert_serves(&case);
        }
        signal("TERM", server.child.id().into());
        let child = &mut server.child;
        let start = Instant::now();
        wait_for("its end", || child.try_wait().unwrap().map(|_| ()));
        assert!(start.elapsed() < END_TIMEOUT, "{case}: {:?}", start.elapsed());
        drop(reader);
    }
}

/// S2: the reader of the log has exited.
#[test]
fn a_server_with_a_closed_log_keeps_serving() {
    for options in [&[][..], &["-J"]] {
        let (mut server, reader, writer) = start_server_with_pipe(options);
        drop((reader, writer));
        server.assert_serves("an unread reply");
    }
}

/// S2: all three standard streams are closed, or each is full.
#[test]
fn a_server_without_standard_streams_keeps_serving() {
    let port = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port().to_string()
    };
    for streams in ["<&- >&- 2>&-", "</dev/null >/dev/full 2>/dev/full"] {
        for options in [&["-J"][..], &[]] {
            // With `--json`, a server that cannot print its first line exits at once.
            if streams.contains("full") && !options.is_empty() {
                continue;
            }
            let (folder, port) = (TestDir::new(), port());
            let mut command = folder.program("sh");
            command.args(["-c", &format!("exec \"$0\" \"$@\" {streams}")]).arg(binary());
            command.args(["server", "-B", "127.0.0.1", "-p", &port]).args(options);
            let child = command.spawn().unwrap();
            let mut server = PipedServer { folder, child, port };
            wait_for("the server", || {
                let exit_status = server.child.try_wait().unwrap();
                assert!(exit_status.is_none(), "{streams} {options:?}: {exit_status:?}");
                RawClient::connect(ClientRoute::number(1, &server.port)).ok()
            });
            server.assert_serves(streams);
        }
    }
}

/// S2: log lines of unauthenticated clients fill the disk.
#[test]
fn a_server_with_a_full_log_disk_keeps_serving() {
    let test = "a_server_with_a_full_log_disk_keeps_serving";
    let script = "mkdir full; mount -t tmpfs -o size=64k none full
        # What is left of the file's last block takes the first lines and few more.
        head -c 3700 /dev/zero | tr '\\0' '\\n' >full/log
        ( until grep -q invitation full/log; do sleep 0.05; done
        head -c 1M /dev/zero >full/it 2>/dev/null || :
        sed -n 's/.*\"127.0.0.1:\\([0-9]*\\)\".*/listening on 127.0.0.1:\\1 /p' full/log >&2 ) &
        exec >>full/log";
    let Some(mut site) = start_server_after(test, script, &["-J"]) else { return };
    for host_number in 2..2 + times(2, 5) as u8 {
        site.assert_serves(host_number);
    }
    let exit_status = site.running.child.try_wait().unwrap();
    assert!(exit_status.is_none(), "{exit_status:?}: {}", site.running.stderr());
    // The last lines found no space.
    let log = fs::read(format!("/proc/{}/cwd/full/log", site.running.id())).unwrap();
    assert!((3_900..=4_096).contains(&log.len()), "{} bytes", log.len());
    site.wait_until_idle();
}

/// S3, C2: a signal during tests ends the server soon, and its clients end on their own.
#[test]
fn a_signal_in_the_middle_of_tests_ends_both_ends() {
    for name in ["TERM", "INT", "HUP"].into_iter().take(times(1, 3)) {
        let site = AttackedServer::new(&[]);
        let raw_clients: Vec<_> = (1..4)
            .map(|n| {
                let mut raw_client = RawClient::connect(site.route(n)).unwrap();
                assert_eq!(
                    raw_client.plan(&[LONG_FLOW], TransferSettings::default()).unwrap(),
                    None
                );
                let data = raw_client.data(0, 0).unwrap();
                raw_client.begin().unwrap();
                (raw_client, data)
            })
            .collect();
        let base_arguments =
            ["measure", "127.0.0.1", "-p", &site.port, "-t", "60", "-b", "8M", "-i", "0.2"];
        let options = ["--transport", "tcp", "-o", "results", "--result-timeout", "2"];
        let command = [&base_arguments[..], &options].concat();
        let client = site.folder.start(&mut site.folder.towpath(&command));
        wait_for("an interval", || client.stderr().contains(" up ").then_some(()));
        let AttackedServer { folder, running, .. } = site;
        let id = running.id();
        signal(name, id.into());
        let start = Instant::now();
        let server_output = running.wait_at_most(END_TIMEOUT);
        assert!(!server_output.err.contains("panicked"), "{name}: {server_output}");
        let client = client.wait();
        let duration = start.elapsed();
        assert!(matches!(client.code, Some(1 | 2)), "{name}, {duration:?}: {client}");
        assert!(!client.err.contains("panicked"), "{client}");
        if client.code == Some(1) {
            assert!(folder.stored("results/live-tcp-1.jsonl.zst").summary.is_some());
        }
        drop(raw_clients);
    }
}

/// S3: a server suspended during tests resumes afterwards and keeps no state of them.
#[test]
fn a_server_suspended_by_a_signal_resumes() {
    let site = AttackedServer::new(&[]);
    let base_arguments =
        ["measure", "127.0.0.1", "-p", &site.port, "-t", "2", "-b", "8M", "-i", "0.2"];
    for transport in ["tcp", "quic"].into_iter().take(times(1, 2)) {
        let options = ["--transport", transport, "-o", transport];
        let command = [&base_arguments[..], &options].concat();
        let client = site.folder.start(&mut site.folder.towpath(&command));
        wait_for("an interval", || client.stderr().contains(" up ").then_some(()));
        // Not SIGTSTP, which has no effect without a terminal.
        signal("STOP", site.running.id().into());
        let state = format!("/proc/{}/stat", site.running.id());
        wait_for("it to stop", || {
            let stat = fs::read_to_string(&state).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T').then_some(())
        });
        let start = Instant::now();
        // Some clients connect and leave meanwhile.
        let mut connections = Vec::new();
        wait_for("a while", || {
            connections.extend(
                site.route(1).connect(ConnectionKind::Control, TestToken::NONE, (0, 0)).ok(),
            );
            (start.elapsed() > Duration::from_millis(1_200)).then_some(())
        });
        assert!(connections.len() > 20, "{}", connections.len());
        drop(connections);
        signal("CONT", site.running.id().into());
        let output = client.wait();
        assert_eq!(output.code, Some(0), "{transport}: {output}");
    }
    assert_serving(&site);
}

/// S2, S3: signals without a meaning for the server have no effect.
#[test]
fn ignored_signals_disturb_no_test() {
    let site = AttackedServer::new(&[]);
    let bursts_sent = AtomicUsize::new(0);
    site.run_attack(|attack| {
        attack.set_active();
        let id = site.running.id().to_string();
        let burst = "for n in 1 2 3 4 5 6 7 8 9; do kill -s PIPE $0; kill -s CONT $0; \
                     kill -s WINCH $0; kill -s CHLD $0; kill -s URG $0; done";
        while attack.is_active() {
            let status = Command::new("sh").args(["-c", burst, &id]).status().unwrap();
            bursts_sent.fetch_add(usize::from(status.success()), Ordering::Relaxed);
        }
    });
    assert!(bursts_sent.load(Ordering::Relaxed) > 3);
}

/// S3: clients disconnect in every phase of a result's download.
#[test]
fn connections_that_break_in_every_phase_leave_nothing() {
    let site = AttackedServer::new(&[]);
    let flow = "pattern = \"iperf\"\nduration = \"0.3 s\"\ndirection = \"down\"";
    let mut fetched = 0;
    for phase in 0..times(5, 10) {
        for n in 1..=times(2, 8) as u16 {
            let Ok(mut client) = RawClient::connect(site.route(n)) else { continue };
            if phase % 5 == 0 || client.plan(&[flow], TransferSettings::default()).is_err() {
                continue;
            }
            let Ok(mut data) = client.data(0, 0) else { continue };
            if phase % 5 == 1 || client.begin().is_err() || phase % 5 == 2 {
                continue;
            }
            let _ = data.read(&mut [0; 1_024]); // any amount will do
            drop(data);
            fetched += usize::from(phase % 5 == 4 && client.fetch().is_ok());
        }
    }
    assert!(fetched > 0 || !is_full_scope(), "no test came to its end");
    assert_serving(&site);
}
