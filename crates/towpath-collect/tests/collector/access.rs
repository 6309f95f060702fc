//! Access: tokens and roles, sessions of browsers, and forms of other sites.

use towpath_collect::Role;

use crate::site::{Collector, RESULT, on_both_databases, result};

on_both_databases!(
    each_role_may_do_its_work_and_nothing_else,
    public_pages_can_be_read_without_a_token_and_changed_with_one_only,
    a_login_link_works_once,
    a_login_leads_to_the_requested_page_of_this_site_only,
    a_revoked_token_ends_its_sessions_at_once,
    forms_of_other_sites_are_refused,
    secrets_are_not_stored,
);

fn each_role_may_do_its_work_and_nothing_else(collector: &Collector) {
    let site = collector.serve();
    let [viewer, uploader, admin] = [Role::Viewer, Role::Uploader, Role::Admin]
        .map(|role| site.client(&site.token(role.name(), role)));
    let id = uploader.upload(RESULT).json()["id"].as_str().unwrap().to_owned();
    let paths = ["/api/v1/runs", &format!("/api/v1/runs/{id}"), &format!("/runs/{id}"), "/"];
    for path in paths {
        assert_eq!(viewer.get(path).status, 200, "{path}");
        assert_eq!(admin.get(path).status, 200, "{path}");
        assert_eq!(uploader.get(path).status, 403, "{path}");
        let unauthenticated = site.unauthenticated().get(path);
        let expected = if path.starts_with("/api") { 401 } else { 303 };
        assert_eq!(unauthenticated.status, expected, "{path}");
        assert!(!unauthenticated.body.contains("wifi"), "{path}");
    }
    let new = |seed| result(seed, |_| {});
    assert_eq!(viewer.upload(&new(1)).status, 403);
    assert_eq!(site.unauthenticated().upload(&new(2)).status, 401);
    assert_eq!(site.client("towpath_0000").upload(&new(3)).status, 401);
    assert_eq!(admin.upload(&new(4)).status, 201);
    // A cookie is sent with forms of other sites, so it cannot upload.
    assert_eq!(site.browser(Role::Admin).upload(&new(5)).status, 401);
    assert_eq!(viewer.get("/tokens").status, 403);
}

fn public_pages_can_be_read_without_a_token_and_changed_with_one_only(collector: &Collector) {
    let site = collector.serve_publicly();
    let unauthenticated = site.unauthenticated();
    assert_eq!(unauthenticated.get("/").status, 200);
    assert_eq!(unauthenticated.get("/api/v1/runs").status, 200);
    assert_eq!(unauthenticated.get("/tokens").status, 303);
    assert_eq!(unauthenticated.upload(RESULT).status, 401);
}

fn a_login_link_works_once(collector: &Collector) {
    let site = collector.serve();
    let code = site.login_code(Role::Viewer);
    let unauthenticated = site.unauthenticated();
    // A program that opens the link, such as a mail scanner, does not use it up.
    assert_eq!(unauthenticated.get(&format!("/login?code={code}")).status, 200);
    let reply = unauthenticated.post("/login", &[("code", &code)]);
    assert_eq!((reply.status, reply.location.as_str()), (303, "/"));
    for part in ["HttpOnly", "SameSite=Lax", "Path=/"] {
        assert!(reply.cookie.contains(part), "{}", reply.cookie);
    }
    let again = unauthenticated.post("/login", &[("code", &code)]);
    assert_eq!(again.status, 403);
    assert!(again.body.contains("used already"));
    assert_eq!(unauthenticated.post("/login", &[("token", "wrong")]).status, 403);
}

