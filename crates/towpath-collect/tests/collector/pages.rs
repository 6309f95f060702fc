//! Lists and pages: filters, counts, order, paging, comparison, campaigns, devices, servers.

use serde_json::{Value, json};
use towpath_campaign::{EXAMPLE_MOBILE, EXAMPLE_STABLE, HEARTBEAT_PATH, OUTCOMES_PATH};
use towpath_collect::{ActorKind, CampaignProgress, Role};

use crate::access::between;
use crate::api::now_us;
use crate::maintenance::with_store;
use crate::site::{
    Client, Collector, RESULT, Reply, Site, edited_result, on_both_databases, result,
};

on_both_databases!(
    filters_counts_and_pages_agree,
    a_page_works_without_scripts_and_offers_the_next_step,
    a_query_without_a_match_keeps_all_choices,
    a_condition_of_an_empty_value_is_not_that_of_a_name,
    errors_do_not_ask_to_log_in_again,
    two_to_eight_runs_can_be_compared,
    the_health_page_needs_no_token,
    a_series_marks_a_change_of_the_goodput,
    a_badge_shows_the_goodput_to_other_sites,
    an_administrator_creates_pauses_resumes_and_ends_a_campaign,
    a_refused_campaign_stays_in_the_form_with_its_mistakes,
    the_page_of_a_campaign_has_the_amounts_of_the_command,
    viewers_read_campaigns_and_servers_and_see_no_forms,
    the_public_sees_amounts_but_no_single_devices,
    forms_without_the_value_of_the_session_change_nothing,
    devices_and_test_servers_cannot_open_pages,
    a_device_is_invited_and_revoked_after_a_question,
    an_invitation_that_was_used_cannot_be_ended,
    names_of_devices_and_their_details_are_escaped,
    test_servers_are_listed_with_their_state,
    actions_on_pages_are_logged_with_the_administrator,
);

/// Uploads `count` runs whose transport, host and time follow from their number.
fn fill(site: &Site, count: u64) {
    let uploader = site.client(&site.token("lab", Role::Uploader));
    let transports = ["tcp", "mptcp", "quic", "mpquic"];
    for number in 0..count {
        let result = result(number, |meta| {
            meta["transport"] = transports[number as usize % 4].into();
            meta["started_us"] = (1_790_000_000_000_000 + number * 3_600_000_000).into();
        });
        let host = format!("host{}", number % 3);
        let reply = uploader.upload_with(&result, &[("towpath-host", &host)]);
        assert_eq!(reply.status, 201, "{}", reply.body);
    }
}

fn filters_counts_and_pages_agree(collector: &Collector) {
    let site = collector.serve();
    fill(&site, 120);
    let viewer = site.client(&site.token("reader", Role::Viewer));
    for (query, expected) in [
        ("", 120),
        ("?transport=mptcp", 30),
        ("?transport=mptcp&transport=tcp", 60),
        ("?transport=mptcp&host=host0", 10),
        ("?host=host1&since=2026-09-22", 37),
        ("?until=2026-09-21", 10),
        ("?server=-", 120),
        ("?host=none", 0),
        ("?sort=%2Bgoodput", 120),
    ] {
        let mut ids = std::collections::BTreeSet::new();
        let list = viewer.get(&format!("/api/v1/runs{query}")).json();
        let pages = list["pages"].as_i64().unwrap();
        for page in 1..=pages {
            let separator = if query.is_empty() { "?" } else { "&" };
            let list = viewer.get(&format!("/api/v1/runs{query}{separator}page={page}")).json();
            for run in list["runs"].as_array().unwrap() {
                assert!(ids.insert(run["id"].to_string()), "{query}: a run is listed twice");
            }
        }
        assert_eq!(list["matching"], ids.len(), "{query}");
        assert_eq!(ids.len(), expected, "{query}");
        assert_eq!(viewer.get(&format!("/{query}")).status, 200, "{query}");
    }
    let newest = viewer.get("/api/v1/runs").json()["runs"][0]["started_us"].clone();
    assert_eq!(newest, 1_790_000_000_000_000_u64 + 119 * 3_600_000_000);
    let wrong = viewer.get("/api/v1/runs?colour=red");
    assert!(wrong.status == 400 && wrong.body.contains("transport"), "{}", wrong.body);
}

