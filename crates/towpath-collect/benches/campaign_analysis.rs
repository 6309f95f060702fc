//! Response times of the analysis of a campaign with 100,000 runs, over HTTP.
//!
//! `cargo bench -p towpath-collect --bench campaign_analysis [-- POSTGRES-URL]`; `RUNS=10000` makes
//! it shorter. 500 devices take part in a stable and in a mobile campaign, each with this number of
//! runs. A tenth of the planned runs has no result.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark of the command line")]
#![expect(clippy::indexing_slicing, reason = "a benchmark panics at the first surprise")]

use std::fmt::Write as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rand_core::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64;
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Executor as _};
use towpath_analysis::{
    Analysis, AnalysisFilter, AnalysisSettings, FACTS_VERSION, PageAddresses, RunFacts,
};
use towpath_campaign::Campaign;
use towpath_collect::{CampaignRuns, Role, ServerConfig, Store, StoreConfig, run_to_end, serve};

/// Devices that take part.
const DEVICES: u64 = 500;
/// Rows that one statement inserts.
const BATCH: usize = 1_000;
/// Microseconds of an hour.
const HOUR_US: u64 = 3_600_000_000;
/// Requests of each kind after the first.
const REQUESTS: usize = 5;

fn main() {
    let runs: u64 = std::env::var("RUNS").map_or(100_000, |runs| runs.parse().unwrap());
    let database = std::env::args().skip(1).find(|argument| argument.contains("://"));
    let dir = std::env::temp_dir().join(format!("towpath-analysis-{}", std::process::id()));
    let config = StoreConfig { dir: dir.clone(), database: database.clone(), objects: None };
    let campaigns = [stable(), mobile()].map(|text| (text, runs));
    let (token, campaigns) = create(&config, &campaigns);
    let address =
        database.unwrap_or_else(|| format!("sqlite://{}/catalogue.sqlite", dir.display()));
    let start = now();
    run_to_end(async {
        add_devices(&address).await.unwrap();
        for (campaign, rounds) in &campaigns {
            fill(&address, campaign, *rounds).await.unwrap();
        }
        Ok(())
    })
    .unwrap();
    println!("2 × {runs} runs in {:.0} s", start.elapsed().as_secs_f64());
    // Sets the peak of the memory to the present use (proc(5)).
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    println!("memory before the first request: {}", memory("VmRSS:"));
    let (ready, url) = std::sync::mpsc::channel();
    let store_config = config.clone();
    std::thread::spawn(move || {
        let served = run_to_end(async {
            let store = Store::open(&store_config).await?;
            let config = ServerConfig {
                listen: "127.0.0.1:0".parse().unwrap(),
                public_url: None,
                public_read: false,
                poll_interval: Duration::from_secs(300),
            };
            let on_ready = |url: &str| ready.send(url.to_owned()).unwrap();
            serve(store, config, on_ready, std::future::pending()).await
        });
        served.unwrap();
    });
    measure(&url.recv().unwrap(), &token);
    for (campaign, _) in &campaigns {
        measure_parts(&config, &campaign.name);
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "the campaign began before now")]
fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

fn stable() -> &'static str {
    "name = \"stable\"\nmode = \"stable\"\nend = 2100-01-01T00:00:00Z\nevery = \"1 h\"\n\
     jitter = \"0 s\"\ntransports = [\"tcp\", \"mptcp\", \"quic\", \"mpquic\"]\n\
     families = [\"ipv4\", \"ipv6\"]\nbytes-per-day = \"10 GB\"\n\
     [[patterns]]\npattern = \"ping\"\n\
     [[patterns]]\npattern = \"bulk\"\nsize = \"1 MB\"\ndirection = \"down\"\n"
}

fn mobile() -> &'static str {
    "name = \"mobile\"\nmode = \"mobile\"\nend = 2100-01-01T00:00:00Z\nevery = \"1 h\"\n\
     jitter = \"0 s\"\ntransports = [\"mptcp\", \"mpquic\"]\nfamilies = [\"ipv4\"]\n\
     bytes-per-day = \"10 GB\"\n[[patterns]]\npattern = \"interactive\"\n\
     preset = \"multipathtester\"\nduration = \"1 min\"\n"
}

/// Creates the campaigns, as many rounds ago as they need; returns a token, and the campaigns with
/// their rounds.
fn create(config: &StoreConfig, campaigns: &[(&str, u64)]) -> (String, Vec<(Campaign, u32)>) {
    run_to_end(async {
        let store = Store::open(config).await?;
        let token = store.create_token("bench", Role::Admin).await?;
        let mut created = Vec::new();
        for (text, runs) in campaigns {
            let per_round = u64::from(Campaign::parse("file", text, 0).unwrap().runs_per_round());
            let rounds = (runs * 10 / 9).div_ceil(DEVICES * per_round);
            let created_us = now_us() - rounds * HOUR_US + HOUR_US / 2;
            let entry = store.create_campaign("file", text.as_bytes(), created_us.cast_signed());
            created.push((entry.await?.campaign, rounds as u32));
        }
        store.close().await;
        Ok((token, created))
    })
    .unwrap()
}