fn a_login_leads_to_the_requested_page_of_this_site_only(collector: &Collector) {
    let site = collector.serve();
    let (client, secret) = (site.unauthenticated(), site.token("ada", Role::Viewer));
    let asked = client.get("/series?host=lab%203&sort=stall");
    let login = "/login?next=%2Fseries%3Fhost%3Dlab%25203%26sort%3Dstall";
    assert_eq!((asked.status, asked.location.as_str()), (303, login));
    let field = "name=\"next\" value=\"/series?host=lab%203&amp;sort=stall\"";
    assert!(client.get(login).body.contains(field));
    let next = "/series?host=lab%203&sort=stall";
    let refused = client.post("/login", &[("token", "wrong"), ("next", next)]);
    assert!(refused.status == 403 && refused.body.contains(field), "{}", refused.body);
    let reply = client.post("/login", &[("token", &secret), ("next", next)]);
    assert_eq!((reply.status, reply.location.as_str()), (303, next));
    // A login does not repeat a form, and the first page needs no mention.
    let form = [("csrf", "x"), ("name", "x"), ("role", "admin")];
    assert_eq!(client.post("/tokens", &form).location, "/login");
    assert_eq!(client.get("/").location, "/login");
    for (sent, encoded) in [
        ("//example.org", "//example.org"),
        ("///example.org", "///example.org"),
        ("/\\example.org", "/%5Cexample.org"),
        ("/\t/example.org", "/%09/example.org"),
        ("/\n/example.org", "/%0A/example.org"),
        ("https://example.org/", "https://example.org/"),
        ("javascript:alert(1)", "javascript:alert(1)"),
        ("example.org", "example.org"),
        ("/x\r\nset-cookie: a=b", "/x%0D%0Aset-cookie:%20a=b"),
    ] {
        let page = client.get(&format!("/login?next={encoded}"));
        assert!(page.status == 200 && !page.body.contains("name=\"next\""), "{sent:?}");
        let reply = client.post("/login", &[("token", &secret), ("next", sent)]);
        assert_eq!((reply.status, reply.location.as_str()), (303, "/"), "{sent:?}");
    }
}

fn a_revoked_token_ends_its_sessions_at_once(collector: &Collector) {
    let site = collector.serve();
    let secret = site.token("ada", Role::Viewer);
    let reply = site.unauthenticated().post("/login", &[("token", &secret)]);
    let cookie = reply.cookie.split(';').next().unwrap().to_owned();
    let mut browser = site.unauthenticated();
    browser.headers.push(("cookie", cookie));
    assert_eq!(browser.get("/").status, 200);

    let admin = site.browser(Role::Admin);
    let tokens = admin.get("/tokens").body;
    let csrf = between(&tokens, "name=\"csrf\" value=\"", "\"");
    let id = between(&tokens[tokens.find(">ada<").unwrap()..], "name=\"token\" value=\"", "\"");
    let form = [("csrf", "wrong"), ("token", id.as_str())];
    assert_eq!(admin.post("/tokens/revoke", &form).status, 403);
    assert_eq!(browser.get("/").status, 200);
    let form = [("csrf", csrf.as_str()), ("token", id.as_str())];
    assert_eq!(admin.post("/tokens/revoke", &form).status, 303);
    assert_eq!(browser.get("/").status, 303, "the session is over");
    assert_eq!(site.client(&secret).get("/api/v1/runs").status, 401);
}

fn forms_of_other_sites_are_refused(collector: &Collector) {
    let site = collector.serve();
    let code = site.login_code(Role::Viewer);
    let mut foreign = site.unauthenticated();
    foreign.headers.push(("sec-fetch-site", "cross-site".to_owned()));
    assert_eq!(foreign.post("/login", &[("code", &code)]).status, 403);
    let admin = site.browser(Role::Admin);
    let form = [("csrf", ""), ("name", "x"), ("role", "admin")];
    assert_eq!(admin.post("/tokens", &form).status, 403);
    assert_eq!(admin.post("/logout", &[("csrf", "x")]).status, 403);
    let page = admin.get("/");
    assert_eq!(page.policy, "frame-ancestors 'none'");
    assert!(page.body.contains("default-src 'none'"));
}

fn secrets_are_not_stored(collector: &Collector) {
    let (secret, code) = {
        let site = collector.serve();
        let browser = site.browser(Role::Admin);
        (site.token("lab3", Role::Uploader), browser.headers[0].1.clone())
    };
    let cookie = code.split_once('=').unwrap().1.to_owned();
    for name in ["catalogue.sqlite", "catalogue.sqlite-wal"] {
        let Ok(bytes) = std::fs::read(collector.path().join(name)) else { continue };
        for secret in [secret.trim_start_matches("towpath_"), &cookie] {
            let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{name}");
        }
    }
    let mode = std::os::unix::fs::MetadataExt::mode(
        &std::fs::metadata(collector.path().join("records")).unwrap(),
    );
    assert_eq!(mode & 0o077, 0, "only the collector's user reads the records");
}

/// Returns the text between two markers.
pub(crate) fn between(text: &str, before: &str, after: &str) -> String {
    let start = text.find(before).unwrap_or_else(|| panic!("no {before}: {text}")) + before.len();
    let rest = &text[start..];
    rest[..rest.find(after).unwrap()].to_owned()
}
