//! The page of a cluster: each user has an address of the own, and sees there what scps would show;
//! without a valid token, under another name or from another host there is nothing to be had. Who
//! asks badly is refused, who asks slowly is given up, and jobs go on meanwhile. The same figures
//! are there for Prometheus.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::http::{Address, ask, connect, say};
use score_tests::service::{ALICE, BOB, Cluster, OPERATOR};
use score_tests::{Running, Scene, openmetrics};
use serde_json::Value;

fn end(job: Running) {
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
}

fn job_of(data: &Value, uid: u32) -> Value {
    let all = data["jobs"].as_array().unwrap();
    all.iter().find(|job| job["uid"] == uid).unwrap_or_else(|| panic!("{data}")).clone()
}

#[test]
fn a_token_shows_what_its_user_may_see_and_without_one_there_is_nothing() {
    let scene = Scene::new();
    let Some(cluster) = Cluster::start(&scene, &["a", "b"]) else { return };
    let alice = Address::of(&cluster, ALICE, "b");
    // From a host that is not the server's, too; the token is the user's wherever that is.
    let there = cluster.command(ALICE, "scps", "a").args(&["-page"]).run().text();
    assert!(there.starts_with(&alice.url()) && there.contains("on host b"), "{there}");
    assert_eq!(alice.data()["jobs"], serde_json::json!([]));
    let jobs =
        [cluster.hold(ALICE, "a", "nodes=2x1,priority=4"), cluster.hold(BOB, "b", "nodes=1")];
    let both = |data: &Value| data["jobs"].as_array().unwrap().len() == 2;
    let seen = until(&alice, "two jobs", both);
    let (own, other) = (job_of(&seen, ALICE), job_of(&seen, BOB));
    assert_eq!((&own["priority"], &own["nodes"]), (&4.into(), &2.into()));
    assert_eq!(other["hosts"].as_array().unwrap().len(), 1);
    assert!(other["priority"].is_null() && other["nodes"].is_null(), "{other}");
    let all = Address::of(&cluster, OPERATOR, "a").data();
    assert_eq!(
        (&job_of(&all, ALICE)["nodes"], &job_of(&all, BOB)["nodes"]),
        (&2.into(), &1.into())
    );
    let hosts = seen["hosts"].as_array().unwrap();
    assert_eq!((&hosts[0], hosts.len()), (&serde_json::json!(["b", 2, true]), 2));

    let bob = Address::of(&cluster, BOB, "b");
    assert_ne!(alice.token, bob.token);
    for (part, kind) in
        [("", "text/html"), ("page.js", "text/javascript"), ("page.css", "text/css")]
    {
        let answer = alice.get(part);
        assert_eq!(answer.status, 200, "{part}: {answer:?}");
        assert!(answer.head.contains(&format!("Content-Type: {kind}")), "{answer:?}");
        let policy = "Content-Security-Policy: default-src 'none'; script-src 'self'";
        assert!(answer.head.contains(policy) && !answer.head.contains("Access-Control"));
    }
    let place = alice.place;
    let bearer = format!("Authorization: Bearer {}", alice.token);
    assert_eq!(ask(place, "/metrics", &[&bearer]).status, 200);
    assert_eq!(ask(place, "/data", &[&bearer]).status, 200);
    assert_eq!(alice.get("passwd").status, 404);
    let almost = format!("{}0", &alice.token[..31]);
    let wrong = if almost == alice.token { alice.token.replace('0', "1") } else { almost };
    for path in ["/", "/page.js", "/data", "/metrics", "//data", "/../data"] {
        for token in ["", "x", "00000000000000000000000000000000", &wrong] {
            let header = format!("Authorization: Bearer {token}");
            assert_eq!(ask(place, path, &[&header]).status, 403, "{path} {token}");
        }
        assert_eq!(ask(place, path, &[]).status, 403, "{path}");
        assert_eq!(ask(place, &format!("/{wrong}{path}"), &[]).status, 403, "{path}");
    }
    jobs.into_iter().for_each(end);
}

