//! Processor time and memory of a collector that receives results of 10,000 samples, over HTTP.
//!
//! `cargo bench -p towpath-collect --bench upload` starts the collector as a process of its own, so
//! that the client's work is not counted. `UPLOADS=1000` makes it longer.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark of the command line")]

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rand_core::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::Value;
use towpath_collect::{Role, ServerConfig, Store, StoreConfig, run_to_end, serve};
use towpath_result::upload::{
    HOST_HEADER, RESULT_MEDIA_TYPE, SIZE_HEADER, UploadReply, content_hash,
};

/// Result whose first and last line the uploads have.
const RESULT: &str = include_str!("../../towpath-result/tests/fixtures/result-v1.jsonl");
/// Intervals of a result: each has a record of the stream, and two of each of two subflows.
const INTERVALS: u64 = 2_000;
const INTERVAL_NS: u64 = 10_000_000;
/// Unit of the processor times in `/proc/PID/stat`, in milliseconds (`USER_HZ` of Linux).
const TICK_MS: f64 = 10.0;
/// Argument of the process that is the collector.
const SERVE: &str = "serve";

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != SERVE);
    if let Some(dir) = arguments.nth(1) {
        run_server(Path::new(&dir));
        return;
    }
    let uploads = std::env::var("UPLOADS").map_or(100, |uploads| uploads.parse().unwrap());
    let dir = std::env::temp_dir().join(format!("towpath-upload-{}", std::process::id()));
    let config = config(&dir);
    let token = run_to_end(async {
        let store = Store::open(&config).await?;
        let token = store.create_token("bench", Role::Uploader).await?;
        store.close().await;
        Ok(token)
    })
    .unwrap();
    let (mut server, url) = start_server(&dir);
    measure(&server, &url, &token, uploads);
    server.kill().unwrap();
    server.wait().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

fn config(dir: &Path) -> StoreConfig {
    StoreConfig { dir: dir.to_owned(), database: None, objects: None }
}

/// Serves until the process is killed; prints the address of the site.
fn run_server(dir: &Path) {
    run_to_end(async {
        let store = Store::open(&config(dir)).await?;
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = ServerConfig {
            listen,
            public_url: None,
            public_read: false,
            poll_interval: Duration::from_secs(300),
        };
        serve(store, config, |url| println!("{url}"), std::future::pending()).await
    })
    .unwrap();
}

/// Starts the collector; returns its process and its address.
fn start_server(dir: &Path) -> (Child, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut server = command.arg(SERVE).arg(dir).stdout(Stdio::piped()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut url).unwrap();
    (server, url.trim().to_owned())
}

fn measure(server: &Child, url: &str, token: &str, uploads: u64) {
    let agent = ureq::agent();
    let upload = |seed: u64| {
        let result = result(seed);
        let body = compress_to_vec(result.as_bytes(), CompressionLevel::Fastest);
        let (hash, size) = content_hash(result.as_bytes()).unwrap();
        let request = agent.put(format!("{url}/api/v1/runs/{hash}"));
        let request = request.header("authorization", format!("Bearer {token}"));
        let request = request.header("content-type", RESULT_MEDIA_TYPE);
        let request = request.header(SIZE_HEADER, size.to_string()).header(HOST_HEADER, "lab3");
        let reply: UploadReply = request.send(&body[..]).unwrap().body_mut().read_json().unwrap();
        assert!(reply.created);
        (size, body.len())
    };
    let (expanded, stored) = upload(0);
    let idle_memory = peak_memory(server);
    let start_ms = processor_ms(server);
    (1..=uploads).for_each(|seed| {
        upload(seed);
    });
    let time_ms = (processor_ms(server) - start_ms) / uploads as f64;
    println!("{uploads} results of {expanded} bytes, {stored} compressed");
    println!("processor time of the collector: {time_ms:.1} ms for each");
    println!("peak memory: {} after all, {idle_memory} after one", peak_memory(server));
}

/// Returns the user and system time of a process and of its threads.
fn processor_ms(process: &Child) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    // proc_pid_stat(5): the fields after the name, from the third one; 14 and 15 are the times.
    let fields = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace();
    let ticks = fields.skip(11).take(2).map(|field| field.parse::<f64>().unwrap());
    ticks.sum::<f64>() * TICK_MS
}

fn peak_memory(process: &Child) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let memory = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    memory.trim().to_owned()
}

/// Returns a result whose counters grow and whose estimates vary, as those of a real run.
fn result(seed: u64) -> String {
    let mut meta: Value = serde_json::from_str(RESULT.lines().next().unwrap()).unwrap();
    *meta.get_mut("seed").unwrap() = seed.into();
    let mut text = format!("{meta}\n");
    let mut random = Pcg64::seed_from_u64(seed);
    let mut draw = |bound: u64| random.next_u64() % bound;
    let mut sums = [[0; 2]; 2];
    for interval in 1..=INTERVALS {
        let common = format!(
            "\"t_ns\":{},\"span_ns\":{INTERVAL_NS},\"flow\":0,\"stream\":0,\"direction\":\"up\"",
            interval * INTERVAL_NS
        );
        let bytes = 40_000 + draw(20_000);
        let _ = writeln!(text, "{{\"type\":\"interval\",{common},\"bytes\":{bytes}}}"); // cannot fail
        for (subflow, path) in ["wifi", "cellular"].into_iter().enumerate() {
            for (side, name) in ["sender", "receiver"].into_iter().enumerate() {
                let bytes = 20_000 + draw(10_000);
                let sums = sums.get_mut(subflow).unwrap();
                let sum = sums.get_mut(side).unwrap();
                *sum += bytes;
                let [sent, received] = if side == 0 { [*sum, 0] } else { [0, *sum] };
                let srtt = 40_000 + 30_000 * subflow as u64 + draw(9_000);
                let _ = writeln!(
                    text,
                    "{{\"type\":\"subflow\",{common},\"side\":\"{name}\",\"subflow\":{subflow},\
                     \"path\":\"{path}\",\"state\":\"established\",\"backup\":false,\
                     \"bytes\":{bytes},\"bytes_sent\":{sent},\"bytes_acked\":{sent},\
                     \"bytes_received\":{received},\"srtt_us\":{srtt},\"rttvar_us\":{},\
                     \"rto_us\":{},\"backoff\":0,\"cwnd_packets\":{},\"ssthresh_packets\":120,\
                     \"in_flight_packets\":{},\"retransmissions\":{},\"mss_bytes\":1428}}",
                    2_000 + draw(6_000),
                    srtt + 200_000,
                    100 + draw(90),
                    60 + draw(90),
                    interval / 50
                ); // cannot fail
            }
        }
    }
    text + RESULT.lines().last().unwrap() + "\n"
}
