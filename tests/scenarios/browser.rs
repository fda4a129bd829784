//! The page in a real browser. While a job runs, the page shows its processes as bars, the hosts,
//! and the time slices, even for a thousand processes. The browser reports no error.
//! `HARNESS_PICTURE=FILE` keeps a screenshot that is taken after a minute.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::browser::{Browser, console_messages};
use score_tests::http::PageUrl;
use score_tests::service::{ALICE, BOB, Cluster, OPERATOR};
use score_tests::{Outcome, Running, TestEnv, binaries};
use serde_json::{Value, json};

fn sum(column: &Value) -> u64 {
    column.as_array().unwrap().iter().filter_map(Value::as_u64).sum()
}

/// Returns totals of all processes: their number, their busy shares, and their messages.
fn page_totals(data: &Value) -> (usize, u64, u64) {
    let jobs = data["jobs"].as_array().unwrap().iter().map(|job| &job["processes"]);
    let totals_of = |all: &Value| {
        let count = all["node"].as_array().unwrap().len();
        (count, sum(&all["shares"][0]), sum(&all["messages"]))
    };
    jobs.map(totals_of).fold((0, 0, 0), |first, second| {
        (first.0 + second.0, first.1 + second.1, first.2 + second.2)
    })
}

/// Fetches the data once a second, as the page does, for at least `seconds` and until the data
/// shows activity.
fn poll_until_visible(address: &PageUrl, processes: usize, seconds: u64) {
    let started_at = Instant::now();
    loop {
        let data = address.get_data();
        let (count, busy, messages) = page_totals(&data);
        let is_active = count == processes && busy > 0 && messages > 0;
        if is_active && started_at.elapsed() > Duration::from_secs(seconds) {
            return;
        }
        assert!(
            started_at.elapsed() < Duration::from_secs(60 + seconds),
            "no activity is shown: {data}"
        );
        sleep(Duration::from_secs(1));
    }
}

/// Opens the page while a thread keeps fetching the data. This makes the daemon keep the history,
/// however long the browser takes to start.
fn open_page(browser: &Browser<'_>, address: &PageUrl, screenshot: &Path, window: &str) -> Outcome {
    let finished = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                let _ = address.get("data");
                sleep(Duration::from_millis(500));
            }
        });
        let outcome = browser.open(&address.url(), screenshot, &[window]);
        finished.store(true, Ordering::Relaxed);
        outcome
    })
}

fn terminate(job: Running) {
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
}

/// Returns the value of an attribute of the document's body.
fn data_attribute(document: &str, name: &str) -> usize {
    let found = document.split(&format!("data-{name}=\"")).nth(1).and_then(|rest| {
        let (value, _) = rest.split_once('"')?;
        value.parse().ok()
    });
    found.unwrap_or_else(|| panic!("no data-{name} in {document}"))
}

// Promise (several users): In a browser the page shows users the activity of their own processes
// while a job runs, and the browser reports no error.
#[test]
fn a_browser_shows_processes_hosts_and_slices_and_reports_no_error() {
    let env = TestEnv::new();
    let Some(browser) = Browser::find(&env) else { return };
    let names = ["comp0", "comp1", "comp2", "comp3"];
    let record = |(name, number): (&&str, i32)| {
        format!("{name} address=127.0.0.{number} cores=4 group=all\n")
    };
    let database: String = names.iter().zip(1..).map(record).collect();
    let options = ["-ts", "100"];
    let Some(cluster) = Cluster::start_with_options(&env, &names, &database, &options) else {
        return;
    };
    let Some(built) = env.test_program("load_waves") else { return };
    // Every user may run programs in this directory, wherever the build is.
    let program = env.dir().join("load_waves");
    std::fs::copy(built, &program).unwrap();
    let program = program.to_str().unwrap();
    let start = |uid: u32, shape: &str| {
        let options = format!("-scored=all,noidle,nodes={shape}");
        let job = cluster.command(uid, "scrun", "comp0").args(&[&options, program, "600"]);
        let mut job = job.timeout(Duration::from_secs(240)).start();
        job.wait_for("up", 1);
        job
    };
    let jobs = [start(ALICE, "4x4"), start(BOB, "2x4"), start(ALICE, "2x2")];
    let screenshot_copy = std::env::var_os("HARNESS_PICTURE");
    let address = PageUrl::for_cluster(&cluster, OPERATOR, "comp0");
    poll_until_visible(&address, 28, if screenshot_copy.is_some() { 60 } else { 3 });
    let screenshot = env.dir().join("page.png");
    let outcome = open_page(&browser, &address, &screenshot, "--window-size=1200,1060");
    assert_eq!(outcome.code, 0, "{outcome}");
    let document = outcome.text();
    assert_eq!(console_messages(&outcome), Vec::<String>::new());
    assert_eq!(
        (data_attribute(&document, "processes"), data_attribute(&document, "jobs")),
        (28, 3)
    );
    assert!(document.contains("server comp3 · 4 of 4 hosts · 3 running, 0 waiting"), "{document}");
    let bytes = std::fs::metadata(&screenshot).unwrap().len();
    assert!(bytes > 10_000, "the picture has {bytes} bytes");
    screenshot_copy
        .into_iter()
        .for_each(|file| _ = std::fs::copy(&screenshot, PathBuf::from(file)).unwrap());

    // Bob sees his own processes. An invalid token shows nothing.
    let bob_page = PageUrl::for_cluster(&cluster, BOB, "comp0");
    poll_until_visible(&bob_page, 8, 0);
    let outcome = open_page(&browser, &bob_page, &screenshot, "--window-size=500,800");
    assert_eq!(console_messages(&outcome), Vec::<String>::new());
    assert_eq!(data_attribute(&outcome.text(), "processes"), 8);
    let wrong_token_url = format!("http://{}/{}/", bob_page.addr, "0".repeat(32));
    let document = browser.open(&wrong_token_url, &screenshot, &[]).text();
    assert!(document.contains("no valid token") && !document.contains("script"), "{document}");
    jobs.into_iter().for_each(terminate);
}