#[test]
fn the_page_is_for_this_host_only_and_goes_by_no_other_name() {
    let scene = Scene::new();
    let Some(cluster) = Cluster::start(&scene, &["a"]) else { return };
    let address = Address::of(&cluster, ALICE, "a");
    let place = address.place;
    assert!(place.ip().is_loopback());
    let elsewhere = SocketAddr::new([127, 0, 0, 2].into(), place.port());
    assert!(TcpStream::connect(elsewhere).is_err(), "it listens at other addresses, too");
    let path = format!("/{}/data", address.token);
    for name in ["evil.example", &format!("evil.example:{}", place.port()), "10.1.2.3", "a"] {
        let answer = ask(place, &path, &[&format!("Host: {name}")]);
        assert_eq!(answer.status, 421, "{name}: {answer:?}");
        assert!(!answer.body.contains("jobs"), "{answer:?}");
    }
    // As by a tunnel.
    assert_eq!(ask(place, &path, &["Host: localhost:9000"]).status, 200);
    for method in ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT"] {
        let text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(say(place, text.as_bytes()).status, 405, "{method}");
    }
    // Another daemon is another page; its predecessor's tokens are nothing to it.
    let mut cluster = cluster;
    cluster.strike("a", Signal::SIGKILL);
    cluster.start_host("a");
    let next = Address::of(&cluster, ALICE, "a");
    assert_ne!(next.token, address.token);
    assert_eq!(ask(next.place, &path, &[]).status, 403);
}

#[test]
fn where_the_page_is_off_or_elsewhere_the_operator_has_said_so() {
    let scene = Scene::new();
    let database = Cluster::database(&["a"]);
    let options = ["-page", "off"];
    let Some(cluster) = Cluster::start_as(&scene, &["a"], &database, &options) else { return };
    let outcome = cluster.command(ALICE, "scps", "a").args(&["-page"]).run();
    let _ = outcome.expect(1).says(&["this cluster has no page (scored -page off)"]);
    drop(cluster);
    let scene = Scene::new();
    let options = ["-page", "127.0.0.3:0"];
    let Some(cluster) = Cluster::start_as(&scene, &["a"], &database, &options) else { return };
    cluster.until_logged("a", "page at http://127.0.0.3:");
    assert_eq!(Address::of(&cluster, ALICE, "a").get("").status, 200);
}

/// Descriptors that the only scored of a cluster has.
fn descriptors(scene: &Scene) -> usize {
    let scored = scene.wait_for_process("scored", |one| one.is_scored());
    std::fs::read_dir(format!("/proc/{}/fd", scored.pid)).unwrap().count()
}

#[test]
fn hostile_visitors_hold_little_and_keep_nobody_out() {
    let scene = Scene::new();
    let Some(cluster) = Cluster::start(&scene, &["a"]) else { return };
    let address = Address::of(&cluster, ALICE, "a");
    let place = address.place;
    let before = descriptors(&scene);
    let job = cluster.scrun(ALICE, "a", "nodes=1", "echo up; exec sleep 300");
    let mut job = job.watchdog(Duration::from_secs(280)).start();
    job.wait_for("up", 1);

    // Many that say half a request and no more.
    let mut slow: Vec<TcpStream> = Vec::new();
    for _ in 0..400 {
        let mut stream = connect(place);
        let _ = stream.write_all(b"GET /data HTTP/1.1\r\nHost: loc");
        slow.push(stream);
    }
    assert_eq!(job_of(&address.data(), ALICE)["nodes"], 1);
    let held = descriptors(&scene);
    assert!(held <= before + 128 + 32, "{held} descriptors, {before} before");
    // Each is told nothing, and ends by itself.
    let begin = Instant::now();
    for mut stream in slow {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    }
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());

    // Heads without end, and what is no request at all.
    let endless = format!("GET / HTTP/1.1\r\n{}", "X: y\r\n".repeat(100_000));
    assert_eq!(say(place, endless.as_bytes()).status, 431);
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(100_000));
    assert_eq!(say(place, long.as_bytes()).status, 431);
    let garbage: Vec<u8> = (0..200_000u32).map(|at| ((at * 7919) >> 3) as u8).collect();
    for bytes in [&garbage[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\r\n\r\n\0"] {
        assert_eq!(say(place, bytes).status, 400);
    }
    let body = format!(
        "GET /{}/data HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
        address.token
    );
    assert_eq!(say(place, body.as_bytes()).status, 400);

    // Requests one behind the other are answered in order, as fast as they are read.
    let one = format!("GET /{}/page.css HTTP/1.1\r\nHost: localhost\r\n\r\n", address.token);
    let last = one.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let mut stream = connect(place);
    stream.write_all((one.repeat(40) + &last).as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 41);

    // Whoever does not read is given up, whatever waits for it; others are served meanwhile.
    let mut deaf = connect(place);
    deaf.set_nonblocking(true).unwrap();
    let end_of_patience = Instant::now() + Duration::from_secs(60);
    let mut said = 0;
    loop {
        match deaf.write(one.as_bytes()) {
            Ok(count) => said += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                assert_eq!(address.get("page.css").status, 200);
                sleep(Duration::from_millis(200));
            }
            Err(_) => break,
        }
        assert!(Instant::now() < end_of_patience, "{said} bytes were taken, and no end");
    }
    drop(deaf);
    let end_of_patience = Instant::now() + Duration::from_secs(30);
    while descriptors(&scene) > before + 16 {
        assert!(Instant::now() < end_of_patience, "{} descriptors", descriptors(&scene));
        sleep(Duration::from_millis(50));
    }
    end(job);
}

