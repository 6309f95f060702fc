//! Uploads: accepted once, refused with a reason, or shown harmless.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use towpath_collect::Role;
use towpath_result::upload::content_hash;

use crate::site::{Client, Collector, RESULT, Site, compress, on_both_databases, result};

on_both_databases!(
    a_repeated_upload_has_no_effect,
    stored_records_are_those_that_were_sent,
    invalid_uploads_are_refused_with_a_reason,
    bodies_are_limited_and_need_a_token,
    results_of_another_format_or_time_are_refused,
    names_from_outside_are_text_on_every_page,
);

type Headers<'a> = &'a [(&'a str, &'a str)];

fn uploader(site: &Site) -> Client {
    site.client(&site.token("lab3", Role::Uploader))
}

fn viewer(site: &Site) -> Client {
    site.client(&site.token("reader", Role::Viewer))
}

fn a_repeated_upload_has_no_effect(collector: &Collector) {
    let site = collector.serve();
    let (uploader, viewer) = (uploader(&site), viewer(&site));
    let first = uploader.upload(RESULT);
    assert_eq!(first.status, 201, "{}", first.body);
    let second = uploader.upload(RESULT);
    assert_eq!(second.status, 200);
    assert_eq!(second.json()["created"], false);
    assert_eq!(first.json()["id"], second.json()["id"]);
    let list = viewer.get("/api/v1/runs").json();
    assert_eq!(list["matching"], 1);
    let run = &list["runs"][0];
    assert_eq!(
        (&run["host"], &run["transport"], &run["outcome"]),
        (&"lab3".into(), &"mptcp".into(), &"ok".into())
    );
    assert!(run["goodput_bps"].as_f64().unwrap() > 1e6, "{run}");
    assert_eq!(format!("{}/runs/{}", site.url, run["id"].as_str().unwrap()), first.json()["url"]);
}

fn stored_records_are_those_that_were_sent(collector: &Collector) {
    let id = {
        let site = collector.serve();
        let reply = uploader(&site).upload(RESULT).json();
        reply["id"].as_str().unwrap().to_owned()
    };
    // Another process serves the same folder later.
    let site = collector.serve();
    let viewer = viewer(&site);
    let page = viewer.get(&format!("/runs/{id}"));
    assert_eq!(page.status, 200);
    assert!(page.body.contains("wifi-cellular-handover"));
    let path = collector.path().join(format!("records/runs/{}/{id}.jsonl.zst", &id[..2]));
    assert_eq!(std::fs::read(path).unwrap(), compress(RESULT));
    assert_eq!(viewer.get(&format!("/api/v1/runs/{id}/records")).status, 200);
}