fn a_page_works_without_scripts_and_offers_the_next_step(collector: &Collector) {
    let site = collector.serve();
    let browser = site.browser(Role::Admin);
    let empty = browser.get("/").body;
    assert!(empty.contains("towpath collect token create"), "{empty}");
    assert!(empty.contains(&format!("--to {}", site.url)), "{empty}");
    fill(&site, 2);
    let list = browser.get("/").body;
    assert!(!list.contains("<script"), "lists need no script");
    assert_eq!(list.matches("name=\"run\"").count(), 2);
    assert!(browser.get("/nowhere").status == 404 && browser.get("/runs/x").status == 404);
}

fn a_query_without_a_match_keeps_all_choices(collector: &Collector) {
    let site = collector.serve();
    fill(&site, 8);
    let viewer = site.client(&site.token("reader", Role::Viewer));
    for query in ["host=elsewhere", "since=2031-01-01", "since=2026-10-02&until=2026-10-01"] {
        let list = viewer.get(&format!("/?{query}")).body;
        assert!(list.contains("No run matches"), "{query}");
        let mut values = vec![("transport", "tcp"), ("transport", "mpquic"), ("host", "host1")];
        if query.starts_with("host") {
            values.push(("host", "elsewhere"));
        }
        for (facet, value) in values {
            let field = format!("name=\"{facet}\" value=\"{value}\"");
            assert!(list.contains(&field), "{query}: {field}");
        }
    }
}

fn a_condition_of_an_empty_value_is_not_that_of_a_name(collector: &Collector) {
    let site = collector.serve();
    let uploader = site.client(&site.token("lab", Role::Uploader));
    for (seed, host) in [(1, ""), (2, "none")] {
        let result = result(seed, |_| {});
        assert_eq!(uploader.upload_with(&result, &[("towpath-host", host)]).status, 201);
    }
    let viewer = site.client(&site.token("reader", Role::Viewer));
    let [without, named] = ["-", "none"].map(|host| viewer.get(&format!("/?host={host}")).body);
    assert!(without.contains(">without host ×<") && !without.contains(">host none ×<"));
    assert!(named.contains(">host none ×<") && named.contains(" (none) <small>"), "{named}");
    for list in [without, named] {
        assert_eq!(list.matches("name=\"run\"").count(), 1);
    }
}

fn errors_do_not_ask_to_log_in_again(collector: &Collector) {
    let site = collector.serve();
    let browser = site.browser(Role::Viewer);
    for path in ["/nowhere", "/compare", "/tokens", "/runs/x", "/?colour=red", "/login"] {
        let page = browser.get(path).body;
        assert!(page.contains("href=\"/\"") && !page.contains("href=\"/login\""), "{page}");
    }
}

