//! Response times of a collector with a million runs, over HTTP.
//!
//! `cargo bench -p towpath-collect --bench million_runs [-- POSTGRES-URL]`; `RUNS=100000` makes it
//! shorter. The runs belong to 40 hosts, 12 scenarios, 4 transports, 3 versions and 2 years.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark of the command line")]
#![expect(clippy::indexing_slicing, reason = "a benchmark panics at the first surprise")]

use std::time::{Duration, Instant};

use rand_core::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64;
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Executor as _};
use towpath_collect::{Role, ServerConfig, Store, StoreConfig, run_to_end, serve};

/// Rows that one statement inserts.
const BATCH: u64 = 50_000;
/// Requests of each kind.
const REQUESTS: u32 = 60;
/// Start of the first run.
const FIRST_START_US: u64 = 1_730_000_000_000_000;
/// Time between two runs: a million of them take two years.
const START_INTERVAL_US: u64 = 63_000_000;

fn main() {
    let runs = std::env::var("RUNS").map_or(1_000_000, |runs| runs.parse().unwrap());
    let database = std::env::args().skip(1).find(|argument| argument.contains("://"));
    let dir = std::env::temp_dir().join(format!("towpath-million-{}", std::process::id()));
    let config = StoreConfig { dir: dir.clone(), database: database.clone(), objects: None };
    let token = run_to_end(async {
        let store = Store::open(&config).await?;
        let token = store.create_token("bench", Role::Admin).await?;
        store.close().await;
        Ok(token)
    })
    .unwrap();
    let address =
        database.unwrap_or_else(|| format!("sqlite://{}/catalogue.sqlite", dir.display()));
    let start = now();
    run_to_end(async {
        fill(&address, runs).await.unwrap();
        Ok(())
    })
    .unwrap();
    println!("{runs} rows in {:.0} s", start.elapsed().as_secs_f64());
    let (ready, url) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let served = run_to_end(async {
            let store = Store::open(&config).await?;
            let listen = "127.0.0.1:0".parse().unwrap();
            let config = ServerConfig {
                listen,
                public_url: None,
                public_read: false,
                poll_interval: Duration::from_secs(300),
            };
            let on_ready = |url: &str| ready.send(url.to_owned()).unwrap();
            serve(store, config, on_ready, std::future::pending()).await
        });
        served.unwrap();
    });
    measure(&url.recv().unwrap(), &token, runs);
    std::fs::remove_dir_all(dir).unwrap();
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// Inserts rows whose values follow from their number.
async fn fill(address: &str, runs: u64) -> Result<(), sqlx::Error> {
    sqlx::any::install_default_drivers();
    let mut connection = AnyConnection::connect(address).await?;
    let token: String =
        sqlx::query_scalar("SELECT id FROM tokens").fetch_one(&mut connection).await?;
    let numbers = |from: u64, to: u64| {
        format!(
            "WITH RECURSIVE n (i) AS (SELECT CAST({from} AS BIGINT) UNION ALL \
             SELECT i + 1 FROM n WHERE i + 1 < {to})"
        )
    };
    let groups = format!(
        "{} INSERT INTO run_groups SELECT 'g' || i, 'scenario' || (i % 12), 'live', \
         CASE i % 4 WHEN 0 THEN 'tcp' WHEN 1 THEN 'mptcp' WHEN 2 THEN 'quic' ELSE 'mpquic' END, \
         'host' || (i % 40), 'server' || (i % 3), 'ipv' || (4 + 2 * (i % 2)), \
         '0.' || (i / 400), CASE WHEN i % 17 = 0 THEN 'failed' ELSE 'ok' END, 0 FROM n",
        numbers(0, 1_200)
    );
    connection.execute(AssertSqlSafe(groups)).await?;
    for from in (0..runs).step_by(BATCH as usize) {
        let rows = format!(
            "{} INSERT INTO runs SELECT 'r' || i, 'h' || i, \
             'g' || ((i * 7919) % 400 + 400 * ((i * 3) / {runs})), '{token}', \
             {FIRST_START_US} + i * {START_INTERVAL_US}, {FIRST_START_US} + i * {START_INTERVAL_US}, 'run' || i, 'kernel', 'cubic', \
             'bulk', '6.18.0', '1', 1, 'abc', 'mptcp: 40 Mbit/s', 'used', 10000000, \
             ((i * 6700417) % 1000003) * 100.0, 1000.0, ((i * 104729) % 999983) * 1.0, \
             ((i * 15485863) % 1000033) * 1.0, NULL, 1000.0, 0, 0, 10000, 200000, 1400000 FROM n",
            numbers(from, (from + BATCH).min(runs))
        );
        connection.execute(AssertSqlSafe(rows)).await?;
    }
    for days in [1, 32] {
        let period = format!("started_us / (86400000000 * {days})");
        let counts = format!(
            "INSERT INTO period_counts SELECT {days}, {period}, run_group, COUNT(*) FROM runs \
             GROUP BY {period}, run_group"
        );
        connection.execute(AssertSqlSafe(counts)).await?;
    }
    let totals = "UPDATE run_groups SET runs = \
         (SELECT COUNT(*) FROM runs WHERE runs.run_group = run_groups.id)";
    connection.execute(totals).await?;
    connection.execute("ANALYZE").await?;
    connection.close().await
}

