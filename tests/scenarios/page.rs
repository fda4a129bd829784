//! The page of a cluster. Each user has a private address, whose page shows what scps would show.
//! Without a valid token, under another name, or from another host, the page shows nothing. The
//! server refuses malformed requests and drops slow clients, while jobs continue. Prometheus gets
//! the same metrics.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::http::{PageUrl, connect, get_with_headers, send_raw};
use score_tests::service::{ALICE, BOB, Cluster, OPERATOR};
use score_tests::{Running, TestEnv, openmetrics};
use serde_json::Value;

fn terminate(job: Running) {
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
}

fn job_of(data: &Value, uid: u32) -> Value {
    let all = data["jobs"].as_array().unwrap();
    all.iter().find(|job| job["uid"] == uid).unwrap_or_else(|| panic!("{data}")).clone()
}

// Promise (several users): The page shows a user the same as scps, and nothing without a valid
// token; it ends with its scored.
#[test]
fn the_page_shows_the_jobs_that_scps_shows_and_a_request_needs_a_token() {
    let env = TestEnv::new();
    let Some(cluster) = Cluster::start(&env, &["a", "b"]) else { return };
    let alice_page = PageUrl::for_cluster(&cluster, ALICE, "b");
    // The command also works on a host that is not the server, because the user's token is the same
    // on every host.
    let remote_output = cluster.command(ALICE, "scps", "a").args(&["-page"]).run().text();
    assert!(
        remote_output.starts_with(&alice_page.url()) && remote_output.contains("on host b"),
        "{remote_output}"
    );
    assert_eq!(alice_page.get_data()["jobs"], serde_json::json!([]));
    let jobs = [
        cluster.start_long_job(ALICE, "a", "nodes=2x1,priority=4"),
        cluster.start_long_job(BOB, "b", "nodes=1"),
    ];
    let has_two_jobs = |data: &Value| data["jobs"].as_array().unwrap().len() == 2;
    let seen = wait_for_data(&alice_page, "two jobs", has_two_jobs);
    let (own_job, other) = (job_of(&seen, ALICE), job_of(&seen, BOB));
    assert_eq!((&own_job["priority"], &own_job["nodes"]), (&4.into(), &2.into()));
    assert_eq!(other["hosts"].as_array().unwrap().len(), 1);
    assert!(other["priority"].is_null() && other["nodes"].is_null(), "{other}");
    let all = PageUrl::for_cluster(&cluster, OPERATOR, "a").get_data();
    assert_eq!(
        (&job_of(&all, ALICE)["nodes"], &job_of(&all, BOB)["nodes"]),
        (&2.into(), &1.into())
    );
    let hosts = seen["hosts"].as_array().unwrap();
    assert_eq!((&hosts[0], hosts.len()), (&serde_json::json!(["b", 2, true]), 2));

    let bob_page = PageUrl::for_cluster(&cluster, BOB, "b");
    assert_ne!(alice_page.token, bob_page.token);
    for (part, kind) in
        [("", "text/html"), ("page.js", "text/javascript"), ("page.css", "text/css")]
    {
        let response = alice_page.get(part);
        assert_eq!(response.status, 200, "{part}: {response:?}");
        assert!(response.headers.contains(&format!("Content-Type: {kind}")), "{response:?}");
        let policy = "Content-Security-Policy: default-src 'none'; script-src 'self'";
        assert!(response.headers.contains(policy) && !response.headers.contains("Access-Control"));
    }
    let addr = alice_page.addr;
    let bearer = format!("Authorization: Bearer {}", alice_page.token);
    assert_eq!(get_with_headers(addr, "/metrics", &[&bearer]).status, 200);
    assert_eq!(get_with_headers(addr, "/data", &[&bearer]).status, 200);
    assert_eq!(alice_page.get("passwd").status, 404);
    let almost = format!("{}0", &alice_page.token[..31]);
    let wrong_token =
        if almost == alice_page.token { alice_page.token.replace('0', "1") } else { almost };
    for path in ["/", "/page.js", "/data", "/metrics", "//data", "/../data"] {
        for token in ["", "x", "00000000000000000000000000000000", &wrong_token] {
            let header = format!("Authorization: Bearer {token}");
            assert_eq!(get_with_headers(addr, path, &[&header]).status, 403, "{path} {token}");
        }
        assert_eq!(get_with_headers(addr, path, &[]).status, 403, "{path}");
        assert_eq!(
            get_with_headers(addr, &format!("/{wrong_token}{path}"), &[]).status,
            403,
            "{path}"
        );
    }
    jobs.into_iter().for_each(terminate);
}