fn invalid_uploads_are_refused_with_a_reason(collector: &Collector) {
    let site = collector.serve();
    let uploader = uploader(&site);
    let (hash, length) = content_hash(RESULT.as_bytes()).unwrap();
    let path = format!("/api/v1/runs/{hash}");
    let length = length.to_string();
    let body = compress(RESULT);
    let headers = [("content-type", "application/zstd"), ("towpath-size", length.as_str())];
    let cut = &body[..body.len() / 2];
    let zeros = compress_to_vec(&vec![b'\n'; 50_000_000][..], CompressionLevel::Fastest);
    assert!(zeros.len() < 100_000, "{}", zeros.len());
    let cases: [(&str, u16, &str, Headers<'_>, &[u8]); 9] = [
        (&path, 422, "damaged or ends early", &headers, cut),
        (&path, 422, "not compressed", &headers, RESULT.as_bytes()),
        (&path, 422, "not compressed", &headers, b""),
        (&path, 422, "more than the declared", &headers, &zeros),
        (&path, 415, "media type", &[("towpath-size", length.as_str())], &body),
        (&path, 400, "towpath-size", &headers[..1], &body),
        (&path, 413, "at most", &[headers[0], ("towpath-size", "99999999999")], &body),
        (&path, 422, "not the declared", &[headers[0], ("towpath-size", "9999999")], &body),
        ("/api/v1/runs/..%2f..%2fetc", 400, "SHA-256", &headers, &body),
    ];
    for (path, status, reason, headers, body) in cases {
        let reply = uploader.put(path, headers, body);
        assert_eq!(reply.status, status, "{reason}: {}", reply.body);
        assert!(reply.json()["error"].as_str().unwrap().contains(reason), "{}", reply.body);
    }
    let other = format!("/api/v1/runs/{}", "0".repeat(64));
    let reply = uploader.put(&other, &headers, &body);
    assert!(reply.status == 422 && reply.body.contains("has the hash"), "{}", reply.body);
    assert_eq!(viewer(&site).get("/api/v1/runs").json()["matching"], 0);
    assert_eq!(uploader.upload(RESULT).status, 201, "the same result is still accepted");
}

fn results_of_another_format_or_time_are_refused(collector: &Collector) {
    let site = collector.serve();
    let uploader = uploader(&site);
    let refused = [
        (result(1, |meta| meta["schema"] = 2.into()), "newer towpath"),
        (result(2, |meta| meta["started_us"] = 1.into()), "before towpath existed"),
        (result(3, |meta| meta["started_us"] = 4_102_444_800_000_000_u64.into()), "in the future"),
        (result(4, |meta| meta["started_us"] = u64::MAX.into()), "in the future"),
        (result(5, |meta| meta["type"] = "event".into()), "line 1"),
        (format!("{RESULT}{RESULT}"), "a second result"),
        ("{\n".to_owned(), "line 1"),
    ];
    for (result, reason) in refused {
        let reply = uploader.upload(&result);
        assert_eq!(reply.status, 422, "{reason}: {}", reply.body);
        assert!(reply.body.contains(reason), "{}", reply.body);
    }
    let claimed = uploader.upload_with(RESULT, &[("towpath-time", "5")]);
    assert!(claimed.body.contains("before towpath existed"), "{}", claimed.body);
    let reply = uploader.upload_with(RESULT, &[("towpath-host", &"x".repeat(300))]);
    assert_eq!(reply.status, 400);
}

fn names_from_outside_are_text_on_every_page(collector: &Collector) {
    let site = collector.serve();
    let evil = "<script>alert(1)</script>\"'&../../x\u{202e}";
    let hostile = |seed: u64| {
        result(seed, |meta| {
            for key in ["run", "scenario", "description", "stack", "towpath", "kernel"] {
                meta[key] = evil.into();
            }
            meta["congestion_control"] = format!("{evil}{}", "x".repeat(100_000)).into();
            meta["conditions"] = serde_json::json!({ "server": evil, evil: evil });
            meta["hosts"] = serde_json::json!([evil, "b"]);
        })
    };
    let uploader = uploader(&site);
    let ids: Vec<String> = (0..2)
        .map(|seed| {
            let reply = uploader.upload_with(&hostile(seed), &[("towpath-host", "<script>x")]);
            assert_eq!(reply.status, 201, "{}", reply.body);
            reply.json()["id"].as_str().unwrap().to_owned()
        })
        .collect();
    let browser = site.browser(Role::Admin);
    let compare = format!("/compare?run={}&run={}", ids[0], ids[1]);
    let run = format!("/runs/{}", ids[0]);
    for path in ["/", "/?scenario=%3Cscript%3Ealert(1)", "/tokens", &run, &compare] {
        let page = browser.get(path);
        assert_eq!(page.status, 200, "{path}: {}", page.body);
        assert!(!page.body.contains("<script>alert"), "{path}");
        assert!(!page.body.contains("<script>x"), "{path}");
        assert!(!page.body.contains('\u{202e}'), "{path}");
    }
    let long = browser.get("/api/v1/runs").json()["runs"][0]["congestion_control"].clone();
    assert!(long.as_str().unwrap().len() < 1_000);
}

fn bodies_are_limited_and_need_a_token(collector: &Collector) {
    let site = collector.serve();
    let path = format!("/api/v1/runs/{}", "0".repeat(64));
    let headers = [("content-type", "application/zstd"), ("towpath-size", "100")];
    let large = vec![0; 32_000_001];
    let reply = uploader(&site).put(&path, &headers, &large);
    assert!(reply.status == 413 && reply.body.contains("at most"), "{}", reply.body);
    // The header is enough for a refusal: the server does not wait for the body.
    let address = site.url.trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(&address).unwrap();
    let head = format!(
        "PUT {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/zstd\r\n\
         content-length: 30000000\r\ntowpath-size: 100\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 401");
}
