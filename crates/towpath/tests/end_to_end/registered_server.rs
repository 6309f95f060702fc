//! A test server that is registered with a collector, seen by its operator and by other clients.

use std::net::TcpListener;

use crate::program::{Running, TestDir, wait_for};

/// Creates a token for the collector in the folder `data`, in the file `NAME-token`.
fn create_token(folder: &TestDir, name: &str, role: &str) -> String {
    let file = format!("{name}-token");
    let token = ["collect", "token", "create", "--dir", "data", "--name", name, "--role", role];
    let created = folder.run(&[&token[..], &["--out", &file]].concat());
    assert_eq!(created.code, Some(0), "{created}");
    file
}

fn start_server(folder: &TestDir, arguments: &[&str]) -> (Running, String) {
    let serve = ["server", "-p", "0", "-B", "127.0.0.1"];
    let server = folder.start(&mut folder.towpath(&[&serve[..], arguments].concat()));
    let port = wait_for("the server", || {
        let stderr = server.stderr();
        let (_, rest) = stderr.split_once("listening on 127.0.0.1:")?;
        Some(rest.split_once(' ')?.0.to_owned())
    });
    (server, port)
}

#[test]
fn a_registered_server_is_listed_and_admits_devices_only() {
    let folder = TestDir::new();
    let collect = ["collect", "serve", "--dir", "data", "--listen", "127.0.0.1:0"];
    let collector = folder.start(&mut folder.towpath(&collect));
    let url = wait_for("the collector", || {
        let stderr = collector.stderr();
        let (_, rest) = stderr.split_once("listening on ")?;
        Some(rest.split_once(',')?.0.to_owned())
    });
    let (token, other) =
        (create_token(&folder, "eu-1", "server"), create_token(&folder, "lab", "uploader"));
    let register = ["--register", &url, "--place", "Brussels", "--token-file"];
    let refused = ["server", "-p", "0", "-B", "127.0.0.1"];
    let refused = folder.run(&[&refused[..], &register, &[&other]].concat());
    assert_eq!(refused.code, Some(2), "{refused}");
    assert!(refused.err.contains("is not that of a test server"), "{refused}");
    let (server, port) = start_server(&folder, &[&register[..], &[&token]].concat());
    wait_for("the registration", || {
        server.stderr().contains(&format!("registered with {url} as `eu-1`")).then_some(())
    });
    let list = folder.run(&["collect", "server", "list", "--dir", "data"]);
    assert!(list.out.contains("eu-1 (Brussels): up, last seen"), "{list}");
    assert!(list.out.contains(&format!("hosts 127.0.0.1; ports {port}; tcp")), "{list}");
    let list = folder.run(&["collect", "server", "list", "--dir", "data", "--json"]);
    let json = list.json().remove(0);
    assert_eq!((&json["state"], &json["heartbeat"]["tests"]), (&"up".into(), &0.into()), "{list}");
    let outsider = folder.run(&["measure", "127.0.0.1", "-p", &port, "-t", "1", "-T", "tcp"]);
    assert_eq!(outsider.code, Some(2), "{outsider}");
    assert!(outsider.err.contains("admits devices of a collector only"), "{outsider}");
    assert!(outsider.err.contains("towpath agent join"), "{outsider}");
}

#[test]
fn a_server_keeps_serving_while_its_collector_is_unreachable() {
    let folder = TestDir::new();
    // A port that was just closed refuses connections.
    let port = TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.2:{port}");
    folder.write_secret("token", "towpath_secret");
    let register = ["--register", &url, "--token-file", "token", "--open"];
    let (server, port) = start_server(&folder, &register);
    wait_for("the warning", || server.stderr().contains("not registered").then_some(()));
    let measure = ["measure", "127.0.0.1", "-p", &port, "-n", "100K", "-T", "tcp"];
    let measured = folder.run(&measure);
    assert_eq!(measured.code, Some(0), "{measured}");
}