/// Rows of a table that one statement inserts.
struct Rows {
    table: &'static str,
    values: String,
    count: usize,
}

impl Rows {
    fn new(table: &'static str) -> Self {
        Self { table, values: String::new(), count: 0 }
    }

    async fn add(&mut self, connection: &mut AnyConnection, row: &str) -> Result<(), sqlx::Error> {
        let comma = if self.count == 0 { "" } else { ", " };
        write!(self.values, "{comma}({row})").unwrap();
        self.count += 1;
        if self.count >= BATCH { self.send(connection).await } else { Ok(()) }
    }

    async fn send(&mut self, connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
        if self.count > 0 {
            let statement = format!("INSERT INTO {} VALUES {}", self.table, self.values);
            connection.execute(AssertSqlSafe(statement)).await?;
        }
        (self.count, self.values) = (0, String::new());
        Ok(())
    }
}

/// Inserts devices that take part from the beginning of all campaigns.
async fn add_devices(address: &str) -> Result<(), sqlx::Error> {
    sqlx::any::install_default_drivers();
    let mut connection = AnyConnection::connect(address).await?;
    let (mut tokens, mut devices) = (Rows::new("tokens"), Rows::new("devices"));
    for device in 0..DEVICES {
        let token = format!("token{device:03}");
        let row = format!("'{token}', 'device-{device:03}', 'device', '{token}', 0, NULL, NULL");
        tokens.add(&mut connection, &row).await?;
        let row = format!("'{token}', 1, '0.1.0', 'linux', 0, NULL");
        devices.add(&mut connection, &row).await?;
    }
    tokens.send(&mut connection).await?;
    devices.send(&mut connection).await?;
    connection.close().await
}

/// Inserts runs and outcomes of all devices in a campaign.
async fn fill(address: &str, campaign: &Campaign, rounds: u32) -> Result<(), sqlx::Error> {
    let mut connection = AnyConnection::connect(address).await?;
    let name = &campaign.name;
    connection.execute("BEGIN").await?;
    let started_us = campaign.start_us;
    let group = format!(
        "INSERT INTO run_groups VALUES ('{name}', 's', 'live', 't', 'h', 'eu', '', '0.1.0', 'ok', 0)"
    );
    connection.execute(AssertSqlSafe(group)).await?;
    let mut random = Pcg64::seed_from_u64(1);
    let mut number = 0;
    // The tables in the order of their references.
    let mut tables = ["runs", "run_facts", "outcomes"].map(Rows::new);
    for device in 0..DEVICES {
        let (token, device) = (format!("token{device:03}"), format!("device-{device:03}"));
        for round in 0..rounds {
            for run in campaign.runs(&device, round) {
                number += 1;
                let place = format!("'{name}', '{token}', {round}, {}", run.index);
                if random.next_u64().is_multiple_of(10) {
                    let row = format!("{place}, 'missing', 'unreachable', '', '', 0");
                    tables[2].add(&mut connection, &row).await?;
                    continue;
                }
                let id = format!("{:x}{number:019x}", name.as_bytes()[0] % 16);
                let facts = facts(campaign, (&id, round), &run, &mut random);
                let facts = serde_json::to_string(&facts).unwrap();
                let row = format!(
                    "'{id}', '{id}', '{name}', '{token}', {started_us}, {started_us}, 'r', 'kernel', \
                     'cubic', 'bulk', '', '1', 1, '', '', 'used', 10000000, 1e6, NULL, NULL, NULL, \
                     NULL, 1000.0, 0, 0, 1000, 20000, 140000"
                );
                tables[0].add(&mut connection, &row).await?;
                let row = format!("'{id}', '{name}', {FACTS_VERSION}, '{facts}'");
                tables[1].add(&mut connection, &row).await?;
                let row = format!("{place}, 'stored', '', '', '{id}', 0");
                tables[2].add(&mut connection, &row).await?;
            }
        }
        // Facts refer to runs.
        for table in &mut tables {
            table.send(&mut connection).await?;
        }
    }
    connection.execute("COMMIT").await?;
    connection.execute("ANALYZE").await?;
    connection.close().await
}