// Promise (several users): The page is served on loopback only, under its own names only, and only
// by GET, except for stacks.
#[test]
fn the_page_is_served_to_this_host_only_and_by_no_other_name() {
    let env = TestEnv::new();
    let Some(cluster) = Cluster::start(&env, &["a"]) else { return };
    let address = PageUrl::for_cluster(&cluster, ALICE, "a");
    let addr = address.addr;
    assert!(addr.ip().is_loopback());
    let other_addr = SocketAddr::new([127, 0, 0, 2].into(), addr.port());
    assert!(TcpStream::connect(other_addr).is_err(), "the page listens on another address");
    let path = format!("/{}/data", address.token);
    for name in ["evil.example", &format!("evil.example:{}", addr.port()), "10.1.2.3", "a"] {
        let response = get_with_headers(addr, &path, &[&format!("Host: {name}")]);
        assert_eq!(response.status, 421, "{name}: {response:?}");
        assert!(!response.body.contains("jobs"), "{response:?}");
    }
    // A request through a tunnel has such a header.
    assert_eq!(get_with_headers(addr, &path, &["Host: localhost:9000"]).status, 200);
    for method in ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT"] {
        let text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(send_raw(addr, text.as_bytes()).status, 405, "{method}");
    }
    // A new daemon has a new page and rejects the tokens of its predecessor.
    let mut cluster = cluster;
    cluster.signal_daemon("a", Signal::SIGKILL);
    cluster.start_host("a");
    let new_address = PageUrl::for_cluster(&cluster, ALICE, "a");
    assert_ne!(new_address.token, address.token);
    assert_eq!(get_with_headers(new_address.addr, &path, &[]).status, 403);
}

// Promise of `the_page_shows_the_jobs_that_scps_shows_and_a_request_needs_a_token`.
#[test]
fn the_page_can_be_turned_off_or_moved_by_the_operator() {
    let env = TestEnv::new();
    let database = Cluster::database(&["a"]);
    let options = ["-page", "off"];
    let Some(cluster) = Cluster::start_with_options(&env, &["a"], &database, &options) else {
        return;
    };
    let outcome = cluster.command(ALICE, "scps", "a").args(&["-page"]).run();
    let _ = outcome.expect_code(1).assert_stderr(&["this cluster has no page (scored -page off)"]);
    drop(cluster);
    let env = TestEnv::new();
    let options = ["-page", "127.0.0.3:0"];
    let Some(cluster) = Cluster::start_with_options(&env, &["a"], &database, &options) else {
        return;
    };
    cluster.wait_for_log("a", "page at http://127.0.0.3:");
    assert_eq!(PageUrl::for_cluster(&cluster, ALICE, "a").get("").status, 200);
}

/// Returns the number of descriptors that the only scored of a cluster has open.
fn count_descriptors(env: &TestEnv) -> usize {
    let scored = env.wait_for_process("scored", |process| process.is_scored());
    std::fs::read_dir(format!("/proc/{}/fd", scored.pid)).unwrap().count()
}

