use super::*;

fn show(order: Order) -> Show {
    let hosts = (0..4).map(|host| format!("n{host}")).collect();
    Show::new(hosts, Manner { order, ..Manner::default() })
}

fn end(codes: &[u8]) -> JobEnd {
    let usage = (0..).zip(codes).map(|(node, code)| NodeUsage {
        stage: 0,
        element: 0,
        node,
        user_ns: 0,
        system_ns: 0,
        max_rss_kib: 0,
        code: *code,
        ..NodeUsage::default()
    });
    JobEnd { code: 0, usage: usage.collect(), elapsed_ns: 0 }
}

fn prints(show: &mut Show, host: u32, text: &str) -> Option<String> {
    let piece = show.take(host, Stream::Stdout, text.as_bytes().to_vec());
    piece.map(|piece| String::from_utf8(piece).unwrap())
}

fn shown(mut show: Show, texts: [&str; 4]) -> String {
    for (host, text) in (0..).zip(texts) {
        assert_eq!(prints(&mut show, host, text), None);
    }
    let [out, err] = show.finish(Some(&mut end(&[0; 4])), false);
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
        assert_eq!(shown(show(Order::Merge), texts), text);
    }
}

#[test]
fn sorted_output_is_merged_wherever_it_comes_from() {
    let texts = ["b\n", "a\n", "b\n", "c\n"];
    assert_eq!(shown(show(Order::Sort), texts), "n1:\na\nn[0,2]:\nb\nn3:\nc\n");
    assert_eq!(shown(show(Order::Reverse), texts), "n3:\nc\nn[0,2]:\nb\nn1:\na\n");
}

#[test]
fn more_than_is_kept_flows_under_the_hosts_name_and_an_asterisk() {
    let mut show = show(Order::Merge);
    let long = "x".repeat(MOST);
    assert_eq!(prints(&mut show, 1, "1\n"), None);
    assert_eq!(prints(&mut show, 0, &long), None);
    assert_eq!(prints(&mut show, 0, "y\n"), Some(format!("n0*:\n{long}y\n")));
    assert_eq!(prints(&mut show, 0, "z"), Some("z".into()), "its name stands there already");
    assert_eq!(prints(&mut show, 2, &long), None);
    assert_eq!(prints(&mut show, 2, "w\n"), Some(format!("\nn2*:\n{long}w\n")));
    assert_eq!(prints(&mut show, 0, "v\n"), Some("n0*:\nv\n".into()));
    let [out, _] = show.finish(None, false);
    assert_eq!(out, b"n1:\n1\n");
}

#[test]
fn nothing_is_kept_when_nothing_is_merged() {
    let mut show = show(Order::Arrival);
    assert_eq!(prints(&mut show, 3, "a\n"), Some("n3:\na\n".into()));
    assert_eq!(prints(&mut show, 3, "b\n"), Some("b\n".into()));
    assert_eq!(prints(&mut show, 0, "a\n"), Some("n0:\na\n".into()));
    assert_eq!(prints(&mut show, 9, "from nowhere\n"), None);
}

#[test]
fn the_streams_are_merged_each_by_itself() {
    let mut show = show(Order::Merge);
    for host in 0..4 {
        show.take(host, Stream::Stdout, b"same\n".to_vec());
        show.take(host, Stream::Stderr, format!("{}\n", host / 2).into_bytes());
    }
    let [out, err] = show.finish(None, false);
    assert_eq!(out, b"n[0-3]:\nsame\n");
    assert_eq!(err, b"n[0-1]:\n0\nn[2-3]:\n1\n");
}

#[test]
fn the_highest_code_is_scouts_and_hosts_are_named() {
    let mut end = self::end(&[0, 3, 3, 137]);
    let [_, err] = show(Order::Merge).finish(Some(&mut end), false);
    let text = "scout: exit code 3 on n[1-2]\nscout: exit code 137 (signal 9) on n3\n";
    assert_eq!((String::from_utf8(err).unwrap().as_str(), end.code), (text, 137));
    let mut end = self::end(&[0, 0, 0]);
    let [_, err] = show(Order::Merge).finish(Some(&mut end), false);
    assert_eq!(
        (String::from_utf8(err).unwrap().as_str(), end.code),
        ("scout: no exit code from n3\n", 1)
    );
    let mut end = JobEnd { code: 9, ..self::end(&[0; 4]) };
    show(Order::Merge).finish(Some(&mut end), false);
    assert_eq!(end.code, 9);
}

#[test]
fn a_reader_that_has_gone_is_no_news() {
    let mut end = self::end(&[141; 4]);
    let [_, err] = show(Order::Merge).finish(Some(&mut end), true);
    assert_eq!((err, end.code), (Vec::new(), 141));
}

#[test]
fn programs_get_an_object_a_line() {
    let hosts = vec!["a".to_owned(), "b".to_owned()];
    let mut show = Show::new(hosts, Manner { json: true, ..Manner::default() });
    for host in 0..2 {
        show.take(host, Stream::Stdout, b"x\n".to_vec());
    }
    show.take(1, Stream::Stderr, b"\xff\n".to_vec());
    let [out, err] = show.finish(Some(&mut end(&[0, 4])), false);
    let lines: Vec<serde_json::Value> = String::from_utf8(out)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let wanted = [
        json!({ "hosts": ["a", "b"], "stream": "stdout", "whole": true, "text": "x\n" }),
        json!({ "hosts": ["b"], "stream": "stderr", "whole": true, "text": "\u{fffd}\n" }),
        json!({ "hosts": ["a"], "code": 0 }),
        json!({ "hosts": ["b"], "code": 4 }),
    ];
    assert_eq!(lines, wanted);
    assert!(err.is_empty());
}

#[test]
fn many_hosts_keep_little_each() {
    let hosts: Vec<String> = (0..65_536).map(|host| host.to_string()).collect();
    assert_eq!(Show::new(hosts, Manner::default()).limit, LEAST);
    assert_eq!(show(Order::Merge).limit, MOST);
}