#[test]
fn prometheus_gets_what_the_token_may_see() {
    let scene = Scene::new();
    let Some(cluster) = Cluster::start(&scene, &["a"]) else { return };
    let job = cluster.hold(ALICE, "a", "nodes=2");
    let address = Address::of(&cluster, ALICE, "a");
    let metrics = |uid: u32| {
        let address = Address::of(&cluster, uid, "a");
        let bearer = format!("Authorization: Bearer {}", address.token);
        let answer = ask(address.place, "/metrics", &[&bearer]);
        let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
        assert!(answer.status == 200 && answer.head.contains(kind), "{answer:?}");
        let read = openmetrics::read(&answer.body);
        read.unwrap_or_else(|fault| panic!("{fault}\n{}", answer.body))
    };
    let number = job_of(&address.data(), ALICE)["job"].to_string();
    let key = |name: &str, labels: &[(&str, &str)]| {
        let label = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        (name.to_owned(), labels.iter().map(label).collect::<Vec<_>>())
    };
    let uid = ALICE.to_string();
    let processes = key("score_job_processes", &[("job", &number), ("uid", &uid)]);
    let running = key("score_jobs", &[("state", "running")]);
    for (who, sees) in [(ALICE, Some(&2.0)), (OPERATOR, Some(&2.0)), (BOB, None)] {
        let read = metrics(who);
        assert_eq!((read.get(&processes), read[&running]), (sees, 1.0), "{who}");
        assert_eq!(read[&key("score_host_slots", &[("host", "a")])], 2.0);
        assert_eq!(read[&key("score_host_processes", &[("host", "a")])], 2.0);
    }
    end(job);
}

/// Asks until what is shown is as wanted.
fn until(address: &Address, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let end_of_patience = Instant::now() + Duration::from_secs(40);
    loop {
        let data = address.data();
        if wanted(&data) {
            return data;
        }
        assert!(Instant::now() < end_of_patience, "not {what}: {data}");
        sleep(Duration::from_millis(100));
    }
}

/// The jobs of the rows that were told.
fn rows(data: &Value) -> Vec<Vec<u64>> {
    let all = data["rows"].as_array().unwrap().iter();
    let jobs = |row: &Value| row[1].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    all.map(jobs).collect()
}

#[test]
fn time_slices_are_shown_as_they_were_given() {
    let scene = Scene::new();
    let database = Cluster::database(&["a"]);
    let options = ["-ts", "100", "-rows", "4"];
    let Some(cluster) = Cluster::start_as(&scene, &["a"], &database, &options) else { return };
    let alice = cluster.hold(ALICE, "a", "nodes=2");
    let address = Address::of(&cluster, OPERATOR, "a");
    let alone = until(&address, "alone", |data| !rows(data).is_empty());
    let first = job_of(&alone, ALICE)["job"].as_u64().unwrap();
    assert_eq!(rows(&alone).last(), Some(&vec![first]));
    let bob = cluster.hold(BOB, "a", "nodes=2");
    let shared = until(&address, "in turns", |data| {
        let share = |uid| job_of(data, uid)["share_permille"].as_u64().unwrap_or(0);
        data["switches"].as_u64() > Some(40) && (350..=650).contains(&share(BOB))
    });
    let second = job_of(&shared, BOB)["job"].as_u64().unwrap();
    let both = rows(&shared);
    assert!(both.contains(&vec![first]) && both.contains(&vec![second]), "{both:?}");
    assert!(!both.iter().any(|row| row.contains(&first) && row.contains(&second)), "{both:?}");
    assert_eq!(shared["slice_ms"], 100);
    alice.signal(Signal::SIGTSTP);
    let suspended = until(&address, "suspended", |data| {
        let all = rows(data);
        job_of(data, ALICE)["state"] == "suspended" && all.last() == Some(&vec![second])
    });
    assert_eq!(job_of(&suspended, BOB)["state"], "running");
    let table = cluster.command(ALICE, "scps", "a").args(&["-own"]).run().text();
    assert!(table.contains("suspended"), "{table}");
    alice.signal(Signal::SIGCONT);
    until(&address, "resumed", |data| job_of(data, ALICE)["state"] == "running");
    end(alice);
    end(bob);
}