/// Returns the data that scored would send for a job of this size.
fn large_data(processes: usize, hosts: usize) -> Value {
    let column = |of: &dyn Fn(usize) -> usize| (0..processes).map(of).collect::<Vec<_>>();
    let shares = (0..6).map(|kind| column(&|at| at * (kind + 7) % 1001)).collect::<Vec<_>>();
    let names = (0..hosts).map(|at| json!([format!("comp{at}"), 16, at != 3]));
    let processes_by_host: Vec<_> = (0..hosts).map(|at| [at, processes / hosts]).collect();
    let rows: Vec<_> = (0..50).map(|at| json!([at * 500_000, [7 + at % 2]])).collect();
    let trend = (0..6).map(|kind| (0..60).map(|at| at * kind * 2).collect::<Vec<_>>());
    let job = json!({
        "job": 7, "uid": 1000, "state": "running", "ahead": null, "priority": 8,
        "nodes": processes, "since_ms": 1000, "share_permille": 500, "hosts": processes_by_host,
        "processes": {
            "element": column(&|_| 0),
            "node": column(&|at| at),
            "host": column(&|at| at * hosts / processes),
            "shares": shares,
            "messages": column(&|at| at * 1000),
            "bytes": column(&|at| at * 100_000),
            "memory_kib": column(&|at| at),
        },
        "trend": trend.collect::<Vec<_>>(),
    });
    json!({
        "at_us": 25_500_000, "server": "<b>comp0</b>", "uid": 1000, "operator": false,
        "slice_ms": 500, "switches": 50, "hosts": names.collect::<Vec<_>>(), "jobs": [job],
        "rows": rows, "stacks": [[7, null, 1], [6, "stacks of <i>heat</i>", 2]],
    })
}

/// Serves the page's files with this data until the test ends.
fn serve(data: Value) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let respond = move |mut stream: TcpStream| {
        let mut request = [0; 4096];
        let count = stream.read(&mut request).unwrap_or(0);
        let request = String::from_utf8_lossy(&request[..count]).into_owned();
        let (file, kind) = match request.split(' ').nth(1).unwrap_or_default() {
            "/" => ("index.html", "text/html"),
            "/page.js" => ("page.js", "text/javascript"),
            "/page.css" => ("page.css", "text/css"),
            _ => ("", "application/json"),
        };
        let path = binaries::root().join("scored/src/http/files").join(file);
        let body =
            if file.is_empty() { data.to_string() } else { std::fs::read_to_string(path).unwrap() };
        let length = body.len();
        let headers =
            format!("Content-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close");
        // The browser may have closed the connection.
        let _ = write!(stream, "HTTP/1.1 200 OK\r\n{headers}\r\n\r\n{body}");
    };
    std::thread::spawn(move || listener.incoming().flatten().for_each(respond));
    format!("http://{address}/")
}

// Promise of `a_browser_shows_processes_hosts_and_slices_and_reports_no_error`.
#[test]
fn a_thousand_processes_and_an_empty_cluster_are_shown() {
    let env = TestEnv::new();
    let Some(browser) = Browser::find(&env) else { return };
    let screenshot = env.dir().join("page.png");
    let outcome =
        browser.open(&serve(large_data(1024, 64)), &screenshot, &["--window-size=1200,1000"]);
    assert_eq!(console_messages(&outcome), Vec::<String>::new());
    let document = outcome.text();
    assert_eq!(
        (data_attribute(&document, "processes"), data_attribute(&document, "jobs")),
        (1024, 1)
    );
    assert!(document.contains("63 of 64 hosts"), "{document}");
    // The user's running job has a button for its stacks. The job that has ended shows its stacks.
    assert!(document.contains(">stacks</button>"), "{document}");
    assert!(document.contains(">job 6: stacks of &lt;i&gt;heat&lt;/i&gt;</button>"), "{document}");
    assert!(!document.contains(">job 7: stacks</button>"), "{document}");
    // The page escapes the names of hosts.
    assert!(document.contains("&lt;b&gt;comp0") && !document.contains("<b>"), "{document}");
    let screenshot_copy = std::env::var_os("HARNESS_LARGE_PICTURE");
    screenshot_copy
        .into_iter()
        .for_each(|file| _ = std::fs::copy(&screenshot, PathBuf::from(file)).unwrap());

    let mut empty = large_data(1, 1);
    (empty["jobs"], empty["rows"]) = (json!([]), json!([]));
    empty["stacks"] = json!([]);
    let outcome = browser.open(&serve(empty), &screenshot, &["--window-size=400,700"]);
    assert_eq!(console_messages(&outcome), Vec::<String>::new());
    let document = outcome.text();
    assert_eq!((data_attribute(&document, "processes"), data_attribute(&document, "jobs")), (0, 0));
    assert!(document.contains("No job has had a time slice yet."), "{document}");
}