// Promise (several users): Incomplete requests, endless heads and clients that do not read use at
// most 128 connections, and delay no job and no other client.
#[test]
fn hostile_connections_hold_few_resources_and_block_no_other_client() {
    let env = TestEnv::new();
    let Some(cluster) = Cluster::start(&env, &["a"]) else { return };
    let address = PageUrl::for_cluster(&cluster, ALICE, "a");
    let addr = address.addr;
    let before = count_descriptors(&env);
    let job = cluster.scrun(ALICE, "a", "nodes=1", "echo up; exec sleep 300");
    let mut job = job.timeout(Duration::from_secs(280)).start();
    job.wait_for("up", 1);

    // Many connections send half a request.
    let mut slow: Vec<TcpStream> = Vec::new();
    for _ in 0..400 {
        let mut stream = connect(addr);
        let _ = stream.write_all(b"GET /data HTTP/1.1\r\nHost: loc");
        slow.push(stream);
    }
    assert_eq!(job_of(&address.get_data(), ALICE)["nodes"], 1);
    let open_count = count_descriptors(&env);
    assert!(open_count <= before + 128 + 32, "{open_count} descriptors, {before} before");
    // The daemon closes each connection without an answer.
    let started_at = Instant::now();
    for mut stream in slow {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    }
    assert!(started_at.elapsed() < Duration::from_secs(30), "{:?}", started_at.elapsed());

    // The requests are headers without end, and bytes that are not a request.
    let endless_headers = format!("GET / HTTP/1.1\r\n{}", "X: y\r\n".repeat(100_000));
    assert_eq!(send_raw(addr, endless_headers.as_bytes()).status, 431);
    let long_path = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(100_000));
    assert_eq!(send_raw(addr, long_path.as_bytes()).status, 431);
    let garbage: Vec<u8> = (0..200_000u32).map(|index| ((index * 7919) >> 3) as u8).collect();
    for bytes in [&garbage[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\r\n\r\n\0"] {
        assert_eq!(send_raw(addr, bytes).status, 400);
    }
    let body = format!(
        "GET /{}/data HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
        address.token
    );
    assert_eq!(send_raw(addr, body.as_bytes()).status, 400);

    // Pipelined requests are answered in order, as fast as the client reads.
    let request = format!("GET /{}/page.css HTTP/1.1\r\nHost: localhost\r\n\r\n", address.token);
    let last_request = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let mut stream = connect(addr);
    stream.write_all((request.repeat(40) + &last_request).as_bytes()).unwrap();
    let mut responses = String::new();
    stream.read_to_string(&mut responses).unwrap();
    assert_eq!(responses.matches("HTTP/1.1 200 OK").count(), 41);

    // The server drops a client that does not read, however much output is queued for it. Meanwhile
    // it serves others.
    let mut non_reader = connect(addr);
    non_reader.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut sent_len = 0;
    loop {
        match non_reader.write(request.as_bytes()) {
            Ok(count) => sent_len += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                assert_eq!(address.get("page.css").status, 200);
                sleep(Duration::from_millis(200));
            }
            Err(_) => break,
        }
        assert!(Instant::now() < deadline, "the connection is open after {sent_len} bytes");
    }
    drop(non_reader);
    let deadline = Instant::now() + Duration::from_secs(30);
    while count_descriptors(&env) > before + 16 {
        assert!(Instant::now() < deadline, "{} descriptors", count_descriptors(&env));
        sleep(Duration::from_millis(50));
    }
    terminate(job);
}