/// Kinds of requests.
const KINDS: [&str; 18] = [
    "/?",
    "/api/v1/runs?",
    "one transport",
    "one host",
    "host and transport",
    "oldest version",
    "host, oldest version",
    "one month",
    "month and host",
    "a year and a transport",
    "by goodput",
    "by goodput, one host",
    "by goodput, one day",
    "page 1,000",
    "page 10,000",
    "last page",
    "series of one host",
    "no match",
];
const TRANSPORTS: [&str; 4] = ["tcp", "mptcp", "quic", "mpquic"];

fn measure(url: &str, token: &str, runs: u64) {
    let mut random = Pcg64::seed_from_u64(1);
    let mut draw = |bound: u64| random.next_u64() % bound;
    let agent = ureq::agent();
    println!("{:34} {:>8} {:>8} {:>8}", "milliseconds", "median", "95 %", "max");
    for kind in KINDS {
        let mut times = Vec::new();
        for _ in 0..REQUESTS {
            let path = address(kind, runs, &mut draw);
            let request = agent.get(format!("{url}{path}"));
            let start = now();
            let mut reply =
                request.header("authorization", format!("Bearer {token}")).call().unwrap();
            reply.body_mut().read_to_vec().unwrap();
            times.push(start.elapsed());
        }
        times.sort();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let [median, high, max] = [times.len() / 2, times.len() * 95 / 100, times.len() - 1]
            .map(|index| ms(times[index]));
        println!("{kind:34} {median:8.1} {high:8.1} {max:8.1}");
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let memory = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    println!("peak memory of server and benchmark: {}", memory.trim_start_matches("VmHWM:").trim());
}

/// Returns a random address of a kind.
fn address(kind: &str, runs: u64, draw: &mut impl FnMut(u64) -> u64) -> String {
    let host = format!("host=host{}", draw(40));
    let transport = format!("transport={}", TRANSPORTS[draw(4) as usize]);
    let month = draw(20);
    let since = format!("since={}-{:02}-01", 2025 + month / 12, 1 + month % 12);
    let until = format!("until={}-{:02}-28", 2025 + month / 12, 1 + month % 12);
    let query = match kind {
        "one transport" => transport,
        "one host" | "series of one host" => host,
        "host and transport" => format!("{host}&{transport}"),
        "oldest version" => "version=0.0".to_owned(),
        "host, oldest version" => format!("{host}&version=0.0"),
        "one month" => format!("{since}&{until}"),
        "a year and a transport" => {
            format!("since=2025-01-13&until=2026-01-12&{transport}")
        }
        "month and host" => format!("{since}&{until}&{host}"),
        "by goodput" => "sort=goodput".to_owned(),
        "by goodput, one host" => format!("sort=goodput&{host}"),
        "by goodput, one day" => {
            format!("sort=goodput&{since}&{}", since.replace("since", "until"))
        }
        "page 1,000" => "page=1000".to_owned(),
        "page 10,000" => "page=10000".to_owned(),
        "last page" => format!("page={}", (runs - 1) / 50 + 1),
        "no match" => "host=none".to_owned(),
        _ => String::new(),
    };
    let path = match kind {
        "/api/v1/runs?" => kind,
        "series of one host" => "/series?",
        _ => "/?",
    };
    format!("{path}{query}")
}
