use super::*;
use score_proto::ids::{ElementIndex, JobHostId};

fn new_merger(order: Order) -> OutputMerger {
    let hosts = (0..4).map(|host| format!("n{host}")).collect();
    OutputMerger::new(hosts, OutputFormat { order, ..OutputFormat::default() })
}

fn job_end(codes: &[u8]) -> JobEnd {
    let usage = (0..).zip(codes).map(|(node, code)| NodeUsage {
        stage: 0,
        element: ElementIndex(0),
        node,
        user_ns: 0,
        system_ns: 0,
        max_rss_kib: 0,
        code: *code,
        ..NodeUsage::default()
    });
    JobEnd { code: 0, usage: usage.collect(), elapsed_ns: 0 }
}

fn push_text(merger: &mut OutputMerger, host: u32, text: &str) -> Option<String> {
    let output = merger.push_output(JobHostId(host), Stream::Stdout, text.as_bytes().to_vec());
    output.map(|output| String::from_utf8(output).unwrap())
}

fn merged_text(mut merger: OutputMerger, texts: [&str; 4]) -> String {
    for (host, text) in (0..).zip(texts) {
        assert_eq!(push_text(&mut merger, host, text), None);
    }
    let [out, err] = merger.finish(Some(&mut job_end(&[0; 4])), false);
    assert!(err.is_empty());
    String::from_utf8(out).unwrap()
}

#[test]
fn equal_output_of_neighbours_is_shown_once() {
    for (texts, text) in [
        (["a\n"; 4], "n[0-3]:\na\n"),
        (["a\n", "a\n", "b\n", "a\n"], "n[0-1]:\na\nn2:\nb\nn3:\na\n"),
        (["a\n", "", "a\n", "a\n"], "n0:\na\nn[2-3]:\na\n"),
        (["", "", "", ""], ""),
        (["a", "b", "b", "c"], "n0:\na\nn[1-2]:\nb\nn3:\nc"),
    ] {
        assert_eq!(merged_text(new_merger(Order::Merge), texts), text);
    }
}

// Promise of `equal_output_of_neighbours_is_shown_once`.
#[test]
fn sorted_output_is_merged_over_all_hosts() {
    let texts = ["b\n", "a\n", "b\n", "c\n"];
    assert_eq!(merged_text(new_merger(Order::Sort), texts), "n1:\na\nn[0,2]:\nb\nn3:\nc\n");
    assert_eq!(merged_text(new_merger(Order::Reverse), texts), "n3:\nc\nn[0,2]:\nb\nn1:\na\n");
}

#[test]
fn output_beyond_the_buffer_is_forwarded_under_the_name_of_the_host() {
    let mut merger = new_merger(Order::Merge);
    let long = "x".repeat(MAX_HOST_BUFFER);
    assert_eq!(push_text(&mut merger, 1, "1\n"), None);
    assert_eq!(push_text(&mut merger, 0, &long), None);
    assert_eq!(push_text(&mut merger, 0, "y\n"), Some(format!("n0*:\n{long}y\n")));
    assert_eq!(push_text(&mut merger, 0, "z"), Some("z".into()), "the heading is already there");
    assert_eq!(push_text(&mut merger, 2, &long), None);
    assert_eq!(push_text(&mut merger, 2, "w\n"), Some(format!("\nn2*:\n{long}w\n")));
    assert_eq!(push_text(&mut merger, 0, "v\n"), Some("n0*:\nv\n".into()));
    let [out, _] = merger.finish(None, false);
    assert_eq!(out, b"n1:\n1\n");
}

#[test]
fn output_that_is_not_merged_is_forwarded() {
    let mut merger = new_merger(Order::Arrival);
    assert_eq!(push_text(&mut merger, 3, "a\n"), Some("n3:\na\n".into()));
    assert_eq!(push_text(&mut merger, 3, "b\n"), Some("b\n".into()));
    assert_eq!(push_text(&mut merger, 0, "a\n"), Some("n0:\na\n".into()));
    assert_eq!(push_text(&mut merger, 9, "from nowhere\n"), None);
}

#[test]
fn each_stream_is_merged_separately() {
    let mut merger = new_merger(Order::Merge);
    for host in 0..4 {
        merger.push_output(JobHostId(host), Stream::Stdout, b"same\n".to_vec());
        merger.push_output(JobHostId(host), Stream::Stderr, format!("{}\n", host / 2).into_bytes());
    }
    let [out, err] = merger.finish(None, false);
    assert_eq!(out, b"n[0-3]:\nsame\n");
    assert_eq!(err, b"n[0-1]:\n0\nn[2-3]:\n1\n");
}

#[test]
fn scout_returns_the_highest_exit_code_and_names_the_hosts() {
    let mut end = self::job_end(&[0, 3, 3, 137]);
    let [_, err] = new_merger(Order::Merge).finish(Some(&mut end), false);
    let text = "scout: exit code 3 on n[1-2]\nscout: exit code 137 (signal 9) on n3\n";
    assert_eq!((String::from_utf8(err).unwrap().as_str(), end.code), (text, 137));
    let mut end = self::job_end(&[0, 0, 0]);
    let [_, err] = new_merger(Order::Merge).finish(Some(&mut end), false);
    assert_eq!(
        (String::from_utf8(err).unwrap().as_str(), end.code),
        ("scout: no exit code from n3\n", 1)
    );
    let mut end = JobEnd { code: 9, ..self::job_end(&[0; 4]) };
    new_merger(Order::Merge).finish(Some(&mut end), false);
    assert_eq!(end.code, 9);
}

#[test]
fn a_death_of_sigpipe_is_not_reported_when_the_reader_has_closed() {
    let mut end = self::job_end(&[141; 4]);
    let [_, err] = new_merger(Order::Merge).finish(Some(&mut end), true);
    assert_eq!((err, end.code), (Vec::new(), 141));
}

#[test]
fn json_output_has_one_object_per_line() {
    let hosts = vec!["a".to_owned(), "b".to_owned()];
    let mut merger =
        OutputMerger::new(hosts, OutputFormat { json: true, ..OutputFormat::default() });
    for host in 0..2 {
        merger.push_output(JobHostId(host), Stream::Stdout, b"x\n".to_vec());
    }
    merger.push_output(JobHostId(1), Stream::Stderr, b"\xff\n".to_vec());
    let [out, err] = merger.finish(Some(&mut job_end(&[0, 4])), false);
    let lines: Vec<serde_json::Value> = String::from_utf8(out)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let expected = [
        json!({ "hosts": ["a", "b"], "stream": "stdout", "whole": true, "text": "x\n" }),
        json!({ "hosts": ["b"], "stream": "stderr", "whole": true, "text": "\u{fffd}\n" }),
        json!({ "hosts": ["a"], "code": 0 }),
        json!({ "hosts": ["b"], "code": 4 }),
    ];
    assert_eq!(lines, expected);
    assert!(err.is_empty());
}

#[test]
fn many_hosts_get_small_buffers() {
    let hosts: Vec<String> = (0..65_536).map(|host| host.to_string()).collect();
    assert_eq!(OutputMerger::new(hosts, OutputFormat::default()).buffer_limit, MIN_HOST_BUFFER);
    assert_eq!(new_merger(Order::Merge).buffer_limit, MAX_HOST_BUFFER);
}