// Promise (several users): /metrics is valid OpenMetrics for a strict parser.
#[test]
fn prometheus_gets_the_metrics_that_the_token_permits() {
    let env = TestEnv::new();
    let Some(cluster) = Cluster::start(&env, &["a"]) else { return };
    let job = cluster.start_long_job(ALICE, "a", "nodes=2");
    let address = PageUrl::for_cluster(&cluster, ALICE, "a");
    let metrics = |uid: u32| {
        let address = PageUrl::for_cluster(&cluster, uid, "a");
        let bearer = format!("Authorization: Bearer {}", address.token);
        let response = get_with_headers(address.addr, "/metrics", &[&bearer]);
        let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
        assert!(response.status == 200 && response.headers.contains(kind), "{response:?}");
        let samples = openmetrics::parse(&response.body);
        samples.unwrap_or_else(|error| panic!("{error}\n{}", response.body))
    };
    let number = job_of(&address.get_data(), ALICE)["job"].to_string();
    let key = |name: &str, labels: &[(&str, &str)]| {
        let label = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        (name.to_owned(), labels.iter().map(label).collect::<Vec<_>>())
    };
    let uid = ALICE.to_string();
    let processes = key("score_job_processes", &[("job", &number), ("uid", &uid)]);
    let running = key("score_jobs", &[("state", "running")]);
    for (viewer, expected) in [(ALICE, Some(&2.0)), (OPERATOR, Some(&2.0)), (BOB, None)] {
        let samples = metrics(viewer);
        assert_eq!((samples.get(&processes), samples[&running]), (expected, 1.0), "{viewer}");
        assert_eq!(samples[&key("score_host_slots", &[("host", "a")])], 2.0);
        assert_eq!(samples[&key("score_host_processes", &[("host", "a")])], 2.0);
    }
    terminate(job);
}

/// Fetches the data until it satisfies the condition.
fn wait_for_data(
    address: &PageUrl,
    description: &str,
    predicate: impl Fn(&Value) -> bool,
) -> Value {
    let deadline = Instant::now() + Duration::from_secs(40);
    loop {
        let data = address.get_data();
        if predicate(&data) {
            return data;
        }
        assert!(Instant::now() < deadline, "not {description}: {data}");
        sleep(Duration::from_millis(100));
    }
}

/// Returns the jobs of each reported row.
fn rows_of(data: &Value) -> Vec<Vec<u64>> {
    let all = data["rows"].as_array().unwrap().iter();
    let jobs = |row: &Value| row[1].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    all.map(jobs).collect()
}

// Promise (several users): The page shows the actual time slices, and scps the share of each job in
// the last minute; suspended jobs are marked.
#[test]
fn time_slices_are_shown_as_they_were_given() {
    let env = TestEnv::new();
    let database = Cluster::database(&["a"]);
    let options = ["-ts", "100", "-rows", "4"];
    let Some(cluster) = Cluster::start_with_options(&env, &["a"], &database, &options) else {
        return;
    };
    let alice_job = cluster.start_long_job(ALICE, "a", "nodes=2");
    let address = PageUrl::for_cluster(&cluster, OPERATOR, "a");
    let alice_alone = wait_for_data(&address, "alone", |data| !rows_of(data).is_empty());
    let first = job_of(&alice_alone, ALICE)["job"].as_u64().unwrap();
    assert_eq!(rows_of(&alice_alone).last(), Some(&vec![first]));
    let bob_job = cluster.start_long_job(BOB, "a", "nodes=2");
    let shared = wait_for_data(&address, "in turns", |data| {
        let share = |uid| job_of(data, uid)["share_permille"].as_u64().unwrap_or(0);
        data["switches"].as_u64() > Some(40) && (350..=650).contains(&share(BOB))
    });
    let second = job_of(&shared, BOB)["job"].as_u64().unwrap();
    let all_rows = rows_of(&shared);
    assert!(all_rows.contains(&vec![first]) && all_rows.contains(&vec![second]), "{all_rows:?}");
    assert!(
        !all_rows.iter().any(|row| row.contains(&first) && row.contains(&second)),
        "{all_rows:?}"
    );
    assert_eq!(shared["slice_ms"], 100);
    alice_job.signal(Signal::SIGTSTP);
    let suspended = wait_for_data(&address, "suspended", |data| {
        let current_rows = rows_of(data);
        job_of(data, ALICE)["state"] == "suspended" && current_rows.last() == Some(&vec![second])
    });
    assert_eq!(job_of(&suspended, BOB)["state"], "running");
    let table = cluster.command(ALICE, "scps", "a").args(&["-own"]).run().text();
    assert!(table.contains("suspended"), "{table}");
    alice_job.signal(Signal::SIGCONT);
    wait_for_data(&address, "resumed", |data| job_of(data, ALICE)["state"] == "running");
    terminate(alice_job);
    terminate(bob_job);
}