fn two_to_eight_runs_can_be_compared(collector: &Collector) {
    let site = collector.serve();
    fill(&site, 9);
    let viewer = site.client(&site.token("reader", Role::Viewer));
    let list = viewer.get("/api/v1/runs").json();
    let ids: Vec<&str> =
        list["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap()).collect();
    let compare = |ids: &[&str]| {
        let query: Vec<String> = ids.iter().map(|id| format!("run={id}")).collect();
        viewer.get(&format!("/compare?{}", query.join("&")))
    };
    for count in [2, 8] {
        let page = compare(&ids[..count]);
        assert_eq!(page.status, 200, "{}", page.body);
        assert!(page.body.contains("<svg"));
    }
    for count in [0, 1, 9] {
        assert_eq!(compare(&ids[..count]).status, 400);
    }
    assert_eq!(compare(&[ids[0], ids[0]]).status, 400, "the same run twice");
    assert_eq!(compare(&[ids[0], "00000000000000000000"]).status, 404);
}

fn the_health_page_needs_no_token(collector: &Collector) {
    let site = collector.serve();
    let reply = site.unauthenticated().get("/healthz");
    assert_eq!((reply.status, reply.body.as_str()), (200, "ok\n"));
    assert!(RESULT.len() > 100);
}

fn a_series_marks_a_change_of_the_goodput(collector: &Collector) {
    let site = collector.serve();
    let uploader = site.client(&site.token("lab", Role::Uploader));
    for night in 0..30_u64 {
        // From the 20th night on, a third is lost.
        let factor = if night < 20 { 1.0 } else { 0.66 } + (night % 5) as f64 / 50.0;
        let result = edited_result(night, |records| {
            records[0]["started_us"] = (1_790_000_000_000_000 + night * 86_400_000_000).into();
            for flow in records.last_mut().unwrap()["flows"].as_array_mut().unwrap() {
                flow["goodput_bps"] = (flow["goodput_bps"].as_f64().unwrap() * factor).into();
            }
        });
        assert_eq!(uploader.upload(&result).status, 201);
    }
    let viewer = site.client(&site.token("reader", Role::Viewer));
    let series = viewer.get("/api/v1/series?host=lab3").json();
    assert_eq!(series["points"].as_array().unwrap().len(), 30);
    let change = &series["change"];
    assert_eq!(change["since_us"], 1_790_000_000_000_000_u64 + 20 * 86_400_000_000, "{change}");
    let page = viewer.get("/series?host=lab3").body;
    assert!(page.contains("since 2026-10-11") && page.contains('−'), "{page}");
    assert_eq!(page.matches("<circle").count(), 30);
    assert_eq!(viewer.get("/series?sort=stall").status, 200);
    assert!(viewer.get("/series?host=none").body.contains("No run that matches"));
}

fn a_badge_shows_the_goodput_to_other_sites(collector: &Collector) {
    let site = collector.serve_publicly();
    let uploader = site.client(&site.token("lab", Role::Uploader));
    let reply = uploader.upload(RESULT).json();
    let id = reply["id"].as_str().unwrap();
    let badge = site.unauthenticated().get(&format!("/runs/{id}/badge.svg"));
    assert!(badge.status == 200 && badge.body.contains("Mbit/s"), "{}", badge.body);
}

/// Addresses of all forms of campaigns and devices, with their fields.
const FORMS: [(&str, &[(&str, &str)]); 5] = [
    ("/campaigns", &[("text", EXAMPLE_STABLE)]),
    ("/campaigns/mobile-1/state", &[("state", "ended")]),
    ("/devices", &[("name", "uninvited"), ("days", "7")]),
    ("/devices/invitations/end", &[("name", "bob")]),
    ("/devices/revoke", &[("device", "ada")]),
];

/// Creates the example of mobile mode, with a round at the time of creation.
pub(crate) fn create_campaign(collector: &Collector) {
    let text = EXAMPLE_MOBILE.replace("jitter = \"2 h\"", "jitter = \"0 s\"");
    with_store(&collector.config(), async |store| {
        store.create_campaign("file", text.as_bytes(), now_us().cast_signed()).await
    });
}

fn progress(collector: &Collector) -> CampaignProgress {
    with_store(&collector.config(), async |store| {
        store.campaign_progress("mobile-1", now_us().cast_signed(), |_| {}).await
    })
}

/// Sends a form of a page, with the value of the session.
fn submit(browser: &Client, page: &str, path: &str, form: &[(&str, &str)]) -> Reply {
    let csrf = between(&browser.get(page).body, "name=\"csrf\" value=\"", "\"");
    let form: Vec<_> = [("csrf", csrf.as_str())].into_iter().chain(form.iter().copied()).collect();
    browser.post(path, &form)
}

/// Reports the outcome of a run of the first round.
pub(crate) fn report(device: &Client, run: u32, mut outcome: Value) {
    outcome["campaign"] = "mobile-1".into();
    outcome["round"] = 0.into();
    outcome["run"] = run.into();
    outcome["at_us"] = now_us().into();
    let body = json!({ "outcomes": [outcome] }).to_string();
    let headers = [("content-type", "application/json")];
    let reply = device.post_body(OUTCOMES_PATH, &headers, body.as_bytes());
    assert_eq!(reply.json()["accepted"], 1, "{}", reply.body);
}

/// Uploads a result of a device; returns its identifier.
pub(crate) fn upload(device: &Client, seed: u64) -> String {
    let reply = device.upload_with(&result(seed, |_| {}), &[("towpath-host", "ada")]);
    assert_eq!(reply.status, 201, "{}", reply.body);
    reply.json()["id"].as_str().unwrap().to_owned()
}

/// Sends a heartbeat of a new test server.
pub(crate) fn register_server(site: &Site, name: &str, place: &str) {
    let heartbeat = json!({
        "place": place, "hosts": ["192.0.2.1", "eu-1.example.org"], "ports": [443, 6121],
        "transports": ["tcp", "mptcp", "quic", "mpquic"], "certificate": "ab".repeat(32),
        "version": "0.1.0", "tests": 3, "max_tests": 16,
    });
    let server = site.client(&site.token(name, Role::Server));
    let headers = [("content-type", "application/json")];
    let reply = server.put(HEARTBEAT_PATH, &headers, heartbeat.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.body);
}

fn an_administrator_creates_pauses_resumes_and_ends_a_campaign(collector: &Collector) {
    let site = collector.serve();
    let admin = site.browser(Role::Admin);
    // A browser sends the line ends of HTTP.
    let text = EXAMPLE_STABLE.replace('\n', "\r\n");
    let reply = submit(&admin, "/campaigns", "/campaigns", &[("text", &text)]);
    assert_eq!((reply.status, reply.location.as_str()), (303, "/campaigns/stable-1"));
    let stored = std::fs::read_dir(collector.path()).unwrap();
    assert!(stored.flatten().any(|file| file.file_name() == "campaign.key"), "it is signed");
    let state = |name: &str| {
        between(&admin.get("/campaigns/stable-1").body, "<dt>State</dt><dd>", "<") == name
    };
    assert!(state("active"));
    for name in ["paused", "active"] {
        let path = "/campaigns/stable-1/state";
        let reply = submit(&admin, "/campaigns/stable-1", path, &[("state", name)]);
        assert_eq!((reply.status, reply.location.as_str()), (303, "/campaigns/stable-1"));
        assert!(state(name), "{name}");
    }
    let question = "/campaigns/stable-1/end";
    assert!(admin.get(question).body.contains("cannot be undone"));
    assert!(state("active"), "a question changes nothing");
    let path = "/campaigns/stable-1/state";
    assert_eq!(submit(&admin, question, path, &[("state", "ended")]).status, 303);
    assert!(state("ended"));
    let page = admin.get("/campaigns/stable-1").body;
    assert!(!page.contains("stable-1/end") && !page.contains("stable-1/state"), "{page}");
    assert_eq!(submit(&admin, "/campaigns", path, &[("state", "active")]).status, 409);
    let again = submit(&admin, "/campaigns", "/campaigns", &[("text", EXAMPLE_STABLE)]);
    assert!(again.status == 409 && again.body.contains("a campaign named `stable-1` already"));
    let unknown = "/campaigns/none/state";
    assert_eq!(submit(&admin, "/campaigns", unknown, &[("state", "ended")]).status, 404);
    assert_eq!(submit(&admin, "/campaigns", path, &[("state", "lost")]).status, 422);
}

fn a_refused_campaign_stays_in_the_form_with_its_mistakes(collector: &Collector) {
    let site = collector.serve();
    let admin = site.browser(Role::Admin);
    let text = "\nname = \"</textarea><b>\"\nmode = \"fast\"\n# & more\n";
    let reply = submit(&admin, "/campaigns", "/campaigns", &[("text", text)]);
    assert_eq!(reply.status, 400);
    let form = between(&reply.body, "<textarea", "</textarea>");
    let (_, kept) = form.split_once(">\n").unwrap();
    let escaped = text.replace('&', "&amp;").replace('"', "&quot;");
    assert_eq!(kept, escaped.replace('<', "&lt;").replace('>', "&gt;"));
    let mistakes = between(&reply.body, "role=\"alert\">", "<form");
    for part in ["Line 2, column", "Line 3, column", "every", "bytes-per-day"] {
        assert!(mistakes.contains(part), "{part}: {mistakes}");
    }
    assert!(!reply.body.contains("<b>"));
    let long = "#".repeat(64_001);
    let reply = submit(&admin, "/campaigns", "/campaigns", &[("text", &long)]);
    assert!(reply.status == 400 && reply.body.contains("more than 64000 bytes"));
    let too_long = "#".repeat(300_000);
    let reply = admin.post_refused("/campaigns", &[("csrf", "x"), ("text", &too_long)]);
    assert_eq!(reply.status, 413);
    let mobile = admin.get("/campaigns?example=mobile").body;
    assert!(mobile.contains("open") && mobile.contains("mobile-1"), "{mobile}");
}

fn the_page_of_a_campaign_has_the_amounts_of_the_command(collector: &Collector) {
    let site = collector.serve();
    let (ada, bob) = (site.client(&site.join("ada")), site.client(&site.join("bob")));
    site.join("eve");
    create_campaign(collector);
    let viewer = site.client(&site.token("reader", Role::Viewer));
    report(&ada, 0, json!({ "state": "stored", "result": upload(&ada, 1) }));
    let invalid =
        json!({ "state": "invalid", "result": upload(&ada, 2), "detail": "Wi-Fi <left>" });
    report(&ada, 1, invalid);
    report(&bob, 0, json!({ "state": "stored", "result": "0123456789abcdef0123" }));
    report(&bob, 1, json!({ "state": "missing", "reason": "no-address", "detail": "" }));
    let expected = progress(collector);
    let counts = expected.counts();
    assert_eq!((counts.planned, counts.stored, counts.invalid), (6, 1, 1));
    assert_eq!((counts.all_missing(), counts.not_uploaded, counts.not_reported), (1, 1, 2));
    let numbers = |row: &str| {
        let names = ["planned", "stored", "invalid", "missing", "not uploaded", "not reported"];
        names.map(|name| between(row, &format!("data-label=\"{name}\">"), "<"))
    };
    let list = viewer.get("/campaigns").body;
    assert_eq!(numbers(&list), ["6", "1", "1", "1", "1", "2"]);
    assert!(list.contains("aria-label=\"stored 1, invalid 1, missing 1, not uploaded 1"), "{list}");
    let page = viewer.get("/campaigns/mobile-1").body;
    for device in &expected.devices {
        let row = between(&page, &format!("\"/?host={}\"", device.name), "</tr>");
        let counts = &device.counts;
        let expected = [
            counts.planned,
            counts.stored,
            counts.invalid,
            counts.all_missing(),
            counts.not_uploaded,
            counts.not_reported,
        ];
        assert_eq!(numbers(&row), expected.map(|number| number.to_string()), "{row}");
    }
    for part in ["no-address 1", "1: Wi-Fi &lt;left&gt;", "3 devices", "0.1.0 × 3", "16.7 %"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

fn viewers_read_campaigns_and_servers_and_see_no_forms(collector: &Collector) {
    let site = collector.serve();
    site.join("ada");
    create_campaign(collector);
    let viewer = site.browser(Role::Viewer);
    for path in ["/campaigns", "/campaigns/mobile-1", "/servers", "/campaigns?example=stable"] {
        let reply = viewer.get(path);
        assert_eq!(reply.status, 200, "{path}");
        let main = reply.body.split_once("</nav>").unwrap().1;
        assert!(!main.contains("<form") && !main.contains("csrf"), "{path}: {main}");
        assert!(!main.contains("<script"), "{path} needs no script");
        assert!(!reply.body.contains("href=\"/devices\"") && !main.contains("/end\""), "{path}");
    }
    for path in ["/devices", "/devices/revoke?device=x", "/campaigns/mobile-1/end"] {
        assert_eq!(viewer.get(path).status, 403, "{path}");
        assert_eq!(site.unauthenticated().get(path).status, 303, "{path}");
    }
    for (path, form) in FORMS {
        assert_eq!(submit(&viewer, "/", path, form).status, 403, "{path}");
    }
    assert_eq!(viewer.get("/campaigns/none").status, 404);
    let admin = site.browser(Role::Admin).get("/campaigns").body;
    assert!(admin.contains("href=\"/devices\"") && admin.contains("<textarea"), "{admin}");
}

fn the_public_sees_amounts_but_no_single_devices(collector: &Collector) {
    let site = collector.serve_publicly();
    let device = site.client(&site.join("ada-of-lovelace"));
    create_campaign(collector);
    let detail = "at home of ada";
    let result = upload(&device, 1);
    report(&device, 0, json!({ "state": "invalid", "result": result, "detail": detail }));
    let public = site.unauthenticated().get("/campaigns/mobile-1").body;
    assert!(public.contains("1 device") && public.contains("invalid"), "{public}");
    assert!(!public.contains("lovelace") && !public.contains(detail), "{public}");
    let of_device = device.get("/campaigns/mobile-1").body;
    assert!(!of_device.contains("lovelace"), "a device is no reader");
    let viewer = site.browser(Role::Viewer).get("/campaigns/mobile-1").body;
    assert!(viewer.contains("lovelace") && viewer.contains(detail), "{viewer}");
}

fn forms_without_the_value_of_the_session_change_nothing(collector: &Collector) {
    let site = collector.serve();
    let ada = site.client(&site.join("ada"));
    site.invite("bob");
    create_campaign(collector);
    let admin = site.browser(Role::Admin);
    for (path, form) in FORMS {
        let mut form = form.to_vec();
        assert_eq!(admin.post(path, &form).status, 422, "{path}");
        form.push(("csrf", "wrong"));
        assert_eq!(admin.post(path, &form).status, 403, "{path}");
    }
    assert!(ada.get("/api/v1/device").status == 200, "the device has access");
    let devices = admin.get("/devices").body;
    assert!(devices.contains(">bob<") && !devices.contains("uninvited"), "{devices}");
    let campaigns = admin.get("/campaigns").body;
    assert!(campaigns.contains(">active<") && !campaigns.contains("/campaigns/stable-1"));
}

fn devices_and_test_servers_cannot_open_pages(collector: &Collector) {
    let site = collector.serve();
    create_campaign(collector);
    let device = site.client(&site.join("ada"));
    let server = site.client(&site.token("eu-1", Role::Server));
    for client in [device, server] {
        for path in ["/campaigns", "/campaigns/mobile-1", "/servers", "/devices", "/tokens"] {
            assert_eq!(client.get(path).status, 403, "{path}");
        }
        for (path, form) in FORMS {
            let mut form = form.to_vec();
            form.push(("csrf", ""));
            assert_eq!(client.post(path, &form).status, 403, "{path}");
        }
    }
}

fn a_device_is_invited_and_revoked_after_a_question(collector: &Collector) {
    let site = collector.serve();
    let admin = site.browser(Role::Admin);
    let form = [("name", " ada-laptop "), ("days", "7")];
    let reply = submit(&admin, "/devices", "/devices", &form);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let command = between(&reply.body, "<code>towpath agent join ", "</code>");
    let (url, code) = command.split_once(' ').unwrap();
    assert_eq!(url, site.url);
    assert!(reply.body.contains("<svg class=\"qr\"") && reply.body.contains("role=\"img\""));
    let later = admin.get("/devices").body;
    assert!(!later.contains(code) && later.contains(">ada-laptop<"), "it is shown once");
    assert_eq!(submit(&admin, "/devices", "/devices", &form).status, 409, "invited already");
    for days in ["0", "31"] {
        let form = [("name", "bob"), ("days", days)];
        assert_eq!(submit(&admin, "/devices", "/devices", &form).status, 400, "{days}");
    }
    assert_eq!(submit(&admin, "/devices", "/devices", &[("name", ""), ("days", "1")]).status, 400);
    assert_eq!(site.unauthenticated().join(code, 1).status, 201);

    let devices = admin.get("/devices").body;
    assert!(devices.contains("linux x86_64") && !devices.contains("Open invitations"), "{devices}");
    let question = format!("/devices/revoke?device={}", between(&devices, "revoke?device=", "\""));
    let page = admin.get(&question);
    assert!(page.body.contains("Revoke ada-laptop?") && page.body.contains("cannot be undone"));
    let id = between(&page.body, "name=\"device\" value=\"", "\"");
    let reply = submit(&admin, &question, "/devices/revoke", &[("device", &id)]);
    assert_eq!((reply.status, reply.location.as_str()), (303, "/devices"));
    assert!(admin.get("/devices").body.contains("revoked 20"));
    assert_eq!(admin.get(&question).status, 404, "it is revoked already");
}

fn an_invitation_that_was_used_cannot_be_ended(collector: &Collector) {
    let site = collector.serve();
    let admin = site.browser(Role::Admin);
    let (used, unused) = (site.invite("ada"), site.invite("bob"));
    let device = site.unauthenticated().join(&used, 1).json();
    let device = site.client(device["token"].as_str().unwrap());
    let end = |name: &str| {
        submit(&admin, "/devices", "/devices/invitations/end", &[("name", name)]).status
    };
    assert_eq!((end("ada"), end("bob"), end("bob")), (404, 303, 404));
    assert_eq!(device.get("/api/v1/device").status, 200);
    assert_eq!(site.unauthenticated().join(&unused, 1).status, 403);
}

fn names_of_devices_and_their_details_are_escaped(collector: &Collector) {
    const NAME: &str = "<b>\"a'&</b>";
    let site = collector.serve();
    let admin = site.browser(Role::Admin);
    let form = [("name", NAME), ("days", "1")];
    let reply = submit(&admin, "/devices", "/devices", &form);
    let code = between(&reply.body, "<h2>Invitation for", "</svg>");
    assert!(code.contains("&lt;b&gt;&quot;a'&amp;&lt;/b&gt;") && !code.contains("<b>"), "{code}");
    let code = between(&reply.body, "<code>towpath agent join ", "</code>");
    let (_, code) = code.split_once(' ').unwrap();
    let request = json!({
        "code": code, "consent": 1, "version": "<i>\u{202e}1", "platform": "<script>alert(1)</script>",
    });
    let headers = [("content-type", "application/json")];
    let joined = site.unauthenticated().post_body(
        "/api/v1/devices",
        &headers,
        request.to_string().as_bytes(),
    );
    assert_eq!(joined.status, 201, "{}", joined.body);
    let device = site.client(joined.json()["token"].as_str().unwrap());
    create_campaign(collector);
    let detail = "<img src=x>\u{202e}";
    let result = upload(&device, 1);
    report(&device, 0, json!({ "state": "invalid", "result": result, "detail": detail }));
    register_server(&site, "<u>eu</u>", "<s>Brussels</s>");
    site.invite("<em>bob");
    let question = between(&admin.get("/devices").body, "revoke?device=", "\"");
    let question = format!("/devices/revoke?device={question}");
    for path in ["/devices", &question, "/campaigns/mobile-1", "/servers", "/campaigns"] {
        let reply = admin.get(path);
        assert_eq!(reply.status, 200, "{path}");
        for markup in ["<b>", "<i>", "<script", "<img", "<u>", "<s>", "<em>", "\u{202e}"] {
            assert!(!reply.body.contains(markup), "{path}: {markup}");
        }
    }
    let page = admin.get("/campaigns/mobile-1").body;
    assert!(page.contains("host=%3Cb%3E%22a%27%26%3C%2Fb%3E"), "{page}");
    assert!(page.contains("&lt;script&gt;") && page.contains("&lt;img src=x&gt;"), "{page}");
}

fn test_servers_are_listed_with_their_state(collector: &Collector) {
    let site = collector.serve();
    let admin = site.browser(Role::Admin);
    let empty = admin.get("/servers").body;
    assert!(empty.contains(&format!("towpath server --register {}", site.url)), "{empty}");
    register_server(&site, "eu-1", "Brussels");
    site.token("us-1", Role::Server);
    let page = admin.get("/servers").body;
    for part in ["1 of 2 servers are up", "192.0.2.1, eu-1.example.org", "443, 6121", "3 of 16"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(between(&page, ">eu-1<", "</tr>").contains(">up<"));
    assert!(between(&page, ">us-1<", "</tr>").contains(">never seen<"));
    let campaign = EXAMPLE_STABLE
        .replace("ports = [443]\n", "ports = [443]\nservers = [\"eu-1.example.org\", \"other\"]\n");
    assert_eq!(submit(&admin, "/campaigns", "/campaigns", &[("text", &campaign)]).status, 303);
    let page = admin.get("/campaigns/stable-1").body;
    assert!(page.contains("eu-1.example.org: up") && page.contains("other: not registered here"));
    with_store(&collector.config(), async |store| store.revoke_token("us-1").await);
    assert!(!admin.get("/servers").body.contains("us-1"), "it has no access");
}

fn actions_on_pages_are_logged_with_the_administrator(collector: &Collector) {
    let site = collector.serve();
    let admin = site.browser(Role::Admin);
    let state = "/campaigns/stable-1/state";
    let forms: [(&str, &[(&str, &str)]); 7] = [
        ("/campaigns", &[("text", EXAMPLE_STABLE)]),
        (state, &[("state", "paused")]),
        (state, &[("state", "active")]),
        (state, &[("state", "ended")]),
        ("/devices", &[("name", "ada"), ("days", "7")]),
        ("/devices/invitations/end", &[("name", "ada")]),
        ("/tokens", &[("name", "lab"), ("role", "uploader")]),
    ];
    for (path, form) in forms {
        let reply = submit(&admin, "/campaigns", path, form);
        assert!(matches!(reply.status, 200 | 303), "{path}: {}", reply.body);
    }
    let log = with_store(&collector.config(), async |store| store.audit_log(None).await);
    let of_admin = log.iter().filter(|entry| entry.actor.kind == ActorKind::Admin);
    let actions: Vec<_> = of_admin
        .map(|entry| {
            assert!(entry.actor.name.starts_with("browser-"), "{entry:?}");
            (entry.action.name(), entry.object.as_str())
        })
        .collect();
    let expected = [
        ("campaign-created", "stable-1"),
        ("campaign-paused", "stable-1"),
        ("campaign-resumed", "stable-1"),
        ("campaign-ended", "stable-1"),
        ("device-invited", "ada"),
        ("invitation-ended", "ada"),
        ("token-created", "lab"),
    ];
    assert_eq!(actions, expected);
}