/// Returns facts of a run with random values.
fn facts(
    campaign: &Campaign,
    (id, round): (&str, u32),
    run: &towpath_campaign::PlannedRun,
    random: &mut Pcg64,
) -> RunFacts {
    let mut draw = |low: f64, high: f64| {
        let share = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        low * (high / low).powf(share)
    };
    let is_mobile = campaign.name == "mobile";
    let delays = is_mobile.then(|| [draw(0.05, 60.0), draw(0.05, 60.0)]);
    let causes = ["rto-backoff", "no-subflow", "slow-network", "other"];
    let cause = || is_mobile.then(|| causes[(round % 4) as usize].to_owned());
    RunFacts {
        run: id.to_owned(),
        campaign: campaign.name.clone(),
        round,
        planned_run: run.index,
        mobile: is_mobile,
        pattern: campaign.patterns[run.pattern].name.clone(),
        pattern_keys: "size = \"1 MB\"".to_owned(),
        transport: run.transport.to_string(),
        family: run.family.name().to_owned(),
        port: run.port.into(),
        server: if round % 2 == 0 { "eu" } else { "us" }.to_owned(),
        version: "0.1.0".to_owned(),
        started_us: Some(campaign.start_us + u64::from(round) * HOUR_US),
        valid: !(u64::from(round) + u64::from(run.index)).is_multiple_of(40),
        invalid_reason: (u64::from(round) + u64::from(run.index))
            .is_multiple_of(40)
            .then(|| "network-change".to_owned()),
        completed: true,
        multipath_used: Some(true),
        networks: "wifi 192.0.2.0/24, cellular 198.51.100.0/24".to_owned(),
        comparison_s: Some(draw(0.01, 10.0)),
        max_delay_up_s: delays.map(|[up, _]| up),
        max_delay_down_s: delays.map(|[_, down]| down),
        cause_up: cause(),
        cause_down: cause(),
        network_lost_s: is_mobile.then(|| draw(5.0, 50.0)),
        second_network: is_mobile.then(|| "handover".to_owned()),
        handover_start_s: is_mobile.then(|| draw(5.0, 50.0)),
        handover_received_s: is_mobile.then(|| draw(0.1, 30.0)),
        handover_sent_s: is_mobile.then(|| draw(0.1, 40.0)),
        handover_reason: is_mobile.then(|| "rto".to_owned()),
        ..RunFacts::default()
    }
}

/// Prints the times of an analysis without the server.
fn measure_parts(config: &StoreConfig, campaign: &str) {
    let start = now();
    let runs = run_to_end(async {
        let store = Store::open(config).await?;
        store.campaign_runs(campaign, now_us().cast_signed()).await
    });
    let CampaignRuns { data, without_facts, left_out } = runs.unwrap();
    assert_eq!((without_facts, left_out), (0, 0));
    let read = start.elapsed().as_secs_f64();
    let (runs, absent) = (data.runs.len(), data.absent.len());
    let start = now();
    let analysis = Analysis::of(data, &AnalysisFilter::default(), AnalysisSettings::default());
    let analysed = start.elapsed().as_secs_f64();
    let start = now();
    let page = analysis.page(PageAddresses { files: "", round: None }, None);
    let written = start.elapsed().as_secs_f64();
    println!(
        "{campaign}: {runs} runs and {absent} without a result read in {read:.3} s, \
         analysed in {analysed:.3} s, page of {} kB in {written:.3} s",
        page.len() / 1000
    );
}

fn measure(url: &str, token: &str) {
    let agent = ureq::agent();
    println!("{:44} {:>9} {:>11} {:>10}", "", "first, s", "later, s", "kB");
    for (campaign, file) in [("stable", "transport-ratio.png"), ("mobile", "max-delay.png")] {
        let base = format!("/campaigns/{campaign}/analysis");
        let paths = [
            base.clone(),
            format!("{base}?server=eu"),
            format!("{base}/{file}"),
            format!("{base}/runs.parquet"),
            format!("{base}/absent.parquet"),
            format!("/api/v1{base}"),
        ];
        for path in paths {
            let mut times = Vec::new();
            let mut bytes = 0;
            for _ in 0..=REQUESTS {
                let request = agent.get(format!("{url}{path}"));
                let start = now();
                let request = request.header("authorization", format!("Bearer {token}"));
                let mut reply = request.call().unwrap();
                let body = reply.body_mut().with_config().limit(1 << 30).read_to_vec().unwrap();
                times.push(start.elapsed().as_secs_f64());
                bytes = body.len();
            }
            let later = times[1..].iter().copied().fold(0.0, f64::max);
            println!("{path:44} {:9.3} {later:11.3} {:10}", times[0], bytes / 1000);
        }
        println!("peak memory of server and benchmark: {}", memory("VmHWM:"));
    }
}

/// Returns a line of the memory of this process.
fn memory(name: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.trim_start_matches(name).trim().to_owned()
}
